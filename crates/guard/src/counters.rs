//! What happened between us and Redis, counted, for a service's metrics.

use std::sync::atomic::{AtomicU64, Ordering};

airlock_bus::counters! {
    /// Times Redis failed and the local mode began.
    went_local,
    /// Calls that were not put to Redis because of the local mode.
    answered_locally,
    /// Messages found to be processed already.
    duplicates,
    /// Job locks that somebody else held.
    locks_busy,
    /// Job locks that were renewed.
    renewals,
    /// Job locks that could not be renewed once.
    renewals_failed,
    /// Job locks left to expire after too many failures in a row.
    renewals_abandoned,
}

pub(crate) fn add_to_counter(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}
