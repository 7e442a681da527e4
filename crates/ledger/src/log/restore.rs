//! The cursors of change log and audit trail after a logical restore.
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
use crate::error::{Doing, LedgerError};

/// Entries renumbered in one statement.
const PAGE: i64 = 5_000;

/// A log and its cursor.
struct Log {
    table: &'static str,
    id: &'static str,
    cursor: &'static str,
    /// Which of its rows are this shard's; `$1` is the shard.
    of_shard: &'static str,
}

const CHANGES: Log = Log {
    table: "change_log",
    id: "seq",
    cursor: "change_cursor",
    of_shard: "shard = $1",
};

/// One for all shards, published by the first shard's leader.
const AUDIT: Log = Log {
    table: "audit_log",
    id: "id",
    cursor: "audit_cursor",
    of_shard: "$1 = 0",
};

/// Every transaction that can be seen has a lower number than this.
const NEXT: &str = "pg_snapshot_xmax(pg_current_snapshot())::text::bigint";

impl Log {
    fn is_foreign(&self) -> String {
        let Self {
            table,
            cursor,
            of_shard,
            ..
        } = self;
        format!(
            "SELECT coalesce((SELECT max(xid) FROM {table} WHERE {of_shard}) >= {NEXT}, false)
                 OR EXISTS (SELECT 1 FROM {cursor} WHERE {of_shard} AND xid >= {NEXT})"
        )
    }

    // An entry behind the cursor was published, unless its transaction is one of this
    // cluster and its id is above the cursor's: ids go on where the dump left them.
    fn renumber(&self) -> String {
        let Self {
            table,
            id,
            cursor,
            of_shard,
        } = self;
        format!(
            "WITH at AS MATERIALIZED (
                SELECT coalesce(max(xid), 0) AS xid, coalesce(max({id}), 0) AS id, {NEXT} AS next
                FROM {cursor} WHERE {of_shard}
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

    fn set_back(&self) -> String {
        let Self {
            id,
            cursor,
            of_shard,
            ..
        } = self;
        format!(
            "UPDATE {cursor} SET xid = 0, {id} = {} WHERE {of_shard}",
            i64::MAX
        )
    }
}

impl LeaderLedger {
    /// Makes the cursors fit the transactions of this cluster. To be called by a new
    /// leader before it reads or trims the logs. Says how many entries got new numbers.
    pub async fn recover_cursors(&self) -> Result<u64, LedgerError> {
        let mut renumbered = 0;
        for log in [CHANGES, AUDIT] {
            if self.shard != Shard(0) && log.cursor == AUDIT.cursor {
                continue;
            }
            let foreign: bool = self
                .bounded("comparing a cursor with the cluster", async {
                    sqlx::query_scalar(sqlx::AssertSqlSafe(log.is_foreign()))
                        .bind(self.shard.0 as i16)
                        .fetch_one(&self.pool)
                        .await
                })
                .await?;
            if !foreign {
                continue;
            }
            loop {
                let rows = self.fit(log.renumber()).await?;
                renumbered += rows;
                if rows == 0 {
                    break;
                }
            }
            self.fit(log.set_back()).await?;
        }
        Ok(renumbered)
    }

    async fn fit(&self, sql: String) -> Result<u64, LedgerError> {
        let doing = "fitting a cursor to the cluster";
        self.fenced(doing, async |conn| {
            let done = sqlx::query(sqlx::AssertSqlSafe(sql))
                .bind(self.shard.0 as i16)
                .execute(conn)
                .await
                .doing(doing)?;
            Ok(done.rows_affected())
        })
        .await
    }
}
