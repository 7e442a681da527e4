//! Redis: the only crate that knows Redis keys.
//!
//! Redis makes duplicates cheap, keeps two processes from doing the same work, and
//! carries payloads too large for a packet. It never carries correctness: the ledger's
//! compare-and-set does. So two things must stay true here:
//!
//! 1. No caller waits for Redis longer than the configured bound, whether Redis is gone,
//!    hung or cut off. One failure switches everything to [`Mode::Local`]; a ping in the
//!    background switches back.
//! 2. A batch costs one round trip. Whatever is done for many messages or jobs is done
//!    in one script.

mod breaker;
mod config;
mod counters;
pub mod keys;
mod link;
mod local;
mod locks;
mod messages;
mod named;
mod owner;
mod payloads;
mod sagas;
mod scripts;
mod snapshot;
mod tls;
mod velocity;

pub use breaker::{Permit, SharedBreaker};
pub use config::GuardConfig;
pub use counters::{Counters, CountersSnapshot};
pub use keys::Keys;
pub use link::{Guard, GuardError, Mode};
pub use locks::JobLocks;
pub use named::NamedLock;
pub use owner::CLAIM_TTL;
pub use payloads::Head;
pub use velocity::{Counted, Velocity, VelocityCheck};
