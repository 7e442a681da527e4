//! Dead letters: looking at them, trying them again, removing them; and what a job
//! waits for.

use airlock_model::JobState;
use reqwest::Method;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::client::{CALL_TIMEOUT, Client, encode, escaped, send, with_json};
use crate::error::ClientError;

/// A dead letter as the gateway shows it.
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
    /// Where a message came from that could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    pub created_at: String,
    /// The job it was tried again as.
    pub retried_as: Option<String>,
    pub retried_at: Option<String>,
}

/// A dead letter with the request it is about.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DeadLetterDetail {
    pub id: i64,
    pub job_id: Option<String>,
    pub tenant_id: Option<String>,
    pub topic: Option<String>,
    pub reason_code: String,
    pub reason: String,
    pub last_state: Option<String>,
    pub attempts: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    pub created_at: String,
    pub retried_as: Option<String>,
    pub retried_at: Option<String>,
    pub trace_id: Option<String>,
    /// As it was sent, byte for byte; absent for what could not be read.
    pub request: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packet_base64: Option<String>,
}

/// A page of letters, newest first.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DeadLetterPage {
    pub items: Vec<DeadLetter>,
    #[serde(default)]
    pub next_cursor: Option<String>,
}

/// Which letters. What is absent does not filter.
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
    /// Only up to this letter. Of many requests about many letters the first answer
    /// says it and the others repeat it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up_to: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

#[derive(Serialize)]
struct Listing<'a> {
    #[serde(flatten)]
    filter: &'a DeadLetterFilter,
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<&'a str>,
}

#[derive(Serialize)]
struct Bulk<'a> {
    #[serde(flatten)]
    filter: &'a DeadLetterFilter,
    all: bool,
    dry_run: bool,
}

/// A letter that became a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecondChance {
    pub id: i64,
    pub job_id: String,
    #[serde(default)]
    pub retry_of: Option<String>,
}

/// What came of a request about many letters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BulkOutcome {
    pub dry_run: bool,
    /// Letters the filter named.
    pub matched: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retried: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<u64>,
    /// Left for the next request.
    pub remaining: u64,
    /// The newest letter meant, to be repeated in the next request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_to: Option<i64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<SecondChance>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteOutcome {
    pub deleted: u64,
}

/// What a job waits for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    pub job_id: String,
    pub state: JobState,
    /// In a sentence.
    pub explanation: String,
    pub reason_code: Option<String>,
    pub since: Option<String>,
    pub until: Option<String>,
    pub attempts: u32,
    pub max_attempts: Option<u32>,
    /// What the scheduler's leader says of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<Value>,
}

impl Client {
    pub async fn dead_letters(
        &self,
        filter: &DeadLetterFilter,
        cursor: Option<&str>,
    ) -> Result<DeadLetterPage, ClientError> {
        self.retrying(self.retries, || {
            let call = self.call(Method::GET, "/api/v1/dlq", CALL_TIMEOUT);
            send(call.query(&Listing { filter, cursor }))
        })
        .await
    }

    pub async fn dead_letter(&self, id: i64) -> Result<DeadLetterDetail, ClientError> {
        let path = format!("/api/v1/dlq/{id}");
        self.retrying(self.retries, || {
            send(self.call(Method::GET, &path, CALL_TIMEOUT))
        })
        .await
    }

    /// Makes a job of a letter. One that was tried again before answers with that job.
    pub async fn retry_dead_letter(&self, id: i64) -> Result<SecondChance, ClientError> {
        let path = format!("/api/v1/dlq/{id}/retry");
        self.retrying(self.retries, || {
            send(self.call(Method::POST, &path, CALL_TIMEOUT))
        })
        .await
    }

    /// Removes a letter. Not repeated by itself: the second time it would not be there.
    pub async fn delete_dead_letter(&self, id: i64) -> Result<DeleteOutcome, ClientError> {
        let path = format!("/api/v1/dlq/{id}");
        send(self.call(Method::DELETE, &path, CALL_TIMEOUT)).await
    }

    /// Makes jobs of all letters the filter names that were not tried again yet, or with
    /// `dry_run` counts them. `all` must be said when the filter is empty.
    pub async fn retry_dead_letters(
        &self,
        filter: &DeadLetterFilter,
        all: bool,
        dry_run: bool,
    ) -> Result<BulkOutcome, ClientError> {
        self.bulk("/api/v1/dlq/retry", filter, all, dry_run).await
    }

    /// Removes all letters the filter names, or with `dry_run` counts them.
    pub async fn delete_dead_letters(
        &self,
        filter: &DeadLetterFilter,
        all: bool,
        dry_run: bool,
    ) -> Result<BulkOutcome, ClientError> {
        self.bulk("/api/v1/dlq/delete", filter, all, dry_run).await
    }

    async fn bulk(
        &self,
        path: &str,
        filter: &DeadLetterFilter,
        all: bool,
        dry_run: bool,
    ) -> Result<BulkOutcome, ClientError> {
        let body = encode(&Bulk {
            filter,
            all,
            dry_run,
        })?;
        // What is done is not named by the filter any more, so it may be repeated.
        self.retrying(self.retries, || {
            let call = self.call(Method::POST, path, CALL_TIMEOUT);
            send(with_json(call, body.clone()))
        })
        .await
    }

    /// What a job waits for, and since when.
    pub async fn explain(&self, job_id: &str) -> Result<Explanation, ClientError> {
        if job_id.is_empty() {
            return Err(ClientError::Config("a job's id is needed".to_owned()));
        }
        let path = format!("/api/v1/jobs/{}/explain", escaped(job_id));
        self.retrying(self.retries, || {
            send(self.call(Method::GET, &path, CALL_TIMEOUT))
        })
        .await
    }
}
