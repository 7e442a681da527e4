//! Which messages this process holds.
//!
//! When a consumer is opened again, the server delivers anew what was not acknowledged,
//! also what we are still working on. The tracker knows those, so that they are not
//! handed out a second time; their acknowledgement then goes to the newest delivery.
//!
//! What must stay true: a message is identified by its sequence *and* its time,
//! because a stream that was set back gives old numbers to new messages.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use airlock_model::Timestamp;
use airlock_settings::lock;
use async_nats::Subject;

#[derive(Default)]
pub(crate) struct Tracker(Mutex<State>);

#[derive(Default)]
struct State {
    /// Of the stream that the sequences belong to.
    generation: u64,
    highest: u64,
    held: BTreeMap<u64, TrackedMessage>,
    /// Done, but something before it is not; only where one acknowledgement counts for
    /// all before.
    done: BTreeMap<u64, Subject>,
}

struct TrackedMessage {
    published_at: Timestamp,
    /// Which opening of the consumer delivered it last.
    opening: u32,
    reply: Subject,
    /// Given back with a delay; the next delivery is for the handler.
    given_back: bool,
    /// Deliveries of earlier openings; the server counts from 1 in each.
    before: u64,
    total: u64,
}

/// Which message of a stream: a stream that was set back gives old numbers to new messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MessageAt {
    pub seq: u64,
    pub published_at: Timestamp,
}

/// What to do with a delivery.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Tracked {
    /// Hand it out; it was delivered this often.
    HandOut { deliveries: u64 },
    /// It is being worked on already.
    Held,
}

impl State {
    fn release(&mut self, message: MessageAt) -> Option<Subject> {
        if self.held.get(&message.seq)?.published_at != message.published_at {
            return None;
        }
        self.held.remove(&message.seq).map(|held| held.reply)
    }
}

impl Tracker {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }

    /// Forgets everything when the stream is another one.
    pub fn reset_for_new_stream(&self, generation: u64) {
        let mut state = self.state();
        if state.generation != generation {
            *state = State {
                generation,
                ..State::default()
            };
        }
    }

    /// Where to go on reading in the same stream if the server knows no more; `None` when
    /// nothing was read from it.
    pub fn resume_seq(&self) -> Option<u64> {
        let state = self.state();
        let lowest = state.held.first_key_value().map(|(seq, _)| *seq);
        lowest.or_else(|| (state.highest > 0).then(|| state.highest + 1))
    }

    /// Records a delivery: the `delivered`th by this opening of the consumer.
    pub fn track(
        &self,
        message: MessageAt,
        reply: &Subject,
        opening: u32,
        delivered: u64,
    ) -> Tracked {
        let mut state = self.state();
        state.highest = state.highest.max(message.seq);
        let held_before = state
            .held
            .get_mut(&message.seq)
            .filter(|held| held.published_at == message.published_at);
        let Some(held) = held_before else {
            let held = TrackedMessage {
                published_at: message.published_at,
                opening,
                reply: reply.clone(),
                given_back: false,
                before: 0,
                total: delivered,
            };
            state.held.insert(message.seq, held);
            return Tracked::HandOut {
                deliveries: delivered,
            };
        };
        held.reply = reply.clone();
        let reopened = held.opening != opening;
        // A server that was killed may not remember that it delivered it.
        let forgotten = !reopened && held.before + delivered <= held.total;
        if reopened {
            held.opening = opening;
            held.before = held.total;
        }
        held.total = held.total.max(held.before + delivered);
        if (reopened || forgotten) && !held.given_back {
            return Tracked::Held;
        }
        // Given back, or its AckWait is over and nobody said they still work on it.
        held.given_back = false;
        Tracked::HandOut {
            deliveries: held.total,
        }
    }

    /// Stops holding the message. Returns the reply subject of its newest delivery, if it
    /// was held.
    pub fn release(&self, message: MessageAt) -> Option<Subject> {
        self.state().release(message)
    }

    /// The message is done, and so is perhaps everything up to one that is: that one's
    /// reply subject, when nothing before it is still held.
    pub fn release_up_to(&self, done: &[(MessageAt, Subject)]) -> Option<Subject> {
        let mut state = self.state();
        for (message, reply) in done {
            let newest = state.release(*message);
            let reply = newest.unwrap_or_else(|| reply.clone());
            state.done.insert(message.seq, reply);
        }
        let lowest = state.held.first_key_value().map(|(seq, _)| *seq);
        let open = match lowest {
            Some(lowest) => state.done.split_off(&lowest),
            None => BTreeMap::new(),
        };
        let done = std::mem::replace(&mut state.done, open);
        done.into_iter().next_back().map(|(_, reply)| reply)
    }

    /// Returns the reply subject of the message's newest delivery, if it is held. The
    /// message will come again.
    pub fn mark_given_back(&self, message: MessageAt) -> Option<Subject> {
        let mut state = self.state();
        let held = state.held.get_mut(&message.seq)?;
        if held.published_at != message.published_at {
            return None;
        }
        held.given_back = true;
        Some(held.reply.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Timestamp = Timestamp(1);

    fn at(seq: u64, published_at: Timestamp) -> MessageAt {
        MessageAt { seq, published_at }
    }

    fn handed(deliveries: u64) -> Tracked {
        Tracked::HandOut { deliveries }
    }

    #[test]
    fn what_is_held_is_not_handed_out_again_by_a_new_opening() {
        let tracker = Tracker::default();
        assert_eq!(tracker.track(at(5, T), &"a".into(), 0, 1), handed(1));
        assert_eq!(tracker.track(at(5, T), &"b".into(), 1, 1), Tracked::Held);
        assert_eq!(tracker.release(at(5, T)), Some("b".into()));
        assert_eq!(tracker.track(at(5, T), &"c".into(), 2, 1), handed(1));
    }

    #[test]
    fn what_is_held_is_not_handed_out_again_by_a_server_that_forgot() {
        let tracker = Tracker::default();
        assert_eq!(tracker.track(at(5, T), &"a".into(), 0, 1), handed(1));
        assert_eq!(tracker.track(at(5, T), &"b".into(), 0, 1), Tracked::Held);
        assert_eq!(tracker.track(at(5, T), &"c".into(), 1, 1), Tracked::Held);
        assert_eq!(tracker.track(at(5, T), &"d".into(), 1, 1), Tracked::Held);
        // Its AckWait ran out.
        assert_eq!(tracker.track(at(5, T), &"e".into(), 1, 2), handed(3));
        tracker.mark_given_back(at(5, T));
        assert_eq!(tracker.track(at(5, T), &"f".into(), 1, 1), handed(3));
    }

    #[test]
    fn the_same_number_at_another_time_is_another_message() {
        let tracker = Tracker::default();
        tracker.track(at(5, T), &"a".into(), 0, 1);
        let later = Timestamp(2);
        assert_eq!(tracker.track(at(5, later), &"b".into(), 1, 1), handed(1));
        assert_eq!(tracker.release(at(5, T)), None);
        assert_eq!(tracker.release(at(5, later)), Some("b".into()));
    }

    #[test]
    fn deliveries_add_up_over_openings() {
        let tracker = Tracker::default();
        tracker.track(at(5, T), &"a".into(), 0, 1);
        tracker.mark_given_back(at(5, T));
        assert_eq!(tracker.track(at(5, T), &"a".into(), 0, 2), handed(2));
        tracker.mark_given_back(at(5, T));
        assert_eq!(tracker.track(at(5, T), &"b".into(), 1, 1), handed(3));
        // Its AckWait ran out.
        assert_eq!(tracker.track(at(5, T), &"b".into(), 1, 2), handed(4));
    }

    #[test]
    fn one_acknowledgement_for_all_waits_for_what_came_before() {
        let tracker = Tracker::default();
        for seq in [5, 6, 7, 9] {
            tracker.track(at(seq, T), &format!("r{seq}").into(), 0, 1);
        }
        let done = |seq: u64| (at(seq, T), format!("r{seq}").into());
        assert_eq!(tracker.release_up_to(&[done(6), done(7)]), None);
        assert_eq!(tracker.release_up_to(&[done(5)]), Some("r7".into()));
        assert_eq!(tracker.release_up_to(&[]), None);
        assert_eq!(tracker.release_up_to(&[done(9)]), Some("r9".into()));
    }

    #[test]
    fn reading_goes_on_at_the_oldest_message_held() {
        let tracker = Tracker::default();
        tracker.reset_for_new_stream(1);
        assert_eq!(tracker.resume_seq(), None);
        for seq in [5, 6, 7] {
            tracker.track(at(seq, T), &"a".into(), 0, 1);
        }
        tracker.release(at(5, T));
        tracker.mark_given_back(at(6, T));
        assert_eq!(tracker.resume_seq(), Some(6));
        tracker.release(at(6, T));
        tracker.release(at(7, T));
        assert_eq!(tracker.resume_seq(), Some(8));
        tracker.reset_for_new_stream(1);
        assert_eq!(tracker.resume_seq(), Some(8));
        tracker.reset_for_new_stream(2);
        assert_eq!(tracker.resume_seq(), None);
    }
}
