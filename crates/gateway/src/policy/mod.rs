//! The policy as the gateway knows it: through the safety kernel, and as bundles in the
//! ledger. The gateway decides nothing by it.

pub(crate) mod bundle_check;
pub(crate) mod kernel;
pub(crate) mod kernel_status;
pub(crate) mod query;
