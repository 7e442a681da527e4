//! Approvals: what waits for somebody, and saying yes or no.

use std::collections::BTreeMap;

use airlock_model::{Claim, JobState};
use reqwest::Method;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::client::{CALL_TIMEOUT, Client, encode, escaped, send, with_json};
use crate::error::ClientError;

/// What one person said.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Vote {
    pub voter: String,
    pub approve: bool,
    #[serde(default)]
    pub reason: String,
    #[serde(default)]
    pub constraints: Option<Value>,
    pub at: String,
}

/// An entry of the audit trail.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuditEntry {
    pub at: String,
    pub kind: String,
    pub actor: String,
    #[serde(default)]
    pub detail: Value,
}

/// A place at which two requests differ. Without `old` it is new, without `new` it is gone.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Change {
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<Box<RawValue>>,
}

/// The last approved request of the same tenant, topic and rule.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LastApproved {
    pub job_id: String,
    pub approved_at: String,
    /// What differs from it.
    #[serde(default)]
    pub changes: Vec<Change>,
    /// There may be more.
    #[serde(default)]
    pub changes_truncated: bool,
}

/// A request for approval as the gateway shows it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Approval {
    pub job_id: String,
    pub round: u32,
    /// PENDING, APPROVED, REJECTED, EXPIRED, DENIED, SUPERSEDED, WITHDRAWN or RELEASED.
    pub status: String,
    pub job_state: JobState,
    pub topic: String,
    pub tenant_id: String,
    #[serde(default)]
    pub principal_id: Option<String>,
    #[serde(default)]
    pub actor_id: Option<String>,
    #[serde(default)]
    pub submitted_by: Option<String>,
    /// Names that the request gave without the right to them.
    #[serde(default)]
    pub on_behalf_of: Option<Claim>,
    /// Of a retry: who brought the request before.
    #[serde(default)]
    pub authors: Vec<String>,
    #[serde(default)]
    pub capability: Option<String>,
    #[serde(default)]
    pub risk_tags: Vec<String>,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    pub reason: String,
    pub rule_id: String,
    #[serde(default)]
    pub rule_hash: String,
    pub policy_snapshot: String,
    #[serde(default)]
    pub job_hash: String,
    pub quorum: u32,
    pub approvals: u32,
    #[serde(default)]
    pub approvers: Vec<String>,
    #[serde(default)]
    pub approver_roles: Vec<String>,
    pub created_at: String,
    pub expires_at: String,
    #[serde(default)]
    pub decided_at: Option<String>,
    #[serde(default)]
    pub decided_reason: Option<String>,
    #[serde(default)]
    pub used_at: Option<String>,
    #[serde(default)]
    pub votes: Vec<Vote>,
    /// Only of a single one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub audit: Vec<AuditEntry>,
    /// The job's input, or the beginning of its text. Only of a single one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Box<RawValue>>,
    #[serde(default)]
    pub payload_bytes: u64,
    #[serde(default)]
    pub payload_truncated: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated_cost: Option<Value>,
    /// What the policy binds the job to. Only of a single one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub constraints: Option<Value>,
    /// Only of a single one, and when there was one before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_approved: Option<LastApproved>,
}

/// Which ones to list; without a status, those that wait for somebody.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ApprovalListRequest {
    /// One status, several separated by commas, or `all`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// A page, newest first.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ApprovalPage {
    pub items: Vec<Approval>,
    #[serde(default)]
    pub next_cursor: Option<String>,
}

#[derive(Serialize)]
struct Word<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    constraints: Option<&'a Value>,
}

fn path(job_id: &str, rest: &str) -> Result<String, ClientError> {
    if job_id.is_empty() {
        return Err(ClientError::Config("a job's id is needed".to_owned()));
    }
    Ok(format!("/api/v1/approvals/{}{rest}", escaped(job_id)))
}

impl Client {
    pub async fn approvals(
        &self,
        request: &ApprovalListRequest,
    ) -> Result<ApprovalPage, ClientError> {
        self.retrying(self.retries, || {
            send(
                self.call(Method::GET, "/api/v1/approvals", CALL_TIMEOUT)
                    .query(request),
            )
        })
        .await
    }

    /// The newest request about a job, with its votes and its audit trail.
    pub async fn approval(&self, job_id: &str) -> Result<Approval, ClientError> {
        let path = path(job_id, "")?;
        self.retrying(self.retries, || {
            send(self.call(Method::GET, &path, CALL_TIMEOUT))
        })
        .await
    }

    /// Approves a held job, narrowed to `constraints` when there are any.
    pub async fn approve(
        &self,
        job_id: &str,
        reason: Option<&str>,
        constraints: Option<&Value>,
    ) -> Result<Approval, ClientError> {
        self.vote(job_id, "/approve", reason, constraints).await
    }

    /// Rejects a held job; it is denied.
    pub async fn reject(
        &self,
        job_id: &str,
        reason: Option<&str>,
    ) -> Result<Approval, ClientError> {
        self.vote(job_id, "/reject", reason, None).await
    }

    /// Saying the same again is no error, so that this may be repeated.
    async fn vote(
        &self,
        job_id: &str,
        what: &str,
        reason: Option<&str>,
        constraints: Option<&Value>,
    ) -> Result<Approval, ClientError> {
        let path = path(job_id, what)?;
        let body = encode(&Word {
            reason,
            constraints,
        })?;
        self.retrying(self.retries, || {
            send(with_json(
                self.call(Method::POST, &path, CALL_TIMEOUT),
                body.clone(),
            ))
        })
        .await
    }
}
