//! What the election over Postgres needs of it: an advisory lock on a connection of its own.
//!
//! The lock lives and dies with its session, so the connection never belongs to a pool:
//! a pool would recycle it and the lock with it. Terms and epochs are the same whatever
//! holds the lease: see [`terms`](crate::ops::terms).

use std::time::Duration;

use airlock_model::{Epoch, Shard, Timestamp};
use sqlx::postgres::{PgListener, PgPoolOptions};
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

/// What the sessions that try the lock are called, before their instance.
const LEASE_NAME: &str = "airlock-lease-";

/// Where it is told that a lock is free; the message is the lock's key.
const RELEASED: &str = "airlock_leader_lock";

/// The session that holds a lock, as another sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockHolder {
    pub instance: String,
    pub pid: i32,
    /// When its session began; `None` when our role may not know, and may not end it.
    pub began: Option<Timestamp>,
    /// The ledger's time of this answer.
    pub at: Timestamp,
    /// Since the term was renewed, by the ledger's clock; `None`: nobody ever led.
    pub renewed_ago: Option<Duration>,
}

/// Hears when a lock is free. Without it a standby finds out by trying.
#[derive(Debug)]
pub struct LockReleases {
    listener: PgListener,
}

impl LockReleases {
    /// Until the lock is told to be free. An error ends the connection.
    pub async fn wait_for_release(&mut self, key: i64) -> Result<(), LedgerError> {
        loop {
            let told = self.listener.recv().await.context("waiting for the lock")?;
            if told.payload() == key.to_string() {
                return Ok(());
            }
        }
    }
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
            .application_name(&format!("{LEASE_NAME}{instance}"))
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

    /// Opens the session that hears of released locks.
    pub async fn listen_for_releases(&self, instance: &str) -> Result<LockReleases, LedgerError> {
        const DOING: &str = "listening for released locks";
        let name = format!("airlock-listen-{instance}");
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(self.op_timeout)
            .connect_lazy_with(self.options.clone().application_name(&name));
        let listener = async {
            let mut listener = PgListener::connect_with(&pool).await?;
            listener.listen(RELEASED).await?;
            Ok(listener)
        };
        let listener = with_timeout(self.op_timeout, DOING, listener).await?;
        Ok(LockReleases { listener })
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

    /// Asks the lock's own session for anything: while it answers, it holds its locks.
    pub async fn ping(&mut self, limit: Duration) -> Result<(), LedgerError> {
        let ping = sqlx::query("SELECT 1").execute(&mut self.conn);
        with_timeout(limit, "pinging the session with the leader lock", ping).await?;
        Ok(())
    }

    /// Who holds the lock, and how long ago the term of `shard` was renewed. `None`: nobody,
    /// or nobody who is known.
    pub async fn find_lock_holder(
        &mut self,
        key: i64,
        shard: Shard,
        limit: Duration,
    ) -> Result<Option<LockHolder>, LedgerError> {
        let bits = key.cast_unsigned();
        let row = with_timeout(
            limit,
            "looking for the holder of the leader lock",
            sqlx::query(
                "SELECT a.pid, a.application_name, a.backend_start, clock_timestamp(),
                        extract(epoch FROM clock_timestamp() - r.renewed_at)::float8
                 FROM pg_locks l
                 JOIN pg_stat_activity a ON a.pid = l.pid
                 LEFT JOIN leader_renewal r ON r.shard = $3
                 WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
                   AND l.classid = $1::text::oid AND l.objid = $2::text::oid
                   AND l.database = a.datid AND a.datname = current_database()",
            )
            .bind((bits >> 32).to_string())
            .bind((bits & 0xffff_ffff).to_string())
            .bind(shard.0 as i16)
            .fetch_optional(&mut self.conn),
        )
        .await?;
        let Some(row) = row else { return Ok(None) };
        let read = || -> Result<Option<LockHolder>, sqlx::Error> {
            let name: String = row.try_get(1)?;
            let Some(instance) = name.strip_prefix(LEASE_NAME) else {
                return Ok(None);
            };
            Ok(Some(LockHolder {
                instance: instance.to_owned(),
                pid: row.try_get(0)?,
                began: row.try_get::<Option<Ts>, _>(2)?.map(|t| t.0),
                at: row.try_get::<Ts, _>(3)?.0,
                renewed_ago: row
                    .try_get::<Option<f64>, _>(4)?
                    .map(|s| Duration::try_from_secs_f64(s).unwrap_or_default()),
            }))
        };
        read().context("reading the holder of the leader lock")
    }

    /// Ends every session of the holder's instance that began before it was looked for; the
    /// number of them. Their locks are free and their transactions rolled back when the
    /// server has noticed, which is at once.
    pub async fn terminate_sessions(
        &mut self,
        holder: &LockHolder,
        limit: Duration,
    ) -> Result<u64, LedgerError> {
        let ended: Vec<bool> = with_timeout(
            limit,
            "ending the sessions of a leader that hangs",
            // A role that may not see when another's session began may not end it either.
            sqlx::query_scalar(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                 WHERE right(application_name, length($1) + 1) = '-' || $1
                   AND starts_with(application_name, 'airlock-')
                   AND pid <> pg_backend_pid()
                   AND coalesce(backend_start, '-infinity') <= $2",
            )
            .bind(&holder.instance)
            .bind(Ts(holder.at))
            .fetch_all(&mut self.conn),
        )
        .await?;
        Ok(ended.into_iter().filter(|ended| *ended).count() as u64)
    }

    /// Frees the lock, tells those who wait for it, and ends the session.
    pub async fn unlock_and_close(mut self, key: i64, limit: Duration) {
        let unlock = sqlx::query("SELECT pg_advisory_unlock($1), pg_notify($2, $3)")
            .bind(key)
            .bind(RELEASED)
            .bind(key.to_string())
            .execute(&mut self.conn);
        if let Err(e) = with_timeout(limit, "freeing the leader lock", unlock).await {
            tracing::debug!(error = %e, "the leader lock goes with its session");
        }
        self.release(limit).await;
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
