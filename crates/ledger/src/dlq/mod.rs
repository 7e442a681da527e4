//! The dead-letter queue: entries, their retry, and how many are open.

pub(crate) mod counts;
pub(crate) mod dead_letters;
pub(crate) mod retry;
