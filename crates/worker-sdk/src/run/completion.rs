//! From a job's outcome to a result in the outbox.

use std::time::Duration;

use crate::error::{JobError, JobErrorKind};
use crate::metrics::stats::Stats;
use crate::run::job::Job;
use crate::run::outcome::JobOutcome;
use crate::worker::clock;
use crate::worker::shared::Shared;

/// Makes sure that the job gets a result even if the code that runs it panics.
pub(super) struct CompletionGuard<'a> {
    shared: &'a Shared,
    job: &'a Job,
    completed: bool,
}

impl<'a> CompletionGuard<'a> {
    pub fn new(shared: &'a Shared, job: &'a Job) -> Self {
        Self {
            shared,
            job,
            completed: false,
        }
    }

    pub fn complete(mut self, (outcome, traceparent): (JobOutcome, Option<String>)) {
        self.completed = true;
        complete_job(self.shared, self.job, outcome, traceparent);
    }
}

impl Drop for CompletionGuard<'_> {
    fn drop(&mut self) {
        if !self.completed {
            let error = JobError::failed("the job's task ended without a result");
            let outcome = JobOutcome::Failed(error.with_code("panic"));
            complete_job(self.shared, self.job, outcome, None);
        }
    }
}

/// Builds the job's result and queues it. The result is in the outbox before the job leaves
/// the table, so that an inventory finds it in one of them.
fn complete_job(shared: &Shared, job: &Job, outcome: JobOutcome, traceparent: Option<String>) {
    let counter = match &outcome {
        JobOutcome::Succeeded(_) => &shared.stats.succeeded,
        JobOutcome::Failed(_) => &shared.stats.failed,
        JobOutcome::Cancelled(_) => &shared.stats.cancelled,
        JobOutcome::TimedOut(_) => &shared.stats.timed_out,
        JobOutcome::NotStarted => &shared.stats.handed_back,
    };
    let metrics = job.handler.as_ref().map(|h| &*h.metrics);
    let took = job.started().map(|s| s.at.elapsed()).unwrap_or_default();
    let metrics = metrics.unwrap_or_else(|| shared.services.metrics.other_topic());
    metrics.record_execution(&outcome, took);
    log_outcome(job, &outcome, took);
    let packet = shared.packets.result(job, outcome, clock::wall_clock_now());
    shared.outbox().push(job.dispatch, packet, traceparent);
    shared.unpublished.notify_one();
    Stats::add_to_counter(counter, 1);
    shared.table.remove(&job.dispatch);
    shared.room.notify_one();
}

/// Failures are logged with their job, everything else at debug level. `will_retry` is what
/// the scheduler does by default: a topic may have rules of its own.
fn log_outcome(job: &Job, outcome: &JobOutcome, took: Duration) {
    let (attempt, topic) = (job.attempt(), job.request.topic.as_str());
    let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    let failed = |code: &str, error: &str, retryable: bool| {
        let most = u64::try_from(job.detail.max_attempts).unwrap_or(0);
        let will_retry = retryable && attempt < most;
        tracing::warn!(job_id = %job.id, attempt, topic, code, error, will_retry, took_ms, "attempt failed");
    };
    let outcome = match outcome {
        JobOutcome::Failed(error) => {
            let retryable = error.kind() == JobErrorKind::Retryable;
            return failed(error.code(), error.message(), retryable);
        }
        JobOutcome::TimedOut(message) => return failed("timeout", message, false),
        JobOutcome::Succeeded(_) => "succeeded",
        JobOutcome::Cancelled(_) => "cancelled",
        JobOutcome::NotStarted => "not started",
    };
    tracing::debug!(job_id = %job.id, attempt, topic, outcome, took_ms, "job finished");
}
