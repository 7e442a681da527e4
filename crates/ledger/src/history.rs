//! The states a job went through, put together from the times in its rows.
//!
//! What must stay true: the past runs and the current one are read by one statement.
//! Read one after the other, a run that is re-queued in between would stand in the
//! history twice, or not at all.

use airlock_model::{JobState, Timestamp};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::error::{Doing, LedgerError};
use crate::query::JobView;
use crate::ts::Ts;

/// A state the job was in, from when, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryEntry {
    pub state: JobState,
    pub at: Timestamp,
    /// 0 before the first run.
    pub attempt: u32,
    pub worker_id: Option<String>,
    pub reason: Option<String>,
}

/// Past runs as arrays, oldest first; all NULL when there are none.
pub(crate) const COLUMNS: &str = "past.attempts, past.workers, past.scheduled, past.dispatched, \
     past.running, past.ended, past.outcomes, past.reasons";

/// Where [`COLUMNS`] come from; `r` is the job's request row.
pub(crate) const JOIN: &str = "CROSS JOIN LATERAL (\
     SELECT array_agg(attempt) AS attempts, array_agg(worker_id) AS workers, \
            array_agg(scheduled_at) AS scheduled, array_agg(dispatched_at) AS dispatched, \
            array_agg(running_at) AS running, array_agg(ended_at) AS ended, \
            array_agg(outcome) AS outcomes, array_agg(reason) AS reasons \
     FROM (SELECT * FROM job_attempt a WHERE a.job_id = r.job_id \
           ORDER BY a.ended_at, a.attempt) AS runs) AS past";

/// When the current or last run took its states.
pub(crate) struct Times {
    pub held: Option<Timestamp>,
    pub scheduled: Option<Timestamp>,
    pub dispatched: Option<Timestamp>,
    pub running: Option<Timestamp>,
}

/// Reads the history; [`COLUMNS`] begin at `first`.
pub(crate) fn read(
    view: &JobView,
    times: Times,
    row: &PgRow,
    first: usize,
) -> Result<Vec<HistoryEntry>, LedgerError> {
    let mut h = History::default();
    h.push(JobState::Pending, Some(view.created_at), 0, None, None);
    for run in past(row, first).doing("reading past attempts")? {
        h.run(
            run.attempt,
            Some(run.worker),
            run.scheduled,
            run.dispatched,
            run.running,
        );
        h.push(
            JobState::Pending,
            Some(run.ended),
            run.attempt,
            None,
            Some(run.why),
        );
    }
    h.push(
        JobState::ApprovalRequired,
        times.held,
        view.attempt,
        None,
        view.decision_reason.clone(),
    );
    h.run(
        view.attempt,
        view.worker_id.clone(),
        times.scheduled,
        times.dispatched,
        times.running,
    );
    if view.state.is_final() {
        h.push(
            view.state,
            view.finished_at,
            view.attempt,
            view.worker_id.clone(),
            view.reason.clone(),
        );
    }
    Ok(h.0)
}

struct PastRun {
    attempt: u32,
    worker: String,
    scheduled: Option<Timestamp>,
    dispatched: Option<Timestamp>,
    running: Option<Timestamp>,
    ended: Timestamp,
    why: String,
}

fn past(row: &PgRow, first: usize) -> Result<Vec<PastRun>, sqlx::Error> {
    let Some(attempts) = row.try_get::<Option<Vec<i32>>, _>(first)? else {
        return Ok(Vec::new());
    };
    let workers: Vec<String> = row.try_get(first + 1)?;
    let scheduled: Vec<Option<Ts>> = row.try_get(first + 2)?;
    let dispatched: Vec<Option<Ts>> = row.try_get(first + 3)?;
    let running: Vec<Option<Ts>> = row.try_get(first + 4)?;
    let ended: Vec<Ts> = row.try_get(first + 5)?;
    let outcomes: Vec<String> = row.try_get(first + 6)?;
    let reasons: Vec<String> = row.try_get(first + 7)?;
    let times = scheduled
        .into_iter()
        .zip(dispatched)
        .zip(running)
        .zip(ended);
    let words = workers.into_iter().zip(outcomes).zip(reasons);
    Ok(attempts
        .into_iter()
        .zip(times)
        .zip(words)
        .map(
            |(
                (attempt, (((scheduled, dispatched), running), ended)),
                ((worker, outcome), reason),
            )| {
                PastRun {
                    attempt: u32::try_from(attempt).unwrap_or(0),
                    worker,
                    scheduled: scheduled.map(|t| t.0),
                    dispatched: dispatched.map(|t| t.0),
                    running: running.map(|t| t.0),
                    ended: ended.0,
                    why: format!("{outcome}: {reason}"),
                }
            },
        )
        .collect())
}

/// Puts states in order; a time that is missing is a state that was never seen.
#[derive(Default)]
struct History(Vec<HistoryEntry>);

impl History {
    fn push(
        &mut self,
        state: JobState,
        at: Option<Timestamp>,
        attempt: u32,
        worker_id: Option<String>,
        reason: Option<String>,
    ) {
        if let Some(at) = at {
            self.0.push(HistoryEntry {
                state,
                at,
                attempt,
                worker_id,
                reason,
            });
        }
    }

    fn run(
        &mut self,
        attempt: u32,
        worker: Option<String>,
        scheduled: Option<Timestamp>,
        dispatched: Option<Timestamp>,
        running: Option<Timestamp>,
    ) {
        let steps = [
            (JobState::Scheduled, scheduled),
            (JobState::Dispatched, dispatched),
            (JobState::Running, running),
        ];
        for (state, at) in steps {
            self.push(state, at, attempt, worker.clone(), None);
        }
    }
}
