//! Evaluates requests by the active policy.
//!
//! What must stay true: whatever goes wrong here, the verdict is deny. No policy and a
//! panic while rules are evaluated are both verdicts with a reason, never an allow and
//! never an error that a caller's fail-open could turn into one.
//!
//! Rules are pure and counters are not, so a batch goes in rounds: evaluate every request,
//! look up the counters that some of them need, evaluate those requests again. Without
//! velocity rules there is one round and no waiting.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use airlock_policy::{
    Counters, Decision, Evaluation, Explanation, FailMode, KnownCounts, Policy, VelocityQuery,
    limits,
};
use airlock_proto::{cap, own};

use crate::metrics::KernelMetrics;
use crate::policies::Policies;
use crate::velocity::VelocityCounters;
use crate::wire::CheckInput;

pub const NO_POLICY: &str = "denied: no policy loaded";
pub const BUNDLES_UNKNOWN: &str = "throttled: the active policy bundles are not known yet";
pub const PANICKED: &str = "denied: evaluating the policy failed inside the safety kernel";
pub const COUNTER_UNAVAILABLE: &str =
    "throttled: a strict velocity rule counts in the ledger, which is unavailable";
pub const TOO_MANY_ROUNDS: &str = "denied: the velocity rules needed too many rounds";

/// Requests evaluated before the task yields to others.
const REQUESTS_BETWEEN_YIELDS: usize = 64;

/// What a verdict is used for, and so whether it is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A job is decided: metrics and velocity rules count it.
    Decide,
    /// Nothing counts it.
    DryRun,
    /// The job may not be committed yet. Velocity rules do not count it. Metrics do when
    /// all verdicts of the batch depend on their requests alone; otherwise the caller
    /// checks the same jobs again.
    Speculative,
}

/// Where velocity was counted for a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountedBy {
    Nobody,
    AllKernels,
    ThisKernel,
}

/// The verdict on one request.
#[derive(Debug)]
pub enum Verdict {
    ByPolicy {
        evaluation: Evaluation,
        counted_by: CountedBy,
    },
    /// The policy was not or could not be evaluated.
    WithoutPolicy {
        decision: Decision,
        reason: &'static str,
        snapshot: Arc<str>,
    },
}

impl Verdict {
    /// Whether it depends on nothing but the request and the policy.
    pub fn depends_on_request_only(&self) -> bool {
        match self {
            Self::ByPolicy { evaluation, .. } => evaluation.is_cacheable(),
            Self::WithoutPolicy { .. } => false,
        }
    }

    pub fn decision(&self) -> Decision {
        match self {
            Self::ByPolicy { evaluation, .. } => evaluation.decision,
            Self::WithoutPolicy { decision, .. } => *decision,
        }
    }
}

#[derive(Clone)]
pub struct Evaluator {
    policies: Arc<Policies>,
    counters: Arc<VelocityCounters>,
    metrics: KernelMetrics,
}

impl Evaluator {
    pub fn new(
        policies: Arc<Policies>,
        counters: Arc<VelocityCounters>,
        metrics: KernelMetrics,
    ) -> Self {
        Self {
            policies,
            counters,
            metrics,
        }
    }

    pub fn policies(&self) -> &Policies {
        &self.policies
    }

    /// The active policy, pinned for one call so that a batch has one snapshot.
    pub fn pin_policy(&self) -> PolicySession<'_> {
        PolicySession {
            policy: self.policies.current(),
            waiting: self.policies.is_waiting_for_bundles(),
            evaluator: self,
        }
    }
}

/// One policy, for as long as a call lasts.
pub struct PolicySession<'a> {
    policy: Option<Arc<Policy>>,
    waiting: bool,
    evaluator: &'a Evaluator,
}

/// A request that needs another count before it has a verdict.
struct PendingRequest<'a> {
    index: usize,
    input: CheckInput<'a>,
    counts: KnownCounts,
    missing: VelocityQuery,
    local: bool,
}

impl PolicySession<'_> {
    /// One verdict for each request, in order.
    pub async fn evaluate(
        &self,
        requests: &[cap::PolicyCheckRequest],
        spans: &[tracing::Span],
        purpose: Purpose,
    ) -> Vec<Verdict> {
        let mut verdicts: Vec<Option<Verdict>> = Vec::with_capacity(requests.len());
        let mut pending: Vec<PendingRequest<'_>> = Vec::new();
        for (i, request) in requests.iter().enumerate() {
            if i % REQUESTS_BETWEEN_YIELDS == REQUESTS_BETWEEN_YIELDS - 1 {
                tokio::task::yield_now().await;
            }
            let input = CheckInput::new(request);
            let mut counts = KnownCounts::default();
            let verdict = self.evaluate_one(&input, &mut counts, spans.get(i));
            match counts.first_missing().cloned() {
                Some(missing) => {
                    verdicts.push(None);
                    pending.push(PendingRequest {
                        index: i,
                        input,
                        counts,
                        missing,
                        local: false,
                    });
                }
                None => verdicts.push(Some(verdict)),
            }
        }
        let mut rounds = 0;
        while !pending.is_empty() && rounds < limits::VELOCITY_RULES {
            rounds += 1;
            pending = self
                .count_and_retry(pending, &mut verdicts, spans, purpose)
                .await;
        }
        let verdicts: Vec<Verdict> = verdicts
            .into_iter()
            .map(|verdict| {
                verdict
                    .unwrap_or_else(|| self.verdict_without_policy(Decision::Deny, TOO_MANY_ROUNDS))
            })
            .collect();
        self.record_metrics(&verdicts, purpose);
        verdicts
    }

    fn record_metrics(&self, verdicts: &[Verdict], purpose: Purpose) {
        let counts = match purpose {
            Purpose::Decide => true,
            Purpose::DryRun => false,
            Purpose::Speculative => verdicts.iter().all(Verdict::depends_on_request_only),
        };
        if !counts {
            return;
        }
        for verdict in verdicts {
            self.evaluator.metrics.record_decision(verdict.decision());
            if let Verdict::ByPolicy { evaluation, .. } = verdict {
                self.evaluator
                    .metrics
                    .record_shadow_hits(&evaluation.shadows);
            }
        }
    }

    /// Looks up the missing counter of each request, all at once, and evaluates them again.
    async fn count_and_retry<'a>(
        &self,
        pending: Vec<PendingRequest<'a>>,
        verdicts: &mut [Option<Verdict>],
        spans: &[tracing::Span],
        purpose: Purpose,
    ) -> Vec<PendingRequest<'a>> {
        let queries: Vec<(&VelocityQuery, String)> = pending
            .iter()
            .map(|p| (&p.missing, p.input.job_id().to_string()))
            .collect();
        let record = match purpose {
            Purpose::Decide => true,
            Purpose::DryRun | Purpose::Speculative => false,
        };
        let counts = self.evaluator.counters.count(&queries, record).await;
        let mut still = Vec::new();
        for (mut p, count) in pending.into_iter().zip(counts) {
            let Some(count) = count else {
                if let Some(slot) = verdicts.get_mut(p.index) {
                    *slot =
                        Some(self.verdict_without_policy(Decision::Throttle, COUNTER_UNAVAILABLE));
                }
                continue;
            };
            p.local |= count.local;
            p.counts.insert(p.missing.key.clone(), count.count);
            let verdict = self.evaluate_one(&p.input, &mut p.counts, spans.get(p.index));
            match p.counts.first_missing().cloned() {
                Some(missing) => still.push(PendingRequest { missing, ..p }),
                None => {
                    if let Some(slot) = verdicts.get_mut(p.index) {
                        *slot = Some(with_counted_by(verdict, p.local));
                    }
                }
            }
        }
        still
    }

    /// The same verdict, with every rule that was evaluated and what would have changed it.
    /// Counts nothing.
    pub async fn explain(
        &self,
        request: &cap::PolicyCheckRequest,
    ) -> (Verdict, Option<Explanation>) {
        let Some(policy) = &self.policy else {
            return (self.no_policy_verdict(), None);
        };
        let input = CheckInput::new(request);
        let mut counts = KnownCounts::default();
        let mut local = None;
        for _ in 0..=limits::VELOCITY_RULES {
            // A policy never changes, so a panic cannot leave it half changed.
            let explained = catch_unwind(AssertUnwindSafe(|| {
                policy.explain(&input.to_policy_request(), &mut counts)
            }));
            let Ok(explained) = explained else {
                return (self.panic_verdict(policy), None);
            };
            let Some(next) = counts.first_missing().cloned() else {
                let verdict = Verdict::ByPolicy {
                    evaluation: explained.evaluation.clone(),
                    counted_by: match local {
                        None => CountedBy::Nobody,
                        Some(false) => CountedBy::AllKernels,
                        Some(true) => CountedBy::ThisKernel,
                    },
                };
                return (verdict, Some(explained));
            };
            let input = [(&next, input.job_id().to_string())];
            let counted = self.evaluator.counters.count(&input, false).await;
            let Some(counted) = counted.first().copied().flatten() else {
                return (
                    self.verdict_without_policy(Decision::Throttle, COUNTER_UNAVAILABLE),
                    None,
                );
            };
            local = Some(counted.local || local == Some(true));
            counts.insert(next.key, counted.count);
        }
        (
            self.verdict_without_policy(Decision::Deny, TOO_MANY_ROUNDS),
            None,
        )
    }

    /// The active snapshot and its fail mode.
    pub fn active_snapshot(&self) -> (String, own::FailMode) {
        match &self.policy {
            None => (String::new(), own::FailMode::Unspecified),
            Some(policy) => {
                let mode = match policy.fail_mode() {
                    FailMode::Closed => own::FailMode::Closed,
                    FailMode::Open => own::FailMode::Open,
                };
                (policy.snapshot().to_string(), mode)
            }
        }
    }

    pub fn policy(&self) -> Option<&Policy> {
        self.policy.as_deref()
    }

    fn evaluate_one(
        &self,
        input: &CheckInput<'_>,
        counters: &mut dyn Counters,
        span: Option<&tracing::Span>,
    ) -> Verdict {
        let Some(policy) = &self.policy else {
            return self.no_policy_verdict();
        };
        let _entered = span.map(tracing::Span::enter);
        let started = Instant::now();
        // The policy turns a panic of its own into a denial.
        let evaluation = policy.evaluate(&input.to_policy_request(), counters);
        self.evaluator
            .metrics
            .record_evaluation(started.elapsed().as_secs_f64());
        Verdict::ByPolicy {
            evaluation,
            counted_by: CountedBy::Nobody,
        }
    }

    fn no_policy_verdict(&self) -> Verdict {
        if self.waiting {
            self.verdict_without_policy(Decision::Throttle, BUNDLES_UNKNOWN)
        } else {
            self.verdict_without_policy(Decision::Deny, NO_POLICY)
        }
    }

    fn panic_verdict(&self, policy: &Policy) -> Verdict {
        tracing::error!(snapshot = %policy.snapshot(), "policy evaluation panicked, denying");
        self.verdict_without_policy(Decision::Deny, PANICKED)
    }

    fn verdict_without_policy(&self, decision: Decision, reason: &'static str) -> Verdict {
        let snapshot = self.policy.as_ref().map(|p| p.snapshot().clone());
        Verdict::WithoutPolicy {
            decision,
            reason,
            snapshot: snapshot.unwrap_or_else(|| "".into()),
        }
    }
}

fn with_counted_by(verdict: Verdict, local: bool) -> Verdict {
    match verdict {
        Verdict::ByPolicy { evaluation, .. } => Verdict::ByPolicy {
            evaluation,
            counted_by: if local {
                CountedBy::ThisKernel
            } else {
                CountedBy::AllKernels
            },
        },
        other @ Verdict::WithoutPolicy { .. } => other,
    }
}

#[cfg(test)]
mod tests {
    use airlock_policy::Count;

    use super::*;

    fn evaluator() -> Evaluator {
        Evaluator::new(
            Arc::default(),
            Arc::new(VelocityCounters::new(
                airlock_guard::Velocity::new(None),
                None,
            )),
            KernelMetrics::new(),
        )
    }

    fn job() -> cap::PolicyCheckRequest {
        cap::PolicyCheckRequest {
            job_id: "j".to_owned(),
            topic: "job.a".to_owned(),
            ..Default::default()
        }
    }

    #[tokio::test]
    async fn without_a_policy_jobs_are_denied_and_before_the_bundles_throttled() {
        let evaluator = evaluator();
        let requests = [job()];
        let answers = evaluator
            .pin_policy()
            .evaluate(&requests, &[], Purpose::Decide)
            .await;
        assert_eq!(answers[0].decision(), Decision::Deny);
        assert_eq!(
            evaluator.pin_policy().explain(&job()).await.0.decision(),
            Decision::Deny
        );
        evaluator.policies().set_waiting_for_bundles(true);
        let answers = evaluator
            .pin_policy()
            .evaluate(&requests, &[], Purpose::Decide)
            .await;
        assert_eq!(answers[0].decision(), Decision::Throttle);
    }

    /// A counter that panics, as no real one does.
    struct PanickingCounters;

    impl Counters for PanickingCounters {
        fn count(&mut self, _: &VelocityQuery) -> Count {
            panic!("a counter panicked")
        }
    }

    #[test]
    fn a_panic_is_a_denial() {
        let evaluator = evaluator();
        let policy = "version: 1
default_decision: allow
rules:
  - {id: fast, match: {topics: ['*']}, velocity: {max_requests: 1, window_seconds: 60, key: [tenant]}, decision: deny}
";
        evaluator
            .policies()
            .activate(Policy::load(policy).expect("a policy"));
        let request = job();
        let verdict = evaluator.pin_policy().evaluate_one(
            &CheckInput::new(&request),
            &mut PanickingCounters,
            None,
        );
        let Verdict::ByPolicy { evaluation, .. } = verdict else {
            panic!("the policy was not evaluated")
        };
        assert_eq!(evaluation.decision, Decision::Deny);
        assert!(!evaluation.is_cacheable());
        assert!(evaluation.snapshot.starts_with("sha256:"));
    }
}
