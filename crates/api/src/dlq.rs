//! The dead-letter queue.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::Page;

/// A dead letter in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetter {
    pub id: i64,
    pub job_id: Option<String>,
    pub tenant_id: Option<String>,
    pub topic: Option<String>,
    pub reason_code: String,
    pub reason: String,
    pub last_state: Option<String>,
    pub attempts: u32,
    /// The subject of a message that could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    pub created_at: String,
    /// The job that it was retried as.
    pub retried_as: Option<String>,
    pub retried_at: Option<String>,
}

/// A dead letter with the request it is about.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DeadLetterDetail<R = Box<RawValue>> {
    #[serde(flatten)]
    pub letter: DeadLetter,
    pub trace_id: Option<String>,
    /// The submission, with its payload byte for byte; `null` for what could not be read.
    pub request: Option<R>,
    /// A message that could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packet_base64: Option<String>,
    /// The message is a worker's, and the output policy has not seen it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub packet_withheld: bool,
}

/// A page of dead letters, newest first.
pub type DeadLetterPage = Page<DeadLetter>;

/// Which dead letters. What is absent does not filter.
#[derive(Debug, Clone, Default, Serialize)]
pub struct DeadLetterFilter {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason_code: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_after: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_before: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retried: Option<bool>,
    /// Only up to this one. When a bulk operation takes several requests, the first response
    /// says it and the others repeat it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up_to: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// Retries or deletes all dead letters that the filter matches.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BulkRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason_code: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_after: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_before: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retried: Option<bool>,
    /// The newest dead letter that is meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up_to: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Must be true when there is no filter.
    pub all: bool,
    /// Only counts.
    pub dry_run: bool,
}

impl BulkRequest {
    pub fn new(filter: &DeadLetterFilter, all: bool, dry_run: bool) -> Self {
        let filter = filter.clone();
        Self {
            job_id: filter.job_id,
            topic: filter.topic,
            reason_code: filter.reason_code,
            created_after: filter.created_after,
            created_before: filter.created_before,
            retried: filter.retried,
            up_to: filter.up_to,
            limit: filter.limit,
            all,
            dry_run,
        }
    }
}

/// A dead letter that became a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryResponse {
    pub id: i64,
    /// The new job.
    pub job_id: String,
    /// The job that the dead letter is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_of: Option<String>,
}

/// What a bulk operation did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BulkOutcome {
    pub dry_run: bool,
    /// Dead letters the filter matched when the request came.
    pub matched: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retried: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted: Option<u64>,
    /// Dead letters that could not be retried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<u64>,
    /// Left for the next request, when there were too many for one.
    pub remaining: u64,
    /// The newest dead letter that is meant, for the next request to repeat: what is written
    /// later, also by what was retried, is then not touched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_to: Option<i64>,
    /// The jobs that dead letters became. Absent unless something was to be retried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jobs: Option<Vec<RetryResponse>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteOutcome {
    pub deleted: u64,
}
