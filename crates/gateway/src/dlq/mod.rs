//! The dead-letter queue: which letters a request is about, and how many there are.

pub(crate) mod filter;
pub(crate) mod gauge;
