//! Who leads a shard.
//!
//! An advisory lock in Postgres says who *should* lead; the epoch, raised in the ledger
//! by whoever wins, says whose writes *count*. What must stay true: a [`Leadership`]
//! exists only after its epoch was raised, so a leader that was paused, cut off or
//! replaced can still believe whatever it likes: its writes are refused.
//!
//! Rejected: waiting inside `pg_advisory_lock` (the waiter holds back vacuum, and a
//! frozen waiter inherits the lock), a pooled connection (the pool recycles the session
//! and the lock with it), and trusting the lock alone (a paused leader wakes and
//! writes).

mod config;
mod elector;
mod error;
mod leadership;

pub use config::ElectionConfig;
pub use elector::Elector;
pub use error::ElectionError;
pub use leadership::Leadership;
