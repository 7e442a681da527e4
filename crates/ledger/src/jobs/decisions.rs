//! Past decisions, to be put to another policy: what was asked, and what was answered.

use airlock_model::{Decision, JobId, JobSpec, TenantId, Timestamp};
use bytes::Bytes;
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::Ledger;
use crate::error::{LedgerError, corrupt_error};
use crate::ts::Ts;

/// A job and the policy's last word on it.
#[derive(Debug, Clone)]
pub struct PastDecision {
    pub job_id: JobId,
    pub tenant: TenantId,
    pub spec: JobSpec,
    /// Only when it was asked for.
    pub payload: Option<Bytes>,
    pub payload_len: u64,
    pub created_at: Timestamp,
    pub decided_at: Timestamp,
    /// What the policy said. A job that people approved was held by the policy.
    pub decision: Decision,
    pub rule_id: Option<String>,
    pub policy_snapshot: Option<String>,
}

/// Tenant by tenant, along the one index there is, and then the oldest of all of them:
/// an index by time alone would be paid for with every submission, and this is asked for
/// now and then.
const PAST: &str = r#"
WITH RECURSIVE tenants(tenant) AS (
    SELECT coalesce($1::text, (SELECT min(tenant) FROM job_request))
    UNION ALL
    SELECT (SELECT min(r.tenant) FROM job_request r WHERE r.tenant > t.tenant)
    FROM tenants t WHERE $1::text IS NULL AND t.tenant IS NOT NULL
)
SELECT d.* FROM tenants t CROSS JOIN LATERAL (
    SELECT r.job_id, r.tenant, r.spec, r.created_at, s.decided_at,
           coalesce(octet_length(r.payload), 0)::bigint AS payload_len,
           CASE WHEN octet_length(r.payload) <= $6 THEN r.payload END AS payload,
           CASE WHEN a.job_id IS NULL THEN s.decision ELSE 3 END::smallint AS decision,
           coalesce(a.rule_id, s.rule_id) AS rule_id,
           coalesce(a.policy_snapshot, s.policy_snapshot) AS policy_snapshot
    FROM job_request r JOIN job_state s USING (job_id)
    LEFT JOIN approval a ON a.job_id = r.job_id AND a.status = 2
    WHERE r.tenant = t.tenant AND r.created_at >= greatest($2, $3)
      AND ($3::timestamptz IS NULL OR (r.created_at, r.job_id) > ($3, $4))
      AND s.decision IS NOT NULL AND s.decision <> 20 AND s.decided_at IS NOT NULL
    ORDER BY r.created_at, r.job_id LIMIT $5
) d
ORDER BY d.created_at, d.job_id LIMIT $5"#;

impl Ledger {
    /// Decided jobs that were accepted since then, oldest first.
    pub async fn past_decisions(
        &self,
        tenant: Option<&TenantId>,
        since: Timestamp,
        after: Option<(Timestamp, JobId)>,
        limit: u32,
        payload_limit: usize,
    ) -> Result<Vec<PastDecision>, LedgerError> {
        let (at, id) = match &after {
            Some((at, id)) => (Some(Ts(*at)), id.as_str()),
            None => (None, ""),
        };
        let rows = self
            .with_timeout("reading past decisions", async {
                sqlx::query(PAST)
                    .bind(tenant.map(TenantId::as_str))
                    .bind(Ts(since))
                    .bind(at)
                    .bind(id)
                    .bind(i64::from(limit))
                    .bind(i32::try_from(payload_limit).unwrap_or(i32::MAX))
                    .fetch_all(&self.pool)
                    .await
            })
            .await?;
        rows.iter().map(past_decision_from_row).collect()
    }
}

fn past_decision_from_row(row: &PgRow) -> Result<PastDecision, LedgerError> {
    let text = |name: &str| row.try_get::<String, _>(name).map_err(corrupt_error);
    let optional_text = |name: &str| -> Result<Option<String>, LedgerError> {
        let value: Option<String> = row.try_get(name).map_err(corrupt_error)?;
        Ok(value.filter(|v| !v.is_empty()))
    };
    let time = |name: &str| -> Result<Timestamp, LedgerError> {
        let at: Ts = row.try_get(name).map_err(corrupt_error)?;
        Ok(at.0)
    };
    let spec: Vec<u8> = row.try_get("spec").map_err(corrupt_error)?;
    let payload: Option<Vec<u8>> = row.try_get("payload").map_err(corrupt_error)?;
    let payload_len: i64 = row.try_get("payload_len").map_err(corrupt_error)?;
    let decision: i16 = row.try_get("decision").map_err(corrupt_error)?;
    Ok(PastDecision {
        job_id: JobId::new(text("job_id")?).map_err(corrupt_error)?,
        tenant: TenantId::new(text("tenant")?).map_err(corrupt_error)?,
        spec: serde_json::from_slice(&spec).map_err(corrupt_error)?,
        payload: payload.map(Bytes::from),
        payload_len: u64::try_from(payload_len).unwrap_or(0),
        created_at: time("created_at")?,
        decided_at: time("decided_at")?,
        decision: Decision::from_code(decision)
            .ok_or_else(|| corrupt_error(format!("decision {decision}")))?,
        rule_id: optional_text("rule_id")?,
        policy_snapshot: optional_text("policy_snapshot")?,
    })
}
