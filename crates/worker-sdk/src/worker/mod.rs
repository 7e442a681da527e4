//! One worker process: how it is built and configured, what it goes by, and its life from
//! the first connection to the last handshake.

pub(crate) mod builder;
pub(crate) mod clock;
pub(crate) mod config;
mod environment;
mod identity;
mod lifecycle;
mod lineage;
pub(crate) mod shared;
pub(crate) mod signing;
