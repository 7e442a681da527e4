//! The states a job went through, put together from the times in its rows.
//!
//! What must stay true: the past runs and the current one are read by one statement.
//! Read one after the other, a run that is re-queued in between would stand in the
//! history twice, or not at all.

use airlock_model::{JobState, Timestamp};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::error::{ErrorContext, LedgerError};
use crate::jobs::query::JobView;
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
     past.running, past.ended, past.outcomes, past.reasons, asked.held, asked.resumed_at, asked.reasons, \
     asked.resolution";

/// How many [`COLUMNS`] there are.
pub(crate) const WIDTH: usize = 12;

/// Where [`COLUMNS`] come from; `r` is the job's request row.
pub(crate) const JOIN: &str = "CROSS JOIN LATERAL (\
     SELECT array_agg(attempt) AS attempts, array_agg(worker_id) AS workers, \
            array_agg(scheduled_at) AS scheduled, array_agg(dispatched_at) AS dispatched, \
            array_agg(running_at) AS running, array_agg(ended_at) AS ended, \
            array_agg(outcome) AS outcomes, array_agg(reason) AS reasons \
     FROM (SELECT * FROM job_attempt a WHERE a.job_id = r.job_id \
           ORDER BY a.ended_at, a.attempt) AS runs) AS past \
     CROSS JOIN LATERAL (\
     SELECT array_agg(requested_at) AS held, array_agg(resumed_at) AS resumed_at, array_agg(reason) AS reasons, \
            array_agg(decided_reason) AS resolution \
     FROM (SELECT p.requested_at, p.reason, p.decided_reason, \
                  CASE WHEN p.status = 8 THEN p.decided_at ELSE p.approved_at END AS resumed_at \
           FROM approval p WHERE p.job_id = r.job_id ORDER BY p.round) AS rounds) AS asked";

/// When the current or last run took its states.
pub(crate) struct Times {
    pub held: Option<Timestamp>,
    pub scheduled: Option<Timestamp>,
    pub dispatched: Option<Timestamp>,
    pub running: Option<Timestamp>,
}

/// Reads the history; [`COLUMNS`] begin at `first`.
pub(crate) fn history_from_row(
    view: &JobView,
    times: Times,
    row: &PgRow,
    first: usize,
) -> Result<Vec<HistoryEntry>, LedgerError> {
    let mut history = History::default();
    history.push(JobState::Pending, Some(view.created_at), 0, None, None);
    let mut rounds = approval_rounds_from_row(row, first + 8).context("reading past approvals")?;
    if rounds.is_empty() {
        // Held by a version that kept no requests.
        rounds.extend(times.held.map(|held| ApprovalRound {
            held,
            resumed_at: None,
            reason: view.decision_reason.clone().unwrap_or_default(),
            resolution: None,
        }));
    }
    let mut rounds = rounds.into_iter().peekable();
    for run in past_runs_from_row(row, first).context("reading past attempts")? {
        while let Some(round) =
            rounds.next_if(|round| run.scheduled.is_some_and(|at| round.held < at))
        {
            history.push_approval_round(round, run.attempt.saturating_sub(1));
        }
        history.push_run(
            run.attempt,
            Some(run.worker),
            run.scheduled,
            run.dispatched,
            run.running,
        );
        history.push(
            JobState::Pending,
            Some(run.ended),
            run.attempt,
            None,
            Some(run.reason),
        );
    }
    let begun = if times.scheduled.is_some() {
        view.attempt.saturating_sub(1)
    } else {
        view.attempt
    };
    for round in rounds {
        history.push_approval_round(round, begun);
    }
    history.push_run(
        view.attempt,
        view.worker_id.clone(),
        times.scheduled,
        times.dispatched,
        times.running,
    );
    if view.state.is_final() {
        history.push(
            view.state,
            view.finished_at,
            view.attempt,
            view.worker_id.clone(),
            view.reason.clone(),
        );
    }
    Ok(history.0)
}

struct PastRun {
    attempt: u32,
    worker: String,
    scheduled: Option<Timestamp>,
    dispatched: Option<Timestamp>,
    running: Option<Timestamp>,
    ended: Timestamp,
    reason: String,
}

/// A time in which people were asked.
struct ApprovalRound {
    held: Timestamp,
    /// When it was PENDING again, if it was.
    resumed_at: Option<Timestamp>,
    reason: String,
    resolution: Option<String>,
}

fn approval_rounds_from_row(row: &PgRow, first: usize) -> Result<Vec<ApprovalRound>, sqlx::Error> {
    let Some(held) = row.try_get::<Option<Vec<Ts>>, _>(first)? else {
        return Ok(Vec::new());
    };
    let resumed_at: Vec<Option<Ts>> = row.try_get(first + 1)?;
    let reasons: Vec<String> = row.try_get(first + 2)?;
    let resolutions: Vec<Option<String>> = row.try_get(first + 3)?;
    Ok(held
        .into_iter()
        .zip(resumed_at)
        .zip(reasons.into_iter().zip(resolutions))
        .map(|((held, resumed_at), (reason, resolution))| ApprovalRound {
            held: held.0,
            resumed_at: resumed_at.map(|t| t.0),
            reason,
            resolution,
        })
        .collect())
}

fn past_runs_from_row(row: &PgRow, first: usize) -> Result<Vec<PastRun>, sqlx::Error> {
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
    let descriptions = workers.into_iter().zip(outcomes).zip(reasons);
    Ok(attempts
        .into_iter()
        .zip(times)
        .zip(descriptions)
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
                    reason: format!("{outcome}: {reason}"),
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
            // The clocks of worker, leader and ledger differ a little; the order does not.
            let at = self.0.last().map_or(at, |last| at.max(last.at));
            self.0.push(HistoryEntry {
                state,
                at,
                attempt,
                worker_id,
                reason,
            });
        }
    }

    /// A round that follows another without a pause is the same wait, asked anew.
    fn push_approval_round(&mut self, round: ApprovalRound, attempt: u32) {
        let held = JobState::ApprovalRequired;
        if self.0.last().is_none_or(|last| last.state != held) {
            self.push(held, Some(round.held), attempt, None, Some(round.reason));
        }
        self.push(
            JobState::Pending,
            round.resumed_at,
            attempt,
            None,
            round.resolution,
        );
    }

    fn push_run(
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
