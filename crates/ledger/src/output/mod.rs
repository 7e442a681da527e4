//! What the output policy decided about jobs, as people read and review it. What the leader
//! writes about outputs is in its own transactions.
//!
//! What must stay true: the original of what is held, quarantined or redacted leaves the
//! ledger only through [`crate::Ledger::output_evidence`], which writes an audit entry, or
//! through a release.

pub(crate) mod read;
pub(crate) mod rescans;
pub(crate) mod review;
