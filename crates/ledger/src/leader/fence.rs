//! What only a leader may write beside its rounds, each under the fence of its term.
//!
//! Every write here is one transaction that share-locks the leadership row of its epoch
//! before anything else (see [`writer`](crate::leader::writer) for why that lock). A leader that
//! was replaced while it stood still finds nothing to lock: it gets
//! [`LedgerError::StaleEpoch`], nothing is written, and [`LeaderLedger::wait_until_replaced`] says so
//! to whoever runs the term.

use std::ops::Deref;
use std::sync::Arc;

use airlock_model::{Epoch, Shard};
use sqlx::PgConnection;
use tokio::sync::watch;

use crate::Ledger;
use crate::error::{ErrorContext, LedgerError};

/// The ledger in the hands of a shard's leader. Reading is as with any [`Ledger`]; cheap
/// to clone.
#[derive(Debug, Clone)]
pub struct LeaderLedger {
    ledger: Ledger,
    pub(crate) shard: Shard,
    pub(crate) epoch: Epoch,
    replaced: Arc<watch::Sender<bool>>,
}

impl Deref for LeaderLedger {
    type Target = Ledger;

    fn deref(&self) -> &Ledger {
        &self.ledger
    }
}

impl Ledger {
    /// The writes of the leader of `shard` in this term.
    pub fn as_leader(&self, shard: Shard, epoch: Epoch) -> LeaderLedger {
        LeaderLedger {
            ledger: self.clone(),
            shard,
            epoch,
            replaced: Arc::new(watch::Sender::new(false)),
        }
    }
}

/// Begins what a transaction does under the fence: nothing, unless the term leads. Who
/// writes to the two logs says so before it has a number, so that readers know whom to wait
/// for (see [`changes`](crate::log::changes)).
pub(crate) fn fence_sql(shard: Shard, epoch: Epoch) -> String {
    let (shard, epoch) = (shard.0, epoch.0);
    format!(
        "{}; SELECT 1 FROM leadership WHERE shard = {shard} AND epoch = {epoch} FOR SHARE",
        crate::log::changes::ANNOUNCE
    )
}

impl LeaderLedger {
    /// Until a write was refused because a later term leads.
    pub async fn wait_until_replaced(&self) {
        let mut replaced = self.replaced.subscribe();
        // The sender lives as long as this.
        let _ = replaced.wait_for(|replaced| *replaced).await;
    }

    pub(crate) fn mark_replaced(&self) -> LedgerError {
        self.replaced.send_replace(true);
        LedgerError::StaleEpoch {
            shard: self.shard.0,
            epoch: self.epoch.0,
        }
    }

    /// Does `work` in one transaction of this term, within the time limit, and commits it.
    pub(crate) async fn run_fenced<T>(
        &self,
        doing: &'static str,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, LedgerError>,
    ) -> Result<T, LedgerError> {
        let all = async {
            let mut tx = self.ledger.pool.begin().await.context(doing)?;
            let fence = sqlx::raw_sql(sqlx::AssertSqlSafe(fence_sql(self.shard, self.epoch)))
                .fetch_optional(&mut *tx)
                .await
                .context(doing)?;
            if fence.is_none() {
                return Err(self.mark_replaced());
            }
            let done = work(&mut tx).await?;
            tx.commit().await.context(doing)?;
            Ok(done)
        };
        match tokio::time::timeout(self.ledger.op_timeout, all).await {
            Ok(done) => done,
            Err(_) => Err(LedgerError::timeout(doing, self.ledger.op_timeout)),
        }
    }
}
