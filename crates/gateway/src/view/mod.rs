//! What the ledger holds, as clients see it.

pub(crate) mod diff;
pub(crate) mod explanation;
pub(crate) mod job;
pub(crate) mod output;
mod report;
pub(crate) mod saga;
