//! The leader's side of the output policy: verdicts written with the end of a job, scans
//! that are owed, verdicts that come after the end, and rescans.
//!
//! What must stay true: a job's own row holds only what whoever may see the job may read.
//! The original of what is held, masked or quarantined is in `job_output` and leaves it
//! through a reviewer alone. Without an output policy nothing here is written or read.

mod evidence;
pub(crate) mod pieces;
pub(crate) mod policy;
pub(crate) mod record;
pub(crate) mod rescans;
pub(crate) mod scans;
