//! The record of a verdict, written in the transaction of the move that it belongs to.

use std::time::Duration;

use airlock_model::output::{OutputPhase, OutputStatus, OutputVerdict};
use airlock_model::{JobId, TenantId, Timestamp};
use bytes::Bytes;
use sqlx::PgConnection;

use crate::error::{ErrorContext, LedgerError};
use crate::ts::Ts;

/// Who judges, in the audit trail.
const ACTOR: &str = "output-policy";

/// What is written of an output.
#[derive(Debug, Clone)]
pub struct NewOutput {
    pub tenant: TenantId,
    pub status: OutputStatus,
    /// Its decision counts for nothing while the output is held.
    pub verdict: OutputVerdict,
    /// Of the output as the worker sent it; `None` when there is none.
    pub sha256: Option<Vec<u8>>,
    /// The output as the worker sent it, where not everybody may read it.
    pub original: Option<Bytes>,
    /// The same with its findings masked, where that is possible.
    pub masked: Option<Bytes>,
    /// Its content is still to be judged.
    pub scan_owed: bool,
    /// How long the original is kept after the verdict; zero: for ever.
    pub keep_evidence: Duration,
}

impl NewOutput {
    /// Whether its original is evidence.
    fn is_evidence(&self) -> bool {
        match self.status {
            OutputStatus::Redacted
            | OutputStatus::Quarantined
            | OutputStatus::Released
            | OutputStatus::Rejected => true,
            OutputStatus::Skipped | OutputStatus::Allowed | OutputStatus::Held => false,
        }
    }

    fn is_held(&self) -> bool {
        self.status == OutputStatus::Held
    }

    /// What becomes evidence stays so long; what is held stays until its verdict.
    fn evidence_until(&self, at: Timestamp) -> Option<Timestamp> {
        let kept = self.is_evidence() && !self.keep_evidence.is_zero();
        kept.then(|| at + self.keep_evidence)
    }

    /// For the audit trail, without a word of the output.
    fn audit_detail(&self) -> Option<Vec<u8>> {
        let v = &self.verdict;
        let detail = serde_json::json!({
            "decision": v.decision.as_str(),
            "rule_id": v.rule_id,
            "reason": v.reason,
            "severity": v.severity,
            "phase": v.phase.as_str(),
            "policy_snapshot": v.policy_snapshot,
            "findings": v.findings.len(),
            "sha256": self.sha256.as_deref().map(to_hex),
        });
        self.is_evidence().then(|| detail.to_string().into_bytes())
    }
}

/// One record: of which job, at which time.
pub(crate) type Record<'a> = (&'a JobId, Timestamp, &'a NewOutput);

// A record of a held output is replaced by that of its verdict; the original stays unless
// everybody may read it now.
const RECORD: &str = r#"
WITH u AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::text[], $3::smallint[], $4::smallint[], $5::text[],
        $6::text[], $7::text[], $8::smallint[], $9::text[], $10::bytea[], $11::bytea[],
        $12::timestamptz[], $13::bytea[], $14::bytea[], $15::timestamptz[], $16::bool[],
        $17::bytea[])
      AS u(job_id, tenant, status, decision, rule_id, reason, severity, phase, snapshot, sha256,
           findings, at, original, redacted, evidence_until, owed, audit)
), record AS (
    INSERT INTO job_output AS o (job_id, tenant_id, status, decision, rule_id, reason, severity,
        phase, policy_snapshot, sha256, findings, decided_at, held_since, original, redacted,
        evidence_until)
    SELECT job_id, tenant, status, decision, rule_id, reason, severity, phase, snapshot, sha256,
           findings, CASE WHEN status = 2 THEN NULL ELSE at END,
           CASE WHEN status = 2 THEN at END, original, redacted, evidence_until
    FROM u ORDER BY job_id
    ON CONFLICT (job_id) DO UPDATE SET status = excluded.status, decision = excluded.decision,
        rule_id = excluded.rule_id, reason = excluded.reason, severity = excluded.severity,
        phase = excluded.phase, policy_snapshot = excluded.policy_snapshot,
        sha256 = coalesce(o.sha256, excluded.sha256), findings = excluded.findings,
        decided_at = excluded.decided_at,
        held_since = coalesce(o.held_since, excluded.held_since),
        original = CASE WHEN excluded.status = 1 THEN NULL
                        ELSE coalesce(o.original, excluded.original) END,
        redacted = CASE WHEN excluded.status = 1 THEN NULL ELSE excluded.redacted END,
        evidence_until = excluded.evidence_until
), partial AS (
    -- What was shown of a run may hold what its result was quarantined for.
    UPDATE job_partial SET output = 2
    WHERE job_id = ANY(ARRAY(SELECT job_id FROM u WHERE status = 4))
), paid AS (
    DELETE FROM output_scan WHERE job_id = ANY(ARRAY(SELECT job_id FROM u WHERE NOT owed))
), owed AS (
    INSERT INTO output_scan (job_id, shard, sha256, held, owed_since, not_before)
    SELECT u.job_id, $18, u.sha256, u.status = 2, u.at, clock_timestamp() FROM u
    WHERE u.owed AND u.sha256 IS NOT NULL ORDER BY u.job_id
    ON CONFLICT (job_id) DO UPDATE SET sha256 = excluded.sha256, held = excluded.held,
        not_before = excluded.not_before
)
INSERT INTO audit_log (kind, tenant, actor, job_id, detail)
SELECT CASE u.status WHEN 4 THEN 'output.quarantined' ELSE 'output.redacted' END, u.tenant, $19,
       u.job_id, u.audit
FROM u WHERE u.audit IS NOT NULL ORDER BY u.job_id"#;

/// Writes these records; nothing at all when there are none.
pub(crate) async fn insert_outputs(
    conn: &mut PgConnection,
    shard: i16,
    records: &[Record<'_>],
) -> Result<(), LedgerError> {
    if records.is_empty() {
        return Ok(());
    }
    let text = |f: fn(&OutputVerdict) -> &str| -> Vec<Option<String>> {
        let texts = records.iter().map(|(_, _, o)| f(&o.verdict));
        texts
            .map(|t| (!t.is_empty()).then(|| t.replace('\0', "\u{fffd}")))
            .collect()
    };
    let decisions: Vec<Option<i16>> = column(records, |o| {
        (!o.is_held()).then(|| o.verdict.decision.code())
    });
    let phases: Vec<i16> = column(records, |o| OutputPhase::code(o.verdict.phase));
    let findings: Vec<Option<Vec<u8>>> = column(records, |o| {
        let findings = &o.verdict.findings;
        (!findings.is_empty()).then(|| serde_json::to_vec(findings).unwrap_or_default())
    });
    let untils: Vec<Option<Ts>> = records
        .iter()
        .map(|(_, at, o)| Ts::from_option(o.evidence_until(*at)))
        .collect();
    let ids: Vec<&str> = records.iter().map(|(id, _, _)| id.as_str()).collect();
    let times: Vec<Ts> = records.iter().map(|(_, at, _)| Ts(*at)).collect();
    sqlx::query(RECORD)
        .bind(ids)
        .bind(column(records, |o| o.tenant.as_str()))
        .bind(column(records, |o| o.status.code()))
        .bind(decisions)
        .bind(text(|v| &v.rule_id))
        .bind(text(|v| &v.reason))
        .bind(text(|v| &v.severity))
        .bind(phases)
        .bind(text(|v| &v.policy_snapshot))
        .bind(column(records, |o| o.sha256.as_deref()))
        .bind(findings)
        .bind(times)
        .bind(column(records, |o| o.original.as_deref()))
        .bind(column(records, |o| o.masked.as_deref()))
        .bind(untils)
        .bind(column(records, |o| o.scan_owed))
        .bind(column(records, NewOutput::audit_detail))
        .bind(shard)
        .bind(ACTOR)
        .execute(conn)
        .await
        .context("recording verdicts on outputs")?;
    Ok(())
}

fn column<'a, U>(records: &[Record<'a>], f: impl Fn(&'a NewOutput) -> U) -> Vec<U> {
    records.iter().map(|(_, _, output)| f(output)).collect()
}

pub(super) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
