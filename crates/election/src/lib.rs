//! Who leads a shard.
//!
//! A lease says who *should* lead: an advisory lock in Postgres ([`postgres`]) or a key in
//! etcd ([`etcd`]), behind one pair of traits ([`Candidacy`], [`Lease`]). The epoch, raised in
//! the ledger by whoever wins, says whose writes *count*. What must stay true: a
//! [`Leadership`] exists only after its epoch was raised, so a leader that was paused, cut
//! off or replaced can still believe whatever it likes: its writes are refused.
//!
//! Rejected: waiting inside `pg_advisory_lock` (the waiter holds back vacuum, and a
//! frozen waiter inherits the lock), a pooled connection (the pool recycles the session
//! and the lock with it), and trusting the lease alone (a paused leader wakes and
//! writes).

mod config;
mod elector;
mod error;
mod etcd;
mod leadership;
mod lease;
mod postgres;

pub use config::{Backend, ElectionConfig, EtcdConfig, OnLoss};
pub use elector::{Elector, ElectorStatus};
pub use error::ElectionError;
pub use etcd::EtcdError;
pub use leadership::Leadership;
pub use lease::{Acquired, Candidacy, Lease, LeaseError, Renewal};
