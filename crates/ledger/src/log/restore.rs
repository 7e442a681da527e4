//! The readers of change log and audit trail after a logical restore.
//!
//! A cursor names a transaction by its number, and so do the entries behind it. A dump
//! that is restored into another cluster takes those numbers along, while the cluster
//! counts its own: everything new would lie before the cursor, never be published, and be
//! removed as published. A leader therefore looks, before anything else reads the logs,
//! whether they know transactions that this cluster has not had yet. If so, entries that
//! were published get the number 0 and those that were not the number 1; both are below
//! every transaction, and the cursor goes between them.
//!
//! What must stay true: an entry that was not published is published. Those of which the
//! numbers do not tell are published again, which readers are used to.

use airlock_model::Shard;

use crate::LeaderLedger;
use crate::error::{ErrorContext, LedgerError};
use crate::log::readers::Log;

/// Entries renumbered in one statement.
const PAGE: i64 = 5_000;

/// A log and its readers.
struct LogTable {
    log: Log,
    table: &'static str,
    id: &'static str,
    /// Which of its rows are this shard's; `$1` is the shard.
    of_shard: &'static str,
}

const CHANGES: LogTable = LogTable {
    log: Log::Changes,
    table: "change_log",
    id: "seq",
    of_shard: "shard = $1",
};

/// One for all shards, published by the first shard's leader.
const AUDIT: LogTable = LogTable {
    log: Log::Audit,
    table: "audit_log",
    id: "id",
    of_shard: "$1 = 0",
};

/// Every transaction that can be seen has a lower number than this.
const NEXT: &str = "pg_snapshot_xmax(pg_current_snapshot())::text::bigint";

impl LogTable {
    /// Which readers are this shard's and this log's.
    fn readers_condition(&self) -> String {
        format!("log = '{}' AND {}", self.log.name(), self.of_shard)
    }

    fn is_foreign_sql(&self) -> String {
        let Self {
            table, of_shard, ..
        } = self;
        let readers = self.readers_condition();
        format!(
            "SELECT coalesce((SELECT max(xid) FROM {table} WHERE {of_shard}) >= {NEXT}, false)
                 OR EXISTS (SELECT 1 FROM log_reader WHERE {readers} AND xid >= {NEXT})"
        )
    }

    // An entry behind the cursor was published, unless its transaction is one of this
    // cluster and its id is above the cursor's: ids go on where the dump left them.
    fn renumber_sql(&self) -> String {
        let Self {
            table,
            id,
            of_shard,
            ..
        } = self;
        let readers = self.readers_condition();
        format!(
            "WITH at AS MATERIALIZED (
                SELECT coalesce(max(xid), 0) AS xid, coalesce(max(seq), 0) AS id, {NEXT} AS next
                FROM log_reader WHERE {readers} AND required
             ), judged AS (
                SELECT l.xid, l.{id} AS id, at.next,
                       (l.xid, l.{id}) <= (at.xid, at.id)
                       AND NOT (l.xid < at.next AND l.{id} > at.id) AS published
                FROM (SELECT xid, {id} FROM {table} WHERE {of_shard} AND xid > 1) AS l, at
             ), page AS MATERIALIZED (
                SELECT xid, id, published FROM judged
                WHERE published OR xid >= next LIMIT {PAGE}
             )
             UPDATE {table} AS l SET xid = CASE WHEN page.published THEN 0 ELSE 1 END
             FROM page WHERE l.xid = page.xid AND l.{id} = page.id"
        )
    }

    // What the others have read, the numbers do not tell: they rescan.
    fn reset_readers_sql(&self) -> String {
        format!(
            "UPDATE log_reader SET xid = 0, seq = {}, rescan = NOT required WHERE {}",
            i64::MAX,
            self.readers_condition()
        )
    }
}

impl LeaderLedger {
    /// Makes the cursors fit the transactions of this cluster. To be called by a new
    /// leader before it reads or trims the logs. Says how many entries got new numbers.
    pub async fn recover_cursors(&self) -> Result<u64, LedgerError> {
        let mut renumbered = 0;
        for log in [CHANGES, AUDIT] {
            if self.shard != Shard(0) && log.log == Log::Audit {
                continue;
            }
            let foreign: bool = self
                .with_timeout("comparing a cursor with the cluster", async {
                    sqlx::query_scalar(sqlx::AssertSqlSafe(log.is_foreign_sql()))
                        .bind(self.shard.0 as i16)
                        .fetch_one(&self.pool)
                        .await
                })
                .await?;
            if !foreign {
                continue;
            }
            loop {
                let rows = self.execute_on_shard(log.renumber_sql()).await?;
                renumbered += rows;
                if rows == 0 {
                    break;
                }
            }
            self.execute_on_shard(log.reset_readers_sql()).await?;
        }
        Ok(renumbered)
    }

    async fn execute_on_shard(&self, sql: String) -> Result<u64, LedgerError> {
        let doing = "fitting a cursor to the cluster";
        self.run_fenced(doing, async |conn| {
            let done = sqlx::query(sqlx::AssertSqlSafe(sql))
                .bind(self.shard.0 as i16)
                .execute(conn)
                .await
                .context(doing)?;
            Ok(done.rows_affected())
        })
        .await
    }
}
