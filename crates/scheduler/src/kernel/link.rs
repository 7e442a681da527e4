//! The connection to the kernel: batched calls, each within one bound.
//!
//! Rules that look at a job's input make a second call: first every job is asked about
//! without its input, then those for which a rule wants to see it are asked about with
//! it. So a policy without such rules never costs a payload on the wire. Inputs are read
//! from the ledger between the calls, in the ledger's own time: a slow ledger is not an
//! absent kernel.

use std::time::Duration;

use airlock_ledger::Ledger;
use airlock_model::JobId;
use airlock_model::engine::QueuedJob;
use airlock_proto::own;
use airlock_proto::own::policy_batch_client::PolicyBatchClient;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};

use super::cache::Answer;
use super::calls::{CALL_BYTES, in_calls};
use super::config::{FailMode, KernelConfig};
use super::fields::Shape;
use super::unanswered::Unanswered;
use super::wire;
use crate::metrics::Metrics;

/// The largest input that is sent; a larger one goes by its size alone.
const CONTENT_BYTES: usize = CALL_BYTES;

/// An answer, and which fields it depends on; `None` when it holds for its job alone.
pub struct Answered {
    pub answer: Answer,
    pub shape: Option<Shape>,
}

/// What a call told.
pub struct Told {
    pub answers: Vec<Answered>,
    pub snapshot: String,
    pub fail_mode: Option<FailMode>,
}

pub struct Link {
    client: PolicyBatchClient<Channel>,
    ledger: Ledger,
    timeout: Duration,
    metrics: Metrics,
}

impl Link {
    pub async fn new(
        config: &KernelConfig,
        ledger: Ledger,
        metrics: Metrics,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            client: connect(config).await?,
            ledger,
            timeout: config.timeout,
            metrics,
        })
    }

    /// The same for jobs that are not in the ledger yet, as long as the caller waits.
    /// `None` when it takes more than their requests to tell.
    pub async fn foresee(&self, jobs: &[&QueuedJob]) -> Option<Told> {
        let answer = self.call(jobs, Vec::new(), true).await.ok()?;
        let complete = answer.content_wanted.is_empty();
        let told = read(answer, jobs.len()).ok()?;
        let known = told.answers.iter().all(|a| a.shape.is_some());
        (complete && known).then_some(told)
    }

    /// Which policy is in force, within `bound`.
    pub async fn confirm(&self, bound: Duration) -> Option<(String, Option<FailMode>)> {
        let answer = confirm(&self.client, bound).await.ok()?;
        Some((answer.snapshot, wire::fail_mode(answer.fail_mode)))
    }

    /// One answer for each job, in order, or none at all.
    pub async fn check(&self, jobs: &[&QueuedJob]) -> Result<Told, Unanswered> {
        let first = self.bounded(self.call(jobs, Vec::new(), false)).await?;
        let wanted: Vec<usize> = first
            .content_wanted
            .iter()
            .filter_map(|i| usize::try_from(*i).ok())
            .filter(|i| *i < jobs.len())
            .collect();
        let mut told = read(first, jobs.len())?;
        let size = |i: usize| {
            let input = usize::try_from(jobs[i].payload_len).unwrap_or(usize::MAX);
            wire::encoded_at_most(jobs[i]).saturating_add(input)
        };
        for chunk in in_calls(&wanted, size) {
            let ids: Vec<JobId> = chunk.iter().map(|i| jobs[*i].id.clone()).collect();
            let payloads = self.ledger.payloads(&ids).await;
            let payloads = payloads.map_err(|e| Unanswered::Inputs(e.to_string()))?;
            let asked: Vec<&QueuedJob> = chunk.iter().map(|i| jobs[*i]).collect();
            let second = self.bounded(self.call(&asked, payloads, false)).await?;
            let second = read(second, asked.len())?;
            // The policy may have changed in between: what counts is the later one.
            told.snapshot = second.snapshot;
            told.fail_mode = second.fail_mode;
            for (i, answered) in chunk.into_iter().zip(second.answers) {
                told.answers[i] = Answered {
                    shape: None,
                    ..answered
                };
            }
        }
        Ok(told)
    }

    /// A call to the kernel within its time.
    async fn bounded<T>(
        &self,
        call: impl Future<Output = Result<T, Unanswered>>,
    ) -> Result<T, Unanswered> {
        match tokio::time::timeout(self.timeout, call).await {
            Ok(answer) => answer,
            Err(_) => {
                let ms = self.timeout.as_millis();
                Err(Unanswered::Absent(format!("no answer within {ms} ms")))
            }
        }
    }

    async fn call(
        &self,
        jobs: &[&QueuedJob],
        contents: Vec<(JobId, bytes::Bytes)>,
        ahead: bool,
    ) -> Result<own::CheckBatchResponse, Unanswered> {
        let traced = jobs.iter().any(|j| j.traceparent.ends_with("01"));
        let mut contents: std::collections::HashMap<JobId, bytes::Bytes> =
            contents.into_iter().collect();
        let with_content = !contents.is_empty();
        let request = own::CheckBatchRequest {
            requests: jobs
                .iter()
                .map(|job| {
                    let mut request = wire::request(job);
                    if with_content
                        && let Some(content) = contents.remove(&job.id)
                        && content.len() <= CONTENT_BYTES
                    {
                        request.input_content = content;
                        request.input_content_type = "application/json".to_owned();
                    }
                    request
                })
                .collect(),
            traceparents: if traced {
                jobs.iter().map(|j| j.traceparent.clone()).collect()
            } else {
                Vec::new()
            },
            ahead,
        };
        self.metrics.safety_batches.inc();
        self.metrics.safety_checks.inc_by(jobs.len() as u64);
        let mut client = self.client.clone();
        match client.check_batch(request).await {
            Ok(answer) => Ok(answer.into_inner()),
            Err(status) => Err(Unanswered::from(&status)),
        }
    }
}

/// Connects lazily: a kernel that is away is a reason to wait, not to fail.
pub async fn connect(config: &KernelConfig) -> anyhow::Result<PolicyBatchClient<Channel>> {
    let channel = endpoint(config).await?.connect_lazy();
    Ok(PolicyBatchClient::new(channel).max_decoding_message_size(16 * 1024 * 1024))
}

/// Which policy is in force, or why that cannot be asked.
pub async fn confirm(
    client: &PolicyBatchClient<Channel>,
    bound: Duration,
) -> Result<own::ConfirmResponse, String> {
    let mut client = client.clone();
    let call = client.confirm(own::ConfirmRequest {});
    match tokio::time::timeout(bound, call).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(format!("{:?}: {}", status.code(), status.message())),
        Err(_) => Err(format!("no answer within {} ms", bound.as_millis())),
    }
}

fn read(answer: own::CheckBatchResponse, asked: usize) -> Result<Told, Unanswered> {
    let own::CheckBatchResponse {
        responses,
        reads,
        reads_of,
        snapshot,
        fail_mode,
        content_wanted: _,
    } = answer;
    if responses.len() != asked {
        return Err(Unanswered::Absent(format!(
            "{} answers to {asked} questions",
            responses.len()
        )));
    }
    let shapes: Vec<Option<Shape>> = reads.iter().map(|r| Shape::of(&r.fields)).collect();
    let answers = responses
        .into_iter()
        .enumerate()
        .map(|(i, response)| {
            let place = reads_of.get(i).copied().unwrap_or(0) as usize;
            let shape = place.checked_sub(1).and_then(|p| shapes.get(p)?.clone());
            Answered {
                answer: wire::answer(response),
                shape,
            }
        })
        .collect();
    Ok(Told {
        answers,
        snapshot,
        fail_mode: wire::fail_mode(fail_mode),
    })
}

async fn endpoint(config: &KernelConfig) -> anyhow::Result<Endpoint> {
    // For an http URL tonic speaks plain text whatever else it is told, so a CA must
    // change the scheme.
    let url = match (&config.tls_ca, config.url.strip_prefix("http://")) {
        (Some(_), Some(rest)) => format!("https://{rest}"),
        (Some(_), None) | (None, _) => config.url.clone(),
    };
    let endpoint = Endpoint::from_shared(url)?
        .connect_timeout(config.timeout)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(Duration::from_secs(10))
        .keep_alive_while_idle(true);
    let Some(path) = &config.tls_ca else {
        return Ok(endpoint);
    };
    let pem = tokio::fs::read(path)
        .await
        .map_err(|e| anyhow::anyhow!("reading the kernel's CA certificate {path}: {e}"))?;
    let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem));
    if let Some(domain) = &config.tls_domain {
        tls = tls.domain_name(domain);
    }
    Ok(endpoint.tls_config(tls)?)
}
