//! What every crate needs, written once: one grammar for durations, one kind of secret, one
//! "did you mean", one backoff, one way to lock a mutex.
//!
//! What must stay true: it is a leaf. It depends on no crate of ours, knows neither files
//! nor sockets nor the clock, and so anybody may use it, the pure crates included.

mod backoff;
mod secret;
mod sync;

pub mod duration;
pub mod hint;

pub use backoff::Backoff;
pub use secret::{MASK, Secret, SecretUrl, mask_url, with_secrets_revealed};
pub use sync::lock;
