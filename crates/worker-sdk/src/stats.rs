//! Counts of what a worker did, for its author's metrics and for tests.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::gate::Refusal;

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
            /// How they stand now.
            pub fn snapshot(&self) -> StatsSnapshot {
                StatsSnapshot {
                    $($name: self.$name.load(Ordering::Relaxed),)+
                }
            }
        }
    };
}

stats! {
    /// Dispatches taken.
    accepted,
    /// Dropped: meant for an earlier process of this name.
    dropped_incarnation,
    /// Dropped: taken before.
    dropped_repeat,
    /// Dropped: sent by a leader that leads no more.
    dropped_epoch,
    /// Dropped: past their accept-by.
    dropped_late,
    /// Dropped: not a dispatch at all.
    dropped_malformed,
    /// Dropped: not signed as it should be.
    dropped_signature,
    /// Jobs that succeeded.
    succeeded,
    /// Jobs that failed, in whatever way.
    failed,
    /// Jobs that were cancelled.
    cancelled,
    /// Jobs that ran out of time.
    timed_out,
    /// Dispatches handed back unstarted.
    handed_back,
    /// Results published again for want of a receipt.
    results_repeated,
    /// Jobs whose handler blocked the executor.
    blocked,
}

impl Stats {
    pub(crate) fn add(counter: &AtomicU64, n: usize) {
        counter.fetch_add(u64::try_from(n).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn refused(&self, refusal: Refusal) {
        let counter = match refusal {
            Refusal::OtherWay => return,
            Refusal::OtherIncarnation => &self.dropped_incarnation,
            Refusal::Repeat => &self.dropped_repeat,
            Refusal::StaleEpoch => &self.dropped_epoch,
            Refusal::Late => &self.dropped_late,
        };
        Self::add(counter, 1);
    }
}
