//! The gRPC clients of the safety kernel and of the output policy, for every service that
//! asks them.
//!
//! | module | what it has |
//! |---|---|
//! | [`config`] | where the service is, and whether plain text is allowed |
//! | [`client`] | the connection and one method per call, each within its deadline |
//! | [`output`] | the same for the output policy |
//! | [`batch`] | how many requests go into one call |
//! | [`error`] | why a call has no answer |
//!
//! What must stay true: a kernel that answers "not this request" is not an absent kernel
//! ([`KernelError::is_rejection`]). Otherwise one odd job could open the circuit breaker of
//! its caller, and with it the fail-open mode for everybody's jobs.
//!
//! What an absent kernel means is the caller's decision, so the circuit breaker, the fail
//! mode and the waiting are in the scheduler.

pub mod batch;
pub mod client;
pub mod config;
pub mod error;
pub mod output;

pub use client::KernelClient;
pub use config::{ConnectionConfig, Peer};
pub use error::{ConnectError, KernelError};
pub use output::OutputClient;
