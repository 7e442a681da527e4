//! Counters of what a worker did, for its author's metrics and for tests.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::intake::gate::DropReason;

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// Counters that rise while the worker runs.
        #[derive(Debug, Default)]
        pub struct Stats {
            $(pub(crate) $name: AtomicU64,)+
        }

        /// The counters at one moment.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct StatsSnapshot {
            $($(#[$doc])* pub $name: u64,)+
        }

        impl Stats {
            /// Their current values.
            pub fn snapshot(&self) -> StatsSnapshot {
                StatsSnapshot {
                    $($name: self.$name.load(Ordering::Relaxed),)+
                }
            }
        }
    };
}

stats! {
    /// Dispatches accepted.
    accepted,
    /// Dropped: meant for an earlier process of this name.
    dropped_incarnation,
    /// Dropped: accepted before.
    dropped_repeat,
    /// Dropped: sent by a leader of an earlier term.
    dropped_epoch,
    /// Dropped: past their accept-by.
    dropped_late,
    /// Dropped: not a dispatch at all.
    dropped_malformed,
    /// Dropped: not signed as it should be.
    dropped_signature,
    /// Jobs that succeeded.
    succeeded,
    /// Jobs that failed, of any kind.
    failed,
    /// Jobs that were cancelled.
    cancelled,
    /// Jobs that ran out of time.
    timed_out,
    /// Dispatches handed back unstarted.
    handed_back,
    /// Results published again because no receipt came.
    results_repeated,
    /// Jobs whose handler blocked the executor.
    blocked,
}

impl Stats {
    pub(crate) fn add_to_counter(counter: &AtomicU64, n: usize) {
        counter.fetch_add(u64::try_from(n).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn count_dropped_dispatch(&self, reason: DropReason) {
        let counter = match reason {
            DropReason::OtherRoute => return,
            DropReason::OtherIncarnation => &self.dropped_incarnation,
            DropReason::Repeat => &self.dropped_repeat,
            DropReason::StaleEpoch => &self.dropped_epoch,
            DropReason::Late => &self.dropped_late,
        };
        Self::add_to_counter(counter, 1);
    }
}
