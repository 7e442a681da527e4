//! The commit loop: the one place where the engine decides and the leader writes.

pub(crate) mod committer;
pub(crate) mod handle;
pub(crate) mod locked_rows;
pub(crate) mod on_error;
pub(crate) mod payload_cache;
pub(crate) mod plan;
pub(crate) mod reload;
pub(crate) mod result_gate;
pub(crate) mod sagas;
