//! Sagas: the compensations of a workflow's run, and what people do about them.

use airlock_model::{CompensationState, RollbackMode, SagaState};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::Page;

/// How many compensations are in which state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SagaCounts {
    /// All of them.
    pub recorded: u64,
    pub done: u64,
    pub denied: u64,
    pub skipped: u64,
    /// FAILED or UNREADABLE.
    pub failed: u64,
    /// RECORDED, RUNNING or HELD.
    pub pending: u64,
}

/// A saga.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saga {
    pub workflow_id: String,
    pub tenant_id: String,
    pub state: SagaState,
    /// Whether everything recorded was undone.
    pub complete: bool,
    pub mode: RollbackMode,
    /// What asked for the rollback: `failed_fatal`, `manual` and so on.
    pub trigger: Option<String>,
    pub reason: Option<String>,
    /// What the rollback waits for.
    pub waiting_reason: Option<String>,
    pub counts: SagaCounts,
    pub opened_at: String,
    pub rollback_started_at: Option<String>,
    pub ended_at: Option<String>,
    /// Newest first. Absent in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compensations: Option<Vec<SagaCompensation>>,
}

/// One compensation of a saga.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SagaCompensation {
    /// From 1, in the order in which the jobs were recorded.
    pub seq: u64,
    /// The job to undo.
    pub for_job_id: String,
    pub step_index: Option<i32>,
    /// `null` when the request of the job to undo cannot be read.
    pub topic: Option<String>,
    pub state: CompensationState,
    /// The job of the last try.
    pub job_id: Option<String>,
    pub tries: u32,
    /// The jobs of all tries, in order.
    pub jobs: Vec<String>,
    pub idempotency_key: Option<String>,
    /// The policy's decision on the last try.
    pub decision: Option<String>,
    pub rule_id: Option<String>,
    pub reason: Option<String>,
    pub recorded_at: String,
    pub started_at: Option<String>,
    pub ended_at: Option<String>,
}

/// A page of sagas, newest first.
pub type SagaPage = Page<Saga>;

/// Which sagas to list. What is absent does not filter.
#[derive(Debug, Clone, Default, Serialize)]
pub struct SagaListRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<SagaState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_after: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_before: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Asks for a rollback.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SagaRollbackRequest {
    /// Required unless this is a dry run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// By default sequential.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<RollbackMode>,
    /// Only answers what would be submitted, and what the policy would decide.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// Retries, skips, resolves or completes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SagaActionRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What a rollback would submit, newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SagaPlan {
    pub plan: Vec<PlannedCompensation>,
}

/// A compensation that a rollback would submit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedCompensation {
    pub seq: u64,
    pub for_job_id: String,
    /// `null`, like the decision, when the compensation cannot be built; the reason says why.
    pub topic: Option<String>,
    /// What the policy would decide now.
    pub decision: Option<String>,
    pub rule_id: Option<String>,
    pub reason: Option<String>,
}

/// A receipt as it is sent: the document byte for byte, and the SHA-256 of those bytes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SagaReceipt<R = Box<RawValue>> {
    /// A [`ReceiptDocument`].
    pub document: R,
    /// Hex.
    pub sha256: String,
}

/// What a rollback did, as of its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiptDocument {
    pub workflow_id: String,
    pub tenant_id: String,
    pub state: SagaState,
    pub complete: bool,
    pub mode: RollbackMode,
    pub trigger: Option<String>,
    pub reason: Option<String>,
    pub counts: SagaCounts,
    pub opened_at: String,
    pub rollback_started_at: Option<String>,
    pub ended_at: Option<String>,
    /// Newest first.
    pub compensations: Vec<ReceiptEntry>,
}

/// One compensation in a receipt, with what the ledger knows of its last try's job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiptEntry {
    #[serde(flatten)]
    pub compensation: SagaCompensation,
    /// Hex.
    pub job_hash: Option<String>,
    pub job_state: Option<String>,
    pub rule_hash: Option<String>,
    pub policy_snapshot: Option<String>,
    pub worker_id: Option<String>,
    /// Hex SHA-256 of the result.
    pub result_sha256: Option<String>,
    pub decided_at: Option<String>,
    pub dispatched_at: Option<String>,
    pub running_at: Option<String>,
    pub finished_at: Option<String>,
}
