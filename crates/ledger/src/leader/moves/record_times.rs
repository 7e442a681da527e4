//! SCHEDULED → DISPATCHED → RUNNING: the times of a run, written behind.

use std::collections::HashSet;
use std::sync::LazyLock;

use airlock_model::{DispatchId, JobEvent, JobId, RunEnd, Timestamp};
use uuid::Uuid;

use super::{FencedTx, Finish, GiveUp, LeaderMove, Move, col, sorted};
use crate::error::{Doing, LedgerError};
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
            &states::before(&[JobEvent::Publish, JobEvent::Start]),
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
        Some(Finish::given_up(&self.job_id, self.dispatch_id, end, why).into())
    }

    /// What it misses, the next write of the run brings: nobody asks which those are.
    async fn write(tx: &mut FencedTx<'_>, moves: &[&Self]) -> Result<HashSet<JobId>, LedgerError> {
        let v = sorted(moves, |x| &x.job_id);
        let dispatch: Vec<Uuid> = col(&v, |x| x.dispatch_id.0);
        sqlx::query(RECORD_TIMES.as_str())
            .bind(tx.shard())
            .bind(tx.epoch())
            .bind(col(&v, |x| x.job_id.as_str()))
            .bind(dispatch)
            .bind(col(&v, |x| Ts::opt(x.dispatched_at)))
            .bind(col(&v, |x| Ts::opt(x.running_at)))
            .execute(&mut *tx.conn)
            .await
            .doing("recording when runs were dispatched and started")?;
        Ok(HashSet::new())
    }
}
