//! What a backend of the election must do: give one candidate at a time a lease, and say
//! when it is over.
//!
//! A backend decides who *should* lead and nothing else. Terms, epochs and renewals are the
//! ledger's, for every backend alike, so none of them can let two leaders write.

use std::time::Duration;

use airlock_ledger::{Failure, LedgerError};
use async_trait::async_trait;
use tokio::time::Instant;

use crate::etcd::EtcdError;

/// Standing for a lease.
#[async_trait]
pub trait Candidacy: Send + Sync {
    /// One try; `None` while somebody else holds the lease. A caller may give up half way:
    /// what was won by then is given back by [`Candidacy::withdraw`], the next try, or by
    /// itself.
    async fn try_acquire(&mut self) -> Result<Option<Acquired>, LeaseError>;

    /// Until another try may be answered otherwise. It may return too early, and does not
    /// wait long: a backend may fail to tell.
    async fn wait_for_chance(&mut self);

    /// Gives back whatever a standby holds.
    async fn withdraw(&mut self);

    /// What keeps this candidate from replacing a leader that hangs, for its health.
    fn obstacle(&self) -> Option<String> {
        None
    }
}

/// A lease that was won.
pub struct Acquired {
    pub lease: Box<dyn Lease>,
    /// Whether the holder before was found hanging and ended by this candidate.
    pub ended_hung_leader: bool,
}

/// The right to lead, for as long as it is renewed.
#[async_trait]
pub trait Lease: Send + Sync {
    /// Asks for the lease to go on. A caller may give up half way and ask again.
    async fn renew(&mut self) -> Renewal;

    /// How often it is to be renewed.
    fn renewal_interval(&self) -> Duration;

    /// When it ends unless it is renewed, by this machine's monotonic clock. `None`: it lasts
    /// until it is found to be over.
    fn valid_until(&self) -> Option<Instant>;

    /// Gives it back; another may have it when this returns.
    async fn release(self: Box<Self>);
}

/// What came of a renewal.
#[derive(Debug)]
pub enum Renewal {
    Held,
    /// Nothing was heard: it may still be held.
    Missed(LeaseError),
    /// It is over, and somebody else may hold it.
    Lost(String),
}

/// What can go wrong with a lease.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error(transparent)]
    Etcd(#[from] EtcdError),
}

impl LeaseError {
    /// Whether the same again would fail again.
    pub fn is_fatal(&self) -> bool {
        match self {
            Self::Ledger(error) => error.failure() == Failure::Fatal,
            Self::Etcd(error) => error.is_fatal(),
        }
    }
}
