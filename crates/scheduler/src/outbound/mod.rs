//! What follows a commit: dispatches to workers, and reports about workers to operators.

pub(crate) mod announce;
pub(crate) mod control;
pub(crate) mod direct_dispatch;
pub(crate) mod dispatch;
pub(crate) mod duplicate_workers;
pub(crate) mod worker_log;
