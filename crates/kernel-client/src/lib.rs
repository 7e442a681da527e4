//! The gRPC client of the safety kernel, for every service that asks it.
//!
//! | module | what it has |
//! |---|---|
//! | [`config`] | where the kernel is, and whether plain text is allowed |
//! | [`client`] | the connection and one method per call, each within its deadline |
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

pub use client::KernelClient;
pub use config::ConnectionConfig;
pub use error::{ConnectError, KernelError};
