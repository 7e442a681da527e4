//! What the end of a job means to its saga. Plain jobs mean nothing, which is the first thing
//! that is looked at.
//!
//! What must stay true: how the run ended decides, not the reason code, which may be the
//! worker's own; and a compensation neither records nor triggers anything.

use airlock_ledger::{RecordKind, SagaEffect};
use airlock_model::engine::{Assignment, QueuedJob};
use airlock_model::job::UndoWhen;
use airlock_model::{JobState, RunEnd, saga};

use crate::commit::plan::Ended;

/// The code of a success whose result was refused.
const RESULT_TOO_LARGE: &str = "result_too_large";

/// Of a job whose run ended it.
pub(super) fn effect_of_finish(
    ended: &Ended,
    assignment: &Assignment,
    end: RunEnd,
) -> Option<Box<SagaEffect>> {
    let began = end.may_have_begun() || assignment.attempt.before_this_run().0 > 0;
    effect(ended, Some(end), began)
}

/// Of a job that ended without a run under way.
pub(super) fn effect_of_close(ended: &Ended) -> Option<Box<SagaEffect>> {
    effect(ended, None, ended.attempt > 0)
}

/// Of a job whose run has succeeded and whose output is held.
pub(super) fn effect_of_held_success(job: &QueuedJob) -> Option<Box<SagaEffect>> {
    let spec = &job.spec;
    let undone = spec.workflow_id.is_some() && spec.compensation.is_some();
    (undone && !saga::is_compensation(spec)).then(|| {
        Box::new(SagaEffect {
            record: Some(RecordKind::Succeeded),
            trigger: None,
        })
    })
}

fn effect(ended: &Ended, end: Option<RunEnd>, began: bool) -> Option<Box<SagaEffect>> {
    let spec = &ended.job.spec;
    if spec.workflow_id.is_none() || saga::is_compensation(spec) {
        return None;
    }
    let fatal = end == Some(RunEnd::FailedFatal);
    let succeeded = end == Some(RunEnd::Succeeded) || (fatal && ended.code == RESULT_TOO_LARGE);
    let record = spec.compensation.as_ref().and_then(|undo| match undo.when {
        _ if succeeded => Some(RecordKind::Succeeded),
        UndoWhen::Attempted if began => Some(RecordKind::Attempted),
        UndoWhen::Attempted | UndoWhen::Succeeded => None,
    });
    let trigger = (fatal && ended.to == JobState::Failed).then(|| {
        let own_code = ended.code != RunEnd::FailedFatal.as_str();
        let why = if own_code { &ended.code } else { &ended.reason };
        let reason = format!("job {} failed fatally: {why}", ended.job.id);
        ("failed_fatal", reason)
    });
    let effect = SagaEffect { record, trigger };
    (!effect.is_empty()).then(|| Box::new(effect))
}
