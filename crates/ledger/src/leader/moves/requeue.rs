//! In flight → PENDING: a run ended, and its job gets another.

use std::collections::HashSet;
use std::sync::LazyLock;

use airlock_model::{DispatchId, JobEvent, JobId, RunEnd, Timestamp};

use super::{FencedTx, Finish, GiveUp, LeaderMove, Move, column, replace_nul, sorted_by_job};
use crate::error::{ErrorContext, LedgerError};
use crate::states;
use crate::ts::Ts;

#[derive(Debug, Clone)]
pub struct Requeue {
    pub job_id: JobId,
    pub dispatch_id: DispatchId,
    /// One that surely never began is not counted.
    pub end: RunEnd,
    pub dispatched_at: Option<Timestamp>,
    pub running_at: Option<Timestamp>,
    pub not_before: Option<Timestamp>,
    pub reason: String,
    pub at: Timestamp,
}

// The row is locked before its run is written down: a cancel that comes in between would
// otherwise leave a past run in the history of a job that was never queued again.
static REQUEUE: LazyLock<String> = LazyLock::new(|| {
    r#"
WITH u AS (
    SELECT * FROM unnest($3::text[], $4::uuid[], $5::bool[], $6::timestamptz[],
                         $7::timestamptz[], $8::timestamptz[], $9::text[], $10::text[],
                         $11::timestamptz[], $12::smallint[])
      AS u(job_id, dispatch_id, ran, dispatched_at, running_at, not_before, outcome, reason, at,
           run_end)
), run AS (
    SELECT s.job_id, s.dispatch_id, s.attempt, s.worker_id, s.incarnation, s.epoch,
           s.scheduled_at, coalesce(u.dispatched_at, s.dispatched_at, u.running_at) AS dispatched_at,
           coalesce(u.running_at, s.running_at) AS running_at, u.ran, u.not_before, u.outcome,
           u.reason, u.at, u.run_end
    FROM u JOIN job_state s ON s.job_id = u.job_id AND s.dispatch_id = u.dispatch_id
    WHERE s.shard = $1 AND s.state IN (:from)
    FOR UPDATE OF s
), past AS (
    INSERT INTO job_attempt (job_id, dispatch_id, attempt, worker_id, incarnation, epoch,
                             scheduled_at, dispatched_at, running_at, ended_at, outcome, reason,
                             run_end)
    SELECT job_id, dispatch_id, attempt, worker_id, incarnation, epoch, scheduled_at,
           dispatched_at, running_at, at, outcome, reason, run_end
    FROM run
    ON CONFLICT DO NOTHING
)
UPDATE job_state s SET state = 1, epoch = $2,
    attempt = CASE WHEN run.ran THEN s.attempt ELSE s.attempt - 1 END,
    dispatch_id = NULL, worker_id = NULL, incarnation = NULL, scheduled_at = NULL,
    dispatched_at = NULL, running_at = NULL, not_before = run.not_before,
    reason_code = run.outcome, reason = run.reason,
    run_end = CASE WHEN run.ran THEN run.run_end ELSE s.run_end END
FROM run
WHERE s.job_id = run.job_id
RETURNING s.job_id"#
        .replace(":from", &states::source_states_sql(&[JobEvent::Requeue]))
});

impl LeaderMove for Requeue {
    /// Nobody but the leader acts on it.
    const PUBLISHED: bool = false;

    fn job_id(&self) -> Option<&JobId> {
        Some(&self.job_id)
    }

    fn give_up(&self, why: &GiveUp<'_>) -> Option<Move> {
        Some(Finish::from_give_up(&self.job_id, self.dispatch_id, self.end, why).into())
    }

    async fn write(tx: &mut FencedTx<'_>, moves: &[&Self]) -> Result<HashSet<JobId>, LedgerError> {
        let v = sorted_by_job(moves, |x| &x.job_id);
        let rows: Vec<String> = sqlx::query_scalar(REQUEUE.as_str())
            .bind(tx.shard())
            .bind(tx.epoch())
            .bind(column(&v, |x| x.job_id.as_str()))
            .bind(column(&v, |x| x.dispatch_id.0))
            .bind(column(&v, |x| x.end.may_have_begun()))
            .bind(column(&v, |x| Ts::from_option(x.dispatched_at)))
            .bind(column(&v, |x| Ts::from_option(x.running_at)))
            .bind(column(&v, |x| Ts::from_option(x.not_before)))
            .bind(column(&v, |x| x.end.as_str()))
            .bind(column(&v, |x| replace_nul(&x.reason)))
            .bind(column(&v, |x| Ts(x.at)))
            .bind(column(&v, |x| x.end.code()))
            .fetch_all(&mut *tx.conn)
            .await
            .context("requeueing jobs")?;
        crate::leader::writer::parse_job_ids(rows)
    }
}
