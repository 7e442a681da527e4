//! How a job ended, and where its output is.

use bytes::Bytes;

use crate::error::JobError;

/// How a job ended.
#[derive(Debug)]
pub(crate) enum JobOutcome {
    Succeeded(Output),
    Failed(JobError),
    /// With the reason of the cancel.
    Cancelled(String),
    /// With the limit that was exceeded.
    TimedOut(String),
    /// Handed back: it never began.
    NotStarted,
}

/// Where a result is.
#[derive(Debug)]
pub(crate) enum Output {
    Inline(Bytes),
    Pointer(StagedOutput),
    /// Too large for a packet, and Redis could not be reached. The work is done all the
    /// same and must not be done again.
    Lost(String),
}

/// A result in Redis, and how to check that it is still the same.
#[derive(Debug)]
pub(crate) struct StagedOutput {
    pub pointer: String,
    pub sha256: Bytes,
    pub size: u64,
}
