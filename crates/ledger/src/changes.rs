//! The change log: what others must hear of, and how far it has been told.

use airlock_model::{Epoch, JobId, Shard};

use crate::Ledger;
use crate::error::LedgerError;

/// A place in the log. Ordered by transaction, then by sequence: a transaction that
/// committed late has a high sequence of an old transaction, and reading stops before
/// the oldest one still under way, so nothing is jumped over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ChangePosition {
    pub xid: i64,
    pub seq: i64,
}

/// One transaction's changes.
#[derive(Debug, Clone)]
pub struct Change {
    pub position: ChangePosition,
    pub job_ids: Vec<JobId>,
}

impl Ledger {
    /// What was logged after `after` and can no longer be preceded by anything.
    pub async fn changes(
        &self,
        shard: Shard,
        after: ChangePosition,
        limit: u32,
    ) -> Result<Vec<Change>, LedgerError> {
        let rows: Vec<(i64, i64, Vec<String>)> = self
            .bounded("reading the change log", async {
                sqlx::query_as(
                    "SELECT xid, seq, job_ids FROM change_log
                     WHERE (xid, seq) > ($2, $3) AND shard = $1
                       AND xid < pg_snapshot_xmin(pg_current_snapshot())::text::bigint
                     ORDER BY xid, seq LIMIT $4",
                )
                .bind(shard.0 as i16)
                .bind(after.xid)
                .bind(after.seq)
                .bind(i64::from(limit))
                .fetch_all(&self.pool)
                .await
            })
            .await?;
        rows.into_iter()
            .map(|(xid, seq, ids)| {
                Ok(Change {
                    position: ChangePosition { xid, seq },
                    job_ids: ids
                        .into_iter()
                        .map(|id| JobId::new(id).map_err(|e| LedgerError::Corrupt(e.to_string())))
                        .collect::<Result<_, _>>()?,
                })
            })
            .collect()
    }

    /// How far the log has been told, by any leader before.
    pub async fn change_cursor(&self, shard: Shard) -> Result<ChangePosition, LedgerError> {
        let row: Option<(i64, i64)> = self
            .bounded("reading the change cursor", async {
                sqlx::query_as("SELECT xid, seq FROM change_cursor WHERE shard = $1")
                    .bind(shard.0 as i16)
                    .fetch_optional(&self.pool)
                    .await
            })
            .await?;
        Ok(
            row.map_or_else(ChangePosition::default, |(xid, seq)| ChangePosition {
                xid,
                seq,
            }),
        )
    }

    /// Moves the cursor forward, if `epoch` still leads; never back.
    pub async fn advance_cursor(
        &self,
        shard: Shard,
        epoch: Epoch,
        to: ChangePosition,
    ) -> Result<(), LedgerError> {
        self.bounded("moving the change cursor", async {
            sqlx::query(
                "INSERT INTO change_cursor (shard, xid, seq)
                 SELECT $1, $3, $4 FROM leadership WHERE shard = $1 AND epoch = $2
                 ON CONFLICT (shard) DO UPDATE SET xid = excluded.xid, seq = excluded.seq
                 WHERE (change_cursor.xid, change_cursor.seq) < (excluded.xid, excluded.seq)",
            )
            .bind(shard.0 as i16)
            .bind(epoch.0 as i64)
            .bind(to.xid)
            .bind(to.seq)
            .execute(&self.pool)
            .await
        })
        .await?;
        Ok(())
    }
}
