//! Jobs: submitting, reading, listing, cancelling and explaining them.

use std::collections::BTreeMap;
use std::fmt;

use airlock_model::job::{ActorType, Budget, Compensation, Cost};
use airlock_model::{Claim, JobState, Priority};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use crate::{Page, Problem};

/// A job to submit. Only the topic must be given.
#[derive(Debug, Clone, Default, Serialize)]
pub struct SubmitRequest {
    pub topic: String,
    /// Any JSON; it reaches the worker byte for byte.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capability: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub risk_tags: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// What it will cost, as far as you know, for the policy to consider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimated_cost: Option<Cost>,
    /// RFC 3339; not together with `delay_ms`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflow_id: Option<String>,
    /// Which step of the workflow's run it is, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_index: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compensation: Option<Compensation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub principal_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actor_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actor_type: Option<ActorType>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pack_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter_id: Option<String>,
}

/// A payload that is not JSON.
#[derive(Debug)]
pub struct PayloadError(serde_json::Error);

impl fmt::Display for PayloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the payload is not JSON: {}", self.0)
    }
}

impl std::error::Error for PayloadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

impl SubmitRequest {
    pub fn new(topic: impl Into<String>) -> Self {
        Self {
            topic: topic.into(),
            ..Self::default()
        }
    }

    /// Takes a value as the payload.
    pub fn payload(mut self, value: &(impl Serialize + ?Sized)) -> Result<Self, PayloadError> {
        self.payload = Some(to_raw_value(value).map_err(PayloadError)?);
        Ok(self)
    }

    /// Takes JSON text as the payload, as it is.
    pub fn payload_json(mut self, text: impl Into<String>) -> Result<Self, PayloadError> {
        self.payload = Some(RawValue::from_string(text.into()).map_err(PayloadError)?);
        Ok(self)
    }

    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }

    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }
}

/// The job is committed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubmitResponse {
    pub job_id: String,
    pub state: JobState,
    pub trace_id: String,
}

/// What became of one job of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum BatchItem {
    Accepted(SubmitResponse),
    Rejected { error: Box<Problem> },
}

/// One outcome for each job of a batch, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchResponse {
    pub results: Vec<BatchItem>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CancelRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelResponse {
    pub job_id: String,
    pub state: JobState,
}

/// The policy's decision on a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    pub decision: String,
    pub rule_id: Option<String>,
    pub reason: Option<String>,
    pub policy_snapshot: Option<String>,
    pub decided_at: Option<String>,
}

/// A state the job was in, and since when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryEntry {
    pub state: JobState,
    pub at: String,
    pub attempt: u32,
    pub worker_id: Option<String>,
    pub reason: Option<String>,
}

/// How far an attempt is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    pub percent: u8,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    pub attempt: u32,
    pub at: String,
}

/// An intermediate result of an attempt. It is not the job's result.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Partial<R = Box<RawValue>> {
    pub percent: u8,
    pub attempt: u32,
    pub at: String,
    pub pointer: String,
    /// In bytes, when it could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// The content, when it is small enough to be stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<R>,
    /// The same when it is not JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_base64: Option<String>,
}

/// Something an attempt left behind; its content is where the pointer says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    pub pointer: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub media_type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// In hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    pub attempt: u32,
    pub at: String,
}

/// What a worker did about one constraint of the policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConstraintReport {
    /// By its path: `toolchain.allowed_tools`, say.
    pub constraint: String,
    /// `enforced`, `refused` or `unchecked`.
    pub outcome: String,
    /// What was refused.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// A job as the gateway shows it. In lists without payload and history.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job<R = Box<RawValue>> {
    pub job_id: String,
    pub state: JobState,
    pub topic: String,
    pub tenant_id: String,
    pub priority: Priority,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capability: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub risk_tags: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated_cost: Option<Cost>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow_id: Option<String>,
    /// Whose job it is: the principal of the key that submitted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal_id: Option<String>,
    /// Names that the request gave without the right to them; they count for nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_behalf_of: Option<Claim>,
    /// The name of the key that submitted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submitted_by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<R>,
    /// A payload that is not JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<String>,
    #[serde(default)]
    pub result: Option<R>,
    /// A result that is not JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_base64: Option<String>,
    #[serde(default)]
    pub result_ptr: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub result_missing: bool,
    #[serde(default)]
    pub failure_reason: Option<String>,
    #[serde(default)]
    pub error_code: Option<String>,
    /// What it waits for, for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_reason: Option<String>,
    /// The same for a program, where the scheduler's leader answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_code: Option<String>,
    pub attempts: u32,
    #[serde(default)]
    pub max_attempts: Option<u32>,
    #[serde(default)]
    pub worker_id: Option<String>,
    #[serde(default)]
    pub decision: Option<Decision>,
    #[serde(default)]
    pub due_at: Option<String>,
    #[serde(default)]
    pub deadline_at: Option<String>,
    pub created_at: String,
    #[serde(default)]
    pub finished_at: Option<String>,
    pub trace_id: String,
    /// The states it was in, oldest first, beginning with PENDING. Absent in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<HistoryEntry>,
    /// How far its worker last reported to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Intermediate results, the newest last.
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    pub partials: Vec<Partial<R>>,
    /// What its attempts left behind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<Artifact>,
    /// What became of the constraints of its last attempt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub constraint_report: Vec<ConstraintReport>,
}

/// Which jobs to list. What is absent does not filter.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ListRequest {
    /// One state, or several separated by commas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflow_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_after: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_before: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// The `next_cursor` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// A page of jobs, newest first.
pub type JobPage = Page<Job>;

/// What a job waits for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    pub job_id: String,
    pub state: JobState,
    /// For a person, in a sentence.
    pub explanation: String,
    /// For a program; `null` when nothing stands in its way.
    pub reason_code: Option<String>,
    /// Since when it is so.
    pub since: Option<String>,
    /// When it goes on, where that is known.
    pub until: Option<String>,
    pub attempts: u32,
    pub max_attempts: Option<u32>,
    /// What the scheduler's leader answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<serde_json::Value>,
}
