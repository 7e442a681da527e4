//! How the verdict on an output is shown, to whoever sees the job and to its reviewers.
//!
//! What must stay true: nothing here comes from the output itself but findings, whose
//! excerpts are masked. A finding in a JSON key has that key in its pointer, so that those
//! who may not read the output see pointers only where every finding can be masked, and
//! therefore none is in a key.

use airlock_api::{OutputReview, OutputVerdict, QuarantineDetail, QuarantineEntry, Rescan};
use airlock_ledger::{AuditEntry, JobOutput, JobView, Quarantined};
use airlock_model::output::{OutputFinding, OutputStatus};
use airlock_model::{JobState, Timestamp};

use super::job::Detail;

/// The verdict on a job's output. Of a job that ran and ended without one, `skipped`.
pub fn to_api_output(job: &JobView, detail: Detail) -> Option<OutputVerdict> {
    let Some(output) = &job.output else {
        let ran = matches!(job.state, JobState::Succeeded | JobState::Failed);
        return (ran && detail != Detail::Line).then(skipped_verdict);
    };
    let mut verdict = to_api_verdict(output);
    if detail != Detail::Line {
        let findings = output.findings.iter().cloned();
        verdict.findings = Some(match output.maskable {
            true => findings.collect(),
            false => findings.map(without_pointer).collect(),
        });
    }
    Some(verdict)
}

fn without_pointer(finding: OutputFinding) -> OutputFinding {
    OutputFinding {
        pointer: None,
        ..finding
    }
}

fn skipped_verdict() -> OutputVerdict {
    OutputVerdict {
        status: OutputStatus::Skipped,
        decision: None,
        rule_id: None,
        reason: None,
        severity: None,
        phase: None,
        policy_snapshot: None,
        sha256: None,
        findings: None,
        decided_at: None,
        held_since: None,
        released: None,
        rejected: None,
    }
}

/// Everything but the findings.
fn to_api_verdict(output: &JobOutput) -> OutputVerdict {
    let review = |status| {
        let decided = output.review.as_ref().filter(|_| output.status == status);
        decided.map(|review| OutputReview {
            mode: review.mode.map(|mode| mode.as_str().to_owned()),
            by: review.by.clone(),
            reason: review.reason.clone(),
            at: review.at.to_rfc3339(),
        })
    };
    let hex = |bytes: &Vec<u8>| bytes.iter().map(|b| format!("{b:02x}")).collect();
    OutputVerdict {
        status: output.status,
        decision: output.decision.map(|d| d.as_str().to_owned()),
        rule_id: output.rule_id.clone(),
        reason: output.reason.clone(),
        severity: output.severity.clone(),
        phase: output.phase.map(|p| p.as_str().to_owned()),
        policy_snapshot: output.policy_snapshot.clone(),
        sha256: output.sha256.as_ref().map(hex),
        findings: None,
        decided_at: output.decided_at.map(Timestamp::to_rfc3339),
        held_since: output
            .held_since
            .filter(|_| output.status == OutputStatus::Held)
            .map(Timestamp::to_rfc3339),
        released: review(OutputStatus::Released),
        rejected: review(OutputStatus::Rejected),
    }
}

/// What a job whose output is held waits for.
pub fn held_reason(job: &JobView) -> Option<String> {
    if !job.is_output_held() {
        return None;
    }
    let output = job.output.as_ref()?;
    let mut text = "the output is held until the output policy has judged it".to_owned();
    if let Some(since) = output.held_since {
        text.push_str(&format!(", since {since}"));
    }
    if let Some(reason) = &output.reason {
        text.push_str(&format!(": {reason}"));
    }
    Some(text)
}

/// One line of the quarantine.
pub fn to_api_quarantine_entry(item: &Quarantined) -> QuarantineEntry {
    QuarantineEntry {
        job_id: item.job_id.to_string(),
        tenant_id: item.tenant.to_string(),
        topic: item.spec.topic.to_string(),
        job_state: item.job_state,
        principal_id: item.spec.principal_id.clone(),
        submitted_by: item.submitted_by.clone(),
        worker_id: item.worker_id.clone(),
        created_at: item.created_at.to_rfc3339(),
        verdict: to_api_verdict(&item.output),
        size: item.size,
        redactable: item.output.maskable,
        evidence_until: item.evidence_until.map(Timestamp::to_rfc3339),
    }
}

/// The same for a reviewer, with findings and audit trail.
pub fn to_api_quarantine_detail(item: &Quarantined, audit: &[AuditEntry]) -> QuarantineDetail {
    let mut entry = to_api_quarantine_entry(item);
    entry.verdict.findings = Some(item.output.findings.clone());
    QuarantineDetail {
        entry,
        audit: audit
            .iter()
            .filter(|e| e.kind.starts_with("output."))
            .map(|e| airlock_api::AuditEntry {
                at: e.at.to_rfc3339(),
                kind: e.kind.clone(),
                actor: e.actor.clone(),
                detail: e.detail.clone(),
            })
            .collect(),
    }
}

pub fn to_api_rescan(rescan: airlock_ledger::Rescan) -> Rescan {
    Rescan {
        id: rescan.id.to_string(),
        state: rescan.state,
        since: rescan.since.to_rfc3339(),
        up_to: rescan.up_to.to_rfc3339(),
        tenant: rescan.tenant,
        topic: rescan.topic,
        dry_run: rescan.dry_run,
        requested_by: rescan.requested_by,
        total: rescan.total,
        scanned: rescan.scanned,
        allowed: rescan.allowed,
        quarantined: rescan.quarantined,
        redacted: rescan.redacted,
        failed: rescan.failed,
        error: rescan.error,
        created_at: rescan.created_at.to_rfc3339(),
        ended_at: rescan.ended_at.map(Timestamp::to_rfc3339),
    }
}
