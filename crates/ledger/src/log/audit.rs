//! The audit trail: who did what, and when. Written in the transaction of the deed, and
//! read behind its writers by whoever tells it on.

use std::time::Duration;

use airlock_model::{JobId, Shard, TenantId, Timestamp};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use crate::Ledger;
use crate::error::{ErrorContext, LedgerError};
use crate::log::changes::{LogPosition, lag_from_micros};
use crate::log::readers::{Log, LogEntry};
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

/// Who did something: an API key and whose it is.
#[derive(Debug, Clone, Copy)]
pub struct Actor<'a> {
    pub key: &'a str,
    pub principal: Option<&'a str>,
}

impl<'a> Actor<'a> {
    /// The name an entry is written under, as votes are.
    pub fn name(&self) -> &'a str {
        self.principal.unwrap_or(self.key)
    }
}

/// An entry that was written.
#[derive(Debug, Clone, PartialEq)]
pub struct AuditEntry {
    pub id: i64,
    pub at: Timestamp,
    /// `approval.approved`, `policy.published`, `job.cancelled`, `dlq.deleted` and so on.
    pub kind: String,
    pub tenant: Option<String>,
    pub actor: String,
    pub job_id: Option<String>,
    pub detail: serde_json::Value,
}

const COLUMNS: &str = "xid, id, at, kind, tenant, actor, job_id, detail";

fn audit_entry_from_row(row: &PgRow) -> Result<(LogPosition, AuditEntry), sqlx::Error> {
    let at: Ts = row.try_get("at")?;
    let detail: Vec<u8> = row.try_get("detail")?;
    let id = row.try_get("id")?;
    let position = LogPosition {
        xid: row.try_get("xid")?,
        seq: id,
    };
    let entry = AuditEntry {
        id,
        at: at.0,
        kind: row.try_get("kind")?,
        tenant: row.try_get("tenant")?,
        actor: row.try_get("actor")?,
        job_id: row.try_get("job_id")?,
        detail: serde_json::from_slice(&detail).unwrap_or_default(),
    };
    Ok((position, entry))
}

pub(crate) async fn insert_audit_entry(
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
    .context("writing to the audit trail")?;
    Ok(())
}

impl Ledger {
    /// What is known about one job, oldest first.
    pub async fn job_audit_entries(
        &self,
        tenant: Option<&TenantId>,
        job: &JobId,
        limit: u32,
    ) -> Result<Vec<AuditEntry>, LedgerError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM audit_log
             WHERE job_id = $1 AND ($2::text IS NULL OR tenant = $2) ORDER BY id LIMIT $3"
        );
        let rows = self
            .with_timeout("reading the audit trail", async {
                sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(job.as_str())
                    .bind(tenant.map(TenantId::as_str))
                    .bind(i64::from(limit))
                    .fetch_all(&self.pool)
                    .await
            })
            .await?;
        let entries = rows.iter().map(|row| Ok(audit_entry_from_row(row)?.1));
        entries
            .collect::<Result<_, sqlx::Error>>()
            .context("reading the audit trail")
    }
}

impl LogEntry for AuditEntry {
    const LOG: Log = Log::Audit;

    /// One trail for all shards.
    async fn read_after(
        ledger: &Ledger,
        _: Shard,
        after: LogPosition,
        limit: u32,
    ) -> Result<Vec<(LogPosition, Self)>, LedgerError> {
        let horizon = ledger.log_horizon().await?;
        let sql = format!(
            "SELECT {COLUMNS} FROM audit_log
             WHERE (xid, id) > ($1, $2)
               AND xid < $4
             ORDER BY xid, id LIMIT $3"
        );
        let rows = ledger
            .with_timeout("reading the audit trail", async {
                sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(after.xid)
                    .bind(after.seq)
                    .bind(i64::from(limit))
                    .bind(horizon)
                    .fetch_all(&ledger.pool)
                    .await
            })
            .await?;
        rows.iter()
            .map(audit_entry_from_row)
            .collect::<Result<_, sqlx::Error>>()
            .context("reading the audit trail")
    }

    async fn lag(ledger: &Ledger, _: Shard, after: LogPosition) -> Result<Duration, LedgerError> {
        let micros: Option<i64> = ledger
            .with_timeout("reading the lag of the audit trail", async {
                sqlx::query_scalar(
                    "SELECT (extract(epoch FROM clock_timestamp() - at) * 1000000)::bigint
                     FROM audit_log WHERE (xid, id) > ($1, $2) ORDER BY xid, id LIMIT 1",
                )
                .bind(after.xid)
                .bind(after.seq)
                .fetch_optional(&ledger.pool)
                .await
            })
            .await?;
        Ok(lag_from_micros(micros))
    }
}
