//! The kernel's metrics. Names are `cordum_safety_kernel_…`.

use airlock_policy::{Decision, ShadowHit};
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

/// One per shadow rule and decision.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ShadowLabels {
    rule: String,
    decision: &'static str,
}

/// Clones share the same numbers.
#[derive(Clone)]
pub struct KernelMetrics {
    decisions: Family<DecisionLabels, Counter>,
    shadow_hits: Family<ShadowLabels, Counter>,
    evaluation: Histogram,
    rules: Gauge,
    reload_failures: Counter,
}

impl KernelMetrics {
    pub fn new() -> Self {
        Self {
            decisions: Family::default(),
            shadow_hits: Family::default(),
            // From 1 µs to about 0.5 s.
            evaluation: Histogram::new(exponential_buckets(1e-6, 3.0, 13)),
            rules: Gauge::default(),
            reload_failures: Counter::default(),
        }
    }

    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("cordum_safety_kernel");
        registry.register(
            "decisions",
            "Verdicts given, by decision",
            self.decisions.clone(),
        );
        registry.register(
            "shadow_hits",
            "What shadow rules would have decided",
            self.shadow_hits.clone(),
        );
        registry.register(
            "evaluation_seconds",
            "Time to evaluate the policy for one job",
            self.evaluation.clone(),
        );
        registry.register("rules", "Rules of the active policy", self.rules.clone());
        registry.register(
            "reload_failures",
            "Policy reloads that were refused",
            self.reload_failures.clone(),
        );
    }

    pub fn record_decision(&self, decision: Decision) {
        let labels = DecisionLabels {
            decision: decision.as_str(),
        };
        self.decisions.get_or_create(&labels).inc();
    }

    pub fn record_evaluation(&self, seconds: f64) {
        self.evaluation.observe(seconds);
    }

    pub fn record_shadow_hits(&self, hits: &[ShadowHit]) {
        for hit in hits {
            let labels = ShadowLabels {
                // A tenant's list has no rule id of its own.
                rule: hit.rule_id.as_deref().unwrap_or("(tenant)").to_owned(),
                decision: hit.decision.as_str(),
            };
            self.shadow_hits.get_or_create(&labels).inc();
        }
    }

    pub fn set_rule_count(&self, rules: usize) {
        self.rules.set(i64::try_from(rules).unwrap_or(i64::MAX));
    }

    pub fn record_reload_failure(&self) {
        self.reload_failures.inc();
    }
}

impl Default for KernelMetrics {
    fn default() -> Self {
        Self::new()
    }
}
