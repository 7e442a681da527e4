//! The way of one job: a slot, its input, the handler, its output, the result.
//!
//! What must stay true: every accepted dispatch gets exactly one result, also when the
//! handler panics, hangs, or its destructors panic.

use std::sync::Arc;
use std::time::Duration;

use airlock_guard::keys;
use airlock_proto::trace;
use bytes::Bytes;
use sha2::{Digest, Sha256};
use tokio::sync::{Semaphore, SemaphorePermit};
use tracing::Instrument;

use crate::blocked::Watched;
use crate::context::JobContext;
use crate::core::Core;
use crate::error::JobError;
use crate::handler::{self, Answer, Handler, NO_INPUT};
use crate::job::{Cause, Job};
use crate::packets::{Ending, Output, Staged};
use crate::store::PATIENCE;

/// How long a result is kept in Redis for the scheduler to copy.
const RESULT_TTL: Duration = Duration::from_secs(24 * 3600);
/// What was staged is not what the dispatch names.
const INPUT_MISMATCH: &str = "input_mismatch";
/// The largest output at all.
const LARGEST_OUTPUT: usize = 64 << 20;

/// Runs a job to its result. `payload` is its input when that came along.
pub(crate) async fn run(core: Arc<Core>, job: Arc<Job>, payload: Option<Bytes>) {
    let mut promise = Promise {
        core: &core,
        job: &job,
        kept: false,
    };
    let ending = match wait_for_slot(&core, &job).await {
        Err(ending) => (ending, None),
        Ok(_slots) => begin(&core, &job, payload).await,
    };
    promise.keep(ending);
}

/// A place among the jobs of its handler, then one among all; or how the job ends
/// without. In this order, or those who wait for a busy handler would keep others out.
async fn wait_for_slot<'a>(
    core: &'a Core,
    job: &'a Job,
) -> Result<(Option<SemaphorePermit<'a>>, SemaphorePermit<'a>), Ending> {
    if core.draining.is_cancelled() {
        return Err(Ending::NotStarted);
    }
    if job.cancel.is_cancelled() {
        return Err(before_its_start(job));
    }
    let own = match job.handler.as_ref().and_then(|h| h.slots.as_ref()) {
        Some(slots) => Some(one_of(slots, core, job).await?),
        None => None,
    };
    Ok((own, one_of(&core.slots, core, job).await?))
}

async fn one_of<'a>(
    slots: &'a Semaphore,
    core: &Core,
    job: &Job,
) -> Result<SemaphorePermit<'a>, Ending> {
    if let Ok(slot) = slots.try_acquire() {
        return Ok(slot);
    }
    tokio::select! {
        biased;
        () = core.draining.cancelled() => Err(Ending::NotStarted),
        () = job.cancel.cancelled() => Err(before_its_start(job)),
        slot = slots.acquire() => slot.map_err(|_| Ending::NotStarted),
    }
}

/// How a job ends that was asked to before it had begun.
fn before_its_start(job: &Job) -> Ending {
    match job.cause() {
        Some(Cause::Cancelled(reason)) => Ending::Cancelled(reason),
        Some(Cause::TimedOut(words)) => Ending::TimedOut(words),
        Some(Cause::Shutdown) | None => Ending::NotStarted,
    }
}

async fn begin(core: &Core, job: &Arc<Job>, payload: Option<Bytes>) -> (Ending, Option<String>) {
    job.start();
    tracing::debug!(job_id = %job.id, topic = job.request.topic, dispatch_id = %job.dispatch, attempt = job.attempt(), "the job begins");
    let Some(handler) = job.handler.as_ref().map(|h| &h.handler) else {
        let words = format!("this worker has no handler for {}", job.request.topic);
        return (Ending::Failed(JobError::fatal("no_handler", words)), None);
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
        return (execute(core, job, handler, payload).await, None);
    }
    if let Some(parent) = &job.traceparent {
        trace::follow(&span, parent);
    }
    let ending = execute(core, job, handler, payload)
        .instrument(span.clone())
        .await;
    let traceparent = trace::current(&span);
    (ending, traceparent)
}

async fn execute(core: &Core, job: &Arc<Job>, handler: &Handler, payload: Option<Bytes>) -> Ending {
    let work = async {
        let input = input(core, job, payload).await?;
        if job.cancel.is_cancelled() {
            return Err(JobError::failed("it was ended before it began"));
        }
        handler::call(handler, JobContext::new(Arc::clone(job)), input).await
    };
    let work = std::pin::pin!(work);
    let answer = tokio::select! {
        biased;
        answer = Watched::new(job, work) => Some(answer),
        () = job.kill.notified() => None,
    };
    match judge(answer, job.cause()) {
        Ok(content) => stage(core, job, content).await,
        Err(ending) => ending,
    }
}

/// What the handler's answer means, given that it may have been asked to end. `None` is
/// a handler that was ended.
fn judge(answer: Option<Answer>, cause: Option<Cause>) -> Result<Bytes, Ending> {
    match (cause, answer) {
        (Some(Cause::Cancelled(reason)), _) => Err(Ending::Cancelled(reason)),
        (Some(Cause::TimedOut(words)), _) => Err(Ending::TimedOut(words)),
        // A worker that leaves asks for haste; what was done in time counts.
        (_, Some(Ok(content))) => Ok(content),
        (None, Some(Err(error))) => Err(Ending::Failed(error)),
        (Some(Cause::Shutdown), Some(Err(error))) => Err(left(error.message())),
        (Some(Cause::Shutdown) | None, None) => Err(left("the worker left before it was done")),
    }
}

fn left(words: &str) -> Ending {
    Ending::Failed(JobError::retryable(words).with_code("worker_shutdown"))
}

/// The input: inline, by pointer, or none.
async fn input(core: &Core, job: &Job, payload: Option<Bytes>) -> Result<Bytes, JobError> {
    if let Some(payload) = payload {
        return Ok(payload);
    }
    let pointer = job.request.context_ptr.as_str();
    if pointer.is_empty() {
        return Ok(NO_INPUT);
    }
    let own = keys::context(&job.id);
    if keys::parse_pointer(pointer) != Some(own.as_str()) {
        let words = format!("{pointer} is not where the input of this job is");
        return Err(JobError::fatal("invalid_pointer", words));
    }
    let found = core.host.store.get(&own).await;
    let unavailable = |words| Err(JobError::retryable(words).with_code("input_unavailable"));
    match found {
        Ok(Some(content)) => unchanged(job, content),
        // It is written anew at each dispatch, so another try may find it.
        Ok(None) => unavailable(format!("{pointer} holds nothing")),
        Err(error) => unavailable(format!("reading {pointer}: {error}")),
    }
}

/// The input, if it is the one that the scheduler decided on: its digest is in the
/// dispatch, which may be signed, while anybody with access to the store may have
/// changed what is there.
fn unchanged(job: &Job, content: Bytes) -> Result<Bytes, JobError> {
    let (digest, size) = (&job.detail.input_sha256, job.detail.input_size);
    let same = || size == content.len() as u64 && Sha256::digest(&content)[..] == digest[..];
    if digest.is_empty() || same() {
        return Ok(content);
    }
    let words = format!(
        "the input of {} bytes is not the one of {size} bytes that was decided on",
        content.len()
    );
    tracing::error!(job_id = %job.id, dispatch_id = %job.dispatch, words, "the input was changed in the store");
    job.alert(INPUT_MISMATCH, words.clone());
    // Every dispatch stages it anew.
    Err(JobError::retryable(words).with_code(INPUT_MISMATCH))
}

/// Puts the output where the scheduler finds it.
async fn stage(core: &Core, job: &Job, content: Bytes) -> Ending {
    let size = content.len();
    if size <= core.inline_limit() {
        return Ending::Succeeded(Output::Inline(content));
    }
    if size > LARGEST_OUTPUT {
        let words = format!("the output has {size} bytes; at most {LARGEST_OUTPUT} are allowed");
        return Ending::Failed(JobError::fatal("output_too_large", words));
    }
    let fits = size <= core.largest_inline();
    let patience = if fits { Duration::ZERO } else { PATIENCE };
    let key = keys::run_result(&job.id, &job.dispatch.to_string());
    let sha256 = Bytes::copy_from_slice(&Sha256::digest(&content));
    let stored = core
        .host
        .store
        .set(&key, content.clone(), RESULT_TTL, patience)
        .await;
    Ending::Succeeded(match stored {
        Ok(()) => Output::Pointer(Staged {
            pointer: keys::pointer(&key),
            sha256,
            size: size as u64,
        }),
        // Larger than it likes, but it arrives.
        Err(_) if fits => Output::Inline(content),
        Err(error) => {
            tracing::error!(job_id = %job.id, size, %error, "the result could not be stored");
            Output::Lost(format!(
                "the result of {size} bytes could not be stored: {error}"
            ))
        }
    })
}

/// Sees to it that the job gets a result even if the code above panics.
struct Promise<'a> {
    core: &'a Core,
    job: &'a Job,
    kept: bool,
}

impl Promise<'_> {
    fn keep(&mut self, (ending, traceparent): (Ending, Option<String>)) {
        self.kept = true;
        self.core.complete(self.job, ending, traceparent);
    }
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        if !self.kept {
            let error = JobError::failed("the job's task ended without a result");
            let ending = Ending::Failed(error.with_code("panic"));
            self.core.complete(self.job, ending, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ok() -> Option<Answer> {
        Some(Ok(NO_INPUT))
    }

    fn err() -> Option<Answer> {
        Some(Err(JobError::fatal("code", "words")))
    }

    #[test]
    fn a_cancel_or_timeout_is_the_result_whatever_the_handler_says() {
        for answer in [ok(), err(), None] {
            let cause = Some(Cause::Cancelled("stop".to_owned()));
            assert!(matches!(judge(answer, cause), Err(Ending::Cancelled(r)) if r == "stop"));
        }
        for answer in [ok(), err(), None] {
            let cause = Some(Cause::TimedOut("late".to_owned()));
            assert!(matches!(judge(answer, cause), Err(Ending::TimedOut(_))));
        }
    }

    #[test]
    fn on_leaving_success_counts_and_all_else_is_tried_again() {
        assert!(judge(ok(), Some(Cause::Shutdown)).is_ok());
        for answer in [err(), None] {
            let Err(Ending::Failed(error)) = judge(answer, Some(Cause::Shutdown)) else {
                panic!("it failed");
            };
            assert_eq!(error.kind(), crate::JobErrorKind::Retryable);
        }
        assert!(judge(ok(), None).is_ok());
        assert!(matches!(judge(err(), None), Err(Ending::Failed(e)) if e.code() == "code"));
    }
}
