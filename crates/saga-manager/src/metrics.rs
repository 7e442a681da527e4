//! The saga manager's metrics. Names are `cordum_saga_…`.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// Clones share the same numbers.
#[derive(Clone)]
pub struct SagaMetrics {
    pub rollback_triggered: Counter,
    pub compensation_dispatched: Counter,
    pub compensation_failed: Counter,
    pub rollback_duration: Histogram,
    pub active: Gauge,
    pub unmarshal_error: Counter,
    pub stuck: Gauge,
}

impl SagaMetrics {
    pub fn new() -> Self {
        Self {
            rollback_triggered: Counter::default(),
            compensation_dispatched: Counter::default(),
            compensation_failed: Counter::default(),
            // From 10 ms to about three hours.
            rollback_duration: Histogram::new(exponential_buckets(0.01, 4.0, 11)),
            active: Gauge::default(),
            unmarshal_error: Counter::default(),
            stuck: Gauge::default(),
        }
    }

    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("cordum_saga");
        registry.register(
            "rollback_triggered",
            "Rollbacks that a job's end began",
            self.rollback_triggered.clone(),
        );
        registry.register(
            "compensation_dispatched",
            "Compensations submitted, tries counted one by one",
            self.compensation_dispatched.clone(),
        );
        registry.register(
            "compensation_failed",
            "Compensations that failed for good or cannot be read",
            self.compensation_failed.clone(),
        );
        registry.register(
            "rollback_duration_seconds",
            "Time from a rollback's beginning to its end",
            self.rollback_duration.clone(),
        );
        registry.register("active", "Sagas being rolled back", self.active.clone());
        registry.register(
            "unmarshal_error",
            "Entries of a saga's stack in Redis that cannot be read",
            self.unmarshal_error.clone(),
        );
        registry.register("stuck", "Sagas that wait for a person", self.stuck.clone());
    }
}
