//! Cancelling: the gateway writes it, because a 2xx means that it is committed.
//!
//! It needs no epoch: the compare-and-set makes the leader's own next write of that job
//! miss, and the change-log entry tells the leader to stop the worker and free the slot.

use std::sync::LazyLock;

use airlock_model::{JobEvent, JobId, JobState, RunEnd, TenantId};

use crate::Ledger;
use crate::error::LedgerError;
use crate::log::audit::Actor;
use crate::states;

#[derive(Debug, Clone)]
pub struct CancelRequest<'a> {
    pub job_id: &'a JobId,
    /// `None`: an administrator, any tenant's.
    pub tenant: Option<&'a TenantId>,
    pub by: Actor<'a>,
    pub reason: &'a str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelOutcome {
    /// It was open and is CANCELLED now.
    Cancelled,
    /// It had ended before.
    AlreadyFinal(JobState),
    /// No such job, or not this tenant's.
    NotFound,
}

static CANCEL: LazyLock<String> = LazyLock::new(|| {
    r#"
WITH target AS (
    SELECT s.job_id, s.shard, s.state, r.tenant FROM job_state s JOIN job_request r USING (job_id)
    WHERE s.job_id = $1 AND ($2::text IS NULL OR r.tenant = $2)
    FOR UPDATE OF s
), done AS (
    UPDATE job_state s SET state = 13, open = false, finished_at = clock_timestamp(),
        reason_code = 'cancelled', reason = $3,
        run_end = CASE WHEN t.state IN (:in_flight) THEN :cancelled ELSE s.run_end END
    FROM target t WHERE s.job_id = t.job_id AND t.state IN (:from)
    RETURNING s.job_id, s.shard
), gone AS (
    DELETE FROM job_due d USING done WHERE d.job_id = done.job_id
), logged AS (
    INSERT INTO change_log (shard, job_ids) SELECT shard, ARRAY[job_id] FROM done
), audited AS (
    INSERT INTO audit_log (kind, tenant, actor, job_id, detail)
    SELECT 'job.cancelled', t.tenant, $4, d.job_id,
           convert_to(json_build_object('key', $5::text, 'reason', $6::text)::text,
               'UTF8')
    FROM done d JOIN target t USING (job_id)
)
SELECT state FROM target"#
        .replace(
            ":in_flight",
            &states::states_where_sql(JobState::is_in_flight),
        )
        .replace(":from", &states::source_states_sql(&[JobEvent::Cancel]))
        .replace(":cancelled", &RunEnd::Cancelled.code().to_string())
});

/// Postgres holds no NUL.
fn replace_nul(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

impl Ledger {
    pub async fn cancel_job(
        &self,
        request: CancelRequest<'_>,
    ) -> Result<CancelOutcome, LedgerError> {
        let reason = if request.reason.is_empty() {
            format!("cancelled by {}", request.by.key)
        } else {
            format!("cancelled by {}: {}", request.by.key, request.reason)
        };
        let was: Option<i16> = self
            .with_timeout("cancelling a job", async {
                sqlx::query_scalar(CANCEL.as_str())
                    .bind(request.job_id.as_str())
                    .bind(request.tenant.map(TenantId::as_str))
                    .bind(replace_nul(&reason))
                    .bind(replace_nul(request.by.name()))
                    .bind(replace_nul(request.by.key))
                    .bind(replace_nul(request.reason))
                    .fetch_optional(&self.pool)
                    .await
            })
            .await?;
        let Some(code) = was else {
            return Ok(CancelOutcome::NotFound);
        };
        let state = JobState::from_code(code)
            .ok_or_else(|| LedgerError::Corrupt(format!("state {code} of {}", request.job_id)))?;
        Ok(if state.is_final() {
            CancelOutcome::AlreadyFinal(state)
        } else {
            CancelOutcome::Cancelled
        })
    }

    /// The states of some jobs, for whoever waits for their end.
    pub async fn job_states(&self, ids: &[JobId]) -> Result<Vec<(JobId, JobState)>, LedgerError> {
        let ids: Vec<&str> = ids.iter().map(JobId::as_str).collect();
        let rows: Vec<(String, i16)> = self
            .with_timeout("reading states", async {
                sqlx::query_as("SELECT job_id, state FROM job_state WHERE job_id = ANY($1)")
                    .bind(&ids)
                    .fetch_all(&self.pool)
                    .await
            })
            .await?;
        rows.into_iter()
            .map(|(id, code)| {
                let id = JobId::new(id).map_err(|e| LedgerError::Corrupt(e.to_string()))?;
                let state = JobState::from_code(code)
                    .ok_or_else(|| LedgerError::Corrupt(format!("state {code} of {id}")))?;
                Ok((id, state))
            })
            .collect()
    }
}
