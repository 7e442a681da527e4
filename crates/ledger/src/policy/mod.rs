//! What the policy keeps in the ledger: bundles, the kernels' status, strict velocity.

pub(crate) mod bundles;
pub(crate) mod kernels;
pub(crate) mod velocity;
