//! The leader's writes, each under the fence of its epoch.

pub(crate) mod commit;
pub(crate) mod fence;
pub(crate) mod moves;
pub(crate) mod output;
pub(crate) mod stale;
pub(crate) mod writer;
