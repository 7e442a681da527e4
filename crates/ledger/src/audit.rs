//! The audit trail: who did what, and when. Written in the transaction of the deed.

use airlock_model::{JobId, TenantId, Timestamp};
use sqlx::{PgConnection, Row};

use crate::Ledger;
use crate::error::{Doing, LedgerError};
use crate::ts::Ts;

/// An entry to write.
#[derive(Debug, Clone)]
pub(crate) struct NewAudit<'a> {
    pub kind: &'static str,
    pub tenant: Option<&'a str>,
    pub actor: &'a str,
    pub job_id: Option<&'a str>,
    pub detail: serde_json::Value,
}

/// An entry that was written.
#[derive(Debug, Clone, PartialEq)]
pub struct AuditEntry {
    pub id: i64,
    pub at: Timestamp,
    /// `approval.approved`, `policy.published` and so on.
    pub kind: String,
    pub tenant: Option<String>,
    pub actor: String,
    pub job_id: Option<String>,
    pub detail: serde_json::Value,
}

pub(crate) async fn insert(
    conn: &mut PgConnection,
    entry: &NewAudit<'_>,
) -> Result<(), LedgerError> {
    sqlx::query(
        "INSERT INTO audit_log (kind, tenant, actor, job_id, detail) VALUES ($1, $2, $3, $4, $5)",
    )
    .bind(entry.kind)
    .bind(entry.tenant)
    .bind(entry.actor)
    .bind(entry.job_id)
    .bind(entry.detail.to_string().into_bytes())
    .execute(conn)
    .await
    .doing("writing to the audit trail")?;
    Ok(())
}

impl Ledger {
    /// What is known about one job, oldest first.
    pub async fn audit_of(
        &self,
        tenant: Option<&TenantId>,
        job: &JobId,
        limit: u32,
    ) -> Result<Vec<AuditEntry>, LedgerError> {
        let rows = self
            .bounded("reading the audit trail", async {
                sqlx::query(
                    "SELECT id, at, kind, tenant, actor, job_id, detail FROM audit_log
                     WHERE job_id = $1 AND ($2::text IS NULL OR tenant = $2)
                     ORDER BY id LIMIT $3",
                )
                .bind(job.as_str())
                .bind(tenant.map(TenantId::as_str))
                .bind(i64::from(limit))
                .fetch_all(&self.pool)
                .await
            })
            .await?;
        rows.iter()
            .map(|row| {
                let at: Ts = row.try_get("at")?;
                let detail: Vec<u8> = row.try_get("detail")?;
                Ok(AuditEntry {
                    id: row.try_get("id")?,
                    at: at.0,
                    kind: row.try_get("kind")?,
                    tenant: row.try_get("tenant")?,
                    actor: row.try_get("actor")?,
                    job_id: row.try_get("job_id")?,
                    detail: serde_json::from_slice(&detail).unwrap_or_default(),
                })
            })
            .collect::<Result<_, sqlx::Error>>()
            .doing("reading the audit trail")
    }
}
