//! The worker's own clock, and how old a dispatch is.
//!
//! No two clocks need agree: a dispatch says what is left until its accept-by and its
//! deadline, and the rest is measured here, by a clock that nobody sets. What is left counts
//! from the moment it was sent, and a dispatch may have lain in the stream since. So of every
//! packet that says when it was sent the difference to the moment it came is noted: that is
//! the difference of the two clocks and the time under way. What comes directly is stored by
//! nobody on its way, so the least difference of late is as good as that of the clocks; by so
//! much as a packet's own is larger, so old is it.
//!
//! Without such a packet there is nothing to compare with, and the clocks' word must do. The
//! scheduler answers a hello, so that is so for a moment after the start.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

use airlock_model::Timestamp;
use airlock_proto::own;

use crate::gate::Way;
use crate::job;

/// Differences are kept for one to two of these: clocks drift apart slowly.
const WINDOW_MS: i64 = 60_000;

/// The time of day when the process began, carried on by a clock that nobody sets.
pub(crate) fn steady() -> Timestamp {
    static START: OnceLock<(Timestamp, Instant)> = OnceLock::new();
    let (time, at) = START.get_or_init(|| (job::now(), Instant::now()));
    *time + at.elapsed()
}

/// See the module's page.
#[derive(Debug, Default)]
pub(crate) struct Offsets(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// Whose clock it is.
    term: (String, u64),
    /// When this window began, and the least difference in it.
    current: Option<(i64, i64)>,
    before: Option<i64>,
}

impl Known {
    fn least(&self) -> Option<i64> {
        let current = self.current.map(|(_, least)| least);
        current.into_iter().chain(self.before).min()
    }
}

impl Offsets {
    /// A packet came directly: it was sent just now.
    pub fn heard(&self, ledger: &str, epoch: u64, sent_ms: i64, now_ms: i64) {
        let offset = now_ms.saturating_sub(sent_ms);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.term.1 != epoch || known.term.0 != ledger {
            // Another leader may have another database's clock.
            *known = Known {
                term: (ledger.to_owned(), epoch),
                ..Known::default()
            };
        }
        known.current = Some(match known.current {
            Some((began, least)) if now_ms.saturating_sub(began) < WINDOW_MS => {
                (began, least.min(offset))
            }
            other => {
                known.before = other.map(|(_, least)| least);
                (now_ms, offset)
            }
        });
    }

    /// Turns what a dispatch says of its times into times of our own clock.
    pub fn localize(&self, detail: &mut own::Dispatch, ledger: &str, way: Way, now_ms: i64) {
        if detail.sent_at_ms == 0 {
            return;
        }
        let sent = detail.sent_at_ms;
        match way {
            Way::Direct => self.heard(ledger, detail.epoch, sent, now_ms),
            Way::Stream => {}
        }
        let least = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .least();
        let Some(least) = least else { return };
        let age = now_ms.saturating_sub(sent).saturating_sub(least).max(0);
        let sent_here = now_ms - age;
        if detail.accept_within_ms > 0 {
            detail.accept_by_ms = sent_here.saturating_add(detail.accept_within_ms);
        }
        if detail.deadline_in_ms > 0 {
            detail.deadline_ms = sent_here.saturating_add(detail.deadline_in_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A dispatch with 10 s to take it and 60 s to end it.
    fn dispatch(epoch: u64, sent_at_ms: i64) -> own::Dispatch {
        own::Dispatch {
            epoch,
            sent_at_ms,
            accept_within_ms: 10_000,
            deadline_in_ms: 60_000,
            accept_by_ms: sent_at_ms + 10_000,
            deadline_ms: sent_at_ms + 60_000,
            ..own::Dispatch::default()
        }
    }

    fn times(offsets: &Offsets, mut d: own::Dispatch, way: Way, now: i64) -> (i64, i64) {
        offsets.localize(&mut d, "", way, now);
        (d.accept_by_ms - now, d.deadline_ms - now)
    }

    #[test]
    fn whatever_the_clocks_say_the_time_left_is_the_same() {
        const NOW: i64 = 1_000_000_000;
        for skew in [-3_600_000, -10_000, -1, 0, 1, 10_000, 3_600_000] {
            let offsets = Offsets::default();
            offsets.heard("", 1, NOW - skew, NOW + 2);
            let at = |ms: i64| NOW - skew + ms;
            let fresh = dispatch(1, at(100));
            let left = times(&offsets, fresh.clone(), Way::Stream, NOW + 102);
            assert_eq!(left, (10_000, 60_000), "{skew}");
            // The same one, when it lay in the stream for 15 s, is late.
            let left = times(&offsets, fresh, Way::Stream, NOW + 15_102);
            assert_eq!(left, (-5_000, 45_000), "{skew}");
            // What comes directly is a reference itself.
            let left = times(&Offsets::default(), dispatch(1, at(0)), Way::Direct, NOW);
            assert_eq!(left, (10_000, 60_000), "{skew}");
        }
    }

    #[test]
    fn without_a_reference_the_clocks_are_believed() {
        let offsets = Offsets::default();
        let left = times(&offsets, dispatch(1, 5_000), Way::Stream, 9_000);
        assert_eq!(left, (6_000, 56_000));
        // And an older scheduler's are all there is.
        offsets.heard("", 1, 0, 9_000);
        let mut old = dispatch(1, 5_000);
        (old.sent_at_ms, old.accept_within_ms, old.deadline_in_ms) = (0, 0, 0);
        assert_eq!(times(&offsets, old, Way::Stream, 9_000), (6_000, 56_000));
    }

    #[test]
    fn another_leader_s_clock_is_learned_anew_and_drift_is_followed() {
        let offsets = Offsets::default();
        offsets.heard("", 1, 100_000, 100_000);
        // The next leader's database is ten minutes behind.
        offsets.heard("", 2, 100_000 - 600_000, 100_000);
        let d = dispatch(2, 101_000 - 600_000);
        assert_eq!(times(&offsets, d, Way::Stream, 101_000).0, 10_000);
        // Its clock runs slow: after two windows the old difference is forgotten.
        for (now, lag) in [(170_000, 600_500), (240_000, 601_000), (310_000, 601_500)] {
            offsets.heard("", 2, now - lag, now);
        }
        let d = dispatch(2, 310_000 - 601_500);
        assert_eq!(times(&offsets, d, Way::Stream, 310_000).0, 9_500);
    }

    #[test]
    fn the_own_clock_only_goes_forward() {
        let before = steady();
        assert!(steady() >= before);
    }
}
