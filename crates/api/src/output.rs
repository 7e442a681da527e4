//! Outputs: the verdict of the output policy, the quarantine and its review, scans.

use airlock_model::JobState;
use airlock_model::output::{OutputFinding, OutputStatus};
use serde::{Deserialize, Serialize};

use crate::{AuditEntry, Page};

/// What a reviewer released, or why they did not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputReview {
    /// `whole` or `redacted`; absent for a rejection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    pub by: String,
    pub reason: String,
    pub at: String,
}

/// The verdict on a job's output. What is absent is not known, or does not apply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OutputVerdict {
    /// `skipped`, `allowed`, `held`, `redacted`, `quarantined`, `released` or `rejected`.
    pub status: OutputStatus,
    /// `ALLOW`, `QUARANTINE`, `REDACT` or `DENY`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub severity: Option<String>,
    /// `sync`: before the job's end was committed; `async`: after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_snapshot: Option<String>,
    /// Of the output as the worker sent it, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// As `airlock output scan` prints them. Absent in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub findings: Option<Vec<OutputFinding>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_at: Option<String>,
    /// Of an output that waits for its verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_since: Option<String>,
    /// Of an output that a reviewer released.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released: Option<OutputReview>,
    /// Of an output that a reviewer rejected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected: Option<OutputReview>,
}

/// A quarantined output in a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QuarantineEntry {
    pub job_id: String,
    pub tenant_id: String,
    pub topic: String,
    pub job_state: JobState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submitted_by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    pub created_at: String,
    #[serde(flatten)]
    pub verdict: OutputVerdict,
    /// Bytes of the original; absent when it is no longer kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Whether it can be released with its findings masked.
    pub redactable: bool,
    /// Until when the original is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence_until: Option<String>,
}

/// A page, the newest verdict first.
pub type QuarantinePage = Page<QuarantineEntry>;

/// One quarantined output with its findings and its audit trail.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QuarantineDetail {
    #[serde(flatten)]
    pub entry: QuarantineEntry,
    /// `output.quarantined`, `output.evidence`, `output.released`, `output.rejected`.
    #[serde(default)]
    pub audit: Vec<AuditEntry>,
}

/// Which ones to list; without a status, those that nobody has reviewed.
#[derive(Debug, Clone, Default, Serialize)]
pub struct QuarantineListRequest {
    /// `quarantined`, `released`, `rejected`, several separated by commas, or `all`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub severity: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided_after: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided_before: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Releases a quarantined output.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReleaseRequest {
    /// `whole` or `redacted`.
    pub mode: Option<String>,
    pub reason: Option<String>,
}

/// Rejects a quarantined output: it stays where it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RejectRequest {
    pub reason: Option<String>,
}

/// Scans stored results again, with today's output policy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RescanRequest {
    /// RFC 3339: results of jobs that ended since then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Of this tenant only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// Count verdicts and change nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dry_run: Option<bool>,
}

/// A rescan and how far it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rescan {
    pub id: String,
    /// `running`, `done` or `failed`.
    pub state: String,
    pub since: String,
    /// Jobs that ended later were judged by today's policy already.
    pub up_to: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    pub dry_run: bool,
    pub requested_by: String,
    /// Results to scan, as counted at the beginning; 0 when they were not counted.
    pub total: u64,
    pub scanned: u64,
    pub allowed: u64,
    pub quarantined: u64,
    pub redacted: u64,
    /// Results that could not be judged.
    pub failed: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub created_at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
}
