//! The safety client against the real kernel: killed, hung, slow, and with Redis gone.

mod bed;
mod breaker;
mod deciding;
mod tls;
