//! Answers requests by the policy in force.
//!
//! What must stay true: whatever goes wrong here, the answer is deny. No policy, a
//! panic while asking the rules: both are verdicts with a reason, never an allow and
//! never an error that a caller's fail-open could turn into one.
//!
//! Rules are pure and counters are not, so a batch goes in rounds: ask the rules about
//! every request, look up the counters that some of them need, ask about those again.
//! Without velocity rules there is one round and no waiting.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use airlock_policy::{
    Counters, Decision, Evaluation, Explanation, FailMode, KnownCounts, Policy, VelocityQuery,
    limits,
};
use airlock_proto::{cap, own};

use crate::counting::Counting;
use crate::metrics::KernelMetrics;
use crate::policies::Policies;
use crate::wire::Question;

pub const NO_POLICY: &str = "denied: no policy loaded";
pub const NOT_YET: &str = "throttled: it is not known yet which policy bundles are in force";
pub const PANICKED: &str = "denied: asking the policy failed inside the safety kernel";
pub const NOT_COUNTED: &str =
    "throttled: a strict velocity rule counts in the ledger, which cannot be asked";
pub const NO_END: &str = "denied: the policy's velocity rules came to no end";

/// Requests answered before other tasks get their turn.
const BETWEEN_YIELDS: usize = 64;

/// Whether anybody acts on the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// It is counted, in metrics and by velocity rules.
    Decide,
    /// Nothing remembers that it was given.
    Look,
    /// Velocity does not count it, and metrics do when all answers of the batch depend on
    /// their requests alone; otherwise they are asked for again.
    Ahead,
}

/// Where velocity was counted for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountedBy {
    Nobody,
    AllKernels,
    ThisKernel,
}

/// The answer to one request.
#[derive(Debug)]
pub enum Judged {
    ByPolicy {
        evaluation: Evaluation,
        counted_by: CountedBy,
    },
    /// The policy was not or could not be asked.
    WithoutPolicy {
        decision: Decision,
        reason: &'static str,
        snapshot: Arc<str>,
    },
}

impl Judged {
    /// Whether it depends on nothing but the request.
    pub fn holds_for_the_request(&self) -> bool {
        match self {
            Self::ByPolicy { evaluation, .. } => evaluation.cacheable(),
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
pub struct Judge {
    policies: Arc<Policies>,
    counting: Arc<Counting>,
    metrics: KernelMetrics,
}

impl Judge {
    pub fn new(policies: Arc<Policies>, counting: Arc<Counting>, metrics: KernelMetrics) -> Self {
        Self {
            policies,
            counting,
            metrics,
        }
    }

    pub fn policies(&self) -> &Policies {
        &self.policies
    }

    /// The policy in force, held for one call so that a batch has one snapshot.
    pub fn sitting(&self) -> Sitting<'_> {
        Sitting {
            policy: self.policies.current(),
            waiting: self.policies.is_waiting(),
            judge: self,
        }
    }
}

/// One policy, for as long as a call lasts.
pub struct Sitting<'a> {
    policy: Option<Arc<Policy>>,
    waiting: bool,
    judge: &'a Judge,
}

/// A request on its way through the rounds.
struct Open<'a> {
    place: usize,
    question: Question<'a>,
    counts: KnownCounts,
    next: VelocityQuery,
    local: bool,
}

impl Sitting<'_> {
    /// One answer for each request, in order.
    pub async fn answer(
        &self,
        requests: &[cap::PolicyCheckRequest],
        spans: &[tracing::Span],
        purpose: Purpose,
    ) -> Vec<Judged> {
        let mut answers: Vec<Option<Judged>> = Vec::with_capacity(requests.len());
        let mut open: Vec<Open<'_>> = Vec::new();
        for (i, request) in requests.iter().enumerate() {
            if i % BETWEEN_YIELDS == BETWEEN_YIELDS - 1 {
                tokio::task::yield_now().await;
            }
            let question = Question::new(request);
            let mut counts = KnownCounts::default();
            let judged = self.ask(&question, &mut counts, spans.get(i));
            match counts.missing().cloned() {
                Some(next) => {
                    answers.push(None);
                    open.push(Open {
                        place: i,
                        question,
                        counts,
                        next,
                        local: false,
                    });
                }
                None => answers.push(Some(judged)),
            }
        }
        let mut rounds = 0;
        while !open.is_empty() && rounds < limits::VELOCITY_RULES {
            rounds += 1;
            open = self.round(open, &mut answers, spans, purpose).await;
        }
        let answers: Vec<Judged> = answers
            .into_iter()
            .map(|answer| answer.unwrap_or_else(|| self.without(Decision::Deny, NO_END)))
            .collect();
        let counts = match purpose {
            Purpose::Decide => true,
            Purpose::Look => false,
            Purpose::Ahead => answers.iter().all(Judged::holds_for_the_request),
        };
        if counts {
            for answer in &answers {
                self.judge.metrics.decided(answer.decision());
                if let Judged::ByPolicy { evaluation, .. } = answer {
                    self.judge.metrics.shadows(&evaluation.shadows);
                }
            }
        }
        answers
    }

    /// Looks up one counter for each, all at once, and asks the rules again.
    async fn round<'a>(
        &self,
        open: Vec<Open<'a>>,
        answers: &mut [Option<Judged>],
        spans: &[tracing::Span],
        purpose: Purpose,
    ) -> Vec<Open<'a>> {
        let questions: Vec<(&VelocityQuery, String)> = open
            .iter()
            .map(|o| (&o.next, o.question.job().to_string()))
            .collect();
        let record = match purpose {
            Purpose::Decide => true,
            Purpose::Look | Purpose::Ahead => false,
        };
        let counted = self.judge.counting.count(&questions, record).await;
        let mut still = Vec::new();
        for (mut o, counted) in open.into_iter().zip(counted) {
            let Some(counted) = counted else {
                if let Some(answer) = answers.get_mut(o.place) {
                    *answer = Some(self.without(Decision::Throttle, NOT_COUNTED));
                }
                continue;
            };
            o.local |= counted.local;
            o.counts.insert(o.next.key.clone(), counted.count);
            let judged = self.ask(&o.question, &mut o.counts, spans.get(o.place));
            match o.counts.missing().cloned() {
                Some(next) => still.push(Open { next, ..o }),
                None => {
                    if let Some(answer) = answers.get_mut(o.place) {
                        *answer = Some(counted_by(judged, o.local));
                    }
                }
            }
        }
        still
    }

    /// The same answer, with every rule that was asked and what would have changed it.
    /// Counts nothing.
    pub async fn explain(
        &self,
        request: &cap::PolicyCheckRequest,
    ) -> (Judged, Option<Explanation>) {
        let Some(policy) = &self.policy else {
            return (self.no_policy(), None);
        };
        let question = Question::new(request);
        let mut counts = KnownCounts::default();
        let mut local = None;
        for _ in 0..=limits::VELOCITY_RULES {
            // A policy never changes, so a panic cannot leave it half changed.
            let explained = catch_unwind(AssertUnwindSafe(|| {
                policy.explain(&question.request(), &mut counts)
            }));
            let Ok(explained) = explained else {
                return (self.panicked(policy), None);
            };
            let Some(next) = counts.missing().cloned() else {
                let judged = Judged::ByPolicy {
                    evaluation: explained.evaluation.clone(),
                    counted_by: match local {
                        None => CountedBy::Nobody,
                        Some(false) => CountedBy::AllKernels,
                        Some(true) => CountedBy::ThisKernel,
                    },
                };
                return (judged, Some(explained));
            };
            let question = [(&next, question.job().to_string())];
            let counted = self.judge.counting.count(&question, false).await;
            let Some(counted) = counted.first().copied().flatten() else {
                return (self.without(Decision::Throttle, NOT_COUNTED), None);
            };
            local = Some(counted.local || local == Some(true));
            counts.insert(next.key, counted.count);
        }
        (self.without(Decision::Deny, NO_END), None)
    }

    /// The snapshot, and what its policy says about an absent kernel.
    pub fn in_force(&self) -> (String, own::FailMode) {
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

    fn ask(
        &self,
        question: &Question<'_>,
        counters: &mut dyn Counters,
        span: Option<&tracing::Span>,
    ) -> Judged {
        let Some(policy) = &self.policy else {
            return self.no_policy();
        };
        let _entered = span.map(tracing::Span::enter);
        let started = Instant::now();
        // A panic in there comes back as a denial.
        let evaluation = policy.evaluate(&question.request(), counters);
        self.judge
            .metrics
            .evaluated(started.elapsed().as_secs_f64());
        Judged::ByPolicy {
            evaluation,
            counted_by: CountedBy::Nobody,
        }
    }

    fn no_policy(&self) -> Judged {
        if self.waiting {
            self.without(Decision::Throttle, NOT_YET)
        } else {
            self.without(Decision::Deny, NO_POLICY)
        }
    }

    fn panicked(&self, policy: &Policy) -> Judged {
        tracing::error!(snapshot = %policy.snapshot(), "asking the policy panicked; denied");
        self.without(Decision::Deny, PANICKED)
    }

    fn without(&self, decision: Decision, reason: &'static str) -> Judged {
        let snapshot = self.policy.as_ref().map(|p| p.snapshot().clone());
        Judged::WithoutPolicy {
            decision,
            reason,
            snapshot: snapshot.unwrap_or_else(|| "".into()),
        }
    }
}

fn counted_by(judged: Judged, local: bool) -> Judged {
    match judged {
        Judged::ByPolicy { evaluation, .. } => Judged::ByPolicy {
            evaluation,
            counted_by: if local {
                CountedBy::ThisKernel
            } else {
                CountedBy::AllKernels
            },
        },
        refused @ Judged::WithoutPolicy { .. } => refused,
    }
}

#[cfg(test)]
mod tests {
    use airlock_policy::Count;

    use super::*;

    fn judge() -> Judge {
        Judge::new(
            Arc::default(),
            Arc::new(Counting::new(airlock_guard::Velocity::new(None), None)),
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
    async fn without_a_policy_everything_is_denied_and_before_the_bundles_put_off() {
        let judge = judge();
        let requests = [job()];
        let answers = judge
            .sitting()
            .answer(&requests, &[], Purpose::Decide)
            .await;
        assert_eq!(answers[0].decision(), Decision::Deny);
        assert_eq!(
            judge.sitting().explain(&job()).await.0.decision(),
            Decision::Deny
        );
        judge.policies().wait(true);
        let answers = judge
            .sitting()
            .answer(&requests, &[], Purpose::Decide)
            .await;
        assert_eq!(answers[0].decision(), Decision::Throttle);
    }

    /// A counter that blows up, as no real one does.
    struct Broken;

    impl Counters for Broken {
        fn count(&mut self, _: &VelocityQuery) -> Count {
            panic!("a counter blew up")
        }
    }

    #[test]
    fn a_panic_is_a_denial() {
        let judge = judge();
        let policy = "version: 1
default_decision: allow
rules:
  - {id: fast, match: {topics: ['*']}, velocity: {max_requests: 1, window_seconds: 60, key: [tenant]}, decision: deny}
";
        judge
            .policies()
            .install(Policy::load(policy).expect("a policy"));
        let request = job();
        let judged = judge
            .sitting()
            .ask(&Question::new(&request), &mut Broken, None);
        let Judged::ByPolicy { evaluation, .. } = judged else {
            panic!("it was not answered by the policy")
        };
        assert_eq!(evaluation.decision, Decision::Deny);
        assert!(!evaluation.cacheable());
        assert!(evaluation.snapshot.starts_with("sha256:"));
    }
}
