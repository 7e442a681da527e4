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

use airlock_model::{Epoch, JobId, Shard};
use sqlx::PgConnection;
use sqlx::postgres::PgConnectOptions;

use crate::error::{ErrorContext, LedgerError};
use crate::leader::commit::{Commit, Written};
use crate::leader::fence::fence_sql;
use crate::leader::moves::{
    FencedTx, Mode, Move, MoveKind, assign_jobs, create_assign_after_sql, wait_for_submissions,
    write_moves,
};
use crate::ops::hot_pool::open_connection;
use crate::sagas::record;
use crate::{Ledger, LogPosition, dlq::dead_letters};

/// The one connection that writes as the leader of a shard.
pub struct LeaderWriter {
    conn: PgConnection,
    can_assign_after: bool,
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

const CHANGE: &str = "INSERT INTO change_log (shard, job_ids) VALUES ($1, $2) RETURNING xid, seq";

impl Ledger {
    /// The connection for a leader's writes. Raising the epoch is the election's.
    pub async fn leader_writer(
        &self,
        shard: Shard,
        epoch: Epoch,
    ) -> Result<LeaderWriter, LedgerError> {
        let (conn, can_assign_after) =
            open_leader_connection(&self.options, self.op_timeout, ROW_WAIT).await?;
        Ok(LeaderWriter {
            conn,
            can_assign_after,
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
async fn open_leader_connection(
    options: &PgConnectOptions,
    limit: Duration,
    row_wait: Duration,
) -> Result<(PgConnection, bool), LedgerError> {
    const DOING: &str = "preparing a leader's connection";
    let row_wait = format!("{}ms", row_wait.as_millis());
    let options = options.clone().options([("lock_timeout", row_wait)]);
    let mut conn = open_connection(&options, limit).await?;
    let function = sqlx::AssertSqlSafe(create_assign_after_sql());
    let made = sqlx::raw_sql(function).execute(&mut conn);
    let can_assign_after = match tokio::time::timeout(limit, made).await {
        Ok(Ok(_)) => true,
        Ok(Err(sqlx::Error::Database(e))) if e.code().as_deref() == Some("42501") => false,
        Ok(Err(error)) => return Err(error).context(DOING),
        Err(_) => return Err(LedgerError::timeout(DOING, limit)),
    };
    Ok((conn, can_assign_after))
}

impl LeaderWriter {
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The same with another time to wait for rows that somebody else holds.
    pub async fn with_row_wait(mut self, wait: Duration) -> Result<Self, LedgerError> {
        (self.conn, self.can_assign_after) =
            open_leader_connection(&self.options, self.op_timeout, wait).await?;
        self.row_wait = wait;
        Ok(self)
    }

    /// Writes all of `commit` or nothing. After an error the connection is replaced
    /// before the next attempt, because its transaction may still be open.
    pub async fn commit(&mut self, commit: &Commit) -> Result<Written, LedgerError> {
        let done = self.with_reconnect(async |writer| writer.write_in_transaction(commit).await);
        done.await
    }

    /// Writes what is about jobs whose rows are free, and says which are not: those are
    /// left out, and nobody is waited for.
    pub async fn commit_unlocked(
        &mut self,
        commit: &Commit,
    ) -> Result<(Written, HashSet<JobId>), LedgerError> {
        let done = self.with_reconnect(async |writer| {
            writer.begin_fenced().await?;
            let locked = lock_free_rows(
                &mut writer.conn,
                &commit.job_ids().cloned().collect::<Vec<_>>(),
            )
            .await?;
            let mut free = commit.clone();
            free.take_moves_of(&locked);
            Ok((writer.write_and_commit(&free).await?, locked))
        });
        done.await
    }

    /// Which of these jobs' rows somebody else holds.
    pub async fn locked_jobs(&mut self, jobs: &[JobId]) -> Result<HashSet<JobId>, LedgerError> {
        let done = self.with_reconnect(async |writer| lock_free_rows(&mut writer.conn, jobs).await);
        done.await
    }

    async fn with_reconnect<T>(
        &mut self,
        work: impl AsyncFnOnce(&mut Self) -> Result<T, LedgerError>,
    ) -> Result<T, LedgerError> {
        if self.broken {
            (self.conn, self.can_assign_after) =
                open_leader_connection(&self.options, self.op_timeout, self.row_wait).await?;
            self.broken = false;
        }
        let limit = self.op_timeout;
        let done = match tokio::time::timeout(limit, work(self)).await {
            Ok(done) => done,
            Err(_) => Err(LedgerError::timeout("committing as the leader", limit)),
        };
        match &done {
            // One statement waits, so when it has waited for too long, there is nothing to end.
            Ok(_) | Err(LedgerError::NotOver) => {}
            // The server is there. Without a word it would hold the other rows until it finds
            // that this connection is gone.
            Err(error) if error.is_lock_timeout() => {
                let rollback = sqlx::raw_sql("ROLLBACK").execute(&mut self.conn);
                let ended = tokio::time::timeout(limit, rollback).await;
                self.broken = !matches!(ended, Ok(Ok(_)));
            }
            Err(_) => self.broken = true,
        }
        done
    }

    async fn write_in_transaction(&mut self, c: &Commit) -> Result<Written, LedgerError> {
        if let Some(assignments) = c.only_assignments()
            && (c.after.is_empty() || self.can_assign_after)
        {
            let mode = match c.after.is_empty() {
                true => Mode::Alone,
                false => Mode::After(&c.after),
            };
            let done = assign_jobs(&mut self.fenced_tx(), mode, &assignments).await?;
            let mut written = Written::default();
            written.add_moved(
                MoveKind::Assign,
                done.ok_or_else(|| self.stale_epoch_error())?,
            );
            return Ok(written);
        }
        if !c.after.is_empty() {
            wait_for_submissions(&mut self.conn, &c.after).await?;
        }
        self.begin_fenced().await?;
        self.write_and_commit(c).await
    }

    fn fenced_tx(&mut self) -> FencedTx<'_> {
        FencedTx {
            conn: &mut self.conn,
            shard: self.shard,
            epoch: self.epoch,
        }
    }

    fn stale_epoch_error(&self) -> LedgerError {
        LedgerError::StaleEpoch {
            shard: self.shard.0,
            epoch: self.epoch.0,
        }
    }

    /// One round trip for all. An error anywhere leaves the transaction to the end of this
    /// connection, which is never used again then.
    async fn begin_fenced(&mut self) -> Result<(), LedgerError> {
        let begin = format!("BEGIN; {}", fence_sql(self.shard, self.epoch));
        let fence = sqlx::raw_sql(sqlx::AssertSqlSafe(begin))
            .fetch_optional(&mut self.conn)
            .await
            .context("beginning a leader's transaction")?;
        match fence {
            Some(_) => Ok(()),
            None => Err(self.stale_epoch_error()),
        }
    }

    /// Makes the moves in the transaction that was begun, and commits it.
    async fn write_and_commit(&mut self, c: &Commit) -> Result<Written, LedgerError> {
        let mut w = Written::default();
        let shard = self.shard.0 as i16;
        write_moves(&mut self.fenced_tx(), &c.moves, |kind, jobs| {
            w.add_moved(kind, jobs)
        })
        .await?;
        let tx = &mut self.conn;
        // A job whose end was not written, because somebody else was first, gets none.
        let made = |m: &&Move| m.job_id().is_some_and(|id| w.contains(m.kind(), id));
        let letters = c.moves.iter().filter(made).filter_map(Move::dead_letter);
        dead_letters::insert_dead_letters(tx, &letters.collect::<Vec<_>>()).await?;
        record::write_saga_effects(tx, c.moves.iter().filter(made)).await?;
        let progress = |m: &&Move| {
            let (kind, id) = (m.kind(), m.job_id());
            m.is_followed() && (!kind.is_reported() || id.is_some_and(|id| w.contains(kind, id)))
        };
        let progress = c.moves.iter().filter(progress).filter_map(Move::job_id);
        // Apart, because the writer itself announces the other entry.
        log_change(tx, shard, progress).await?;
        let position = log_change(tx, shard, w.published_jobs()).await?;
        w.position = position;
        sqlx::raw_sql("COMMIT")
            .execute(&mut *tx)
            .await
            .context("committing as the leader")?;
        Ok(w)
    }
}

/// Appends one entry of these jobs, if there are any.
async fn log_change(
    tx: &mut PgConnection,
    shard: i16,
    jobs: impl Iterator<Item = &JobId>,
) -> Result<Option<LogPosition>, LedgerError> {
    let jobs: Vec<&str> = jobs.map(JobId::as_str).collect();
    if jobs.is_empty() {
        return Ok(None);
    }
    let (xid, seq): (i64, i64) = sqlx::query_as(CHANGE)
        .bind(shard)
        .bind(&jobs)
        .fetch_one(tx)
        .await
        .context("appending to the change log")?;
    Ok(Some(LogPosition { xid, seq }))
}

/// Those whose rows somebody else holds; the others are held by this transaction now.
async fn lock_free_rows(
    tx: &mut PgConnection,
    jobs: &[JobId],
) -> Result<HashSet<JobId>, LedgerError> {
    const DOING: &str = "looking for rows that somebody holds";
    let jobs: Vec<&str> = jobs.iter().map(JobId::as_str).collect();
    let free: Vec<String> = sqlx::query_scalar(
        "SELECT job_id FROM job_state WHERE job_id = ANY($1)
         ORDER BY job_id FOR NO KEY UPDATE SKIP LOCKED",
    )
    .bind(&jobs)
    .fetch_all(&mut *tx)
    .await
    .context(DOING)?;
    let known = sqlx::query_scalar("SELECT job_id FROM job_state WHERE job_id = ANY($1)")
        .bind(&jobs)
        .fetch_all(&mut *tx)
        .await
        .context(DOING)?;
    let free = parse_job_ids(free)?;
    Ok(parse_job_ids(known)?
        .into_iter()
        .filter(|id| !free.contains(id))
        .collect())
}

pub(crate) fn parse_job_ids(rows: Vec<String>) -> Result<HashSet<JobId>, LedgerError> {
    rows.into_iter()
        .map(|id| JobId::new(id).map_err(|e| LedgerError::Corrupt(e.to_string())))
        .collect()
}
