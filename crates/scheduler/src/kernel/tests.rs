//! The safety client against the real kernel: killed, hung, slow, and with Redis gone.

pub(super) mod bed;
mod breaker;
mod deciding;
mod questions;
mod tls;
