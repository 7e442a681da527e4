//! The safety client: asks the kernel about many jobs in one call, behind the breaker.
//!
//! Whatever goes wrong, the answer is never an allow: a call that fails, times out or
//! answers nonsense leaves the job undecided, and the fail mode says what that means.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use airlock_model::backoff::Backoff;
use airlock_model::breaker::{Admission, Breaker, Settings};
use airlock_model::engine::{Input, KnownJob};
use airlock_model::routing::WaitReason;
use airlock_model::{Decision, Timestamp, Verdict};
use airlock_proto::cap::safety_kernel_client::SafetyKernelClient;
use airlock_proto::own::policy_batch_client::PolicyBatchClient;
use airlock_proto::{cap, own};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};

use crate::clock::Clock;
use crate::config::{FailMode, KernelConfig};
use crate::metrics::{Metrics, by_topic};

/// How long a job waits when the circuit is open.
const OPEN_DELAY: Duration = Duration::from_secs(5);

pub struct Kernel {
    batch: PolicyBatchClient<Channel>,
    single: SafetyKernelClient<Channel>,
    config: KernelConfig,
    state: Mutex<State>,
    clock: Clock,
    metrics: Metrics,
}

struct State {
    breaker: Breaker,
    failures: u32,
}

impl Kernel {
    /// Connects lazily: a kernel that is away is a reason to wait, not to fail.
    pub async fn new(
        config: &KernelConfig,
        clock: Clock,
        metrics: Metrics,
    ) -> anyhow::Result<Self> {
        let mut endpoint = Endpoint::from_shared(config.url.clone())?
            .connect_timeout(config.timeout)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(Duration::from_secs(10))
            .keep_alive_while_idle(true);
        if let Some(path) = &config.tls_ca {
            let pem = tokio::fs::read(path)
                .await
                .map_err(|e| anyhow::anyhow!("reading the kernel's CA certificate {path}: {e}"))?;
            endpoint = endpoint
                .tls_config(ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)))?;
        }
        let channel = endpoint.connect_lazy();
        Ok(Self {
            batch: PolicyBatchClient::new(channel.clone())
                .max_decoding_message_size(16 * 1024 * 1024),
            single: SafetyKernelClient::new(channel),
            config: config.clone(),
            state: Mutex::new(State {
                breaker: Breaker::new(Settings::default()),
                failures: 0,
            }),
            clock,
            metrics,
        })
    }

    /// What the kernel says about each job, as inputs for the engine.
    pub async fn decide(&self, jobs: Vec<KnownJob>, random: u64) -> Vec<Input> {
        if jobs.is_empty() {
            return Vec::new();
        }
        match self.ask(&jobs).await {
            Ok(verdicts) => jobs
                .into_iter()
                .zip(verdicts)
                .map(|(job, verdict)| Input::Decided {
                    job: Box::new(job),
                    verdict,
                })
                .collect(),
            Err(why) => self.undecided(jobs, &why, random),
        }
    }

    /// The snapshot of the kernel's policy, to confirm verdicts with.
    pub async fn snapshot(&self) -> Option<String> {
        let mut client = self.single.clone();
        let call = client.list_snapshots(cap::ListSnapshotsRequest {});
        match tokio::time::timeout(self.config.timeout, call).await {
            Ok(Ok(answer)) => answer.into_inner().snapshots.into_iter().next(),
            Ok(Err(_)) | Err(_) => None,
        }
    }

    async fn ask(&self, jobs: &[KnownJob]) -> Result<Vec<Verdict>, Unavailable> {
        if self.lock().breaker.admit(self.clock.now()) == Admission::Refused {
            return Err(Unavailable::CircuitOpen);
        }
        let traced = jobs.iter().any(|j| j.traceparent.ends_with("01"));
        let request = own::CheckBatchRequest {
            requests: jobs.iter().map(request).collect(),
            traceparents: if traced {
                jobs.iter().map(|j| j.traceparent.clone()).collect()
            } else {
                Vec::new()
            },
        };
        self.metrics.safety_batches.inc();
        self.metrics.safety_checks.inc_by(jobs.len() as u64);
        let mut client = self.batch.clone();
        let call = client.check_batch(request);
        let answer = match tokio::time::timeout(self.config.timeout, call).await {
            Ok(Ok(answer)) => Ok(answer.into_inner().responses),
            Ok(Err(status)) => Err(Unavailable::Failed(status.to_string())),
            Err(_) => Err(Unavailable::Failed(format!(
                "no answer within {} ms",
                self.config.timeout.as_millis()
            ))),
        };
        let now = self.clock.now();
        let answer = answer.and_then(|responses| {
            if responses.len() == jobs.len() {
                Ok(responses)
            } else {
                Err(Unavailable::Failed(format!(
                    "{} answers to {} questions",
                    responses.len(),
                    jobs.len()
                )))
            }
        });
        let mut state = self.lock();
        match answer {
            Ok(responses) => {
                state.breaker.succeeded();
                state.failures = 0;
                Ok(responses.into_iter().map(|r| verdict(r, now)).collect())
            }
            Err(why) => {
                state.breaker.failed(now);
                state.failures = state.failures.saturating_add(1);
                Err(why)
            }
        }
    }

    fn undecided(&self, jobs: Vec<KnownJob>, why: &Unavailable, random: u64) -> Vec<Input> {
        let now = self.clock.now();
        for job in &jobs {
            by_topic(&self.metrics.safety_unavailable, job.spec.topic.as_str());
        }
        if self.config.fail_mode == FailMode::Open {
            tracing::warn!(jobs = jobs.len(), %why, "input policy fail-open: safety kernel unreachable");
            return jobs
                .into_iter()
                .map(|job| {
                    by_topic(&self.metrics.input_fail_open, job.spec.topic.as_str());
                    Input::Decided {
                        job: Box::new(job),
                        verdict: Verdict {
                            decision: Decision::FailOpen,
                            reason: format!("input policy fail-open: {why}"),
                            rule_id: String::new(),
                            snapshot: String::new(),
                            decided_at: now,
                        },
                    }
                })
                .collect();
        }
        let delay = match why {
            Unavailable::CircuitOpen => OPEN_DELAY,
            Unavailable::Failed(_) => {
                let tries = self.lock().failures.saturating_sub(1);
                Backoff::SCHEDULING.delay(tries, random)
            }
        };
        tracing::warn!(jobs = jobs.len(), %why, delay_ms = delay.as_millis() as u64, "safety kernel unavailable; jobs wait");
        jobs.into_iter()
            .map(|job| Input::Undecided {
                job: Box::new(job),
                delay,
                reason: WaitReason::SafetyUnavailable,
            })
            .collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why the kernel gave no answer.
#[derive(Debug, thiserror::Error)]
enum Unavailable {
    #[error("safety kernel circuit open")]
    CircuitOpen,
    #[error("safety kernel: {0}")]
    Failed(String),
}

fn request(job: &KnownJob) -> cap::PolicyCheckRequest {
    let spec = &job.spec;
    let text = |s: &Option<String>| s.clone().unwrap_or_default();
    cap::PolicyCheckRequest {
        job_id: job.id.to_string(),
        topic: spec.topic.as_str().to_owned(),
        tenant: job.tenant.to_string(),
        priority: i32::from(spec.priority.code()),
        budget: spec.budget.as_ref().map(|b| cap::Budget {
            max_input_tokens: b.max_input_tokens.unwrap_or(0),
            max_output_tokens: b.max_output_tokens.unwrap_or(0),
            max_total_tokens: b.max_total_tokens.unwrap_or(0),
            deadline_ms: b.deadline_ms.unwrap_or(0),
        }),
        principal_id: text(&spec.principal_id),
        labels: spec.labels.clone(),
        memory_id: text(&spec.memory_id),
        meta: Some(cap::JobMetadata {
            tenant_id: job.tenant.to_string(),
            actor_id: text(&spec.actor_id),
            actor_type: match spec.actor_type {
                None => 0,
                Some(airlock_model::job::ActorType::Human) => 1,
                Some(airlock_model::job::ActorType::Service) => 2,
            },
            capability: text(&spec.capability),
            risk_tags: spec.risk_tags.clone(),
            requires: spec.requires.clone(),
            pack_id: text(&spec.pack_id),
            ..cap::JobMetadata::default()
        }),
        input_size_bytes: i64::try_from(job.payload_len).unwrap_or(i64::MAX),
        ..cap::PolicyCheckRequest::default()
    }
}

/// A decision this version does not know is a denial.
fn verdict(r: cap::PolicyCheckResponse, now: Timestamp) -> Verdict {
    use cap::DecisionType as D;
    let (decision, reason) = match D::try_from(r.decision) {
        Ok(D::Allow) => (Decision::Allow, r.reason),
        Ok(D::AllowWithConstraints) => (Decision::AllowWithConstraints, r.reason),
        Ok(D::RequireHuman) => (Decision::RequireApproval, r.reason),
        Ok(D::Throttle) => (Decision::Throttle, r.reason),
        Ok(D::Deny) => (Decision::Deny, r.reason),
        Ok(D::Unspecified | D::Quarantine | D::Redact) | Err(_) => (
            Decision::Deny,
            format!(
                "the safety kernel answered with an unknown decision ({})",
                r.decision
            ),
        ),
    };
    Verdict {
        decision,
        reason,
        rule_id: r.rule_id,
        snapshot: r.policy_snapshot,
        decided_at: now,
    }
}
