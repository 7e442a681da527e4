//! PENDING → DENIED, FAILED or TIMEOUT; APPROVAL_REQUIRED → FAILED or TIMEOUT: a job ends
//! without a run under way.

use std::collections::HashSet;
use std::sync::LazyLock;

use airlock_model::{JobEvent, JobId, JobState, Timestamp, Verdict};

use super::{
    FencedTx, GiveUp, LeaderMove, Move, column, constraints_json, jobs_at_positions, replace_nul,
    rule_hash, sorted_by_job,
};
use crate::dlq::dead_letters::NewDeadLetter;
use crate::error::{ErrorContext, LedgerError};
use crate::sagas::record::SagaEffect;
use crate::states;
use crate::ts::Ts;

#[derive(Debug, Clone)]
pub struct Close {
    pub job_id: JobId,
    pub to: JobState,
    /// The decision that ends it, when one does.
    pub verdict: Option<Verdict>,
    pub reason_code: String,
    pub reason: String,
    pub at: Timestamp,
    pub dead_letter: Option<NewDeadLetter>,
    /// What it means to its saga; none of plain jobs.
    pub saga: Option<Box<SagaEffect>>,
}

impl Close {
    pub(super) fn from_give_up(job: &JobId, why: &GiveUp<'_>) -> Self {
        Self {
            job_id: job.clone(),
            to: JobState::Failed,
            verdict: None,
            reason_code: why.code.to_owned(),
            reason: why.reason.to_owned(),
            at: why.at,
            dead_letter: Some(why.dead_letter(job)),
            saga: None,
        }
    }
}

static CLOSE: LazyLock<String> = LazyLock::new(|| {
    r#"
WITH done AS (
UPDATE job_state s SET state = u.state, open = false, epoch = $2,
    decision = coalesce(u.decision, s.decision), rule_id = coalesce(u.rule_id, s.rule_id),
    policy_snapshot = coalesce(u.snapshot, s.policy_snapshot),
    decision_reason = coalesce(u.decision_reason, s.decision_reason),
    decided_at = coalesce(u.decided_at, s.decided_at),
    rule_hash = coalesce(u.rule_hash, s.rule_hash),
    constraints = CASE WHEN u.decision IS NULL THEN s.constraints ELSE u.constraints END,
    finished_at = u.at, reason_code = u.reason_code, reason = u.reason
FROM unnest($3::text[], $4::smallint[], $5::smallint[], $6::text[], $7::text[], $8::text[],
            $9::timestamptz[], $10::text[], $11::text[], $12::timestamptz[], $13::text[],
            $14::bytea[]) WITH ORDINALITY
  AS u(job_id, state, decision, rule_id, snapshot, decision_reason, decided_at, reason_code,
       reason, at, rule_hash, constraints, number)
WHERE s.job_id = u.job_id AND s.shard = $1 AND (s.state, u.state) IN (:moves)
  AND s.state NOT IN (:in_flight)
RETURNING u.number
)
SELECT coalesce(array_agg(number), '{}') FROM done"#
        .replace(
            ":moves",
            &states::transition_pairs_sql(&[JobEvent::Deny, JobEvent::GiveUp, JobEvent::Expire]),
        )
        .replace(
            ":in_flight",
            &states::states_where_sql(JobState::is_in_flight),
        )
});

impl LeaderMove for Close {
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

    fn give_up(&self, why: &GiveUp<'_>) -> Option<Move> {
        let given_up = Self {
            saga: self.saga.clone(),
            ..Self::from_give_up(&self.job_id, why)
        };
        Some(given_up.into())
    }

    async fn write(tx: &mut FencedTx<'_>, moves: &[&Self]) -> Result<HashSet<JobId>, LedgerError> {
        let v = sorted_by_job(moves, |x| &x.job_id);
        let done: Vec<i64> = sqlx::query_scalar(CLOSE.as_str())
            .bind(tx.shard())
            .bind(tx.epoch())
            .bind(column(&v, |x| x.job_id.as_str()))
            .bind(column(&v, |x| x.to.code()))
            .bind(column(&v, |x| {
                x.verdict.as_ref().map(|v| v.decision.code())
            }))
            .bind(column(&v, |x| {
                x.verdict.as_ref().map(|v| replace_nul(&v.rule_id))
            }))
            .bind(column(&v, |x| {
                x.verdict.as_ref().map(|v| replace_nul(&v.snapshot))
            }))
            .bind(column(&v, |x| {
                x.verdict.as_ref().map(|v| replace_nul(&v.reason))
            }))
            .bind(column(&v, |x| x.verdict.as_ref().map(|v| Ts(v.decided_at))))
            .bind(column(&v, |x| replace_nul(&x.reason_code)))
            .bind(column(&v, |x| replace_nul(&x.reason)))
            .bind(column(&v, |x| Ts(x.at)))
            .bind(column(&v, |x| x.verdict.as_ref().and_then(rule_hash)))
            .bind(column(&v, |x| {
                x.verdict.as_ref().and_then(constraints_json)
            }))
            .fetch_one(&mut *tx.conn)
            .await
            .context("closing jobs")?;
        jobs_at_positions(&done, &v, |x| &x.job_id)
    }
}
