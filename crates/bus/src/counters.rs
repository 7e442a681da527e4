//! What happened on the bus, counted, for a service's metrics.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Rising counts, kept for as long as the [`Bus`](crate::Bus) lives.
        #[derive(Debug, Default)]
        pub struct Counters { $($(#[$doc])* pub(crate) $name: AtomicU64,)* }

        /// The counts at one moment.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct CountersSnapshot { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            pub fn snapshot(&self) -> CountersSnapshot {
                CountersSnapshot { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Times the connection was found again.
    reconnects,
    /// Times a stream was found new, empty or set back.
    streams_lost,
    /// Times a consumer was opened again after the first.
    consumers_reopened,
    /// Messages whose publish surely failed.
    publishes_failed,
    /// Messages whose publish may or may not have happened.
    publishes_ambiguous,
    /// Deliveries of messages this process already holds.
    duplicates_held,
    /// Acknowledgements not sent because their stream is no more, or NATS is away.
    acks_dropped,
    /// Messages dropped by the client because a subscription was read too slowly.
    slow_subscriptions,
    /// Messages given to the dead-letter sink.
    dead_lettered,
}

pub(crate) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}
