//! Approvals: jobs that are held for a human, and votes on them.

use std::collections::BTreeMap;

use airlock_model::{Claim, JobState};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::Page;

/// A vote on a held job.
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

/// A request for approval as lists and votes show it.
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
    /// Names that the request gave without the right to them; they count for nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_behalf_of: Option<Claim>,
    #[serde(default)]
    pub submitted_by: Option<String>,
    /// Of a retry: who submitted the request before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub authors: Vec<String>,
    #[serde(default)]
    pub capability: Option<String>,
    #[serde(default)]
    pub risk_tags: Vec<String>,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Why an approval is required.
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
}

/// A single request for approval: with the audit trail, and what the job would do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ApprovalDetail {
    #[serde(flatten)]
    pub approval: Approval,
    #[serde(default)]
    pub audit: Vec<AuditEntry>,
    /// The job's payload, or the beginning of its text when it is long.
    #[serde(default)]
    pub payload: Option<Box<RawValue>>,
    #[serde(default)]
    pub payload_bytes: u64,
    #[serde(default)]
    pub payload_truncated: bool,
    #[serde(default)]
    pub estimated_cost: Option<Value>,
    /// The constraints of the policy.
    #[serde(default)]
    pub constraints: Option<Value>,
    /// The last approved request of its kind, when there was one.
    #[serde(default)]
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
pub type ApprovalPage = Page<Approval>;

/// Approves or rejects a held job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VoteRequest<C = Value> {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Another name for the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// What the job is narrowed to, in the shape of a rule's constraints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub constraints: Option<C>,
}

impl<C> Default for VoteRequest<C> {
    fn default() -> Self {
        Self {
            reason: None,
            note: None,
            constraints: None,
        }
    }
}
