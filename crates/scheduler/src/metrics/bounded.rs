//! Families whose labels clients can think of, kept from growing without end.

use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use prometheus_client::metrics::family::Family;

/// Series of one family at most.
pub const MAX_TOPICS: usize = 1000;

/// The label of the topics beyond.
pub(super) const OTHER: &str = "other";

/// A family that stops growing.
#[derive(Debug, Clone)]
pub struct Bounded<S, M> {
    pub(super) family: Family<S, M>,
    series: Arc<AtomicUsize>,
}

impl<S: Clone + Eq + Hash, M> Bounded<S, M> {
    pub(super) fn new(family: Family<S, M>) -> Self {
        Self {
            family,
            series: Arc::default(),
        }
    }

    /// Does something with a series, or with the one for all others when there are enough.
    pub(super) fn with_series(&self, key: S, other: S, touch: impl FnOnce(&M)) {
        if let Some(series) = self.family.get(&key) {
            return touch(&series);
        }
        // Two that make the same series at once count it twice, which does no harm.
        let key = if self.series.fetch_add(1, Ordering::Relaxed) < MAX_TOPICS {
            key
        } else {
            other
        };
        touch(&self.family.get_or_create(&key));
    }
}

#[cfg(test)]
impl<S, M> std::ops::Deref for Bounded<S, M> {
    type Target = Family<S, M>;

    fn deref(&self) -> &Family<S, M> {
        &self.family
    }
}
