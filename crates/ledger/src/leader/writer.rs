//! The leader's writes: one connection, one transaction for many jobs, fenced.
//!
//! Every transaction begins by share-locking the leadership row of its epoch. A new
//! leader raises that epoch with an update, which waits for transactions under way and
//! makes every later one of the old leader find nothing to lock: a leader that was
//! paused wakes to refusals, not to a split brain. (A plain SELECT or FOR KEY SHARE
//! does not conflict with that update; both were tried and let a stale leader commit.)
//!
//! Each move is a compare-and-set, so a repeat, a race with a cancel or a late result
//! changes nothing and is told apart from a stale epoch.

use std::collections::HashSet;
use std::time::Duration;

use airlock_model::{Epoch, JobId, Shard, Verdict};
use sqlx::PgConnection;
use sqlx::postgres::PgConnectOptions;
use uuid::Uuid;

use crate::dlq::dead_letters::NewDeadLetter;
use crate::error::{Doing, LedgerError};
use crate::leader::commit::{
    Assign, Commit, Finish, Mark, Refuse, Requeue, UnmatchedResult, Written,
};
use crate::leader::fence::fence;
use crate::ops::hot_pool::open;
use crate::ts::Ts;
use crate::{ChangePosition, Ledger, approvals::hold, dlq::dead_letters};

/// The one connection that writes as the leader of a shard.
pub struct LeaderWriter {
    conn: PgConnection,
    joint: bool,
    options: PgConnectOptions,
    shard: Shard,
    epoch: Epoch,
    op_timeout: Duration,
    row_wait: Duration,
    broken: bool,
}

/// How long a round waits for a row that somebody else holds, while the others of the round
/// wait with it.
const ROW_WAIT: Duration = Duration::from_millis(200);

/// By hand, because the driver's options show their password.
impl std::fmt::Debug for LeaderWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeaderWriter")
            .field("shard", &self.shard)
            .field("epoch", &self.epoch)
            .field("broken", &self.broken)
            .finish_non_exhaustive()
    }
}

// What a move answers is one list of places in its input, from 1 on: every id again would
// cost more to send and to read than the look-up of its row.

const ASSIGN: &str = r#"
WITH done AS (
UPDATE job_state s SET state = 2, attempt = u.attempt, epoch = $2, dispatch_id = u.dispatch_id,
    worker_id = u.worker_id, incarnation = u.incarnation, decision = u.decision,
    rule_id = u.rule_id, policy_snapshot = u.snapshot, decision_reason = u.reason,
    rule_hash = u.rule_hash, constraints = u.constraints,
    decided_at = u.decided_at, scheduled_at = u.at, dispatched_at = NULL, running_at = NULL,
    not_before = NULL, reason_code = NULL, reason = NULL
FROM unnest($3::text[], $4::int[], $5::uuid[], $6::text[], $7::text[], $8::smallint[],
            $9::text[], $10::text[], $11::text[], $12::timestamptz[], $13::timestamptz[],
            $14::text[], $15::bytea[]) WITH ORDINALITY
  AS u(job_id, attempt, dispatch_id, worker_id, incarnation, decision, rule_id, snapshot,
       reason, decided_at, at, rule_hash, constraints, number)
WHERE s.job_id = u.job_id AND s.shard = $1 AND s.state = 1 AND s.attempt = u.attempt - 1
RETURNING u.number
)
SELECT coalesce(array_agg(number), '{}') FROM done"#;

// A round that only assigns, which is every round of an idle system, goes in one
// statement instead of three: the fence is locked by the statement that needs it, and a
// fence that does not hold answers nothing.
const ASSIGN_ALONE: &str = r#"
WITH fence AS MATERIALIZED (
    SELECT 1 FROM leadership WHERE shard = $1 AND epoch = $2 FOR SHARE
), done AS (
UPDATE job_state s SET state = 2, attempt = u.attempt, epoch = $2, dispatch_id = u.dispatch_id,
    worker_id = u.worker_id, incarnation = u.incarnation, decision = u.decision,
    rule_id = u.rule_id, policy_snapshot = u.snapshot, decision_reason = u.reason,
    rule_hash = u.rule_hash, constraints = u.constraints,
    decided_at = u.decided_at, scheduled_at = u.at, dispatched_at = NULL, running_at = NULL,
    not_before = NULL, reason_code = NULL, reason = NULL
FROM fence, unnest($3::text[], $4::int[], $5::uuid[], $6::text[], $7::text[], $8::smallint[],
            $9::text[], $10::text[], $11::text[], $12::timestamptz[], $13::timestamptz[],
            $14::text[], $15::bytea[]) WITH ORDINALITY
  AS u(job_id, attempt, dispatch_id, worker_id, incarnation, decision, rule_id, snapshot,
       reason, decided_at, at, rule_hash, constraints, number)
WHERE s.job_id = u.job_id AND s.shard = $1 AND s.state = 1 AND s.attempt = u.attempt - 1
RETURNING u.number
)
SELECT CASE WHEN EXISTS (SELECT 1 FROM fence)
       THEN coalesce((SELECT array_agg(number) FROM done), '{}') END"#;

// Whoever holds the lock is committing. A short limit: the others wait behind this one.
const AWAIT: &str = "SELECT set_config('lock_timeout', '100ms', true),
    pg_advisory_xact_lock_shared(n) FROM unnest($1::bigint[]) AS n";

// For one round trip instead of two. It must be plpgsql, in which each statement sees what
// was committed before it began; one statement would not see what it waited for.
fn assign_after() -> String {
    let wait = AWAIT.replacen("SELECT", "PERFORM", 1).replace("$1", "$16");
    format!(
        "CREATE FUNCTION pg_temp.assign_after(
            smallint, bigint, text[], int[], uuid[], text[], text[], smallint[], text[], text[],
            text[], timestamptz[], timestamptz[], text[], bytea[], bigint[])
         RETURNS bigint[] LANGUAGE plpgsql AS $body$
         DECLARE numbers bigint[];
         BEGIN
         {wait};
         {ASSIGN_ALONE} INTO numbers;
         RETURN numbers;
         END $body$"
    )
}

const ASSIGN_AFTER: &str = "SELECT pg_temp.assign_after(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)";

const REFUSE: &str = r#"
UPDATE job_state s SET state = u.state, open = (u.state = 5), epoch = $2,
    decision = coalesce(u.decision, s.decision), rule_id = coalesce(u.rule_id, s.rule_id),
    policy_snapshot = coalesce(u.snapshot, s.policy_snapshot),
    decision_reason = coalesce(u.decision_reason, s.decision_reason),
    decided_at = coalesce(u.decided_at, s.decided_at),
    rule_hash = coalesce(u.rule_hash, s.rule_hash),
    constraints = CASE WHEN u.decision IS NULL THEN s.constraints ELSE u.constraints END,
    held_at = CASE WHEN u.state = 5 THEN u.at ELSE s.held_at END,
    finished_at = CASE WHEN u.state = 5 THEN NULL ELSE u.at END,
    reason_code = u.reason_code, reason = u.reason
FROM unnest($3::text[], $4::smallint[], $5::smallint[], $6::text[], $7::text[], $8::text[],
            $9::timestamptz[], $10::text[], $11::text[], $12::timestamptz[], $13::text[],
            $14::bytea[])
  AS u(job_id, state, decision, rule_id, snapshot, decision_reason, decided_at, reason_code,
       reason, at, rule_hash, constraints)
WHERE s.job_id = u.job_id AND s.shard = $1
  AND (s.state = 1 OR (s.state = 5 AND u.state = 12))
RETURNING s.job_id"#;

// A run that began was on the wire before, whatever came first to our ears; and so the
// history has no gap.
const FINISH: &str = r#"
WITH done AS (
UPDATE job_state s SET state = u.state, open = false, epoch = $2,
    dispatched_at = coalesce(u.dispatched_at, s.dispatched_at, u.running_at),
    running_at = coalesce(u.running_at, s.running_at), finished_at = u.at,
    reason_code = u.reason_code, reason = u.reason, result = u.result,
    result_ptr = u.result_ptr, result_missing = u.result_missing, run_end = u.run_end
FROM unnest($3::text[], $4::uuid[], $5::smallint[], $6::timestamptz[], $7::timestamptz[],
            $8::timestamptz[], $9::text[], $10::text[], $11::bytea[], $12::text[], $13::bool[],
            $14::smallint[])
     WITH ORDINALITY
  AS u(job_id, dispatch_id, state, dispatched_at, running_at, at, reason_code, reason, result,
       result_ptr, result_missing, run_end, number)
WHERE s.job_id = u.job_id AND s.shard = $1 AND s.dispatch_id = u.dispatch_id
  AND s.state IN (2, 3, 4)
RETURNING u.number
)
SELECT coalesce(array_agg(number), '{}') FROM done"#;

// The row is locked before its run is written down: a cancel that comes in between would
// otherwise leave a past run in the history of a job that was never queued again.
const REQUEUE: &str = r#"
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
    WHERE s.shard = $1 AND s.state IN (2, 3, 4)
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
RETURNING s.job_id"#;

const MARK: &str = r#"
UPDATE job_state s SET
    state = CASE WHEN coalesce(u.running_at, s.running_at) IS NOT NULL THEN 4 ELSE 3 END,
    epoch = $2, dispatched_at = coalesce(u.dispatched_at, s.dispatched_at, u.running_at),
    running_at = coalesce(u.running_at, s.running_at)
FROM unnest($3::text[], $4::uuid[], $5::timestamptz[], $6::timestamptz[])
  AS u(job_id, dispatch_id, dispatched_at, running_at)
WHERE s.job_id = u.job_id AND s.shard = $1 AND s.dispatch_id = u.dispatch_id
  AND s.state IN (2, 3)"#;

const STRAY: &str = r#"
INSERT INTO job_stray_result (job_id, dispatch_id, worker_id, status, why)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[])
  AS u(job_id, dispatch_id, worker_id, status, why)
-- A repeat of the result that was taken is no stray; one for a job that was timed out or
-- cancelled meanwhile is.
WHERE NOT EXISTS (SELECT 1 FROM job_state s
                  WHERE s.job_id = u.job_id AND s.dispatch_id::text = u.dispatch_id
                    AND s.worker_id = u.worker_id AND s.state NOT IN (12, 13))"#;

const CHANGE: &str = "INSERT INTO change_log (shard, job_ids) VALUES ($1, $2) RETURNING xid, seq";

impl Ledger {
    /// The connection for a leader's writes. Raising the epoch is the election's.
    pub async fn leader_writer(
        &self,
        shard: Shard,
        epoch: Epoch,
    ) -> Result<LeaderWriter, LedgerError> {
        let (conn, joint) = begin(&self.options, self.op_timeout, ROW_WAIT).await?;
        Ok(LeaderWriter {
            conn,
            joint,
            options: self.options.clone(),
            shard,
            epoch,
            op_timeout: self.op_timeout,
            row_wait: ROW_WAIT,
            broken: false,
        })
    }
}

/// A connection, and whether it can wait and assign in one statement: not every role may
/// make temporary functions.
async fn begin(
    options: &PgConnectOptions,
    limit: Duration,
    row_wait: Duration,
) -> Result<(PgConnection, bool), LedgerError> {
    const DOING: &str = "preparing a leader's connection";
    let row_wait = format!("{}ms", row_wait.as_millis());
    let options = options.clone().options([("lock_timeout", row_wait)]);
    let mut conn = open(&options, limit).await?;
    let function = sqlx::AssertSqlSafe(assign_after());
    let made = sqlx::raw_sql(function).execute(&mut conn);
    let joint = match tokio::time::timeout(limit, made).await {
        Ok(Ok(_)) => true,
        Ok(Err(sqlx::Error::Database(e))) if e.code().as_deref() == Some("42501") => false,
        Ok(Err(error)) => return Err(error).doing(DOING),
        Err(_) => return Err(LedgerError::timeout(DOING, limit)),
    };
    Ok((conn, joint))
}

impl LeaderWriter {
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The same with another time to wait for rows that somebody else holds.
    pub async fn with_row_wait(mut self, wait: Duration) -> Result<Self, LedgerError> {
        (self.conn, self.joint) = begin(&self.options, self.op_timeout, wait).await?;
        self.row_wait = wait;
        Ok(self)
    }

    /// Writes all of `commit` or nothing. After an error the connection is replaced
    /// before the next attempt, because its transaction may still be open.
    pub async fn commit(&mut self, commit: &Commit) -> Result<Written, LedgerError> {
        let done = self.attempt(async |writer| writer.transaction(commit).await);
        done.await
    }

    /// Writes what is about jobs whose rows are free, and says which are not: those are
    /// left out, and nobody is waited for.
    pub async fn commit_free(
        &mut self,
        commit: &Commit,
    ) -> Result<(Written, HashSet<JobId>), LedgerError> {
        let done = self.attempt(async |writer| {
            writer.begin_fenced().await?;
            let locked = locked(&mut writer.conn, &commit.job_ids()).await?;
            let mut free = commit.clone();
            free.take_out(&locked);
            Ok((writer.write(&free).await?, locked))
        });
        done.await
    }

    /// Which of these jobs' rows somebody else holds.
    pub async fn locked(&mut self, jobs: &[JobId]) -> Result<HashSet<JobId>, LedgerError> {
        let done = self.attempt(async |writer| locked(&mut writer.conn, jobs).await);
        done.await
    }

    async fn attempt<T>(
        &mut self,
        work: impl AsyncFnOnce(&mut Self) -> Result<T, LedgerError>,
    ) -> Result<T, LedgerError> {
        if self.broken {
            (self.conn, self.joint) = begin(&self.options, self.op_timeout, self.row_wait).await?;
            self.broken = false;
        }
        let limit = self.op_timeout;
        let done = match tokio::time::timeout(limit, work(self)).await {
            Ok(done) => done,
            Err(_) => Err(LedgerError::timeout("committing as the leader", limit)),
        };
        // One statement waits, so when it has waited for too long, there is nothing to end.
        if done
            .as_ref()
            .is_err_and(|e| !matches!(e, LedgerError::NotOver))
        {
            self.broken = true;
        }
        done
    }

    async fn transaction(&mut self, c: &Commit) -> Result<Written, LedgerError> {
        let (shard, epoch) = (self.shard.0 as i16, self.epoch.0 as i64);
        let stale = self.stale();
        let tx = &mut self.conn;
        let alone =
            c.assign.len() == c.len() && c.assign.iter().all(|x| x.verdict.approved.is_none());
        if alone && (c.after.is_empty() || self.joint) {
            let how = match c.after.is_empty() {
                true => How::Alone,
                false => How::After(&c.after),
            };
            let done = assign(tx, how, shard, epoch, &c.assign).await?;
            return Ok(Written {
                assigned: done.ok_or(stale)?,
                ..Written::default()
            });
        }
        if !c.after.is_empty() {
            let wait = sqlx::query(AWAIT).bind(&c.after).execute(&mut *tx);
            wait.await
                .map_err(|e| waited(e, "waiting for a submission"))?;
        }
        self.begin_fenced().await?;
        self.write(c).await
    }

    fn stale(&self) -> LedgerError {
        LedgerError::StaleEpoch {
            shard: self.shard.0,
            epoch: self.epoch.0,
        }
    }

    /// One round trip for all. An error anywhere leaves the transaction to the end of this
    /// connection, which is never used again then.
    async fn begin_fenced(&mut self) -> Result<(), LedgerError> {
        let begin = format!("BEGIN; {}", fence(self.shard, self.epoch));
        let fence = sqlx::raw_sql(sqlx::AssertSqlSafe(begin))
            .fetch_optional(&mut self.conn)
            .await
            .doing("beginning a leader's transaction")?;
        match fence {
            Some(_) => Ok(()),
            None => Err(self.stale()),
        }
    }

    /// Makes the moves in the transaction that was begun, and commits it.
    async fn write(&mut self, c: &Commit) -> Result<Written, LedgerError> {
        let (shard, epoch) = (self.shard.0 as i16, self.epoch.0 as i64);
        let tx = &mut self.conn;
        let mut w = Written::default();
        if !c.finish.is_empty() {
            w.finished = finish(tx, shard, epoch, &c.finish).await?;
        }
        if !c.requeue.is_empty() {
            w.requeued = requeue(tx, shard, epoch, &c.requeue).await?;
        }
        if !c.assign.is_empty() {
            w.assigned = assign(tx, How::Within, shard, epoch, &c.assign)
                .await?
                .unwrap_or_default();
            hold::spend(tx, &c.assign, &w.assigned).await?;
        }
        if !c.refuse.is_empty() {
            w.refused = refuse(tx, shard, epoch, &c.refuse).await?;
            hold::hold(tx, shard, &c.refuse, &w.refused).await?;
        }
        if !c.mark.is_empty() {
            mark(tx, shard, epoch, &c.mark).await?;
        }
        if !c.stray.is_empty() {
            stray(tx, &c.stray).await?;
        }
        dead_letters::insert(tx, &letters_of(c, &w)).await?;
        let changed: Vec<&str> = w
            .finished
            .iter()
            .chain(&w.refused)
            .map(JobId::as_str)
            .collect();
        if !changed.is_empty() {
            let (xid, seq): (i64, i64) = sqlx::query_as(CHANGE)
                .bind(shard)
                .bind(&changed)
                .fetch_one(&mut *tx)
                .await
                .doing("appending to the change log")?;
            w.position = Some(ChangePosition { xid, seq });
        }
        sqlx::raw_sql("COMMIT")
            .execute(&mut *tx)
            .await
            .doing("committing as the leader")?;
        Ok(w)
    }
}

/// Those whose rows somebody else holds; the others are held by this transaction now.
async fn locked(tx: &mut PgConnection, jobs: &[JobId]) -> Result<HashSet<JobId>, LedgerError> {
    const DOING: &str = "looking for rows that somebody holds";
    let jobs: Vec<&str> = jobs.iter().map(JobId::as_str).collect();
    let free: Vec<String> = sqlx::query_scalar(
        "SELECT job_id FROM job_state WHERE job_id = ANY($1)
         ORDER BY job_id FOR NO KEY UPDATE SKIP LOCKED",
    )
    .bind(&jobs)
    .fetch_all(&mut *tx)
    .await
    .doing(DOING)?;
    let known = sqlx::query_scalar("SELECT job_id FROM job_state WHERE job_id = ANY($1)")
        .bind(&jobs)
        .fetch_all(&mut *tx)
        .await
        .doing(DOING)?;
    let free = ids(free)?;
    Ok(ids(known)?
        .into_iter()
        .filter(|id| !free.contains(id))
        .collect())
}

/// A job whose end was not written, because somebody else was first, gets no letter.
fn letters_of(c: &Commit, w: &Written) -> Vec<NewDeadLetter> {
    let finish = c.finish.iter().map(|x| &x.job_id);
    let refuse = c.refuse.iter().map(|x| &x.job_id);
    let missed: HashSet<&str> = finish
        .filter(|id| !w.finished.contains(*id))
        .chain(refuse.filter(|id| !w.refused.contains(*id)))
        .map(JobId::as_str)
        .collect();
    c.letters
        .iter()
        .filter(|l| l.job_id.as_deref().is_none_or(|id| !missed.contains(id)))
        .cloned()
        .collect()
}

/// Refs sorted by key: the order in which rows are locked.
fn sorted<T>(items: &[T], key: impl Fn(&T) -> &JobId) -> Vec<&T> {
    let mut refs: Vec<&T> = items.iter().collect();
    refs.sort_unstable_by(|a, b| key(a).cmp(key(b)));
    refs
}

/// Postgres stores no NUL in text, and a worker's or a policy's words may hold one.
fn clean(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

fn rule_hash(verdict: &Verdict) -> Option<String> {
    (!verdict.rule_hash.is_empty()).then(|| clean(&verdict.rule_hash))
}

/// As JSON; words and numbers always are.
fn constraints(verdict: &Verdict) -> Option<Vec<u8>> {
    serde_json::to_vec(verdict.constraints.as_deref()?).ok()
}

fn col<'a, T, U>(items: &[&'a T], f: impl Fn(&'a T) -> U) -> Vec<U> {
    items.iter().map(|x| f(x)).collect()
}

fn ids(rows: Vec<String>) -> Result<HashSet<JobId>, LedgerError> {
    rows.into_iter()
        .map(|id| JobId::new(id).map_err(|e| LedgerError::Corrupt(e.to_string())))
        .collect()
}

/// The jobs at these places of the statement's input, counted from 1.
fn picked<T>(
    numbers: &[i64],
    input: &[&T],
    key: impl Fn(&T) -> &JobId,
) -> Result<HashSet<JobId>, LedgerError> {
    let pick = |n: &i64| {
        let at = usize::try_from(*n).ok()?.checked_sub(1)?;
        Some(key(input.get(at)?).clone())
    };
    let picked = numbers.iter().map(pick).collect::<Option<_>>();
    picked.ok_or_else(|| LedgerError::Corrupt("a move answered for a job not in it".to_owned()))
}

/// An error of a statement that waits.
fn waited(source: sqlx::Error, doing: &'static str) -> LedgerError {
    match &source {
        sqlx::Error::Database(e) if e.code().as_deref() == Some("55P03") => LedgerError::NotOver,
        _ => LedgerError::Database { doing, source },
    }
}

/// How jobs are assigned.
enum How<'a> {
    /// In a transaction.
    Within,
    /// In one statement.
    Alone,
    /// In one that waits for these.
    After(&'a [i64]),
}

/// No answer is a fence that did not hold.
async fn assign(
    tx: &mut PgConnection,
    how: How<'_>,
    shard: i16,
    epoch: i64,
    items: &[Assign],
) -> Result<Option<HashSet<JobId>>, LedgerError> {
    let (statement, after) = match how {
        How::Within => (ASSIGN, None),
        How::Alone => (ASSIGN_ALONE, None),
        How::After(after) => (ASSIGN_AFTER, Some(after)),
    };
    let v = sorted(items, |x| &x.job_id);
    let query = sqlx::query_scalar(statement)
        .bind(shard)
        .bind(epoch)
        .bind(col(&v, |x| x.job_id.as_str()))
        .bind(col(&v, |x| x.attempt.0 as i32))
        .bind(col(&v, |x| x.dispatch_id.0))
        .bind(col(&v, |x| x.worker.as_str()))
        .bind(col(&v, |x| x.incarnation.as_str()))
        .bind(col(&v, |x| x.verdict.decision.code()))
        .bind(col(&v, |x| clean(&x.verdict.rule_id)))
        .bind(col(&v, |x| clean(&x.verdict.snapshot)))
        .bind(col(&v, |x| clean(&x.verdict.reason)))
        .bind(col(&v, |x| Ts(x.verdict.decided_at)))
        .bind(col(&v, |x| Ts(x.at)))
        .bind(col(&v, |x| rule_hash(&x.verdict)))
        .bind(col(&v, |x| constraints(&x.verdict)));
    let query = match after {
        Some(after) => query.bind(after),
        None => query,
    };
    let done = query.fetch_one(tx).await;
    let done: Option<Vec<i64>> = match after {
        Some(_) => done.map_err(|e| waited(e, "assigning jobs"))?,
        None => done.doing("assigning jobs")?,
    };
    done.map(|numbers| picked(&numbers, &v, |x| &x.job_id))
        .transpose()
}

async fn refuse(
    tx: &mut PgConnection,
    shard: i16,
    epoch: i64,
    items: &[Refuse],
) -> Result<HashSet<JobId>, LedgerError> {
    let v = sorted(items, |x| &x.job_id);
    let rows = sqlx::query_scalar(REFUSE)
        .bind(shard)
        .bind(epoch)
        .bind(col(&v, |x| x.job_id.as_str()))
        .bind(col(&v, |x| x.to.code()))
        .bind(col(&v, |x| x.verdict.as_ref().map(|v| v.decision.code())))
        .bind(col(&v, |x| x.verdict.as_ref().map(|v| clean(&v.rule_id))))
        .bind(col(&v, |x| x.verdict.as_ref().map(|v| clean(&v.snapshot))))
        .bind(col(&v, |x| x.verdict.as_ref().map(|v| clean(&v.reason))))
        .bind(col(&v, |x| x.verdict.as_ref().map(|v| Ts(v.decided_at))))
        .bind(col(&v, |x| clean(&x.reason_code)))
        .bind(col(&v, |x| clean(&x.reason)))
        .bind(col(&v, |x| Ts(x.at)))
        .bind(col(&v, |x| x.verdict.as_ref().and_then(rule_hash)))
        .bind(col(&v, |x| x.verdict.as_ref().and_then(constraints)))
        .fetch_all(&mut *tx)
        .await
        .doing("refusing jobs")?;
    ids(rows)
}

async fn finish(
    tx: &mut PgConnection,
    shard: i16,
    epoch: i64,
    items: &[Finish],
) -> Result<HashSet<JobId>, LedgerError> {
    let v = sorted(items, |x| &x.job_id);
    let done: Vec<i64> = sqlx::query_scalar(FINISH)
        .bind(shard)
        .bind(epoch)
        .bind(col(&v, |x| x.job_id.as_str()))
        .bind(col(&v, |x| x.dispatch_id.0))
        .bind(col(&v, |x| x.to.code()))
        .bind(col(&v, |x| Ts::opt(x.dispatched_at)))
        .bind(col(&v, |x| Ts::opt(x.running_at)))
        .bind(col(&v, |x| Ts(x.at)))
        .bind(col(&v, |x| {
            (!x.reason_code.is_empty()).then(|| clean(&x.reason_code))
        }))
        .bind(col(&v, |x| {
            (!x.reason.is_empty()).then(|| clean(&x.reason))
        }))
        .bind(col(&v, |x| x.result.as_deref()))
        .bind(col(&v, |x| x.result_ptr.as_deref()))
        .bind(col(&v, |x| x.result_missing))
        .bind(col(&v, |x| x.end.code()))
        .fetch_one(&mut *tx)
        .await
        .doing("finishing jobs")?;
    picked(&done, &v, |x| &x.job_id)
}

async fn requeue(
    tx: &mut PgConnection,
    shard: i16,
    epoch: i64,
    items: &[Requeue],
) -> Result<HashSet<JobId>, LedgerError> {
    let v = sorted(items, |x| &x.job_id);
    let rows = sqlx::query_scalar(REQUEUE)
        .bind(shard)
        .bind(epoch)
        .bind(col(&v, |x| x.job_id.as_str()))
        .bind(col(&v, |x| x.dispatch_id.0))
        .bind(col(&v, |x| x.end.may_have_begun()))
        .bind(col(&v, |x| Ts::opt(x.dispatched_at)))
        .bind(col(&v, |x| Ts::opt(x.running_at)))
        .bind(col(&v, |x| Ts::opt(x.not_before)))
        .bind(col(&v, |x| x.end.as_str()))
        .bind(col(&v, |x| clean(&x.reason)))
        .bind(col(&v, |x| Ts(x.at)))
        .bind(col(&v, |x| x.end.code()))
        .fetch_all(&mut *tx)
        .await
        .doing("re-queueing jobs")?;
    ids(rows)
}

async fn mark(
    tx: &mut PgConnection,
    shard: i16,
    epoch: i64,
    items: &[Mark],
) -> Result<(), LedgerError> {
    let v = sorted(items, |x| &x.job_id);
    let dispatch: Vec<Uuid> = col(&v, |x| x.dispatch_id.0);
    sqlx::query(MARK)
        .bind(shard)
        .bind(epoch)
        .bind(col(&v, |x| x.job_id.as_str()))
        .bind(dispatch)
        .bind(col(&v, |x| Ts::opt(x.dispatched_at)))
        .bind(col(&v, |x| Ts::opt(x.running_at)))
        .execute(&mut *tx)
        .await
        .doing("recording that jobs were dispatched and started")?;
    Ok(())
}

async fn stray(tx: &mut PgConnection, items: &[UnmatchedResult]) -> Result<(), LedgerError> {
    let v: Vec<&UnmatchedResult> = items.iter().collect();
    sqlx::query(STRAY)
        .bind(col(&v, |x| clean(&x.job_id)))
        .bind(col(&v, |x| clean(&x.dispatch_id)))
        .bind(col(&v, |x| clean(&x.worker_id)))
        .bind(col(&v, |x| clean(&x.status)))
        .bind(col(&v, |x| clean(&x.why)))
        .execute(&mut *tx)
        .await
        .doing("recording results that change nothing")?;
    Ok(())
}
