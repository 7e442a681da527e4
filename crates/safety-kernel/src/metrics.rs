//! What the kernel counts. Names are `cordum_safety_kernel_…`.

use airlock_policy::{Decision, ShadowHit};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Word {
    decision: &'static str,
}

/// As many as the policy has rules on trial.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Trial {
    rule: String,
    decision: &'static str,
}

/// Clones share the same numbers.
#[derive(Clone)]
pub struct KernelMetrics {
    decisions: Family<Word, Counter>,
    shadow_hits: Family<Trial, Counter>,
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
            "What rules on trial would have decided",
            self.shadow_hits.clone(),
        );
        registry.register(
            "evaluation_seconds",
            "Time to ask the rules about one job",
            self.evaluation.clone(),
        );
        registry.register("rules", "Rules of the policy in force", self.rules.clone());
        registry.register(
            "reload_failures",
            "Policy files that were refused",
            self.reload_failures.clone(),
        );
    }

    pub fn decided(&self, decision: Decision) {
        let word = Word {
            decision: decision.word(),
        };
        self.decisions.get_or_create(&word).inc();
    }

    pub fn evaluated(&self, seconds: f64) {
        self.evaluation.observe(seconds);
    }

    pub fn shadows(&self, hits: &[ShadowHit]) {
        for hit in hits {
            let trial = Trial {
                // A tenant's list has no name of its own.
                rule: hit.rule_id.as_deref().unwrap_or("(tenant)").to_owned(),
                decision: hit.decision.word(),
            };
            self.shadow_hits.get_or_create(&trial).inc();
        }
    }

    pub fn loaded(&self, rules: usize) {
        self.rules.set(i64::try_from(rules).unwrap_or(i64::MAX));
    }

    pub fn refused(&self) {
        self.reload_failures.inc();
    }
}

impl Default for KernelMetrics {
    fn default() -> Self {
        Self::new()
    }
}
