//! What the leader knows of the output policy, and one call of it behind the breaker.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use airlock_guard::{Guard, SharedBreaker};
use airlock_kernel_client::KernelError;
use airlock_ledger::{LeaderLedger, StoredOutputPolicy};
use airlock_model::JobId;
use airlock_model::engine::QueuedJob;
use airlock_model::output::{ClosedRules, OutputMetadata, OutputSwitch};
use airlock_proto::{cap, own};
use tokio::sync::{Notify, mpsc};

use super::at_rest::Erasure;
use super::checker::OutputChecker;
use super::config::OutputConfig;
use super::wire::{self, Answer};
use super::words::Words;
use crate::breaker::call_if_admitted;
use crate::kernel::FailMode;
use crate::metrics::Metrics;
use crate::term::clock::Clock;

/// Jobs in flight that are remembered for the verdict on their output; what is beyond it is
/// read from the ledger.
const MAX_JOBS: usize = 100_000;

/// Why an output has no verdict.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Unanswered {
    #[error("output scanner circuit open")]
    CircuitOpen,
    #[error("output scanner: {0}")]
    Absent(String),
    #[error("the output scanner refused the request: {0}")]
    Refused(String),
}

impl Unanswered {
    /// For whoever may see the job: without the names of hosts, which are in the log.
    pub const fn as_short_text(&self) -> &'static str {
        match self {
            Self::CircuitOpen => "output scanner circuit open",
            Self::Absent(_) => "output scanner unreachable",
            Self::Refused(_) => "the output scanner refused the request",
        }
    }
}

/// See the module's page.
pub struct OutputGate {
    pub config: OutputConfig,
    pub keep_evidence: Duration,
    pub words: Words,
    /// Notified when a scan is owed.
    pub owed: Notify,
    pub metrics: Metrics,
    checker: Arc<dyn OutputChecker>,
    breaker: SharedBreaker,
    ledger: LeaderLedger,
    clock: Clock,
    known: Mutex<Known>,
    jobs: Mutex<HashMap<JobId, Arc<QueuedJob>>>,
    erasures: mpsc::UnboundedSender<Erasure>,
    to_erase: Mutex<Option<mpsc::UnboundedReceiver<Erasure>>>,
}

#[derive(Default)]
struct Known {
    /// As a scanner last told it, to this leader or one before.
    policy: Option<StoredOutputPolicy>,
    /// The one that the ledger keeps for the next leader.
    kept: Option<StoredOutputPolicy>,
    /// When a call of this leader's own failed; none since the last one that did not.
    failed_at: Option<Instant>,
    /// Since when no call was answered.
    absent_since: Option<airlock_model::Timestamp>,
}

/// What the gate is made of.
pub struct GateParts<'a> {
    pub config: &'a OutputConfig,
    pub keep_evidence: Duration,
    pub checker: Arc<dyn OutputChecker>,
    pub guard: &'a Guard,
    pub ledger: &'a LeaderLedger,
    pub clock: Clock,
    pub metrics: Metrics,
}

impl OutputGate {
    pub async fn new(parts: GateParts<'_>) -> anyhow::Result<Self> {
        let (config, guard) = (parts.config, parts.guard);
        let breaker = guard.breaker(guard.keys().output_failures(), config.to_breaker_settings());
        let policy = match config.switch() {
            OutputSwitch::On => parts.ledger.output_policy().await?,
            OutputSwitch::Off => None,
        };
        let (erasures, to_erase) = mpsc::unbounded_channel();
        Ok(Self {
            config: config.clone(),
            keep_evidence: parts.keep_evidence,
            words: Words::new(config.switch()),
            owed: Notify::new(),
            metrics: parts.metrics,
            checker: parts.checker,
            breaker,
            ledger: parts.ledger.clone(),
            clock: parts.clock,
            known: Mutex::new(Known {
                kept: policy.clone(),
                policy,
                ..Known::default()
            }),
            jobs: Mutex::default(),
            erasures,
            to_erase: Mutex::new(Some(to_erase)),
        })
    }

    pub fn switch(&self) -> OutputSwitch {
        self.config.switch()
    }

    pub fn is_on(&self) -> bool {
        self.switch() == OutputSwitch::On
    }

    /// One answer for each request, in their order, or none at all.
    pub async fn check(
        &self,
        bound: Duration,
        requests: Vec<cap::OutputCheckRequest>,
    ) -> Result<Vec<Answer>, Unanswered> {
        let now = self.clock.now();
        let asked = requests.len();
        let call = async {
            let responses = self.checker.check_outputs(bound, requests).await?;
            // A service that answers something else than it was asked is as good as absent.
            wire::parse_responses(responses, asked).map_err(|message| KernelError::Unavailable {
                code: tonic::Code::Internal,
                message,
            })
        };
        // The circuit in Redis is a reason to spare the scanner and no evidence: anyone who
        // can write there could open it. It counts once a call of our own has failed.
        let (permit, told) = if self.has_recent_failure() {
            let done = call_if_admitted(&self.breaker, now, call).await;
            let (permit, told) = done.ok_or(Unanswered::CircuitOpen)?;
            (Some(permit), told)
        } else {
            tokio::join!(self.breaker.admit(now), call)
        };
        let failed = told.as_ref().is_err_and(|e| !e.is_rejection());
        {
            let mut known = self.lock();
            known.failed_at = failed.then(Instant::now);
            known.absent_since = failed.then(|| known.absent_since.unwrap_or(now));
        }
        if let Some(permit) = permit {
            match failed {
                true => self.breaker.record_failure(permit, self.clock.now()).await,
                false => self.breaker.record_success(permit).await,
            }
        }
        told.map_err(|error| match error.is_rejection() {
            true => Unanswered::Refused(error.to_string()),
            false => Unanswered::Absent(error.to_string()),
        })
    }

    /// Asks which policy is active, and keeps what fails closed.
    pub async fn confirm(&self, bound: Duration) -> Result<own::ConfirmOutputResponse, String> {
        let answer = self.checker.confirm_policy(bound).await;
        let answer = answer.map_err(|e| e.to_string())?;
        let policy = wire::parse_policy(&answer)?;
        let new = {
            let mut known = self.lock();
            known.policy = Some(policy.clone());
            known.kept.as_ref() != Some(&policy)
        };
        if new {
            match self.ledger.store_output_policy(&policy).await {
                Ok(()) => self.lock().kept = Some(policy),
                // The next confirmation writes it.
                Err(error) => tracing::warn!(%error, "the output policy is not kept yet"),
            }
        }
        Ok(answer)
    }

    /// The rule for which an output like this is held until its content is judged; `None`
    /// when it passes without a verdict.
    pub fn closed_rule(&self, output: &OutputMetadata<'_>) -> Option<String> {
        let known = self.lock();
        match &known.policy {
            // Whether every rule fails open is the scanner's to say.
            None if self.config.fail_mode == Some(FailMode::Open) => None,
            None => Some("no output policy is known yet".to_owned()),
            // The scanner does not know of this setting.
            Some(policy)
                if self.config.fail_mode == Some(FailMode::Closed) && !policy.fail_closed =>
            {
                Some("OUTPUT_POLICY_FAIL_MODE is closed".to_owned())
            }
            Some(policy) => {
                let rules: &ClosedRules = &policy.closed_rules;
                let rule = rules.first_met(output)?;
                Some(format!("rule {rule} fails closed"))
            }
        }
    }

    /// Since when no call was answered.
    pub fn absent_since(&self) -> Option<airlock_model::Timestamp> {
        self.lock().absent_since
    }

    fn has_recent_failure(&self) -> bool {
        let failed_at = self.lock().failed_at;
        failed_at.is_some_and(|at| at.elapsed() <= self.config.breaker.open_for)
    }

    /// A job goes to a worker: what its output is judged by is at hand when it comes back.
    pub fn remember_job(&self, job: &Arc<QueuedJob>) {
        if !self.is_on() {
            return;
        }
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if jobs.len() < MAX_JOBS {
            jobs.insert(job.id.clone(), job.clone());
        }
    }

    pub fn forget_job(&self, job: &JobId) {
        if self.is_on() {
            let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
            jobs.remove(job);
        }
    }

    pub fn remembered_job(&self, job: &JobId) -> Option<Arc<QueuedJob>> {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.get(job).cloned()
    }

    /// Copies of this job's output that are not the ledger's are removed soon.
    pub fn erase_copies(&self, erasure: Erasure) {
        // It fails only when the term is over.
        let _ = self.erasures.send(erasure);
    }

    pub fn take_erasures(&self) -> Option<mpsc::UnboundedReceiver<Erasure>> {
        let mut to_erase = self.to_erase.lock().unwrap_or_else(PoisonError::into_inner);
        to_erase.take()
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
