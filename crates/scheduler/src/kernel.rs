//! The safety client: asks the kernel about many jobs in one call, behind the breaker
//! and the decision cache.
//!
//! Whatever goes wrong, the answer is never an allow: a call that fails, times out or
//! answers nonsense leaves the job undecided, and the fail mode says what that means.

mod approved;
mod cache;
mod config;
mod link;
#[cfg(test)]
mod tests;
mod unanswered;
mod watch;
mod wire;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use airlock_guard::{Guard, SharedBreaker};
use airlock_kernel_client::batch;
use airlock_ledger::{Fact, LeaderLedger, Ledger};
use airlock_model::backoff::Backoff;
use airlock_model::breaker::Circuit;
use airlock_model::engine::{Input, QueuedJob};
use airlock_model::routing::WaitReason;
use airlock_model::{Decision, JobId, Timestamp, Verdict, saga};

use cache::Cache;
pub use config::{BreakerConfig, FailMode, KernelConfig};
use link::{BatchAnswer, Link};
use unanswered::Unanswered;
pub use watch::watch_kernel_health;

use crate::breaker::call_if_admitted;
use crate::metrics::{Metrics, count_by_topic};
use crate::term::clock::Clock;

/// A confirmation that takes longer says too little about now.
const CONFIRM_WITHIN: Duration = Duration::from_millis(500);

pub struct Kernel {
    link: Link,
    breaker: SharedBreaker,
    ledger: LeaderLedger,
    config: KernelConfig,
    known: Mutex<KernelState>,
    clock: Clock,
    metrics: Metrics,
}

/// What earlier answers told.
struct KernelState {
    cache: Cache,
    /// The policy file's, as the kernel last told it, to this leader or one before.
    fail_mode: Option<FailMode>,
    /// The one that the ledger keeps for the next leader.
    kept: Option<FailMode>,
    /// Calls that failed in a row.
    failures: u32,
    /// When this leader's own call failed last; none since the last one that did not.
    failed_at: Option<Instant>,
}

impl Kernel {
    pub async fn new(
        config: &KernelConfig,
        guard: &Guard,
        ledger: &LeaderLedger,
        clock: Clock,
        metrics: Metrics,
    ) -> anyhow::Result<Self> {
        let breaker = guard.breaker(guard.keys().safety_failures(), config.to_breaker_settings());
        // A leader that begins while the circuit is open sends nothing through it.
        breaker.sync_from_shared(clock.now()).await;
        let heard = ledger.read_fact(Fact::PolicyFailMode).await?;
        let heard = heard.as_deref().and_then(FailMode::parse);
        Ok(Self {
            link: Link::new(config, Ledger::clone(ledger), metrics.clone()).await?,
            breaker,
            ledger: ledger.clone(),
            config: config.clone(),
            known: Mutex::new(KernelState {
                cache: Cache::new(config.cache_entries),
                fail_mode: heard,
                kept: heard,
                failures: 0,
                failed_at: None,
            }),
            clock,
            metrics,
        })
    }

    /// What the kernel says about each job, as inputs for the engine.
    pub async fn decide_jobs(&self, jobs: Vec<QueuedJob>, random: u64) -> Vec<Input> {
        let mut verdicts = self.cached_verdicts(&jobs);
        let mut why = self.check_undecided(&jobs, &mut verdicts).await.err();
        if let Err(unanswered) = self.apply_approvals(&jobs, &mut verdicts).await {
            why = Some(unanswered);
        }
        let mut inputs = Vec::with_capacity(jobs.len());
        let mut undecided = Vec::new();
        for (job, verdict) in jobs.into_iter().zip(verdicts) {
            match verdict {
                Some(verdict) => inputs.push(Input::Decided {
                    job: Box::new(job),
                    verdict,
                }),
                None => undecided.push(job),
            }
        }
        if let Some(why) = why
            && !undecided.is_empty()
        {
            let (soft, undecided) = self.split_compensations(undecided, &why).await;
            inputs.extend(soft);
            inputs.extend(self.to_undecided_inputs(undecided, &why, random));
        }
        inputs
    }

    /// Asks about every job without a verdict, in calls that the kernel can read.
    async fn check_undecided(
        &self,
        jobs: &[QueuedJob],
        verdicts: &mut [Option<Verdict>],
    ) -> Result<(), Unanswered> {
        let unknown: Vec<usize> = (0..jobs.len()).filter(|i| verdicts[*i].is_none()).collect();
        let mut calls = batch::split_into_batches(&unknown, |i| wire::max_encoded_len(&jobs[i]));
        calls.reverse();
        while let Some(call) = calls.pop() {
            let asked: Vec<&QueuedJob> = call.iter().map(|i| &jobs[*i]).collect();
            match self.evaluate_batch(&asked).await {
                Ok(answers) => {
                    for (i, verdict) in call.into_iter().zip(answers) {
                        verdicts[i] = Some(verdict);
                    }
                }
                Err(Unanswered::Refused(reason)) => match batch::halve_batch(call) {
                    Ok([first, second]) => calls.extend([second, first]),
                    Err(alone) => {
                        if let Some(i) = alone {
                            verdicts[i] = Some(self.deny_unjudgeable(&jobs[i], &reason));
                        }
                    }
                },
                Err(why) => return Err(why),
            }
        }
        Ok(())
    }

    /// A job that the kernel does not take even alone is denied: nobody can say that it
    /// may run, and waiting changes nothing.
    fn deny_unjudgeable(&self, job: &QueuedJob, reason: &str) -> Verdict {
        tracing::warn!(job_id = %job.id, topic = %job.spec.topic, reason, "job denied: the safety kernel cannot judge it");
        let now = self.clock.now();
        Verdict {
            decision: Decision::Deny,
            reason: format!(
                "denied: too large to judge, or not as the safety kernel wants it ({reason})"
            ),
            decided_at: now,
            confirmed_at: now,
            ..Verdict::default()
        }
    }

    /// The same for jobs that are not in the ledger yet. Neither velocity nor the breaker
    /// counts it, and there is no answer unless their requests alone, and a kernel that is
    /// well, tell it.
    pub async fn decide_before_commit(&self, jobs: Vec<QueuedJob>) -> Option<Vec<Input>> {
        let Circuit::Closed { .. } = self.breaker.circuit() else {
            return None;
        };
        let mut verdicts = self.cached_verdicts(&jobs);
        let unknown: Vec<usize> = (0..jobs.len()).filter(|i| verdicts[*i].is_none()).collect();
        if !unknown.is_empty() {
            let asked: Vec<&QueuedJob> = unknown.iter().map(|i| &jobs[*i]).collect();
            let asked_at = self.clock.now();
            let told = self.link.check_before_commit(&asked).await?;
            let answers = self.cache_answers(&asked, told, asked_at, self.clock.now());
            for (i, verdict) in unknown.into_iter().zip(answers) {
                verdicts[i] = Some(verdict);
            }
        }
        self.apply_approvals(&jobs, &mut verdicts).await.ok()?;
        let decided = jobs.into_iter().zip(verdicts).map(|(job, verdict)| {
            verdict.map(|verdict| Input::Decided {
                job: Box::new(job),
                verdict,
            })
        });
        decided.collect()
    }

    /// Asks which policy is in force, so that what is known of it may be used on. `None`
    /// when it cannot be told.
    pub async fn fetch_active_snapshot(&self) -> Option<String> {
        match self.breaker.circuit() {
            // The kernel is spared; its jobs are not decided from memory either.
            Circuit::Open { .. } | Circuit::HalfOpen { .. } => return None,
            Circuit::Closed { .. } => {}
        }
        let asked_at = self.clock.now();
        let (snapshot, fail_mode) = self.link.fetch_active_policy(CONFIRM_WITHIN).await?;
        self.record_active_policy(&snapshot, fail_mode, asked_at);
        self.store_fail_mode().await;
        Some(snapshot)
    }

    /// Writes down what the file says about an absent kernel, when that is new. Done
    /// where the policy in force is asked for anyway, away from the way of the jobs.
    async fn store_fail_mode(&self) {
        let new = {
            let known = self.lock();
            known.fail_mode.filter(|_| known.fail_mode != known.kept)
        };
        let Some(mode) = new else { return };
        match self
            .ledger
            .write_fact(Fact::PolicyFailMode, mode.as_str())
            .await
        {
            Ok(()) => self.lock().kept = Some(mode),
            Err(error) => {
                tracing::warn!(%error, mode = mode.as_str(), "the policy's fail mode is not kept yet");
            }
        }
    }

    fn cached_verdicts(&self, jobs: &[QueuedJob]) -> Vec<Option<Verdict>> {
        let now = self.clock.now();
        let mut known = self.lock();
        let verdicts: Vec<_> = jobs.iter().map(|job| known.cache.get(job, now)).collect();
        drop(known);
        let hits = verdicts.iter().filter(|v| v.is_some()).count();
        self.metrics.decision_cache_hits.inc_by(hits as u64);
        verdicts
    }

    async fn evaluate_batch(&self, jobs: &[&QueuedJob]) -> Result<Vec<Verdict>, Unanswered> {
        let answer = self.check_through_breaker(jobs).await;
        self.metrics
            .safety_circuit
            .set(circuit_gauge_value(self.breaker.circuit()));
        answer
    }

    async fn check_through_breaker(&self, jobs: &[&QueuedJob]) -> Result<Vec<Verdict>, Unanswered> {
        let asked_at = self.clock.now();
        let check = self.link.check_jobs(jobs);
        let (permit, told) = call_if_admitted(&self.breaker, asked_at, check)
            .await
            .ok_or(Unanswered::CircuitOpen)?;
        let now = self.clock.now();
        match told {
            Err(why) if why.is_kernel_failure() => {
                self.breaker.record_failure(permit, now).await;
                let mut known = self.lock();
                known.failures = known.failures.saturating_add(1);
                known.failed_at = Some(Instant::now());
                Err(why)
            }
            // Also a refusal is the word of a kernel that is there.
            answered => {
                self.breaker.record_success(permit).await;
                {
                    let mut known = self.lock();
                    known.failures = 0;
                    known.failed_at = None;
                }
                Ok(self.cache_answers(jobs, answered?, asked_at, now))
            }
        }
    }

    /// Remembers what may be used again, and makes verdicts of it all.
    fn cache_answers(
        &self,
        jobs: &[&QueuedJob],
        told: BatchAnswer,
        asked_at: Timestamp,
        now: Timestamp,
    ) -> Vec<Verdict> {
        self.record_active_policy(&told.snapshot, told.fail_mode, asked_at);
        let mut known = self.lock();
        jobs.iter()
            .zip(told.answers)
            .map(|(job, answered)| {
                let verdict = answered.answer.to_verdict(now, asked_at);
                if let Some(reads) = answered.reads {
                    known.cache.put(&reads, job, answered.answer);
                }
                verdict
            })
            .collect()
    }

    fn record_active_policy(
        &self,
        snapshot: &str,
        fail_mode: Option<FailMode>,
        asked_at: Timestamp,
    ) {
        let mut known = self.lock();
        known.cache.confirm_snapshot(snapshot, asked_at);
        if fail_mode.is_some() {
            known.fail_mode = fail_mode;
        }
    }

    /// Jobs that the policy holds, and people have let go. When that cannot be looked
    /// up, they are as undecided as if nobody had answered.
    async fn apply_approvals(
        &self,
        jobs: &[QueuedJob],
        verdicts: &mut [Option<Verdict>],
    ) -> Result<(), Unanswered> {
        let held = |v: &Option<Verdict>| {
            v.as_ref()
                .is_some_and(|v| v.decision == Decision::RequireApproval)
        };
        let ids: Vec<JobId> = jobs
            .iter()
            .zip(&*verdicts)
            .filter(|(_, v)| held(v))
            .map(|(job, _)| job.id.clone())
            .collect();
        if ids.is_empty() {
            return Ok(());
        }
        match self.ledger.granted_approvals(&ids).await {
            Ok(granted) => {
                for (job, verdict) in jobs.iter().zip(verdicts) {
                    if let (Some(verdict), Some(granted)) = (verdict, granted.get(&job.id)) {
                        approved::apply_approval(verdict, granted);
                    }
                }
                Ok(())
            }
            Err(error) => {
                verdicts
                    .iter_mut()
                    .filter(|v| held(v))
                    .for_each(|v| *v = None);
                Err(Unanswered::Approvals(error.to_string()))
            }
        }
    }

    /// Without the kernel a compensation runs under a soft decision, because undoing must not
    /// wait for what may be part of the trouble. Only one that the ledger knows as such.
    async fn split_compensations(
        &self,
        jobs: Vec<QueuedJob>,
        why: &Unanswered,
    ) -> (Vec<Input>, Vec<QueuedJob>) {
        let labelled: Vec<JobId> = jobs
            .iter()
            .filter(|job| saga::is_compensation(&job.spec))
            .map(|job| job.id.clone())
            .collect();
        if labelled.is_empty() || !why.is_kernel_absent() || !self.has_recent_failure() {
            return (Vec::new(), jobs);
        }
        let known = match self.ledger.known_compensations(&labelled).await {
            Ok(known) => known,
            Err(error) => {
                tracing::warn!(%error, "compensations cannot be confirmed, they wait");
                return (Vec::new(), jobs);
            }
        };
        let now = self.clock.now();
        let (soft, rest): (Vec<QueuedJob>, Vec<QueuedJob>) =
            jobs.into_iter().partition(|job| known.contains(&job.id));
        let soft = soft.into_iter().map(|job| {
            tracing::warn!(job_id = %job.id, %why, "compensation runs under a soft decision");
            Input::Decided {
                job: Box::new(job),
                verdict: Verdict {
                    decision: Decision::SagaSoft,
                    reason: format!("a compensation runs without the safety kernel: {why}"),
                    decided_at: now,
                    confirmed_at: now,
                    ..Verdict::default()
                },
            }
        });
        (soft.collect(), rest)
    }

    fn to_undecided_inputs(
        &self,
        jobs: Vec<QueuedJob>,
        why: &Unanswered,
        random: u64,
    ) -> Vec<Input> {
        let now = self.clock.now();
        for job in &jobs {
            count_by_topic(&self.metrics.safety_unavailable, job.spec.topic.as_str());
        }
        if why.is_kernel_absent() && self.fail_mode() == FailMode::Open && self.has_recent_failure()
        {
            tracing::warn!(jobs = jobs.len(), %why, "input policy fail-open: safety kernel unreachable");
            return jobs
                .into_iter()
                .map(|job| {
                    count_by_topic(&self.metrics.input_fail_open, job.spec.topic.as_str());
                    Input::Decided {
                        job: Box::new(job),
                        verdict: Verdict {
                            decision: Decision::FailOpen,
                            reason: format!("input policy fail-open: {why}"),
                            decided_at: now,
                            confirmed_at: now,
                            ..Verdict::default()
                        },
                    }
                })
                .collect();
        }
        let delay = match why {
            Unanswered::CircuitOpen => self.config.breaker.open_delay,
            Unanswered::Absent(_)
            | Unanswered::Refused(_)
            | Unanswered::Inputs(_)
            | Unanswered::Approvals(_) => {
                let tries = self.lock().failures.saturating_sub(1);
                Backoff::SCHEDULING.delay(tries, random)
            }
        };
        tracing::warn!(jobs = jobs.len(), %why, delay_ms = delay.as_millis() as u64, "safety kernel unavailable; jobs wait");
        let detail: Arc<str> = why.as_short_text().into();
        jobs.into_iter()
            .map(|job| Input::Undecided {
                job: Box::new(job),
                delay,
                reason: WaitReason::SafetyUnavailable,
                detail: detail.clone(),
            })
            .collect()
    }

    /// Whether a call of this leader's own failed just now. The circuit in Redis is a
    /// reason to wait, and no evidence: anyone who can write there could open it.
    fn has_recent_failure(&self) -> bool {
        let failed_at = self.lock().failed_at;
        failed_at.is_some_and(|at| at.elapsed() <= self.config.breaker.open_for)
    }

    /// The setting, or else what the policy file says, or else closed.
    fn fail_mode(&self) -> FailMode {
        let told = || self.lock().fail_mode;
        self.config
            .fail_mode
            .or_else(told)
            .unwrap_or(FailMode::Closed)
    }

    fn lock(&self) -> MutexGuard<'_, KernelState> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As the gauge has it.
pub(crate) fn circuit_gauge_value(circuit: Circuit) -> i64 {
    match circuit {
        Circuit::Closed { .. } => 0,
        Circuit::HalfOpen { .. } => 1,
        Circuit::Open { .. } => 2,
    }
}
