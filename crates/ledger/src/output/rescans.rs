//! Rescans: stored results against today's output policy. The gateway writes what is asked
//! for; the leader works on it and counts.

use airlock_model::{TenantId, Timestamp, Topic};
use sqlx::Row;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::Ledger;
use crate::error::{ErrorContext, LedgerError, corrupt_error};
use crate::log::audit::{self, Actor, NewAudit};
use crate::ts::Ts;

/// What to scan again.
#[derive(Debug, Clone)]
pub struct NewRescan {
    /// Chosen by the caller, so that a repeated request is one rescan.
    pub id: Uuid,
    /// `None`: of all tenants.
    pub tenant: Option<TenantId>,
    pub topic: Option<Topic>,
    /// Results of jobs that ended at or after this moment.
    pub since: Timestamp,
    /// Count verdicts, change nothing.
    pub dry_run: bool,
}

/// A rescan and how far it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rescan {
    pub id: Uuid,
    pub tenant: Option<String>,
    pub topic: Option<String>,
    pub since: Timestamp,
    /// Jobs that end later were judged by today's policy already.
    pub up_to: Timestamp,
    pub dry_run: bool,
    pub requested_by: String,
    /// `running`, `done` or `failed`.
    pub state: String,
    /// Results there are to scan, as counted when it was asked for.
    pub total: u64,
    pub scanned: u64,
    pub allowed: u64,
    pub quarantined: u64,
    pub redacted: u64,
    /// Results that could not be judged.
    pub failed: u64,
    pub error: Option<String>,
    pub created_at: Timestamp,
    pub ended_at: Option<Timestamp>,
}

const COLUMNS: &str = "rescan_id, tenant_id, topic, since, up_to, dry_run, requested_by, state, \
     total, scanned, allowed, quarantined, redacted, failed, error, created_at, ended_at";

fn rescan_from_row(row: &PgRow) -> Result<Rescan, LedgerError> {
    let time = |i: usize| {
        let at: Ts = row.try_get(i).map_err(corrupt_error)?;
        Ok::<_, LedgerError>(at.0)
    };
    let count = |i: usize| {
        let n: i64 = row.try_get(i).map_err(corrupt_error)?;
        Ok::<_, LedgerError>(u64::try_from(n).unwrap_or(0))
    };
    let ended_at: Option<Ts> = row.try_get(16).map_err(corrupt_error)?;
    Ok(Rescan {
        id: row.try_get(0).map_err(corrupt_error)?,
        tenant: row.try_get(1).map_err(corrupt_error)?,
        topic: row.try_get(2).map_err(corrupt_error)?,
        since: time(3)?,
        up_to: time(4)?,
        dry_run: row.try_get(5).map_err(corrupt_error)?,
        requested_by: row.try_get(6).map_err(corrupt_error)?,
        state: row.try_get(7).map_err(corrupt_error)?,
        total: count(8)?,
        scanned: count(9)?,
        allowed: count(10)?,
        quarantined: count(11)?,
        redacted: count(12)?,
        failed: count(13)?,
        error: row.try_get(14).map_err(corrupt_error)?,
        created_at: time(15)?,
        ended_at: ended_at.map(|t| t.0),
    })
}

impl Ledger {
    /// Asks the leader for a rescan of what succeeded since a moment. The same id again is
    /// the same rescan.
    pub async fn create_rescan(
        &self,
        new: &NewRescan,
        by: Actor<'_>,
    ) -> Result<Rescan, LedgerError> {
        let doing = "creating a rescan";
        let work = self.create_rescan_in_transaction(new, by);
        let rescan = match tokio::time::timeout(self.op_timeout, work).await {
            Ok(done) => done?,
            Err(_) => return Err(LedgerError::timeout(doing, self.op_timeout)),
        };
        // The number is for the progress bar: what is scanned is what the leader finds, and
        // a ledger too large to be counted in time is scanned without it.
        match self.count_rescan(new.id).await {
            Ok(Some(counted)) => Ok(counted),
            Ok(None) | Err(_) => Ok(rescan),
        }
    }

    async fn count_rescan(&self, id: Uuid) -> Result<Option<Rescan>, LedgerError> {
        let sql = format!(
            "UPDATE output_rescan n SET total = greatest(n.total, (
                 SELECT count(*) FROM job_state s JOIN job_request r USING (job_id)
                 WHERE s.state = 10 AND s.finished_at BETWEEN n.since AND n.up_to
                   AND s.result IS NOT NULL
                   AND (n.tenant_id IS NULL OR r.tenant = n.tenant_id)
                   AND (n.topic IS NULL OR r.topic = n.topic)))
             WHERE n.rescan_id = $1 AND n.state = 'running' RETURNING {COLUMNS}"
        );
        let row = self
            .with_timeout("counting what a rescan has before it", async {
                sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(id)
                    .fetch_optional(&self.pool)
                    .await
            })
            .await?;
        row.as_ref().map(rescan_from_row).transpose()
    }

    async fn create_rescan_in_transaction(
        &self,
        new: &NewRescan,
        by: Actor<'_>,
    ) -> Result<Rescan, LedgerError> {
        let mut tx = self.begin_logged("beginning a rescan").await?;
        let sql = format!(
            "INSERT INTO output_rescan (rescan_id, tenant_id, topic, since, up_to, dry_run,
                                        requested_by, created_at)
             VALUES ($1, $2, $3, $4, now(), $5, $6, now())
             ON CONFLICT (rescan_id) DO NOTHING
             RETURNING {COLUMNS}"
        );
        let row = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(new.id)
            .bind(new.tenant.as_ref().map(TenantId::as_str))
            .bind(new.topic.as_ref().map(Topic::as_str))
            .bind(Ts(new.since))
            .bind(new.dry_run)
            .bind(by.name())
            .fetch_optional(&mut *tx)
            .await
            .context("creating a rescan")?;
        let Some(row) = row else {
            drop(tx);
            return self.rescan(None, new.id).await?.ok_or_else(|| {
                LedgerError::Corrupt(format!("the rescan {} is neither new nor there", new.id))
            });
        };
        let rescan = rescan_from_row(&row)?;
        let entry = NewAudit {
            kind: "output.rescan",
            tenant: rescan.tenant.as_deref(),
            actor: by.name(),
            job_id: None,
            detail: serde_json::json!({
                "key": by.key,
                "rescan_id": rescan.id.to_string(),
                "since": rescan.since.to_rfc3339(),
                "topic": rescan.topic,
                "dry_run": rescan.dry_run,
            }),
        };
        audit::insert_audit_entry(&mut tx, &entry).await?;
        tx.commit().await.context("committing a rescan")?;
        Ok(rescan)
    }

    /// One rescan; `None` when there is none, or it is not of this tenant alone.
    pub async fn rescan(
        &self,
        tenant: Option<&TenantId>,
        id: Uuid,
    ) -> Result<Option<Rescan>, LedgerError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM output_rescan \
             WHERE rescan_id = $1 AND ($2::text IS NULL OR tenant_id = $2)"
        );
        let row = self
            .with_timeout("reading a rescan", async {
                sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(id)
                    .bind(tenant.map(TenantId::as_str))
                    .fetch_optional(&self.pool)
                    .await
            })
            .await?;
        row.as_ref().map(rescan_from_row).transpose()
    }
}
