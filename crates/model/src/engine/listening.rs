//! The clock by which silence of workers is measured: it runs only while they can be heard.
//!
//! A worker is lost by silence alone, so silence must be something that we could have
//! heard. The engine is given two times in every round: `now`, the ledger's, by which jobs
//! are due and deadlines pass, and `uptime`, which is monotonic. Everything that is counted
//! from a sign of life (a worker's TTL, the last heartbeat of a run, how long a dispatch may
//! stay unaccepted, how long an unresponsive worker is left alone, the limit of a run) is
//! counted on the clock here instead, which
//!
//! - stands still while the bus is away, and before it was there: an engine begins without
//!   it, so that the time of a recovery is nobody's silence;
//! - follows `uptime`, so that a step of the ledger's clock moves it by nothing;
//! - advances by at most [`Settings::max_gap`](super::Settings) from one round to the next:
//!   while a round waits for the ledger, or the process stands still, heartbeats wait to be
//!   read;
//! - counts only up to the last proof that the bus carried messages: a connection that is
//!   cut off is noticed seconds later, and in those nobody could be heard either. The time
//!   since the last proof is added by the next one, or dropped when it turns out that the
//!   bus was away.
//!
//! When the bus is back, workers have their whole TTL to connect again as well.
//!
//! Timers of jobs stand in one heap in the ledger's time, whatever they are for. That clock
//! is never slower than this one, so a timer comes in time or too early; then the job is
//! checked and the timer set again.

use std::time::Duration;

use crate::time::{ListenTime, Timestamp};

#[derive(Debug, Default)]
pub(super) struct Listening {
    /// Up to here the bus is known to have carried messages.
    time: ListenTime,
    /// What has passed since, of which that is not known yet.
    unproven: Duration,
    /// The uptime of the last round.
    round: Duration,
    /// Since when we listen; `None` while we cannot.
    since: Option<ListenTime>,
}

impl Listening {
    /// A round begins at `uptime`.
    pub fn advance(&mut self, uptime: Duration, max_gap: Duration) {
        let gap = uptime.saturating_sub(self.round).min(max_gap);
        self.round = self.round.max(uptime);
        if self.since.is_some() {
            self.unproven = self.unproven.saturating_add(gap);
        }
    }

    /// The server answered a question that was put at this uptime: until then everybody
    /// could be heard.
    pub fn prove(&mut self, asked: Duration) {
        // A round may have counted less than it took, so this is at most what is proven.
        let later = self.round.saturating_sub(asked);
        let proven = self.unproven.saturating_sub(later);
        self.time = self.time + proven;
        self.unproven -= proven;
    }

    /// Workers can be heard from now on. False when they could be before.
    pub fn begin(&mut self) -> bool {
        let new = self.since.is_none();
        self.since.get_or_insert(self.time);
        new
    }

    pub fn end(&mut self) {
        self.since = None;
        self.unproven = Duration::ZERO;
    }

    pub const fn is_on(&self) -> bool {
        self.since.is_some()
    }

    /// Until when silence counts: what is decided by the clock is decided by this.
    pub const fn now(&self) -> ListenTime {
        self.time
    }

    /// When something happens that is heard or sent in this round. It may be ahead of
    /// [`Listening::now`], so that no silence seems to be longer than it is.
    pub fn stamp(&self) -> ListenTime {
        self.time + self.unproven
    }

    /// How long somebody who was heard at `last` has been silent since we listen.
    pub fn silence(&self, last: ListenTime) -> Duration {
        self.since
            .map_or(Duration::ZERO, |since| self.time.since(last.max(since)))
    }

    /// Not before this moment, because a message may still be on its way from before.
    pub fn grace_end(&self, after: Duration) -> ListenTime {
        self.since.unwrap_or(self.time) + after
    }

    /// When it will be `at` in the ledger's time, at the earliest.
    pub fn earliest_ledger_time(&self, now: Timestamp, at: ListenTime) -> Timestamp {
        now + at.since(self.time)
    }

    /// What was at `then` in the ledger's time, on this clock.
    pub fn listen_time_at(&self, now: Timestamp, then: Timestamp) -> ListenTime {
        self.stamp() - now.since(then)
    }
}
