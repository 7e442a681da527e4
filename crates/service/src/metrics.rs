//! A service's metrics, in Prometheus' text form.
//!
//! Metrics are cheap handles: make them once, keep them, count on them without
//! touching the registry again. Names are registered exactly as given, except
//! that counters get their `_total` at exposition, as OpenMetrics asks.

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::{Arc, Mutex};

use airlock_settings::lock;
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, text};
use prometheus_client::metrics::TypedMetric;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};

/// Bucket bounds in seconds for things that take from a millisecond to a minute.
pub const SECONDS: [f64; 14] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0,
];

/// The registry of one service. Clones share it.
#[derive(Clone, Default)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
}

impl Metrics {
    /// Registers any metric. Register each name once; families carry labels.
    pub fn register(&self, name: &str, help: &str, metric: impl Metric) {
        self.with_registry(|registry| registry.register(name, help, metric));
    }

    /// A counter; leave `_total` out of its name.
    pub fn counter(&self, name: &str, help: &str) -> Counter {
        let counter = Counter::default();
        self.register(name, help, counter.clone());
        counter
    }

    pub fn gauge(&self, name: &str, help: &str) -> Gauge {
        let gauge = Gauge::default();
        self.register(name, help, gauge.clone());
        gauge
    }

    /// A histogram of seconds over [`SECONDS`].
    pub fn histogram(&self, name: &str, help: &str) -> Histogram {
        let histogram = Histogram::new(SECONDS);
        self.register(name, help, histogram.clone());
        histogram
    }

    /// Counters or gauges by label. The labels' values must come from a bounded
    /// set: never a job's or a request's id.
    pub fn family<L, M>(&self, name: &str, help: &str) -> Family<L, M>
    where
        L: EncodeLabelSet + Clone + Hash + Eq + Debug + Send + Sync + 'static,
        M: EncodeMetric + TypedMetric + Default + Debug + Send + Sync + 'static,
    {
        let family = Family::default();
        self.register(name, help, family.clone());
        family
    }

    /// Histograms of seconds by label.
    pub fn histogram_family<L>(&self, name: &str, help: &str) -> Family<L, Histogram>
    where
        L: EncodeLabelSet + Clone + Hash + Eq + Debug + Send + Sync + 'static,
    {
        let family =
            Family::new_with_constructor((|| Histogram::new(SECONDS)) as fn() -> Histogram);
        self.register(name, help, family.clone());
        family
    }

    /// For what the helpers above do not cover.
    pub fn with_registry<R>(&self, f: impl FnOnce(&mut Registry) -> R) -> R {
        f(&mut lock(&self.registry))
    }

    /// Everything as text, in the format of [`CONTENT_TYPE`].
    pub fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut out = String::new();
        self.with_registry(|registry| text::encode(&mut out, registry))?;
        Ok(out)
    }
}

/// The media type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
