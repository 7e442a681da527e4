//! The connection to the kernel: batched calls, each within one bound.
//!
//! Rules that look at a job's input make a second call: first every job is asked about
//! without its input, then those for which a rule wants to see it are asked about with
//! it. So a policy without such rules never costs a payload on the wire. Inputs are read
//! from the ledger between the calls, in the ledger's own time: a slow ledger is not an
//! absent kernel.

use std::time::Duration;

use airlock_kernel_client::{KernelClient, batch};
use airlock_ledger::Ledger;
use airlock_model::JobId;
use airlock_model::engine::QueuedJob;
use airlock_model::reads::Reads;
use airlock_proto::own;

use super::cache::Answer;
use super::config::{FailMode, KernelConfig};
use super::unanswered::Unanswered;
use super::wire;
use crate::metrics::Metrics;

/// The largest input that is sent; a larger one goes by its size alone.
const CONTENT_BYTES: usize = batch::MAX_BYTES;

/// An answer, and which fields it depends on; `None` when it holds for its job alone.
pub struct Answered {
    pub answer: Answer,
    pub reads: Option<Reads>,
}

/// What a call told.
pub struct BatchAnswer {
    pub answers: Vec<Answered>,
    pub snapshot: String,
    pub fail_mode: Option<FailMode>,
}

pub struct Link {
    client: KernelClient,
    ledger: Ledger,
    metrics: Metrics,
}

impl Link {
    pub async fn new(
        config: &KernelConfig,
        ledger: Ledger,
        metrics: Metrics,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            client: KernelClient::new(&config.to_connection_config()).await?,
            ledger,
            metrics,
        })
    }

    /// The same for jobs that are not in the ledger yet, as long as the caller waits.
    /// `None` when it takes more than their requests to tell.
    pub async fn check_before_commit(&self, jobs: &[&QueuedJob]) -> Option<BatchAnswer> {
        let answer = self.call_check_batch(jobs, Vec::new(), true).await.ok()?;
        let complete = answer.content_wanted.is_empty();
        let told = parse_batch_response(answer, jobs.len()).ok()?;
        let known = told.answers.iter().all(|a| a.reads.is_some());
        (complete && known).then_some(told)
    }

    /// Which policy is in force, within `bound`.
    pub async fn fetch_active_policy(&self, bound: Duration) -> Option<(String, Option<FailMode>)> {
        let answer = self.client.confirm_within(bound).await.ok()?;
        Some((answer.snapshot, wire::to_fail_mode(answer.fail_mode)))
    }

    /// One answer for each job, in order, or none at all.
    pub async fn check_jobs(&self, jobs: &[&QueuedJob]) -> Result<BatchAnswer, Unanswered> {
        let first = self.call_check_batch(jobs, Vec::new(), false).await?;
        let wanted: Vec<usize> = first
            .content_wanted
            .iter()
            .filter_map(|i| usize::try_from(*i).ok())
            .filter(|i| *i < jobs.len())
            .collect();
        let mut told = parse_batch_response(first, jobs.len())?;
        let size = |i: usize| {
            let input = usize::try_from(jobs[i].payload_len).unwrap_or(usize::MAX);
            wire::max_encoded_len(jobs[i]).saturating_add(input)
        };
        for chunk in batch::split_into_batches(&wanted, size) {
            let ids: Vec<JobId> = chunk.iter().map(|i| jobs[*i].id.clone()).collect();
            let payloads = self.ledger.payloads(&ids).await;
            let payloads = payloads.map_err(|e| Unanswered::Inputs(e.to_string()))?;
            let asked: Vec<&QueuedJob> = chunk.iter().map(|i| jobs[*i]).collect();
            let second = self.call_check_batch(&asked, payloads, false).await?;
            let second = parse_batch_response(second, asked.len())?;
            // The policy may have changed in between: what counts is the later one.
            told.snapshot = second.snapshot;
            told.fail_mode = second.fail_mode;
            for (i, answered) in chunk.into_iter().zip(second.answers) {
                told.answers[i] = Answered {
                    reads: None,
                    ..answered
                };
            }
        }
        Ok(told)
    }

    async fn call_check_batch(
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
                    let mut request = wire::to_check_request(job);
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
        Ok(self.client.check_batch(request).await?)
    }
}

fn parse_batch_response(
    answer: own::CheckBatchResponse,
    asked: usize,
) -> Result<BatchAnswer, Unanswered> {
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
    let read_sets: Vec<Option<Reads>> =
        reads.iter().map(|r| Reads::from_names(&r.fields)).collect();
    let answers = responses
        .into_iter()
        .enumerate()
        .map(|(i, response)| {
            let place = reads_of.get(i).copied().unwrap_or(0) as usize;
            let reads = place.checked_sub(1).and_then(|p| read_sets.get(p)?.clone());
            Answered {
                answer: wire::to_answer(response),
                reads,
            }
        })
        .collect();
    Ok(BatchAnswer {
        answers,
        snapshot,
        fail_mode: wire::to_fail_mode(fail_mode),
    })
}
