//! The change log and the audit trail: what others must hear of, in order.

pub(crate) mod audit;
pub(crate) mod changes;
pub(crate) mod readers;
pub(crate) mod restore;
