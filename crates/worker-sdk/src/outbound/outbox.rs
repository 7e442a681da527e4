//! Results that the scheduler has not confirmed yet.
//!
//! What must stay true: a result leaves the outbox only when its receipt has come. Being
//! in a stream is not enough, because streams can be lost. Time is an argument.
//!
//! Results carry no message id: the stream stores each repeat, and the ledger accepts a
//! result once.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use airlock_bus::{Outgoing, subjects};
use bytes::Bytes;
use uuid::Uuid;

/// The pause after a publish that failed.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// The longest pause between two repeats.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How much may be waiting.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub results: usize,
    pub bytes: usize,
    /// How long a published result waits for its receipt the first time.
    pub receipt_within: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// In the queue to be published.
    Queued,
    /// Handed to the bus, no acknowledgement yet.
    InFlight,
    /// Published, or failed to be; again at this time unless a receipt comes.
    Waiting { until: Instant },
}

#[derive(Debug)]
struct Entry {
    packet: Bytes,
    traceparent: Option<String>,
    state: State,
    /// How often the stream has stored it.
    published: u32,
    /// A repeat was requested while it was in flight.
    repeat_requested: bool,
}

#[derive(Debug)]
pub(crate) struct Outbox {
    limits: Limits,
    entries: HashMap<Uuid, Entry>,
    queue: VecDeque<Uuid>,
    bytes: usize,
}

impl Outbox {
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            entries: HashMap::new(),
            queue: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Adds a result, however full the outbox is: the work is done. Whoever accepts new
    /// work checks [`Outbox::is_full`] before.
    pub fn push(&mut self, dispatch: Uuid, packet: Bytes, traceparent: Option<String>) {
        self.bytes += packet.len();
        let entry = Entry {
            packet,
            traceparent,
            state: State::Queued,
            published: 0,
            repeat_requested: false,
        };
        if let Some(before) = self.entries.insert(dispatch, entry) {
            self.bytes -= before.packet.len();
        }
        self.queue.push_back(dispatch);
    }

    pub fn is_full(&self) -> bool {
        self.entries.len() >= self.limits.results || self.bytes >= self.limits.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The dispatch ids of all results without a receipt.
    pub fn dispatch_ids(&self) -> impl Iterator<Item = &Uuid> {
        self.entries.keys()
    }

    /// The scheduler has the result.
    pub fn remove_receipted(&mut self, dispatch: &Uuid) {
        if let Some(entry) = self.entries.remove(dispatch) {
            self.bytes -= entry.packet.len();
        }
    }

    /// What to publish now, up to `max`.
    pub fn take_ready(&mut self, max: usize) -> Vec<(Uuid, Outgoing)> {
        let mut ready = Vec::with_capacity(self.queue.len().min(max));
        while ready.len() < max
            && let Some(dispatch) = self.queue.pop_front()
        {
            // A receipt may have come while it was queued.
            let Some(entry) = self.entries.get_mut(&dispatch) else {
                continue;
            };
            if entry.state != State::Queued {
                continue;
            }
            entry.state = State::InFlight;
            ready.push((
                dispatch,
                Outgoing {
                    subject: subjects::JOB_RESULT.to_owned(),
                    payload: entry.packet.clone(),
                    // The ledger accepts a result once, however often it comes, so the
                    // stream need not remember its id.
                    msg_id: None,
                    traceparent: entry.traceparent.clone(),
                },
            ));
        }
        ready
    }

    /// Records whether the stream has stored a result.
    pub fn record_published(&mut self, dispatch: &Uuid, stored: bool, now: Instant) {
        let first = self.limits.receipt_within;
        let Some(entry) = self.entries.get_mut(dispatch) else {
            return;
        };
        let pause = if stored {
            let pause = first.saturating_mul(1 << entry.published.min(8));
            entry.published = entry.published.saturating_add(1);
            pause.min(LONGEST_PAUSE.max(first))
        } else {
            RETRY_PAUSE
        };
        entry.state = State::Waiting { until: now + pause };
        if std::mem::take(&mut entry.repeat_requested) {
            entry.state = State::Queued;
            self.queue.push_back(*dispatch);
        }
    }

    /// Queues whatever has waited long enough; the number of those.
    pub fn republish_overdue(&mut self, now: Instant) -> usize {
        self.republish_where(|state| match state {
            State::Waiting { until } => until <= now,
            State::Queued | State::InFlight => false,
        })
    }

    /// Queues everything that has no receipt: the stream may have been lost.
    pub fn republish_all(&mut self) -> usize {
        self.republish_where(|state| match state {
            State::Waiting { .. } | State::InFlight => true,
            State::Queued => false,
        })
    }

    /// Queues this one, if it has no receipt: its dispatch was sent again.
    pub fn republish_one(&mut self, dispatch: &Uuid) {
        if let Some(entry) = self.entries.get_mut(dispatch)
            && matches!(entry.state, State::Waiting { .. })
        {
            entry.state = State::Queued;
            self.queue.push_back(*dispatch);
        }
    }

    fn republish_where(&mut self, wanted: impl Fn(State) -> bool) -> usize {
        let mut count = 0;
        for (dispatch, entry) in &mut self.entries {
            if !wanted(entry.state) {
                continue;
            }
            count += 1;
            if entry.state == State::InFlight {
                entry.repeat_requested = true;
            } else {
                entry.state = State::Queued;
                self.queue.push_back(*dispatch);
            }
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIVE: Duration = Duration::from_secs(5);

    fn outbox() -> Outbox {
        Outbox::new(Limits {
            results: 3,
            bytes: 100,
            receipt_within: FIVE,
        })
    }

    fn id(n: u128) -> Uuid {
        Uuid::from_u128(n)
    }

    fn ids_of(ready: &[(Uuid, Outgoing)]) -> Vec<Uuid> {
        ready.iter().map(|(id, _)| *id).collect()
    }

    #[test]
    fn a_result_is_repeated_until_its_receipt() {
        let mut outbox = outbox();
        let mut now = Instant::now();
        outbox.push(id(1), Bytes::from_static(b"x"), None);
        assert_eq!(ids_of(&outbox.take_ready(9)), [id(1)]);
        assert_eq!(
            outbox.republish_overdue(now + FIVE * 9),
            0,
            "it is in flight"
        );
        outbox.record_published(&id(1), true, now);
        assert_eq!(
            outbox.republish_overdue(now + FIVE - Duration::from_millis(1)),
            0
        );
        now += FIVE;
        assert_eq!(outbox.republish_overdue(now), 1);
        assert_eq!(ids_of(&outbox.take_ready(9)), [id(1)]);
        outbox.record_published(&id(1), true, now);
        assert_eq!(outbox.republish_overdue(now + FIVE), 0, "the pause grows");
        assert_eq!(outbox.republish_overdue(now + FIVE * 2), 1);
        outbox.remove_receipted(&id(1));
        assert!(outbox.take_ready(9).is_empty() && outbox.is_empty());
    }

    #[test]
    fn a_failed_publish_is_retried_soon() {
        let mut outbox = outbox();
        let now = Instant::now();
        outbox.push(id(1), Bytes::from_static(b"x"), None);
        outbox.take_ready(9);
        outbox.record_published(&id(1), false, now);
        assert_eq!(outbox.republish_overdue(now + RETRY_PAUSE), 1);
        assert_eq!(ids_of(&outbox.take_ready(9)), [id(1)]);
    }

    #[test]
    fn a_repeat_requested_in_flight_is_published_once_more_afterwards() {
        let mut outbox = outbox();
        outbox.push(id(1), Bytes::from_static(b"x"), None);
        outbox.take_ready(9);
        assert_eq!(outbox.republish_all(), 1);
        assert!(outbox.take_ready(9).is_empty());
        outbox.record_published(&id(1), true, Instant::now());
        assert_eq!(ids_of(&outbox.take_ready(9)), [id(1)]);
    }

    #[test]
    fn it_is_full_by_number_and_by_size() {
        let mut outbox = outbox();
        outbox.push(id(1), Bytes::from(vec![0; 99]), None);
        assert!(!outbox.is_full());
        outbox.push(id(2), Bytes::from_static(b"x"), None);
        assert!(outbox.is_full());
        outbox.remove_receipted(&id(1));
        assert!(!outbox.is_full());
        for n in 3..5 {
            outbox.push(id(n), Bytes::from_static(b"x"), None);
        }
        assert!(outbox.is_full());
    }
}
