//! What can end an election.

use airlock_model::Shard;

use crate::LeaseError;

/// The election cannot go on: not because a store is away, which is waited out, but because
/// it answers and refuses (no such database, no such table, no rights).
#[derive(Debug, thiserror::Error)]
#[error("standing for the leadership of shard {}: {source}", shard.0)]
pub struct ElectionError {
    pub shard: Shard,
    #[source]
    pub source: LeaseError,
}
