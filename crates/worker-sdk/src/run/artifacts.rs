//! What a job leaves behind besides its result: files, images, logs.
//!
//! What must stay true: an artifact is only ever pointed at; its content is in the store
//! before anybody learns of it, and whoever fetches it can tell that it is unchanged.
//!
//! Artifacts are not the result: the output policy sees the result alone. The job's page
//! lists them; whoever wants them processed further puts what
//! [`JobContext::artifact`](crate::JobContext::artifact) returns into the output.

use airlock_guard::keys;
use airlock_proto::cap;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::constraints::MAX_ARTIFACT_BYTES;
use crate::error::JobError;
use crate::run::job::Job;
use crate::run::payload_store::RETRY_FOR;
use crate::text::truncate_to_bytes;

/// The largest one.
const LARGEST: usize = 64 << 20;
/// How many one attempt may leave.
const MOST: usize = 256;
const LONGEST_NAME: usize = 256;

/// Something a job left in the store, as it is written into outputs and packets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Artifact {
    /// What its maker called it.
    pub name: String,
    /// Where it is: `redis://art:…`.
    pub pointer: String,
    /// What it is, `image/png` say.
    pub media_type: String,
    /// Its length in bytes.
    pub size: u64,
    /// Its SHA-256 in hexadecimal.
    pub sha256: String,
}

pub(crate) async fn store_artifact(
    job: &Job,
    name: &str,
    media_type: &str,
    content: Bytes,
) -> Result<Artifact, JobError> {
    if content.len() > LARGEST {
        let message = format!(
            "{name} has {} bytes; at most {LARGEST} are allowed",
            content.len()
        );
        return Err(JobError::fatal("artifact_too_large", message));
    }
    let number = reserve_artifact_quota(job, name, content.len())?;
    let key = keys::artifact_key(&format!("{}-{number}", job.dispatch));
    let artifact = Artifact {
        name: truncate_to_bytes(name, LONGEST_NAME),
        pointer: keys::to_pointer(&key),
        media_type: truncate_to_bytes(media_type, LONGEST_NAME),
        size: content.len() as u64,
        sha256: to_hex(&Sha256::digest(&content)),
    };
    let stored = job
        .services
        .store
        .set(&key, content, job.services.artifact_ttl, RETRY_FOR)
        .await;
    if let Err(error) = stored {
        let message = format!("storing the artifact {name}: {error}");
        return Err(JobError::retryable(message).with_code("artifact_not_stored"));
    }
    job.extras().artifacts.push(artifact.clone());
    Ok(artifact)
}

/// Counts an artifact before it is stored, so that two at once do not pass a limit that
/// has room for one.
fn reserve_artifact_quota(job: &Job, name: &str, size: usize) -> Result<usize, JobError> {
    let size = u64::try_from(size).unwrap_or(u64::MAX);
    let allowed = job
        .constraints()
        .and_then(|c| c.budgets.as_ref())
        .and_then(|b| u64::try_from(b.max_artifact_bytes).ok())
        .filter(|max| *max > 0);
    let mut extras = job.extras();
    if extras.artifacts_begun >= MOST {
        let message = format!("a job may leave at most {MOST} artifacts");
        return Err(JobError::fatal("too_many_artifacts", message));
    }
    let total = extras.artifact_bytes.saturating_add(size);
    if let Some(max) = allowed
        && total > max
    {
        drop(extras);
        let message = format!("{name} would make {total} bytes of artifacts; {max} are allowed");
        return Err(job.report_constraint_violation(MAX_ARTIFACT_BYTES, message));
    }
    extras.artifact_bytes = total;
    extras.artifacts_begun += 1;
    Ok(extras.artifacts_begun)
}

pub(crate) async fn fetch_artifact(job: &Job, artifact: &Artifact) -> Result<Bytes, JobError> {
    let pointer = artifact.pointer.as_str();
    // Nothing but artifacts: an output that names a job's input must not lead there.
    let Some(key) = keys::parse_pointer(pointer).filter(|k| k.starts_with(&keys::artifact_key("")))
    else {
        let message = format!("{pointer} does not point at an artifact");
        return Err(JobError::fatal("invalid_pointer", message));
    };
    let content = match job.services.store.get(key).await {
        Ok(Some(content)) => content,
        Ok(None) => {
            let message = format!("{pointer} holds nothing (any more)");
            return Err(JobError::failed(message).with_code("artifact_missing"));
        }
        Err(error) => {
            let message = format!("reading {pointer}: {error}");
            return Err(JobError::retryable(message).with_code("artifact_unavailable"));
        }
    };
    if to_hex(&Sha256::digest(&content)) != artifact.sha256 {
        let message = format!("{pointer} is not what was stored there");
        return Err(JobError::failed(message).with_code("artifact_changed"));
    }
    Ok(content)
}

/// As a packet names it.
pub(crate) fn to_resource_ref(artifact: &Artifact) -> cap::ResourceRef {
    cap::ResourceRef {
        resolver_id: "redis".to_owned(),
        uri: artifact.pointer.clone(),
        sha256: from_hex(&artifact.sha256).into(),
        media_type: artifact.media_type.clone(),
        size_bytes: artifact.size,
        purpose: artifact.name.clone(),
        ..cap::ResourceRef::default()
    }
}

fn to_hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes
        .iter()
        .fold(String::with_capacity(64), |mut text, byte| {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}

fn from_hex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks(2)
        .map_while(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}
