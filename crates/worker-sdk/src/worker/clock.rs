//! The worker's own clock, and how old a dispatch is.
//!
//! No two clocks need agree: a dispatch says what is left until its accept-by and its
//! deadline, and the rest is measured here, by a clock that nobody sets. What is left counts
//! from the moment it was sent, and a dispatch may have waited in the stream since. So for
//! every packet that says when it was sent, the worker notes the difference to the moment it
//! came: that is the offset of the two clocks plus the time under way. What comes directly is
//! stored by nobody on its way, so the least difference of the last minutes is a good measure
//! of the clocks' offset; a packet whose own difference is larger is older by as much.
//!
//! Without such a packet there is nothing to compare with, and the worker believes the clocks.
//! The scheduler answers a handshake, so that is so only for a moment after the start.

use std::sync::{Mutex, OnceLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use airlock_model::Timestamp;
use airlock_proto::own;
use airlock_settings::lock;

use crate::intake::gate::Route;

/// Differences are kept for one to two of these: clocks drift apart slowly.
const WINDOW_MS: i64 = 60_000;

/// The wall clock.
pub(crate) fn wall_clock_now() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

/// The time of day when the process began, carried on by a clock that nobody sets.
pub(crate) fn steady_clock_now() -> Timestamp {
    static START: OnceLock<(Timestamp, Instant)> = OnceLock::new();
    let (time, at) = START.get_or_init(|| (wall_clock_now(), Instant::now()));
    *time + at.elapsed()
}

/// The offset of the leader's clock from ours; the module's documentation says how it is
/// measured.
#[derive(Debug, Default)]
pub(crate) struct ClockOffsets(Mutex<Window>);

#[derive(Debug, Default)]
struct Window {
    /// Whose clock it is.
    term: (String, u64),
    /// When this window began, and the least difference in it.
    current: Option<(i64, i64)>,
    before: Option<i64>,
}

impl Window {
    fn min_offset(&self) -> Option<i64> {
        let current = self.current.map(|(_, least)| least);
        current.into_iter().chain(self.before).min()
    }
}

impl ClockOffsets {
    /// Notes when a packet that came directly was sent: just now.
    pub fn observe_sent_time(&self, ledger: &str, epoch: u64, sent_ms: i64, now_ms: i64) {
        let offset = now_ms.saturating_sub(sent_ms);
        let mut window = lock(&self.0);
        if window.term.1 != epoch || window.term.0 != ledger {
            // Another leader may have another database's clock.
            *window = Window {
                term: (ledger.to_owned(), epoch),
                ..Window::default()
            };
        }
        window.current = Some(match window.current {
            Some((began, least)) if now_ms.saturating_sub(began) < WINDOW_MS => {
                (began, least.min(offset))
            }
            other => {
                window.before = other.map(|(_, least)| least);
                (now_ms, offset)
            }
        });
    }

    /// Converts the times of a dispatch into times of our own clock.
    pub fn localize_dispatch_times(
        &self,
        detail: &mut own::Dispatch,
        ledger: &str,
        route: Route,
        now_ms: i64,
    ) {
        if detail.sent_at_ms == 0 {
            return;
        }
        let sent = detail.sent_at_ms;
        match route {
            Route::Direct => self.observe_sent_time(ledger, detail.epoch, sent, now_ms),
            Route::Stream => {}
        }
        let least = lock(&self.0).min_offset();
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

    /// A dispatch with 10 s to accept it and 60 s to finish it.
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

    fn times(offsets: &ClockOffsets, mut d: own::Dispatch, route: Route, now: i64) -> (i64, i64) {
        offsets.localize_dispatch_times(&mut d, "", route, now);
        (d.accept_by_ms - now, d.deadline_ms - now)
    }

    #[test]
    fn whatever_the_clocks_say_the_time_left_is_the_same() {
        const NOW: i64 = 1_000_000_000;
        for skew in [-3_600_000, -10_000, -1, 0, 1, 10_000, 3_600_000] {
            let offsets = ClockOffsets::default();
            offsets.observe_sent_time("", 1, NOW - skew, NOW + 2);
            let at = |ms: i64| NOW - skew + ms;
            let fresh = dispatch(1, at(100));
            let left = times(&offsets, fresh.clone(), Route::Stream, NOW + 102);
            assert_eq!(left, (10_000, 60_000), "{skew}");
            // The same one, after 15 s in the stream, is late.
            let left = times(&offsets, fresh, Route::Stream, NOW + 15_102);
            assert_eq!(left, (-5_000, 45_000), "{skew}");
            // What comes directly is a reference itself.
            let left = times(
                &ClockOffsets::default(),
                dispatch(1, at(0)),
                Route::Direct,
                NOW,
            );
            assert_eq!(left, (10_000, 60_000), "{skew}");
        }
    }

    #[test]
    fn without_a_reference_the_clocks_are_believed() {
        let offsets = ClockOffsets::default();
        let left = times(&offsets, dispatch(1, 5_000), Route::Stream, 9_000);
        assert_eq!(left, (6_000, 56_000));
        // And an older scheduler's are all there is.
        offsets.observe_sent_time("", 1, 0, 9_000);
        let mut old = dispatch(1, 5_000);
        (old.sent_at_ms, old.accept_within_ms, old.deadline_in_ms) = (0, 0, 0);
        assert_eq!(times(&offsets, old, Route::Stream, 9_000), (6_000, 56_000));
    }

    #[test]
    fn another_leader_s_clock_is_learned_anew_and_drift_is_followed() {
        let offsets = ClockOffsets::default();
        offsets.observe_sent_time("", 1, 100_000, 100_000);
        // The next leader's database is ten minutes behind.
        offsets.observe_sent_time("", 2, 100_000 - 600_000, 100_000);
        let d = dispatch(2, 101_000 - 600_000);
        assert_eq!(times(&offsets, d, Route::Stream, 101_000).0, 10_000);
        // Its clock runs slow: after two windows the old difference is forgotten.
        for (now, lag) in [(170_000, 600_500), (240_000, 601_000), (310_000, 601_500)] {
            offsets.observe_sent_time("", 2, now - lag, now);
        }
        let d = dispatch(2, 310_000 - 601_500);
        assert_eq!(times(&offsets, d, Route::Stream, 310_000).0, 9_500);
    }

    #[test]
    fn the_own_clock_only_goes_forward() {
        let before = steady_clock_now();
        assert!(steady_clock_now() >= before);
    }
}
