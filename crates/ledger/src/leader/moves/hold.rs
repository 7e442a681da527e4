//! PENDING → APPROVAL_REQUIRED: a job waits for people.

use std::collections::HashSet;
use std::sync::LazyLock;

use airlock_model::{JobEvent, JobId, Timestamp, Verdict};

use super::{
    Close, FencedTx, GiveUp, LeaderMove, Move, column, constraints_json, jobs_at_positions,
    replace_nul, rule_hash,
};
use crate::approvals::hold::request_approvals;
use crate::error::{ErrorContext, LedgerError};
use crate::states;
use crate::ts::Ts;

/// The reason code of a job that waits for people.
const CODE: &str = "approval_required";

#[derive(Debug, Clone)]
pub struct Hold {
    pub job_id: JobId,
    pub verdict: Verdict,
    pub at: Timestamp,
}

static HOLD: LazyLock<String> = LazyLock::new(|| {
    r#"
WITH done AS (
UPDATE job_state s SET state = 5, open = true, epoch = $2, decision = u.decision,
    rule_id = u.rule_id, policy_snapshot = u.snapshot, decision_reason = u.reason,
    decided_at = u.decided_at, rule_hash = coalesce(u.rule_hash, s.rule_hash),
    constraints = u.constraints, held_at = u.at, finished_at = NULL,
    reason_code = $12, reason = u.reason
FROM unnest($3::text[], $4::smallint[], $5::text[], $6::text[], $7::text[], $8::timestamptz[],
            $9::text[], $10::bytea[], $11::timestamptz[]) WITH ORDINALITY
  AS u(job_id, decision, rule_id, snapshot, reason, decided_at, rule_hash, constraints, at,
       number)
WHERE s.job_id = u.job_id AND s.shard = $1 AND s.state IN (:from)
RETURNING u.number
)
SELECT coalesce(array_agg(number), '{}') FROM done"#
        .replace(":from", &states::source_states_sql(&[JobEvent::Hold]))
});

/// Sorted by job, the order in which rows are locked. A job that is held twice in one round
/// is held by the later verdict: with both, people would be asked twice in the same round
/// of its approval, and the transaction of all jobs would fail.
fn last_of_each_job<'a>(moves: &[&'a Hold]) -> Vec<&'a Hold> {
    let mut last = moves.to_vec();
    last.sort_by(|a, b| a.job_id.cmp(&b.job_id));
    last.dedup_by(|later, kept| {
        let same = later.job_id == kept.job_id;
        if same {
            *kept = *later;
        }
        same
    });
    last
}

impl LeaderMove for Hold {
    const PUBLISHED: bool = true;

    fn job_id(&self) -> Option<&JobId> {
        Some(&self.job_id)
    }

    fn give_up(&self, why: &GiveUp<'_>) -> Option<Move> {
        Some(Close::from_give_up(&self.job_id, why).into())
    }

    async fn write(tx: &mut FencedTx<'_>, moves: &[&Self]) -> Result<HashSet<JobId>, LedgerError> {
        let v = last_of_each_job(moves);
        let done: Vec<i64> = sqlx::query_scalar(HOLD.as_str())
            .bind(tx.shard())
            .bind(tx.epoch())
            .bind(column(&v, |x| x.job_id.as_str()))
            .bind(column(&v, |x| x.verdict.decision.code()))
            .bind(column(&v, |x| replace_nul(&x.verdict.rule_id)))
            .bind(column(&v, |x| replace_nul(&x.verdict.snapshot)))
            .bind(column(&v, |x| replace_nul(&x.verdict.reason)))
            .bind(column(&v, |x| Ts(x.verdict.decided_at)))
            .bind(column(&v, |x| rule_hash(&x.verdict)))
            .bind(column(&v, |x| constraints_json(&x.verdict)))
            .bind(column(&v, |x| Ts(x.at)))
            .bind(CODE)
            .fetch_one(&mut *tx.conn)
            .await
            .context("holding jobs for approval")?;
        let held = jobs_at_positions(&done, &v, |x| &x.job_id)?;
        request_approvals(tx, &v, &held).await?;
        Ok(held)
    }
}
