//! What happened on the bus, counted, for a service's metrics.

use std::sync::atomic::{AtomicU64, Ordering};

/// Makes `Counters` and its snapshot of a list of names, each with one line on what it
/// counts. The line is the help text of the metric, so the two cannot drift apart.
#[macro_export]
macro_rules! counters {
    ($(#[doc = $help:literal] $name:ident,)*) => {
        /// Rising counts, kept for as long as the connection lives.
        #[derive(Debug, Default)]
        pub struct Counters { $(#[doc = $help] pub(crate) $name: std::sync::atomic::AtomicU64,)* }

        /// The counts at one moment.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct CountersSnapshot { $(#[doc = $help] pub $name: u64,)* }

        impl Counters {
            /// Each count's name and what it counts, in the order of [`Counters::values`].
            pub const NAMES: &'static [(&'static str, &'static str)] =
                &[$((stringify!($name), $help),)*];

            pub fn snapshot(&self) -> CountersSnapshot {
                CountersSnapshot {
                    $($name: self.$name.load(std::sync::atomic::Ordering::Relaxed),)*
                }
            }

            /// The counts at this moment, in the order of [`Counters::NAMES`].
            pub fn values(&self) -> Vec<u64> {
                let now = self.snapshot();
                vec![$(now.$name,)*]
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
    /// Messages that a stream took.
    published,
    /// Messages whose publish surely failed.
    publishes_failed,
    /// Messages whose publish may or may not have happened.
    publishes_ambiguous,
    /// Messages given back, to come again after a while.
    retried,
    /// Deliveries of messages this process already holds.
    duplicates_held,
    /// Acknowledgements not sent because their stream is no more, or NATS is away.
    acks_dropped,
    /// Messages dropped by the client because a subscription was read too slowly.
    slow_subscriptions,
    /// Messages given to the dead-letter sink.
    dead_lettered,
}

pub(crate) fn add_to_counter(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}
