//! Answers requests by the policy in force.
//!
//! What must stay true: whatever goes wrong here, the answer is deny. No policy, a
//! panic while asking the rules: both are verdicts with a reason, never an allow and
//! never an error that a caller's fail-open could turn into one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use airlock_policy::{Decision, Policy, Verdict};
use airlock_proto::cap;

use crate::metrics::KernelMetrics;
use crate::policies::Policies;
use crate::wire::{Question, response};

pub const NO_POLICY: &str = "denied: no policy loaded";
pub const PANICKED: &str = "denied: asking the policy failed inside the safety kernel";

#[derive(Clone)]
pub struct Judge {
    policies: Arc<Policies>,
    metrics: KernelMetrics,
}

impl Judge {
    pub fn new(policies: Arc<Policies>, metrics: KernelMetrics) -> Self {
        Self { policies, metrics }
    }

    pub fn policies(&self) -> &Policies {
        &self.policies
    }

    /// The policy in force, held for one call so that a batch has one snapshot.
    pub fn sitting(&self) -> Sitting<'_> {
        Sitting {
            policy: self.policies.current(),
            metrics: &self.metrics,
        }
    }
}

/// One policy, for as long as a call lasts.
pub struct Sitting<'a> {
    policy: Option<Arc<Policy>>,
    metrics: &'a KernelMetrics,
}

impl Sitting<'_> {
    /// A verdict that counts.
    pub fn check(&self, request: &cap::PolicyCheckRequest) -> cap::PolicyCheckResponse {
        let started = Instant::now();
        let verdict = self.ask(|policy| policy.decide(&Question::new(request).input()));
        self.metrics
            .decided(verdict.decision, started.elapsed().as_secs_f64());
        response(&verdict)
    }

    /// The same verdict, not counted: nobody acts on it.
    pub fn simulate(&self, request: &cap::PolicyCheckRequest) -> cap::PolicyCheckResponse {
        response(&self.ask(|policy| policy.decide(&Question::new(request).input())))
    }

    /// The same verdict, whose reason also names the rules that were passed over.
    pub fn explain(&self, request: &cap::PolicyCheckRequest) -> cap::PolicyCheckResponse {
        response(&self.ask(|policy| {
            let explained = policy.explain(&Question::new(request).input());
            Verdict {
                reason: explained.to_string().into(),
                ..explained.verdict
            }
        }))
    }

    fn ask(&self, question: impl FnOnce(&Policy) -> Verdict) -> Verdict {
        let Some(policy) = &self.policy else {
            return deny(NO_POLICY, "".into());
        };
        // A policy never changes, so a panic cannot leave it half changed.
        catch_unwind(AssertUnwindSafe(|| question(policy))).unwrap_or_else(|_| {
            tracing::error!(snapshot = %policy.snapshot(), "asking the policy panicked; denied");
            deny(PANICKED, policy.snapshot().clone())
        })
    }
}

fn deny(reason: &str, snapshot: Arc<str>) -> Verdict {
    Verdict {
        decision: Decision::Deny,
        reason: reason.into(),
        rule_id: None,
        snapshot,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge() -> Judge {
        Judge::new(Arc::default(), KernelMetrics::new())
    }

    #[test]
    fn without_a_policy_everything_is_denied() {
        let judge = judge();
        let request = cap::PolicyCheckRequest {
            topic: "job.a".to_owned(),
            ..Default::default()
        };
        let sitting = judge.sitting();
        for answer in [
            sitting.check(&request),
            sitting.simulate(&request),
            sitting.explain(&request),
        ] {
            assert_eq!(answer.decision(), cap::DecisionType::Deny);
            assert_eq!(answer.reason, NO_POLICY);
        }
    }

    #[test]
    fn a_panic_is_a_denial() {
        let judge = judge();
        let policy = Policy::load("version: 1\ndefault_decision: allow\nrules: []\n").unwrap();
        judge.policies().install(policy);
        let verdict = judge.sitting().ask(|_| panic!("a rule blew up"));
        assert_eq!(verdict.decision, Decision::Deny);
        assert_eq!(&*verdict.reason, PANICKED);
        assert!(verdict.snapshot.starts_with("sha256:"));
    }
}
