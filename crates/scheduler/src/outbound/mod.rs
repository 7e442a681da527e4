//! What follows a commit: dispatches to workers, and reports about workers to operators.

pub(crate) mod dispatch;
pub(crate) mod duplicate_workers;
pub(crate) mod worker_log;
