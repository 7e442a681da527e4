//! The service's metrics. Names are `cordum_output_policy_…`.

use airlock_proto::cap;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DecisionLabels {
    decision: &'static str,
}

/// Clones share the same numbers.
#[derive(Clone)]
pub struct OutputMetrics {
    decisions: Family<DecisionLabels, Counter>,
    scan: Histogram,
    scanned_bytes: Counter,
    rules: Gauge,
    reload_failures: Counter,
}

impl OutputMetrics {
    pub fn new() -> Self {
        Self {
            decisions: Family::default(),
            // From 10 µs to about 5 s.
            scan: Histogram::new(exponential_buckets(1e-5, 3.0, 13)),
            scanned_bytes: Counter::default(),
            rules: Gauge::default(),
            reload_failures: Counter::default(),
        }
    }

    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("cordum_output_policy");
        registry.register(
            "decisions",
            "Verdicts on outputs, by decision",
            self.decisions.clone(),
        );
        registry.register(
            "scan_seconds",
            "Time to scan and judge one output",
            self.scan.clone(),
        );
        registry.register(
            "scanned_bytes",
            "Bytes of outputs that were scanned",
            self.scanned_bytes.clone(),
        );
        registry.register("rules", "Active output rules", self.rules.clone());
        registry.register(
            "reload_failures",
            "Reloads of rules or scanners that were refused",
            self.reload_failures.clone(),
        );
    }

    pub fn record_response(&self, response: &cap::OutputCheckResponse) {
        let decision = match (response.decision(), response.deny) {
            _ if response.content_needed => "content_needed",
            (cap::OutputDecision::Allow, _) => "allow",
            (cap::OutputDecision::Quarantine, true) => "deny",
            (cap::OutputDecision::Quarantine, false) => "quarantine",
            (cap::OutputDecision::Redact, _) => "redact",
        };
        self.decisions
            .get_or_create(&DecisionLabels { decision })
            .inc();
    }

    pub fn record_scan(&self, seconds: f64, bytes: usize) {
        self.scan.observe(seconds);
        self.scanned_bytes.inc_by(bytes as u64);
    }

    pub fn set_rule_count(&self, rules: usize) {
        self.rules.set(i64::try_from(rules).unwrap_or(i64::MAX));
    }

    pub fn record_reload_failure(&self) {
        self.reload_failures.inc();
    }
}

impl Default for OutputMetrics {
    fn default() -> Self {
        Self::new()
    }
}
