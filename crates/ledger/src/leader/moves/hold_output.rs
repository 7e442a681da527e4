//! In flight → RUNNING with its output held: a run has succeeded, and its job waits for the
//! verdict on what it put out.

use std::collections::HashSet;
use std::sync::LazyLock;

use airlock_model::output::OUTPUT_HELD;
use airlock_model::{DispatchId, JobId, JobState, RunEnd, Timestamp};

use super::{
    FencedTx, Finish, GiveUp, LeaderMove, Move, column, jobs_at_positions, replace_nul,
    sorted_by_job,
};
use crate::error::{ErrorContext, LedgerError};
use crate::leader::output::record::{NewOutput, insert_outputs};
use crate::sagas::record::SagaEffect;
use crate::states;
use crate::ts::Ts;

#[derive(Debug, Clone)]
pub struct HoldOutput {
    pub job_id: JobId,
    pub dispatch_id: DispatchId,
    pub dispatched_at: Option<Timestamp>,
    pub running_at: Option<Timestamp>,
    pub at: Timestamp,
    pub reason: String,
    pub output: Box<NewOutput>,
    /// What the success means to its saga; none of plain jobs. A cancel may end the job
    /// before its verdict comes.
    pub saga: Option<Box<SagaEffect>>,
}

static HOLD_OUTPUT: LazyLock<String> = LazyLock::new(|| {
    r#"
WITH done AS (
UPDATE job_state s SET state = 4, epoch = $2,
    dispatched_at = coalesce(u.dispatched_at, s.dispatched_at, u.running_at),
    running_at = coalesce(u.running_at, s.running_at, u.at),
    reason_code = $9, reason = u.reason
FROM unnest($3::text[], $4::uuid[], $5::timestamptz[], $6::timestamptz[], $7::timestamptz[],
            $8::text[]) WITH ORDINALITY
  AS u(job_id, dispatch_id, dispatched_at, running_at, at, reason, number)
WHERE s.job_id = u.job_id AND s.shard = $1 AND s.dispatch_id = u.dispatch_id
  AND s.state IN (:in_flight)
RETURNING u.number
)
SELECT coalesce(array_agg(number), '{}') FROM done"#
        .replace(
            ":in_flight",
            &states::states_where_sql(JobState::is_in_flight),
        )
});

impl LeaderMove for HoldOutput {
    /// Nobody hears of it: the job has not ended.
    const PUBLISHED: bool = false;

    fn job_id(&self) -> Option<&JobId> {
        Some(&self.job_id)
    }

    fn saga_effect(&self) -> Option<(&SagaEffect, Timestamp)> {
        Some((self.saga.as_deref()?, self.at))
    }

    fn give_up(&self, why: &GiveUp<'_>) -> Option<Move> {
        let end = RunEnd::Succeeded;
        let finish = Finish {
            saga: self.saga.clone(),
            ..Finish::from_give_up(&self.job_id, self.dispatch_id, end, why)
        };
        Some(finish.into())
    }

    async fn write(tx: &mut FencedTx<'_>, moves: &[&Self]) -> Result<HashSet<JobId>, LedgerError> {
        let v = sorted_by_job(moves, |x| &x.job_id);
        let done: Vec<i64> = sqlx::query_scalar(HOLD_OUTPUT.as_str())
            .bind(tx.shard())
            .bind(tx.epoch())
            .bind(column(&v, |x| x.job_id.as_str()))
            .bind(column(&v, |x| x.dispatch_id.0))
            .bind(column(&v, |x| Ts::from_option(x.dispatched_at)))
            .bind(column(&v, |x| Ts::from_option(x.running_at)))
            .bind(column(&v, |x| Ts(x.at)))
            .bind(column(&v, |x| replace_nul(&x.reason)))
            .bind(OUTPUT_HELD)
            .fetch_one(&mut *tx.conn)
            .await
            .context("holding outputs")?;
        let held = jobs_at_positions(&done, &v, |x| &x.job_id)?;
        let made = v.iter().filter(|x| held.contains(&x.job_id));
        let records: Vec<_> = made.map(|x| (&x.job_id, x.at, &*x.output)).collect();
        insert_outputs(tx.conn, tx.shard.0 as i16, &records).await?;
        Ok(held)
    }
}
