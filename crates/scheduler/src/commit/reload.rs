//! A job read from the ledger, as the engine takes it back.

use std::sync::Arc;
use std::time::Duration;

use airlock_ledger::LoadedJob;
use airlock_model::JobState;
use airlock_model::engine::{Assignment, RecoveredJob, RunLimits, RunLiveness};
use airlock_model::output::OUTPUT_HELD;

use crate::inbound::submissions;

/// The rule that limits how many of a job's kind are in flight.
fn limiting_rule(row: &LoadedJob) -> Option<Arc<str>> {
    let limited = row.constraints.as_ref()?.max_concurrent_jobs().is_some();
    row.rule_id.as_deref().filter(|_| limited).map(Arc::from)
}

/// A row as the engine takes it back.
pub fn to_recovered_job(
    row: LoadedJob,
    now: airlock_model::Timestamp,
    recovered: bool,
) -> RecoveredJob {
    let state = row.state;
    let assignment = match (&row.worker, &row.incarnation, row.dispatch_id) {
        (Some(worker), Some(incarnation), Some(dispatch)) => Some(Assignment {
            worker: worker.clone(),
            incarnation: incarnation.clone(),
            sdk: !incarnation.is_agent_protocol(),
            inline: !incarnation.is_agent_protocol(),
            dispatch,
            attempt: row.attempt,
            scheduled_at: row.scheduled_at.unwrap_or(now),
            dispatched_at: row.dispatched_at,
            started_at: row.running_at,
            accepted: row.running_at.is_some(),
            recovered,
            accept_by: now,
            followed: row.spec.is_followed(),
            liveness: RunLiveness::default(),
            constraints: row.constraints.clone(),
            addressing: incarnation.addressing(),
            limits: RunLimits {
                rule: limiting_rule(&row),
                ..RunLimits::default()
            },
        }),
        _ => None,
    };
    let held = row.reason_code.as_deref() == Some(OUTPUT_HELD) && state == JobState::Running;
    let output_held = held.then(|| Arc::from(row.reason.as_deref().unwrap_or_default()));
    let mut queued = submissions::to_queued_job(row);
    queued.attempt = queued.attempt.without_run_under_way(state);
    RecoveredJob {
        queued,
        state,
        assignment,
        silent_for: Duration::ZERO,
        output_held,
    }
}
