//! In flight → final: a run ends, and its job with it.

use std::collections::HashSet;
use std::sync::LazyLock;

use airlock_model::{DispatchId, JobEvent, JobId, JobState, Released, RunEnd, Timestamp};
use bytes::Bytes;

use super::{
    FencedTx, GiveUp, LeaderMove, Move, column, jobs_at_positions, replace_nul, sorted_by_job,
};
use crate::dlq::dead_letters::NewDeadLetter;
use crate::error::{ErrorContext, LedgerError};
use crate::leader::output::record::{NewOutput, insert_outputs};
use crate::sagas::record::SagaEffect;
use crate::states;
use crate::ts::Ts;

#[derive(Debug, Clone)]
pub struct Finish {
    pub job_id: JobId,
    pub dispatch_id: DispatchId,
    pub end: RunEnd,
    pub to: JobState,
    pub dispatched_at: Option<Timestamp>,
    pub running_at: Option<Timestamp>,
    pub at: Timestamp,
    pub reason_code: String,
    pub reason: String,
    pub result: Option<Released<Bytes>>,
    pub result_missing: bool,
    pub dead_letter: Option<NewDeadLetter>,
    /// The verdict on its output; `None` without an output policy.
    pub output: Option<Box<NewOutput>>,
    /// What it means to its saga; none of plain jobs.
    pub saga: Option<Box<SagaEffect>>,
}

impl Finish {
    pub(super) fn from_give_up(
        job: &JobId,
        dispatch_id: DispatchId,
        end: RunEnd,
        why: &GiveUp<'_>,
    ) -> Self {
        Self {
            job_id: job.clone(),
            dispatch_id,
            end,
            to: JobState::Failed,
            dispatched_at: None,
            running_at: None,
            at: why.at,
            reason_code: why.code.to_owned(),
            reason: why.reason.to_owned(),
            result: None,
            result_missing: false,
            dead_letter: Some(why.dead_letter(job)),
            output: None,
            saga: None,
        }
    }
}

// A run that began was on the wire before, whichever message came first; and so the history
// has no gap.
static FINISH: LazyLock<String> = LazyLock::new(|| {
    r#"
WITH done AS (
UPDATE job_state s SET state = u.state, open = false, epoch = $2,
    dispatched_at = coalesce(u.dispatched_at, s.dispatched_at, u.running_at),
    running_at = coalesce(u.running_at, s.running_at), finished_at = u.at,
    reason_code = u.reason_code, reason = u.reason, result = u.result,
    result_missing = u.result_missing, run_end = u.run_end
FROM unnest($3::text[], $4::uuid[], $5::smallint[], $6::timestamptz[], $7::timestamptz[],
            $8::timestamptz[], $9::text[], $10::text[], $11::bytea[], $12::bool[],
            $13::smallint[])
     WITH ORDINALITY
  AS u(job_id, dispatch_id, state, dispatched_at, running_at, at, reason_code, reason, result,
       result_missing, run_end, number)
WHERE s.job_id = u.job_id AND s.shard = $1 AND s.dispatch_id = u.dispatch_id
  AND s.state IN (:in_flight) AND (s.state, u.state) IN (:moves)
RETURNING u.number
)
SELECT coalesce(array_agg(number), '{}') FROM done"#
        .replace(
            ":in_flight",
            &states::states_where_sql(JobState::is_in_flight),
        )
        .replace(
            ":moves",
            &states::transition_pairs_sql(&[
                JobEvent::Succeed,
                JobEvent::Fail,
                JobEvent::Expire,
                JobEvent::Cancel,
                JobEvent::Quarantine,
            ]),
        )
});

impl LeaderMove for Finish {
    const PUBLISHED: bool = true;

    fn job_id(&self) -> Option<&JobId> {
        Some(&self.job_id)
    }

    fn dead_letter(&self) -> Option<&NewDeadLetter> {
        self.dead_letter.as_ref()
    }

    fn saga_effect(&self) -> Option<(&SagaEffect, Timestamp)> {
        Some((self.saga.as_deref()?, self.at))
    }

    /// How the run ended stays known, and what it means to its saga.
    fn give_up(&self, why: &GiveUp<'_>) -> Option<Move> {
        let given_up = Self {
            saga: self.saga.clone(),
            ..Self::from_give_up(&self.job_id, self.dispatch_id, self.end, why)
        };
        Some(given_up.into())
    }

    async fn write(tx: &mut FencedTx<'_>, moves: &[&Self]) -> Result<HashSet<JobId>, LedgerError> {
        let v = sorted_by_job(moves, |x| &x.job_id);
        let done: Vec<i64> = sqlx::query_scalar(FINISH.as_str())
            .bind(tx.shard())
            .bind(tx.epoch())
            .bind(column(&v, |x| x.job_id.as_str()))
            .bind(column(&v, |x| x.dispatch_id.0))
            .bind(column(&v, |x| x.to.code()))
            .bind(column(&v, |x| Ts::from_option(x.dispatched_at)))
            .bind(column(&v, |x| Ts::from_option(x.running_at)))
            .bind(column(&v, |x| Ts(x.at)))
            .bind(column(&v, |x| {
                (!x.reason_code.is_empty()).then(|| replace_nul(&x.reason_code))
            }))
            .bind(column(&v, |x| {
                (!x.reason.is_empty()).then(|| replace_nul(&x.reason))
            }))
            .bind(column(&v, |x| x.result.as_ref().map(|r| r.get().as_ref())))
            .bind(column(&v, |x| x.result_missing))
            .bind(column(&v, |x| x.end.code()))
            .fetch_one(&mut *tx.conn)
            .await
            .context("finishing jobs")?;
        let done = jobs_at_positions(&done, &v, |x| &x.job_id)?;
        let made = v.iter().filter(|x| done.contains(&x.job_id));
        let records: Vec<_> = made
            .filter_map(|x| Some((&x.job_id, x.at, x.output.as_deref()?)))
            .collect();
        insert_outputs(tx.conn, tx.shard.0 as i16, &records).await?;
        Ok(done)
    }
}
