//! Terms of leadership: the epoch that fences writes, renewals, and how terms changed.
//!
//! Whatever holds the lease, an advisory lock or a key in etcd, a term begins here. What
//! must stay true: the epoch is raised from the one that was seen *while* the lease was held
//! ([`NewTerm::seen`]), so that a candidate which stood still after winning, and was replaced
//! meanwhile, raises nothing.

use std::time::Duration;

use airlock_model::{Epoch, Shard, Timestamp};
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection, Row};

use crate::Ledger;
use crate::error::{ErrorContext, LedgerError};
use crate::ts::Ts;

/// Terms that are remembered for each shard.
const KEPT_CHANGES: i64 = 100;

/// A term to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewTerm<'a> {
    pub shard: Shard,
    pub leader: &'a str,
    /// What holds the lease, for whoever reads the history.
    pub backend: &'a str,
    /// The epoch that the term comes after.
    pub seen: Epoch,
    /// One that was seen elsewhere and must be left behind too: a ledger that was restored
    /// may not know all of its own past.
    pub above: Epoch,
    /// What ended the term before, if the new leader knows better than the ledger.
    pub cause: Option<&'a str>,
}

/// How a term began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderChange {
    pub epoch: Epoch,
    pub leader: String,
    pub backend: String,
    /// `first`, `lost`, `hung`, or what the leader before gave as its reason to leave.
    pub cause: String,
    /// From the last sign of the leader before to the beginning of the term.
    pub gap: Option<Duration>,
    pub at: Timestamp,
}

/// A replica that would lead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    pub instance: String,
    /// Since its last sign, by the ledger's clock.
    pub seen_ago: Duration,
    pub bus_ok: bool,
}

/// A session for terms, of its own, so that no crowd in the pool holds up a renewal. It is
/// opened when it is needed, and again after an error.
pub struct TermConnection {
    options: PgConnectOptions,
    conn: Option<PgConnection>,
}

/// By hand, because the driver's options show their password.
impl std::fmt::Debug for TermConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TermConnection")
            .field("open", &self.conn.is_some())
            .finish_non_exhaustive()
    }
}

impl TermConnection {
    async fn run<T>(
        &mut self,
        limit: Duration,
        doing: &'static str,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, LedgerError> {
        let all = async {
            // Taken out, so that a caller who gives up half way drops it.
            let mut conn = match self.conn.take() {
                Some(conn) => conn,
                None => PgConnection::connect_with(&self.options)
                    .await
                    .context(doing)?,
            };
            let done = work(&mut conn).await.context(doing);
            if !matches!(&done, Err(e) if e.ends_session()) {
                self.conn = Some(conn);
            }
            done
        };
        match tokio::time::timeout(limit, all).await {
            Ok(done) => done,
            Err(_) => Err(LedgerError::timeout(doing, limit)),
        }
    }

    /// The epoch of `shard`; zero when nobody ever led.
    pub async fn read_epoch(
        &mut self,
        shard: Shard,
        limit: Duration,
    ) -> Result<Epoch, LedgerError> {
        let epoch: Option<i64> = self
            .run(limit, "reading the epoch", async |conn| {
                sqlx::query_scalar("SELECT epoch FROM leadership WHERE shard = $1")
                    .bind(shard.0 as i16)
                    .fetch_optional(conn)
                    .await
            })
            .await?;
        Ok(Epoch(epoch.unwrap_or(0) as u64))
    }

    /// Begins a new term: from here on, writes of older epochs are refused. `None`: the
    /// epoch is no longer the one that was seen.
    pub async fn raise_epoch(
        &mut self,
        term: NewTerm<'_>,
        limit: Duration,
    ) -> Result<Option<Epoch>, LedgerError> {
        let epoch: Option<i64> = self
            .run(limit, "raising the epoch", async |conn| {
                sqlx::query_scalar(
                    "WITH old AS (
                        SELECT renewed_at, released_at, released_why
                        FROM leader_renewal WHERE shard = $1
                     ), raised AS (
                        INSERT INTO leadership (shard, epoch, leader, since)
                        VALUES ($1, greatest($3, $4) + 1, $2, clock_timestamp())
                        ON CONFLICT (shard) DO UPDATE
                        SET epoch = greatest(leadership.epoch, $4) + 1, leader = $2,
                            since = clock_timestamp()
                        WHERE leadership.epoch = $3
                        RETURNING epoch
                     ), renewed AS (
                        INSERT INTO leader_renewal (shard, epoch, renewed_at)
                        SELECT $1, epoch, clock_timestamp() FROM raised
                        ON CONFLICT (shard) DO UPDATE
                        SET epoch = excluded.epoch, renewed_at = excluded.renewed_at,
                            round_at = NULL, released_at = NULL, released_why = NULL,
                            step_down = false
                     ), changed AS (
                        INSERT INTO leader_change (shard, epoch, leader, backend, cause, gap_ms)
                        SELECT $1, raised.epoch, $2, $5,
                               CASE WHEN old.renewed_at IS NULL THEN 'first'
                                    WHEN $6::text IS NOT NULL THEN $6
                                    WHEN old.released_at IS NOT NULL
                                    THEN coalesce(old.released_why, 'released')
                                    ELSE 'lost' END,
                               extract(epoch FROM clock_timestamp()
                                   - coalesce(old.released_at, old.renewed_at)) * 1000
                        FROM raised LEFT JOIN old ON true
                        ON CONFLICT (shard, epoch) DO NOTHING
                     ), forgotten AS (
                        DELETE FROM leader_change
                        USING raised
                        WHERE shard = $1 AND leader_change.epoch <= raised.epoch - $7
                     )
                     SELECT epoch FROM raised",
                )
                .bind(term.shard.0 as i16)
                .bind(term.leader)
                .bind(i64::try_from(term.seen.0).unwrap_or(0))
                .bind(i64::try_from(term.above.0).unwrap_or(0))
                .bind(term.backend)
                .bind(term.cause)
                .bind(KEPT_CHANGES)
                .fetch_optional(conn)
                .await
            })
            .await?;
        Ok(epoch.map(|epoch| Epoch(epoch as u64)))
    }

    /// Leaves a fresh renewal. `false`: another term has begun.
    pub async fn note_renewal(
        &mut self,
        shard: Shard,
        epoch: Epoch,
        limit: Duration,
    ) -> Result<bool, LedgerError> {
        let done = self
            .run(limit, "noting the renewal of the lease", async |conn| {
                sqlx::query(
                    "UPDATE leader_renewal SET renewed_at = clock_timestamp()
                     WHERE shard = $1 AND epoch = $2",
                )
                .bind(shard.0 as i16)
                .bind(epoch.0 as i64)
                .execute(conn)
                .await
            })
            .await?;
        Ok(done.rows_affected() == 1)
    }

    /// Whether somebody asked the leader of this term to hand over.
    pub async fn is_asked_to_step_down(
        &mut self,
        shard: Shard,
        epoch: Epoch,
        limit: Duration,
    ) -> Result<bool, LedgerError> {
        let asked: Option<bool> = self
            .run(limit, "asking whether to step down", async |conn| {
                sqlx::query_scalar(
                    "SELECT step_down FROM leader_renewal WHERE shard = $1 AND epoch = $2",
                )
                .bind(shard.0 as i16)
                .bind(epoch.0 as i64)
                .fetch_optional(conn)
                .await
            })
            .await?;
        Ok(asked.unwrap_or(false))
    }

    /// Says that the lease is given back, and why.
    pub async fn note_release(
        &mut self,
        shard: Shard,
        epoch: Epoch,
        why: &str,
        limit: Duration,
    ) -> Result<(), LedgerError> {
        self.run(limit, "noting the release of the lease", async |conn| {
            sqlx::query(
                "UPDATE leader_renewal SET released_at = clock_timestamp(), released_why = $3
                 WHERE shard = $1 AND epoch = $2",
            )
            .bind(shard.0 as i16)
            .bind(epoch.0 as i64)
            .bind(why)
            .execute(conn)
            .await
        })
        .await?;
        Ok(())
    }

    /// Ends the session.
    pub async fn close(mut self, limit: Duration) {
        if let Some(conn) = self.conn.take() {
            // The server notices either way.
            let _ = tokio::time::timeout(limit, conn.close()).await;
        }
    }
}

impl Ledger {
    /// A session for the terms of `instance`.
    pub fn term_connection(&self, instance: &str) -> TermConnection {
        let name = format!("airlock-term-{instance}");
        TermConnection {
            options: self.options.clone().application_name(&name),
            conn: None,
        }
    }

    /// Begins a new term without any lease, after whichever was the last.
    pub async fn raise_epoch(&self, shard: Shard, leader: &str) -> Result<Epoch, LedgerError> {
        let mut term = self.term_connection(leader);
        loop {
            let seen = term.read_epoch(shard, self.op_timeout).await?;
            let new = NewTerm {
                shard,
                leader,
                backend: "none",
                seen,
                above: Epoch(0),
                cause: None,
            };
            if let Some(epoch) = term.raise_epoch(new, self.op_timeout).await? {
                term.close(self.op_timeout).await;
                return Ok(epoch);
            }
        }
    }

    /// Asks the leader of `shard` to hand over; the epoch of its term, if there is one that
    /// has not ended. It notices with its next renewal.
    pub async fn request_step_down(&self, shard: Shard) -> Result<Option<Epoch>, LedgerError> {
        let epoch: Option<i64> = self
            .with_timeout("asking the leader to step down", async {
                sqlx::query_scalar(
                    "UPDATE leader_renewal SET step_down = true
                     WHERE shard = $1 AND released_at IS NULL RETURNING epoch",
                )
                .bind(shard.0 as i16)
                .fetch_optional(&self.pool)
                .await
            })
            .await?;
        Ok(epoch.map(|epoch| Epoch(epoch as u64)))
    }

    /// Whether other clients are given our sessions between two transactions, as by a pooler
    /// in transaction mode: then locks and settings of a session are nobody's.
    pub async fn shares_sessions(&self) -> Result<bool, LedgerError> {
        /// A pooler that has several sessions to give may give the same one by chance.
        const ROUNDS: usize = 3;
        async fn pid(conn: &mut PgConnection) -> Result<i32, sqlx::Error> {
            // Without a prepared statement, which would not survive the pooler either.
            let row = sqlx::raw_sql("SELECT pg_backend_pid()::text")
                .fetch_one(conn)
                .await?;
            let text: String = row.try_get(0)?;
            text.parse().map_err(|_| sqlx::Error::RowNotFound)
        }
        self.with_timeout("looking whether sessions are ours alone", async {
            let mut ours = PgConnection::connect_with(&self.options).await?;
            let mut other = PgConnection::connect_with(&self.options).await?;
            let mut shared = false;
            for _ in 0..ROUNDS {
                let before = pid(&mut ours).await?;
                // In a transaction, so that the other keeps the session that it was given.
                sqlx::raw_sql("BEGIN").execute(&mut other).await?;
                let others = pid(&mut other).await?;
                let after = pid(&mut ours).await?;
                sqlx::raw_sql("ROLLBACK").execute(&mut other).await?;
                shared |= before != after || before == others;
            }
            ours.close().await?;
            other.close().await?;
            Ok(shared)
        })
        .await
    }

    /// How the last terms of `shard` began, the newest first.
    pub async fn leader_changes(
        &self,
        shard: Shard,
        limit: u32,
    ) -> Result<Vec<LeaderChange>, LedgerError> {
        let rows = self
            .with_timeout("reading how the leader changed", async {
                sqlx::query(
                    "SELECT epoch, leader, backend, cause, gap_ms, at FROM leader_change
                     WHERE shard = $1 ORDER BY epoch DESC LIMIT $2",
                )
                .bind(shard.0 as i16)
                .bind(i64::from(limit))
                .fetch_all(&self.pool)
                .await
            })
            .await?;
        rows.into_iter()
            .map(|r| {
                let gap: Option<i64> = r.try_get(4)?;
                Ok(LeaderChange {
                    epoch: Epoch(r.try_get::<i64, _>(0)? as u64),
                    leader: r.try_get(1)?,
                    backend: r.try_get(2)?,
                    cause: r.try_get(3)?,
                    gap: gap.map(|ms| Duration::from_millis(u64::try_from(ms).unwrap_or(0))),
                    at: r.try_get::<Ts, _>(5)?.0,
                })
            })
            .collect::<Result<_, sqlx::Error>>()
            .context("reading how the leader changed")
    }

    /// Leaves a sign of a replica that would lead, and forgets those that left none for long.
    pub async fn note_candidate(
        &self,
        shard: Shard,
        instance: &str,
        bus_ok: bool,
    ) -> Result<(), LedgerError> {
        self.with_timeout("noting a candidate", async {
            sqlx::query(
                "WITH gone AS (
                    DELETE FROM leader_candidate
                    WHERE shard = $1 AND seen_at < clock_timestamp() - interval '10 minutes'
                 )
                 INSERT INTO leader_candidate (shard, instance, seen_at, bus_ok)
                 VALUES ($1, $2, clock_timestamp(), $3)
                 ON CONFLICT (shard, instance) DO UPDATE
                 SET seen_at = excluded.seen_at, bus_ok = excluded.bus_ok",
            )
            .bind(shard.0 as i16)
            .bind(instance)
            .bind(bus_ok)
            .execute(&self.pool)
            .await
        })
        .await?;
        Ok(())
    }

    /// Forgets a replica that is about to leave.
    pub async fn forget_candidate(&self, shard: Shard, instance: &str) -> Result<(), LedgerError> {
        self.with_timeout("forgetting a candidate", async {
            sqlx::query("DELETE FROM leader_candidate WHERE shard = $1 AND instance = $2")
                .bind(shard.0 as i16)
                .bind(instance)
                .execute(&self.pool)
                .await
        })
        .await?;
        Ok(())
    }

    /// The replicas that would lead, or lead, those with the latest sign first.
    pub async fn leader_candidates(&self, shard: Shard) -> Result<Vec<Candidate>, LedgerError> {
        let rows: Vec<(String, f64, bool)> = self
            .with_timeout("reading the candidates", async {
                sqlx::query_as(
                    "SELECT instance, extract(epoch FROM clock_timestamp() - seen_at)::float8,
                            bus_ok
                     FROM leader_candidate WHERE shard = $1 ORDER BY seen_at DESC LIMIT 100",
                )
                .bind(shard.0 as i16)
                .fetch_all(&self.pool)
                .await
            })
            .await?;
        let read = |(instance, ago, bus_ok)| Candidate {
            instance,
            seen_ago: Duration::try_from_secs_f64(ago).unwrap_or_default(),
            bus_ok,
        };
        Ok(rows.into_iter().map(read).collect())
    }
}
