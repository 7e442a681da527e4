//! A job's input and output: inline in the packet, or in Redis when they are large.

use std::time::Duration;

use airlock_guard::keys;
use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::error::JobError;
use crate::run::handler::NO_INPUT;
use crate::run::job::Job;
use crate::run::outcome::{JobOutcome, Output, StagedOutput};
use crate::run::payload_store::RETRY_FOR;
use crate::worker::shared::Shared;

/// How long a result is kept in Redis for the scheduler to copy.
const RESULT_TTL: Duration = Duration::from_secs(24 * 3600);
/// The staged input is not the one that the dispatch names.
const INPUT_MISMATCH: &str = "input_mismatch";
/// The largest output at all.
const LARGEST_OUTPUT: usize = 64 << 20;

/// The input: inline, by pointer, or none.
pub(super) async fn load_input(
    shared: &Shared,
    job: &Job,
    inline: Option<Bytes>,
) -> Result<Bytes, JobError> {
    if let Some(payload) = inline {
        return Ok(payload);
    }
    let pointer = job.request.context_ptr.as_str();
    if pointer.is_empty() {
        return Ok(NO_INPUT);
    }
    let own = keys::context_key(&job.id);
    if keys::parse_pointer(pointer) != Some(own.as_str()) {
        let message = format!("{pointer} is not where the input of this job is");
        return Err(JobError::fatal("invalid_pointer", message));
    }
    let found = shared.services.store.get(&own).await;
    let unavailable = |message| Err(JobError::retryable(message).with_code("input_unavailable"));
    match found {
        Ok(Some(content)) => verify_input(job, content),
        // Every dispatch stages the input anew, so another attempt may find it.
        Ok(None) => unavailable(format!("{pointer} holds nothing")),
        Err(error) => unavailable(format!("reading {pointer}: {error}")),
    }
}

/// The input, if it is the one that the policy decided on: its digest is in the dispatch,
/// which may be signed, while anybody with access to Redis may have changed what is there.
fn verify_input(job: &Job, content: Bytes) -> Result<Bytes, JobError> {
    let (digest, size) = (&job.detail.input_sha256, job.detail.input_size);
    let same = || size == content.len() as u64 && Sha256::digest(&content)[..] == digest[..];
    if digest.is_empty() || same() {
        return Ok(content);
    }
    let message = format!(
        "the input of {} bytes is not the one of {size} bytes that was decided on",
        content.len()
    );
    tracing::error!(job_id = %job.id, dispatch_id = %job.dispatch, message, "staged input does not match the dispatch");
    job.queue_alert(INPUT_MISMATCH, message.clone());
    // Every dispatch stages the input anew.
    Err(JobError::retryable(message).with_code(INPUT_MISMATCH))
}

/// Puts the output where the scheduler finds it.
pub(super) async fn stage_output(shared: &Shared, job: &Job, content: Bytes) -> JobOutcome {
    let size = content.len();
    if size <= shared.inline_limit() {
        return JobOutcome::Succeeded(Output::Inline(content));
    }
    if size > LARGEST_OUTPUT {
        let message = format!("the output has {size} bytes; at most {LARGEST_OUTPUT} are allowed");
        return JobOutcome::Failed(JobError::fatal("output_too_large", message));
    }
    let fits = size <= shared.max_inline_output();
    let retry_for = if fits { Duration::ZERO } else { RETRY_FOR };
    let key = keys::run_result_key(&job.id, &job.dispatch.to_string());
    let sha256 = Bytes::copy_from_slice(&Sha256::digest(&content));
    let stored = shared
        .services
        .store
        .set(&key, content.clone(), RESULT_TTL, retry_for)
        .await;
    JobOutcome::Succeeded(match stored {
        Ok(()) => Output::Pointer(StagedOutput {
            pointer: keys::to_pointer(&key),
            sha256,
            size: size as u64,
        }),
        // It is larger than the limit for inline results, but it arrives.
        Err(_) if fits => Output::Inline(content),
        Err(error) => {
            tracing::error!(job_id = %job.id, size, %error, "result not stored");
            Output::Lost(format!(
                "the result of {size} bytes could not be stored: {error}"
            ))
        }
    })
}
