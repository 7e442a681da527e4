//! SCHEDULED → DISPATCHED → RUNNING: the times of a run, written behind.

use std::collections::HashSet;
use std::sync::LazyLock;

use airlock_model::{DispatchId, JobEvent, JobId, RunEnd, Timestamp};
use uuid::Uuid;

use super::{FencedTx, Finish, GiveUp, LeaderMove, Move, column, sorted_by_job};
use crate::error::{ErrorContext, LedgerError};
use crate::states;
use crate::ts::Ts;

#[derive(Debug, Clone)]
pub struct RecordTimes {
    pub job_id: JobId,
    pub dispatch_id: DispatchId,
    pub dispatched_at: Option<Timestamp>,
    pub running_at: Option<Timestamp>,
    /// Readers of the change log follow its progress.
    pub followed: bool,
}

static RECORD_TIMES: LazyLock<String> = LazyLock::new(|| {
    r#"
UPDATE job_state s SET
    state = CASE WHEN coalesce(u.running_at, s.running_at) IS NOT NULL THEN 4 ELSE 3 END,
    epoch = $2, dispatched_at = coalesce(u.dispatched_at, s.dispatched_at, u.running_at),
    running_at = coalesce(u.running_at, s.running_at)
FROM unnest($3::text[], $4::uuid[], $5::timestamptz[], $6::timestamptz[])
  AS u(job_id, dispatch_id, dispatched_at, running_at)
WHERE s.job_id = u.job_id AND s.shard = $1 AND s.dispatch_id = u.dispatch_id
  AND s.state IN (:from)"#
        .replace(
            ":from",
            &states::source_states_sql(&[JobEvent::Publish, JobEvent::Start]),
        )
});

impl LeaderMove for RecordTimes {
    const PUBLISHED: bool = false;
    const REPORTED: bool = false;

    fn job_id(&self) -> Option<&JobId> {
        Some(&self.job_id)
    }

    fn is_followed(&self) -> bool {
        self.followed
    }

    fn give_up(&self, why: &GiveUp<'_>) -> Option<Move> {
        let end = RunEnd::Abandoned;
        Some(Finish::from_give_up(&self.job_id, self.dispatch_id, end, why).into())
    }

    /// What it misses, the next write of the run brings: nobody asks which those are.
    async fn write(tx: &mut FencedTx<'_>, moves: &[&Self]) -> Result<HashSet<JobId>, LedgerError> {
        let v = sorted_by_job(moves, |x| &x.job_id);
        let dispatch: Vec<Uuid> = column(&v, |x| x.dispatch_id.0);
        sqlx::query(RECORD_TIMES.as_str())
            .bind(tx.shard())
            .bind(tx.epoch())
            .bind(column(&v, |x| x.job_id.as_str()))
            .bind(dispatch)
            .bind(column(&v, |x| Ts::from_option(x.dispatched_at)))
            .bind(column(&v, |x| Ts::from_option(x.running_at)))
            .execute(&mut *tx.conn)
            .await
            .context("recording when runs were dispatched and started")?;
        Ok(HashSet::new())
    }
}
