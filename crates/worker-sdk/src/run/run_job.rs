//! One attempt of a job: a slot, its input, the handler, its output, the result.
//!
//! What must stay true: every accepted dispatch gets exactly one result, also when the
//! handler panics, hangs, or its destructors panic.

use std::sync::Arc;

use airlock_proto::trace;
use bytes::Bytes;
use tokio::sync::{Semaphore, SemaphorePermit};
use tracing::Instrument;

use crate::error::JobError;
use crate::run::blocking::TimedPolls;
use crate::run::completion::CompletionGuard;
use crate::run::context::JobContext;
use crate::run::handler::{self, Handler, HandlerResult};
use crate::run::job::{Job, StopCause};
use crate::run::outcome::JobOutcome;
use crate::run::payloads::{load_input, stage_output};
use crate::worker::shared::Shared;

/// Runs a job to its result. `payload` is its input when the dispatch carried it.
pub(crate) async fn run_job(shared: Arc<Shared>, job: Arc<Job>, payload: Option<Bytes>) {
    let guard = CompletionGuard::new(&shared, &job);
    let outcome = match acquire_slots(&shared, &job).await {
        Err(outcome) => (outcome, None),
        Ok(_slots) => start_job(&shared, &job, payload).await,
    };
    guard.complete(outcome);
}

/// A slot of its handler, then one of the worker; or how the job ends without. In this
/// order, or jobs that wait for a busy handler would keep the others out.
async fn acquire_slots<'a>(
    shared: &'a Shared,
    job: &'a Job,
) -> Result<(Option<SemaphorePermit<'a>>, SemaphorePermit<'a>), JobOutcome> {
    if shared.draining.is_cancelled() {
        return Err(JobOutcome::NotStarted);
    }
    if job.cancel.is_cancelled() {
        return Err(outcome_before_start(job));
    }
    let own = match job.handler.as_ref().and_then(|h| h.slots.as_ref()) {
        Some(slots) => Some(acquire_slot(slots, shared, job).await?),
        None => None,
    };
    Ok((own, acquire_slot(&shared.slots, shared, job).await?))
}

async fn acquire_slot<'a>(
    slots: &'a Semaphore,
    shared: &Shared,
    job: &Job,
) -> Result<SemaphorePermit<'a>, JobOutcome> {
    if let Ok(slot) = slots.try_acquire() {
        return Ok(slot);
    }
    tokio::select! {
        biased;
        () = shared.draining.cancelled() => Err(JobOutcome::NotStarted),
        () = job.cancel.cancelled() => Err(outcome_before_start(job)),
        slot = slots.acquire() => slot.map_err(|_| JobOutcome::NotStarted),
    }
}

/// How a job ends that was stopped before it had begun.
fn outcome_before_start(job: &Job) -> JobOutcome {
    match job.stop_cause() {
        Some(StopCause::Cancelled(reason)) => JobOutcome::Cancelled(reason),
        Some(StopCause::TimedOut(message)) => JobOutcome::TimedOut(message),
        Some(StopCause::Shutdown) | None => JobOutcome::NotStarted,
    }
}

async fn start_job(
    shared: &Shared,
    job: &Arc<Job>,
    payload: Option<Bytes>,
) -> (JobOutcome, Option<String>) {
    job.start();
    tracing::debug!(job_id = %job.id, topic = job.request.topic, dispatch_id = %job.dispatch, attempt = job.attempt(), "job started");
    let Some(handler) = job.handler.as_ref().map(|h| &h.handler) else {
        let message = format!("this worker has no handler for {}", job.request.topic);
        return (
            JobOutcome::Failed(JobError::fatal("no_handler", message)),
            None,
        );
    };
    let span = tracing::info_span!(
        "worker.run",
        job_id = %job.id,
        topic = job.request.topic,
        tenant = job.request.tenant_id,
        dispatch_id = %job.dispatch,
        attempt = job.attempt(),
    );
    if span.is_disabled() {
        return (execute_handler(shared, job, handler, payload).await, None);
    }
    if let Some(parent) = &job.traceparent {
        trace::set_remote_parent(&span, parent);
    }
    let outcome = execute_handler(shared, job, handler, payload)
        .instrument(span.clone())
        .await;
    let traceparent = trace::traceparent_of_span(&span);
    (outcome, traceparent)
}

async fn execute_handler(
    shared: &Shared,
    job: &Arc<Job>,
    handler: &Handler,
    payload: Option<Bytes>,
) -> JobOutcome {
    let work = async {
        let input = load_input(shared, job, payload).await?;
        if job.cancel.is_cancelled() {
            return Err(JobError::failed("the job was stopped before it began"));
        }
        handler::call_handler(handler, JobContext::new(Arc::clone(job)), input).await
    };
    let work = std::pin::pin!(work);
    let result = tokio::select! {
        biased;
        result = TimedPolls::new(job, work) => Some(result),
        () = job.kill.notified() => None,
    };
    match resolve_handler_outcome(result, job.stop_cause()) {
        Ok(content) => stage_output(shared, job, content).await,
        Err(outcome) => outcome,
    }
}

/// The output, or how the job ended without, given that the handler may have been asked to
/// stop. `None` is a handler that was killed.
fn resolve_handler_outcome(
    result: Option<HandlerResult>,
    cause: Option<StopCause>,
) -> Result<Bytes, JobOutcome> {
    match (cause, result) {
        (Some(StopCause::Cancelled(reason)), _) => Err(JobOutcome::Cancelled(reason)),
        (Some(StopCause::TimedOut(message)), _) => Err(JobOutcome::TimedOut(message)),
        // On shutdown, what was done in time counts.
        (_, Some(Ok(content))) => Ok(content),
        (None, Some(Err(error))) => Err(JobOutcome::Failed(error)),
        (Some(StopCause::Shutdown), Some(Err(error))) => Err(interrupted_outcome(error.message())),
        (Some(StopCause::Shutdown) | None, None) => Err(interrupted_outcome(
            "the worker stopped before the job was done",
        )),
    }
}

fn interrupted_outcome(message: &str) -> JobOutcome {
    JobOutcome::Failed(JobError::retryable(message).with_code("worker_shutdown"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::handler::NO_INPUT;

    fn ok() -> Option<HandlerResult> {
        Some(Ok(NO_INPUT))
    }

    fn err() -> Option<HandlerResult> {
        Some(Err(JobError::fatal("code", "message")))
    }

    #[test]
    fn a_cancel_or_timeout_is_the_result_whatever_the_handler_returns() {
        for result in [ok(), err(), None] {
            let cause = Some(StopCause::Cancelled("stop".to_owned()));
            assert!(
                matches!(resolve_handler_outcome(result, cause), Err(JobOutcome::Cancelled(r)) if r == "stop")
            );
        }
        for result in [ok(), err(), None] {
            let cause = Some(StopCause::TimedOut("late".to_owned()));
            assert!(matches!(
                resolve_handler_outcome(result, cause),
                Err(JobOutcome::TimedOut(_))
            ));
        }
    }

    #[test]
    fn on_shutdown_success_counts_and_all_else_is_retried() {
        assert!(resolve_handler_outcome(ok(), Some(StopCause::Shutdown)).is_ok());
        for result in [err(), None] {
            let Err(JobOutcome::Failed(error)) =
                resolve_handler_outcome(result, Some(StopCause::Shutdown))
            else {
                panic!("it failed");
            };
            assert_eq!(error.kind(), crate::JobErrorKind::Retryable);
        }
        assert!(resolve_handler_outcome(ok(), None).is_ok());
        assert!(
            matches!(resolve_handler_outcome(err(), None), Err(JobOutcome::Failed(e)) if e.code() == "code")
        );
    }
}
