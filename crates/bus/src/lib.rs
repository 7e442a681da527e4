//! NATS: the only crate that knows subjects, streams and consumers.
//!
//! Everything on the bus is losable: the ledger has the truth, and this crate makes
//! losing cheap. Three things must stay true here:
//!
//! 1. Whoever publishes learns whether a message *surely did not* go out or only *may*
//!    have ([`PublishError::is_ambiguous`]); nothing is repeated blindly.
//! 2. An acknowledgement reaches only the message it was meant for, also after a wiped
//!    or rewound stream has given its number to another one.
//! 3. No message waits for its AckWait because somebody else died or a connection broke:
//!    exclusive readers open a new generation of their consumer instead
//!    ([`Bus::take_over_consumer`]).
//!
//! The dead-letter sink ([`DeadLetters`]) is a trait, so that this crate needs no Postgres.

mod acks;
mod bus;
mod config;
mod consumer;
mod counters;
mod delivery;
mod error;
mod generation;
mod leaders;
mod link;
mod publish;
mod settle;
pub mod subjects;
mod subscribe;
mod tracker;
mod wake_up;

pub use airlock_settings::{Secret, SecretUrl};
pub use bus::Bus;
pub use config::BusConfig;
pub use consumer::Consumer;
pub use counters::{Counters, CountersSnapshot};
pub use delivery::{Delivery, MessageKey};
pub use error::{BoxError, BusError, PublishError};
pub use leaders::LeadersSeen;
pub use publish::Outgoing;
pub use settle::{DeadLetters, DeadMessage, Outcome, Settled, Settler};
pub use subjects::{StreamName, Subject};
pub use subscribe::{Incoming, Subscription};
pub use wake_up::WakeUps;
