//! PENDING → SCHEDULED: a job is given to a worker.

use std::collections::HashSet;
use std::sync::LazyLock;

use airlock_model::{
    Allowed, Attempt, DispatchId, Incarnation, JobEvent, JobId, Timestamp, WorkerId,
};
use sqlx::PgConnection;

use super::{
    Close, FencedTx, GiveUp, LeaderMove, Move, column, constraints_json, jobs_at_positions,
    replace_nul, rule_hash, sorted_by_job,
};
use crate::approvals::hold::mark_approvals_used;
use crate::error::{ErrorContext, LedgerError};
use crate::states;
use crate::ts::Ts;

#[derive(Debug, Clone)]
pub struct Assign {
    pub job_id: JobId,
    /// The run this begins; the row must have begun one fewer.
    pub attempt: Attempt,
    pub dispatch_id: DispatchId,
    pub worker: WorkerId,
    pub incarnation: Incarnation,
    pub verdict: Allowed,
    pub at: Timestamp,
    /// Readers of the change log follow its progress.
    pub followed: bool,
}

// `:fence` names the fence where the statement locks it itself.
const UPDATE: &str = r#"
UPDATE job_state s SET state = 2, attempt = u.attempt, epoch = $2, dispatch_id = u.dispatch_id,
    worker_id = u.worker_id, incarnation = u.incarnation, decision = u.decision,
    rule_id = u.rule_id, policy_snapshot = u.snapshot, decision_reason = u.reason,
    rule_hash = u.rule_hash, constraints = u.constraints,
    decided_at = u.decided_at, scheduled_at = u.at, dispatched_at = NULL, running_at = NULL,
    not_before = NULL, reason_code = NULL, reason = NULL
FROM :fence unnest($3::text[], $4::int[], $5::uuid[], $6::text[], $7::text[], $8::smallint[],
            $9::text[], $10::text[], $11::text[], $12::timestamptz[], $13::timestamptz[],
            $14::text[], $15::bytea[]) WITH ORDINALITY
  AS u(job_id, attempt, dispatch_id, worker_id, incarnation, decision, rule_id, snapshot,
       reason, decided_at, at, rule_hash, constraints, number)
WHERE s.job_id = u.job_id AND s.shard = $1 AND s.state IN (:from) AND s.attempt = u.attempt - 1
RETURNING u.number"#;

fn assign_update_sql(fence: &str) -> String {
    let from = states::source_states_sql(&[JobEvent::Assign]);
    UPDATE.replace(":fence", fence).replace(":from", &from)
}

static ASSIGN: LazyLock<String> = LazyLock::new(|| {
    let update = assign_update_sql("");
    format!("WITH done AS ({update}) SELECT coalesce(array_agg(number), '{{}}') FROM done")
});

// A round that only assigns, which is every round of an idle system, goes in one
// statement instead of three: the fence is locked by the statement that needs it, and a
// fence that does not hold answers nothing.
static ASSIGN_ALONE: LazyLock<String> = LazyLock::new(|| {
    let update = assign_update_sql("fence,");
    format!(
        "WITH fence AS MATERIALIZED (
             SELECT 1 FROM leadership WHERE shard = $1 AND epoch = $2 FOR SHARE
         ), done AS ({update})
         SELECT CASE WHEN EXISTS (SELECT 1 FROM fence)
                THEN coalesce((SELECT array_agg(number) FROM done), '{{}}') END"
    )
});

// Whoever holds the lock is committing. A short limit: the others wait behind this one.
const WAIT: &str = "SELECT set_config('lock_timeout', '100ms', true),
    pg_advisory_xact_lock_shared(n) FROM unnest($1::bigint[]) AS n";

const ASSIGN_AFTER: &str = "SELECT pg_temp.assign_after(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)";

/// Waits and assigns in one round trip instead of two. It must be plpgsql, in which each
/// statement sees what was committed before it began; one statement would not see what it
/// waited for.
pub(crate) fn create_assign_after_sql() -> String {
    let wait = WAIT.replacen("SELECT", "PERFORM", 1).replace("$1", "$16");
    let assign = ASSIGN_ALONE.as_str();
    format!(
        "CREATE FUNCTION pg_temp.assign_after(
            smallint, bigint, text[], int[], uuid[], text[], text[], smallint[], text[], text[],
            text[], timestamptz[], timestamptz[], text[], bytea[], bigint[])
         RETURNS bigint[] LANGUAGE plpgsql AS $body$
         DECLARE numbers bigint[];
         BEGIN
         {wait};
         {assign} INTO numbers;
         RETURN numbers;
         END $body$"
    )
}

/// How jobs are assigned.
pub(crate) enum Mode<'a> {
    /// In a transaction under the fence.
    Within,
    /// In one statement that locks the fence itself.
    Alone,
    /// The same, after these submissions are over.
    After(&'a [i64]),
}

/// Waits until these submissions are over.
pub(crate) async fn wait_for_submissions(
    conn: &mut PgConnection,
    submissions: &[i64],
) -> Result<(), LedgerError> {
    let wait = sqlx::query(WAIT).bind(submissions).execute(conn).await;
    wait.map_err(|e| wait_error(e, "waiting for a submission"))?;
    Ok(())
}

/// An error of a statement that waits.
fn wait_error(source: sqlx::Error, doing: &'static str) -> LedgerError {
    match &source {
        sqlx::Error::Database(e) if e.code().as_deref() == Some("55P03") => LedgerError::NotOver,
        _ => LedgerError::Database { doing, source },
    }
}

/// No answer is a fence that did not hold.
pub(crate) async fn assign_jobs(
    tx: &mut FencedTx<'_>,
    mode: Mode<'_>,
    items: &[&Assign],
) -> Result<Option<HashSet<JobId>>, LedgerError> {
    let (statement, after): (&'static str, _) = match mode {
        Mode::Within => (ASSIGN.as_str(), None),
        Mode::Alone => (ASSIGN_ALONE.as_str(), None),
        Mode::After(after) => (ASSIGN_AFTER, Some(after)),
    };
    let v = sorted_by_job(items, |x| &x.job_id);
    let query = sqlx::query_scalar(statement)
        .bind(tx.shard())
        .bind(tx.epoch())
        .bind(column(&v, |x| x.job_id.as_str()))
        .bind(column(&v, |x| x.attempt.0 as i32))
        .bind(column(&v, |x| x.dispatch_id.0))
        .bind(column(&v, |x| x.worker.as_str()))
        .bind(column(&v, |x| x.incarnation.as_str()))
        .bind(column(&v, |x| x.verdict.decision.code()))
        .bind(column(&v, |x| replace_nul(&x.verdict.rule_id)))
        .bind(column(&v, |x| replace_nul(&x.verdict.snapshot)))
        .bind(column(&v, |x| replace_nul(&x.verdict.reason)))
        .bind(column(&v, |x| Ts(x.verdict.decided_at)))
        .bind(column(&v, |x| Ts(x.at)))
        .bind(column(&v, |x| rule_hash(&x.verdict)))
        .bind(column(&v, |x| constraints_json(&x.verdict)));
    let query = match after {
        Some(after) => query.bind(after),
        None => query,
    };
    let done = query.fetch_one(&mut *tx.conn).await;
    let done: Option<Vec<i64>> = match after {
        Some(_) => done.map_err(|e| wait_error(e, "assigning jobs"))?,
        None => done.context("assigning jobs")?,
    };
    done.map(|numbers| jobs_at_positions(&numbers, &v, |x| &x.job_id))
        .transpose()
}

impl LeaderMove for Assign {
    const PUBLISHED: bool = false;

    fn job_id(&self) -> Option<&JobId> {
        Some(&self.job_id)
    }

    fn is_followed(&self) -> bool {
        self.followed
    }

    fn give_up(&self, why: &GiveUp<'_>) -> Option<Move> {
        Some(Close::from_give_up(&self.job_id, why).into())
    }

    async fn write(tx: &mut FencedTx<'_>, moves: &[&Self]) -> Result<HashSet<JobId>, LedgerError> {
        let done = assign_jobs(tx, Mode::Within, moves)
            .await?
            .unwrap_or_default();
        mark_approvals_used(tx, moves, &done).await?;
        Ok(done)
    }
}
