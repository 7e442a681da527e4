//! What can end an election.

use airlock_ledger::{Failure, LedgerError};
use airlock_model::Shard;

/// The election cannot go on: not because Postgres is away, which is waited out, but
/// because it answers and refuses (no such database, no such table, no rights).
#[derive(Debug, thiserror::Error)]
pub enum ElectionError {
    #[error("standing for the leadership of shard {}: {source}", shard.0)]
    Ledger {
        shard: Shard,
        #[source]
        source: LedgerError,
    },
}

impl ElectionError {
    /// What the caller may do about it.
    pub fn failure(&self) -> Failure {
        match self {
            Self::Ledger { source, .. } => source.failure(),
        }
    }
}
