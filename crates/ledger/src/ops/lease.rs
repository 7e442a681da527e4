//! What leader election needs of Postgres: an advisory lock on a connection of its own,
//! and the epoch that fences writes.
//!
//! The lock lives and dies with its session, so the connection never belongs to a pool:
//! a pool would recycle it and the lock with it.

use std::time::Duration;

use airlock_model::{Epoch, Shard, Timestamp};
use sqlx::{Connection, PgConnection, Row};

use crate::Ledger;
use crate::error::{ErrorContext, LedgerError};
use crate::leader::fence::LeaderLedger;
use crate::ts::Ts;

/// Who leads a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderInfo {
    pub leader: String,
    pub epoch: Epoch,
    pub since: Timestamp,
    pub renewed_at: Option<Timestamp>,
}

/// How a shard's leader is doing, by the ledger's own clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderHealth {
    /// Since it renewed its lease.
    pub renewed_ago: Duration,
    /// Since its last good round, or since its term began when it had none yet.
    pub round_ago: Duration,
}

/// A session that may hold the lock.
#[derive(Debug)]
pub struct LeaseConnection {
    conn: PgConnection,
}

async fn with_timeout<T>(
    limit: Duration,
    doing: &'static str,
    work: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, LedgerError> {
    match tokio::time::timeout(limit, work).await {
        Ok(done) => done.context(doing),
        Err(_) => Err(LedgerError::timeout(doing, limit)),
    }
}

impl Ledger {
    /// Opens the session for the lock of `instance`.
    pub async fn lease_connection(&self, instance: &str) -> Result<LeaseConnection, LedgerError> {
        let options = self
            .options
            .clone()
            .application_name(&format!("airlock-lease-{instance}"))
            // A machine that vanished without a word must not keep the lock for the two
            // hours that the kernel would wait by default.
            .options([
                ("tcp_keepalives_idle", "5"),
                ("tcp_keepalives_interval", "2"),
                ("tcp_keepalives_count", "3"),
            ]);
        let conn = with_timeout(
            self.op_timeout,
            "opening the lease connection",
            PgConnection::connect_with(&options),
        )
        .await?;
        Ok(LeaseConnection { conn })
    }

    /// Who leads `shard`, as far as the ledger knows.
    pub async fn leader(&self, shard: Shard) -> Result<Option<LeaderInfo>, LedgerError> {
        let row = self
            .with_timeout("asking who leads", async {
                sqlx::query(
                    "SELECT l.leader, l.epoch, l.since, r.renewed_at
                     FROM leadership l LEFT JOIN leader_renewal r USING (shard)
                     WHERE l.shard = $1",
                )
                .bind(shard.0 as i16)
                .fetch_optional(&self.pool)
                .await
            })
            .await?;
        row.map(|r| {
            Ok(LeaderInfo {
                leader: r.try_get(0)?,
                epoch: Epoch(r.try_get::<i64, _>(1)? as u64),
                since: r.try_get::<Ts, _>(2)?.0,
                renewed_at: r.try_get::<Option<Ts>, _>(3)?.map(|t| t.0),
            })
        })
        .transpose()
        .context("reading who leads")
    }

    /// How the leader of `shard` is doing; `None` when nobody ever led.
    pub async fn leader_health(&self, shard: Shard) -> Result<Option<LeaderHealth>, LedgerError> {
        let row: Option<(f64, f64)> = self
            .with_timeout("reading how the leader is doing", async {
                sqlx::query_as(
                    "SELECT extract(epoch FROM clock_timestamp() - r.renewed_at)::float8,
                            extract(epoch FROM clock_timestamp()
                                    - coalesce(r.round_at, l.since))::float8
                     FROM leadership l JOIN leader_renewal r USING (shard)
                     WHERE l.shard = $1",
                )
                .bind(shard.0 as i16)
                .fetch_optional(&self.pool)
                .await
            })
            .await?;
        let ago = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or_default();
        Ok(row.map(|(renewed, round)| LeaderHealth {
            renewed_ago: ago(renewed),
            round_ago: ago(round),
        }))
    }

    /// The number of shards is a fact of the ledger: the first to ask settles it, and a
    /// replica configured otherwise learns so.
    pub async fn init_shard_count(&self, wanted: u16) -> Result<u16, LedgerError> {
        let stored: String = self
            .with_timeout("settling the number of shards", async {
                sqlx::query_scalar(
                    // An update that changes nothing returns the row of whoever was
                    // first, even when that happened after this statement began.
                    "INSERT INTO setting (name, value) VALUES ('shards', $1)
                     ON CONFLICT (name) DO UPDATE SET value = setting.value
                     RETURNING value",
                )
                .bind(wanted.to_string())
                .fetch_one(&self.pool)
                .await
            })
            .await?;
        stored
            .parse()
            .map_err(|_| LedgerError::Corrupt(format!("setting shards = {stored:?}")))
    }
}

impl LeaderLedger {
    /// Writes down how long ago this leader's last good round was. Of a term that is over
    /// there is nothing to write to.
    pub async fn record_round(&self, ago: Duration) -> Result<(), LedgerError> {
        self.with_timeout("recording the last good round", async {
            sqlx::query(
                "UPDATE leader_renewal
                 SET round_at = clock_timestamp() - make_interval(secs => $3)
                 WHERE shard = $1 AND epoch = $2",
            )
            .bind(self.shard.0 as i16)
            .bind(self.epoch.0 as i64)
            .bind(ago.as_secs_f64())
            .execute(&self.pool)
            .await
        })
        .await?;
        Ok(())
    }
}

impl LeaseConnection {
    /// Tries the lock without waiting: a waiter would hold back vacuum, and a frozen
    /// waiter would inherit the lock.
    pub async fn try_lock(&mut self, key: i64, limit: Duration) -> Result<bool, LedgerError> {
        with_timeout(
            limit,
            "trying the leader lock",
            sqlx::query_scalar("SELECT pg_try_advisory_lock($1)")
                .bind(key)
                .fetch_one(&mut self.conn),
        )
        .await
    }

    /// Begins a new term: from here on, writes of older epochs are refused.
    pub async fn raise_epoch(
        &mut self,
        shard: Shard,
        leader: &str,
        limit: Duration,
    ) -> Result<Epoch, LedgerError> {
        self.raise_epoch_above(shard, leader, Epoch(0), limit).await
    }

    /// The same, with an epoch above one that was seen elsewhere: a ledger that was
    /// restored may not know all of its own past.
    pub async fn raise_epoch_above(
        &mut self,
        shard: Shard,
        leader: &str,
        above: Epoch,
        limit: Duration,
    ) -> Result<Epoch, LedgerError> {
        let epoch: i64 = with_timeout(
            limit,
            "raising the epoch",
            sqlx::query_scalar(
                "WITH raised AS (
                    INSERT INTO leadership (shard, epoch, leader, since)
                    VALUES ($1, $3 + 1, $2, clock_timestamp())
                    ON CONFLICT (shard) DO UPDATE
                    SET epoch = greatest(leadership.epoch, $3) + 1, leader = $2,
                        since = clock_timestamp()
                    RETURNING epoch
                 ), renewed AS (
                    INSERT INTO leader_renewal (shard, epoch, renewed_at)
                    SELECT $1, epoch, clock_timestamp() FROM raised
                    ON CONFLICT (shard) DO UPDATE
                    SET epoch = excluded.epoch, renewed_at = excluded.renewed_at,
                        round_at = NULL
                 )
                 SELECT epoch FROM raised",
            )
            .bind(shard.0 as i16)
            .bind(leader)
            .bind(i64::try_from(above.0).unwrap_or(0))
            .fetch_one(&mut self.conn),
        )
        .await?;
        Ok(Epoch(epoch as u64))
    }

    /// Pings the lock's own session and leaves a fresh renewal. `false`: another term
    /// has begun.
    pub async fn renew(
        &mut self,
        shard: Shard,
        epoch: Epoch,
        limit: Duration,
    ) -> Result<bool, LedgerError> {
        let done = with_timeout(
            limit,
            "renewing the lease",
            sqlx::query(
                "UPDATE leader_renewal SET renewed_at = clock_timestamp()
                 WHERE shard = $1 AND epoch = $2",
            )
            .bind(shard.0 as i16)
            .bind(epoch.0 as i64)
            .execute(&mut self.conn),
        )
        .await?;
        Ok(done.rows_affected() == 1)
    }

    /// Ends the session, and with it the lock.
    pub async fn release(self, limit: Duration) {
        if let Err(e) = with_timeout(limit, "releasing the leader lock", self.conn.close()).await {
            tracing::debug!(error = %e, "the lease connection did not close cleanly");
        }
    }
}

#[cfg(test)]
mod tests {
    use airlock_testkit::Postgres;

    use crate::{Ledger, LedgerConfig};

    /// It is the server that has to notice a leader whose machine is gone, so it is the
    /// server's keepalives that are set, for this session, whatever its own settings say.
    #[tokio::test]
    async fn the_server_looks_often_whether_the_holder_of_the_lock_is_there() -> anyhow::Result<()>
    {
        let postgres = Postgres::start().await?;
        let ledger = Ledger::connect(&LedgerConfig::from_url(&postgres.url()), "test").await?;
        let mut lease = ledger.lease_connection("a").await?;
        let mut told = Vec::new();
        for setting in ["idle", "interval", "count"] {
            let sql = format!("SHOW tcp_keepalives_{setting}");
            let value: String = sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
                .fetch_one(&mut lease.conn)
                .await?;
            told.push(value);
        }
        // Gone for good after 5 + 3 × 2 seconds of silence.
        assert_eq!(told, ["5", "2", "3"]);
        Ok(())
    }
}
