//! What the leader does on a timer: each task reads the ledger and does what is missing, so
//! a restart is the normal path.

pub(crate) mod approvals;
pub(crate) mod audit;
pub(crate) mod policy_poll;
pub(crate) mod reconciler;
pub(crate) mod replayer;
pub(crate) mod retention;
pub(crate) mod retry_budget;
pub(crate) mod snapshot;
pub(crate) mod upkeep;
