//! What happened between us and Redis, counted, for a service's metrics.

use std::sync::atomic::{AtomicU64, Ordering};

/// Rising counts, kept for as long as the [`Guard`](crate::Guard) lives.
#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) went_local: AtomicU64,
    pub(crate) answered_locally: AtomicU64,
    pub(crate) duplicates: AtomicU64,
    pub(crate) locks_busy: AtomicU64,
    pub(crate) renewals_failed: AtomicU64,
    pub(crate) renewals_abandoned: AtomicU64,
}

/// The counts at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CountersSnapshot {
    /// Times Redis failed and the local mode began.
    pub went_local: u64,
    /// Calls that were not put to Redis because of the local mode.
    pub answered_locally: u64,
    /// Messages found to be processed already.
    pub duplicates: u64,
    /// Job locks that somebody else held.
    pub locks_busy: u64,
    /// Job locks that could not be renewed once.
    pub renewals_failed: u64,
    /// Job locks left to expire after too many failures in a row.
    pub renewals_abandoned: u64,
}

impl Counters {
    pub fn snapshot(&self) -> CountersSnapshot {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CountersSnapshot {
            went_local: read(&self.went_local),
            answered_locally: read(&self.answered_locally),
            duplicates: read(&self.duplicates),
            locks_busy: read(&self.locks_busy),
            renewals_failed: read(&self.renewals_failed),
            renewals_abandoned: read(&self.renewals_abandoned),
        }
    }
}

pub(crate) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}
