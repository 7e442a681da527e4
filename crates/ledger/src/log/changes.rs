//! The change log: what others must hear of, and how far it has been published.
//!
//! Entries are read in the order of their transactions, and none is ever skipped: reading
//! stops before the oldest transaction under way that may still write to a log. Which those
//! are, the locks say: whoever writes to a log locks it before it has a number (a single
//! statement by itself, everything else by [`ANNOUNCE`]) and until its entries are visible.
//! Whatever else is open, in this database or another, holds nothing up.

use std::time::Duration;

use airlock_model::{JobId, Shard};

use crate::Ledger;
use crate::error::{ErrorContext, LedgerError};
use crate::log::readers::{Log, LogEntry};

/// The first statement of every transaction of several that writes to the change log or the
/// audit trail. The lock excludes nobody.
pub(crate) const ANNOUNCE: &str = "LOCK TABLE change_log, audit_log IN ROW EXCLUSIVE MODE";

// Every transaction with a smaller number that writes to a log is over. A number below the
// snapshot's limit was given before the snapshot was taken, so its lock was there already
// when the locks are read; one that is not there any more was released after its entries
// became visible. So the entries must be read by a later statement, with a later snapshot.
// Locks show 32 bits of a number; it is within 2^31 of the limit.
const HORIZON: &str = r#"
WITH held AS MATERIALIZED (
    SELECT locktype, database, relation, mode, virtualtransaction, transactionid FROM pg_locks
), limits AS MATERIALIZED (
    SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS next
), numbers AS (
    SELECT x.transactionid::text::bigint AS xid
    FROM held w JOIN held x USING (virtualtransaction)
    WHERE w.locktype = 'relation' AND w.mode = 'RowExclusiveLock'
      AND w.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND w.relation IN ('change_log'::regclass, 'audit_log'::regclass)
      AND x.locktype = 'transactionid' AND x.mode = 'ExclusiveLock'
)
SELECT least(next, (SELECT min(next - (((next - xid + 2147483648) & 4294967295) - 2147483648))
                    FROM numbers))
FROM limits"#;

/// A place in a log. Ordered by transaction, then by sequence: a transaction that
/// committed late has a high sequence of an old transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LogPosition {
    pub xid: i64,
    pub seq: i64,
}

/// One transaction's changes.
#[derive(Debug, Clone)]
pub struct Change {
    pub job_ids: Vec<JobId>,
}

impl Ledger {
    /// A transaction that may write to the logs.
    pub(crate) async fn begin_logged(
        &self,
        doing: &'static str,
    ) -> Result<sqlx::Transaction<'static, sqlx::Postgres>, LedgerError> {
        let mut tx = self.pool.begin().await.context(doing)?;
        sqlx::raw_sql(ANNOUNCE)
            .execute(&mut *tx)
            .await
            .context(doing)?;
        Ok(tx)
    }

    /// The number below which no transaction can add to a log any more. Only for statements
    /// after this one.
    pub(crate) async fn log_horizon(&self) -> Result<i64, LedgerError> {
        self.with_timeout("asking who writes to the logs", async {
            sqlx::query_scalar(HORIZON).fetch_one(&self.pool).await
        })
        .await
    }
}

impl LogEntry for Change {
    const LOG: Log = Log::Changes;

    async fn read_after(
        ledger: &Ledger,
        shard: Shard,
        after: LogPosition,
        limit: u32,
    ) -> Result<Vec<(LogPosition, Self)>, LedgerError> {
        let horizon = ledger.log_horizon().await?;
        let rows: Vec<(i64, i64, Vec<String>)> = ledger
            .with_timeout("reading the change log", async {
                sqlx::query_as(
                    "SELECT xid, seq, job_ids FROM change_log
                     WHERE (xid, seq) > ($2, $3) AND shard = $1
                       AND xid < $5
                     ORDER BY xid, seq LIMIT $4",
                )
                .bind(shard.0 as i16)
                .bind(after.xid)
                .bind(after.seq)
                .bind(i64::from(limit))
                .bind(horizon)
                .fetch_all(&ledger.pool)
                .await
            })
            .await?;
        rows.into_iter()
            .map(|(xid, seq, ids)| {
                let job_ids = ids
                    .into_iter()
                    .map(|id| JobId::new(id).map_err(|e| LedgerError::Corrupt(e.to_string())))
                    .collect::<Result<_, _>>()?;
                Ok((LogPosition { xid, seq }, Change { job_ids }))
            })
            .collect()
    }

    async fn lag(
        ledger: &Ledger,
        shard: Shard,
        after: LogPosition,
    ) -> Result<Duration, LedgerError> {
        let micros: Option<i64> = ledger
            .with_timeout("reading the lag of the change log", async {
                sqlx::query_scalar(
                    "SELECT (extract(epoch FROM clock_timestamp() - at) * 1000000)::bigint
                     FROM change_log WHERE (xid, seq) > ($2, $3) AND shard = $1
                     ORDER BY xid, seq LIMIT 1",
                )
                .bind(shard.0 as i16)
                .bind(after.xid)
                .bind(after.seq)
                .fetch_optional(&ledger.pool)
                .await
            })
            .await?;
        Ok(lag_from_micros(micros))
    }
}

pub(crate) fn lag_from_micros(micros: Option<i64>) -> Duration {
    Duration::from_micros(micros.and_then(|us| u64::try_from(us).ok()).unwrap_or(0))
}
