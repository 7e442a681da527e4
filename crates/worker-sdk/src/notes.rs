//! What a job has to say besides its result, and what it has gathered on the way.

use std::collections::BTreeMap;

use airlock_proto::cap;

use crate::artifacts::Artifact;
use crate::constraints::Use;

/// Something that should be known while a job runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Note {
    Progress(Progress),
    Alert(Alert),
}

/// How far a job is, and perhaps what it has got so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Progress {
    pub job_id: String,
    pub trace_id: String,
    pub dispatch: Option<cap::DispatchIdentity>,
    pub started_us: i64,
    pub percent: i32,
    pub message: String,
    /// Where a partial result is; empty when there is none.
    pub result_ptr: String,
}

/// Something that whoever runs the worker should look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Alert {
    /// A word for programs.
    pub code: &'static str,
    pub job_id: String,
    pub topic: String,
    pub trace_id: String,
    pub words: String,
}

/// What most jobs never have, behind one lock.
#[derive(Debug, Default)]
pub(crate) struct Extras {
    pub artifacts: Vec<Artifact>,
    pub artifacts_begun: usize,
    pub artifact_bytes: u64,
    pub partials: u32,
    /// What was done about each constraint.
    pub uses: BTreeMap<&'static str, Use>,
}
