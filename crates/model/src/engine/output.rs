//! What the output policy makes of a run that succeeded.
//!
//! A verdict decides the state in which the job ends. Without one, and where a rule fails
//! closed, the output is held: the run is over and its worker free, and the job waits in
//! the ledger as RUNNING for the verdict or a cancel, and for nothing else.

use std::sync::Arc;

use super::{Assignment, Effect, Engine, Job, Phase, QueuedJob, ResultReport, Step};
use crate::ids::{DispatchId, JobId};
use crate::output::{CheckedOutput, OUTPUT_QUARANTINED, OutputStatus};
use crate::run_end::RunEnd;
use crate::state::JobState;
use crate::time::Timestamp;

impl Engine {
    /// Holds the output of a run that succeeded, when its verdict says so.
    pub(super) fn hold_output(
        &mut self,
        step: &mut Step<'_>,
        report: &ResultReport,
        queued: &Arc<QueuedJob>,
        assignment: &Assignment,
    ) -> bool {
        let held = |o: &&CheckedOutput| o.status() == OutputStatus::Held;
        let Some(output) = report.output.as_ref().filter(held) else {
            return false;
        };
        self.remove_job(&report.job);
        let (assignment, reason) = (assignment.clone(), output.reason.clone());
        self.insert_output_held(step.now, queued.clone(), assignment.clone(), reason.clone());
        step.effects.push(Effect::HoldOutput {
            job: queued.clone(),
            assignment,
            report: report.key,
            reason,
        });
        true
    }

    pub(super) fn insert_output_held(
        &mut self,
        now: Timestamp,
        queued: Arc<QueuedJob>,
        assignment: Assignment,
        reason: Arc<str>,
    ) {
        let phase = Phase::OutputHeld { assignment, reason };
        let id = queued.id.clone();
        let mut job = Job::new(now, queued, phase);
        job.since = now;
        self.jobs.insert(id, job);
    }

    /// Whether the output of this very run is held.
    pub(super) fn is_output_held(&self, id: &JobId, dispatch: DispatchId) -> bool {
        self.jobs.get(id).is_some_and(|job| match &job.phase {
            Phase::OutputHeld { assignment, .. } => assignment.dispatch == dispatch,
            Phase::Checking
            | Phase::Waiting { .. }
            | Phase::Sleeping { .. }
            | Phase::Held
            | Phase::Assigned(_) => false,
        })
    }

    /// The verdict on an output that is held ends its job. One that is held no longer was
    /// cancelled meanwhile.
    pub(super) fn handle_output_decided(
        &mut self,
        step: &mut Step<'_>,
        id: &JobId,
        dispatch: DispatchId,
        key: u64,
        output: &CheckedOutput,
    ) {
        if output.status() == OutputStatus::Held || !self.is_output_held(id, dispatch) {
            return;
        }
        let Some(job) = self.remove_job(id) else {
            return;
        };
        let Phase::OutputHeld { assignment, .. } = job.phase else {
            return;
        };
        let (code, reason) = code_and_reason(Some(output));
        step.effects.push(Effect::Finish {
            job: job.queued,
            assignment,
            end: RunEnd::Succeeded,
            to: final_state(RunEnd::Succeeded, Some(output)),
            code,
            reason,
            report: Some(key),
            missing: false,
        });
    }
}

/// Where a run's end leads. A failure stays one, whatever is in its output.
pub(super) fn final_state(end: RunEnd, output: Option<&CheckedOutput>) -> JobState {
    let quarantined = output.is_some_and(|o| o.status() == OutputStatus::Quarantined);
    if end == RunEnd::Succeeded && quarantined {
        JobState::OutputQuarantined
    } else {
        end.final_state()
    }
}

/// The code and the reason of a job whose run succeeded.
pub(super) fn code_and_reason(output: Option<&CheckedOutput>) -> (String, String) {
    match output.filter(|o| o.status() == OutputStatus::Quarantined) {
        Some(output) => (OUTPUT_QUARANTINED.to_owned(), output.reason.to_string()),
        None => (String::new(), String::new()),
    }
}
