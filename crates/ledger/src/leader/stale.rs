//! What the reconciler looks for: open jobs that should have moved on, and rows that
//! cannot be read and must not stop the others.

use std::sync::LazyLock;

use airlock_model::{JobEvent, JobId, JobState, RunEnd, Shard};

use crate::error::{ErrorContext, LedgerError};
use crate::states;
use crate::{LeaderLedger, Ledger};

/// After how long without a word in the ledger a run is looked at, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub struct StaleAfter {
    /// SCHEDULED or DISPATCHED.
    pub dispatch_ms: u64,
    /// RUNNING.
    pub running_ms: u64,
}

const STALE: &str = r#"
SELECT s.job_id FROM job_state s
WHERE s.open AND s.shard = $1 AND s.job_id > $2
  -- Its run is over: only a verdict or a cancel ends it.
  AND s.reason_code IS DISTINCT FROM 'output_held' AND (
    s.deadline_at <= clock_timestamp()
    OR (s.state IN (2, 3) AND coalesce(s.dispatched_at, s.scheduled_at)
            <= clock_timestamp() - $3 * interval '1 millisecond')
    OR (s.state = 4 AND s.running_at <= clock_timestamp() - $4 * interval '1 millisecond'))
ORDER BY s.job_id LIMIT $5"#;

// With the letter and the change-log entry, as any end.
static FORCE_FAIL: LazyLock<String> = LazyLock::new(|| {
    r#"
WITH target AS MATERIALIZED (
    SELECT s.job_id, s.state, s.attempt FROM job_state s
    WHERE s.job_id = ANY($3) AND s.shard = $1 AND s.open AND (s.state, $4::smallint) IN (:moves)
    ORDER BY s.job_id FOR UPDATE OF s
), done AS (
    UPDATE job_state s SET state = $4, open = false, epoch = $2,
        finished_at = clock_timestamp(), reason_code = $5, reason = $6,
        run_end = CASE WHEN t.state IN (:in_flight) THEN $7 ELSE s.run_end END
    FROM target t WHERE s.job_id = t.job_id
    RETURNING s.job_id, t.state AS was, t.attempt
), due AS (
    DELETE FROM job_due WHERE job_id = ANY(ARRAY(SELECT job_id FROM done))
), letter AS (
    INSERT INTO dead_letter (job_id, tenant, topic, reason_code, reason, last_state, attempts,
                             spec, payload, trace_id, submitted_principal, authors)
    SELECT d.job_id, r.tenant, r.topic, $5, $6,
           CASE d.was :names END,
           d.attempt, r.spec, r.payload, r.trace_id, r.submitted_principal,
           array_remove(coalesce(r.authors, '{}')
                        || ARRAY[r.submitted_by, r.submitted_principal], NULL)
    FROM done d LEFT JOIN job_request r ON r.job_id = d.job_id
), logged AS (
    INSERT INTO change_log (shard, job_ids)
    SELECT $1, array_agg(job_id ORDER BY job_id) FROM done HAVING count(*) > 0
)
SELECT count(*) FROM done"#
        .replace(
            ":in_flight",
            &states::states_where_sql(JobState::is_in_flight),
        )
        .replace(
            ":moves",
            &states::transition_pairs_sql(&[JobEvent::GiveUp, JobEvent::Fail, JobEvent::Expire]),
        )
        .replace(":names", &states::state_names_sql())
});

impl Ledger {
    /// Open jobs past their deadline, and runs of which the ledger has heard nothing for
    /// too long, in the order of their ids. Whoever holds them may know better.
    pub async fn stale_jobs(
        &self,
        shard: Shard,
        after: StaleAfter,
        from: Option<&JobId>,
        limit: u32,
    ) -> Result<Vec<JobId>, LedgerError> {
        let rows: Vec<String> = self
            .with_timeout("looking for stale jobs", async {
                sqlx::query_scalar(STALE)
                    .bind(shard.0 as i16)
                    .bind(from.map_or("", JobId::as_str))
                    .bind(i64::try_from(after.dispatch_ms).unwrap_or(i64::MAX))
                    .bind(i64::try_from(after.running_ms).unwrap_or(i64::MAX))
                    .bind(i64::from(limit))
                    .fetch_all(&self.pool)
                    .await
            })
            .await?;
        rows.into_iter()
            .map(|id| JobId::new(id).map_err(|e| LedgerError::Corrupt(e.to_string())))
            .collect()
    }
}

impl LeaderLedger {
    /// Jobs that are past their deadline wait for no due time any more.
    pub async fn delete_due_times(&self, ids: &[JobId]) -> Result<(), LedgerError> {
        const DOING: &str = "dropping due times";
        let ids: Vec<&str> = ids.iter().map(JobId::as_str).collect();
        self.run_fenced(DOING, async |tx| {
            sqlx::query(
                "DELETE FROM job_due d USING job_state s
                 WHERE d.job_id = ANY($1) AND s.job_id = d.job_id
                   AND s.deadline_at <= clock_timestamp()",
            )
            .bind(&ids)
            .execute(tx)
            .await
            .context(DOING)
        })
        .await?;
        Ok(())
    }

    /// Ends jobs as FAILED whose rows nothing can be done with; how many.
    pub async fn force_fail_jobs(
        &self,
        ids: &[JobId],
        reason_code: &str,
        reason: &str,
    ) -> Result<u64, LedgerError> {
        const DOING: &str = "ending jobs that cannot be read";
        let ids: Vec<&str> = ids.iter().map(JobId::as_str).collect();
        let n: i64 = self
            .run_fenced(DOING, async |tx| {
                sqlx::query_scalar(FORCE_FAIL.as_str())
                    .bind(self.shard.0 as i16)
                    .bind(self.epoch.0 as i64)
                    .bind(&ids)
                    .bind(JobState::Failed.code())
                    .bind(reason_code)
                    .bind(reason.replace('\0', "\u{fffd}"))
                    .bind(RunEnd::Abandoned.code())
                    .fetch_one(tx)
                    .await
                    .context(DOING)
            })
            .await?;
        Ok(u64::try_from(n).unwrap_or(0))
    }
}
