//! What to do about a saga.

use super::state::{CompensationState, RollbackMode, SagaEvent, SagaState, WrongState};
use crate::run_end::RunEnd;
use crate::state::JobState;
use crate::time::{Millis, Timestamp};

/// How often and how fast a compensation is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SagaLimits {
    /// Tries of one compensation in all.
    pub max_tries: u32,
    /// The pause before the second try; it doubles from there.
    pub first_pause_ms: Millis,
    pub longest_pause_ms: Millis,
}

impl Default for SagaLimits {
    fn default() -> Self {
        Self {
            max_tries: 3,
            first_pause_ms: 1_000,
            longest_pause_ms: 30_000,
        }
    }
}

impl SagaLimits {
    /// How long to wait after this many tries.
    fn pause_ms(&self, tries: u32) -> Millis {
        let factor = 1u64
            .checked_shl(tries.saturating_sub(1))
            .unwrap_or(u64::MAX);
        let pause = self.first_pause_ms.saturating_mul(factor);
        pause.min(self.longest_pause_ms)
    }
}

/// How a try ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TryEnd {
    Undone,
    Denied,
    Fatal,
    /// It failed in a way that another try may cure.
    Failed,
    /// The ledger has no such job.
    Gone,
}

/// What is known of the job of the last try.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TryStatus {
    Open,
    /// Open, and held for approval.
    Held,
    Over(TryEnd),
}

impl TryStatus {
    pub fn from_job(state: JobState, run_end: Option<RunEnd>) -> Self {
        match state {
            JobState::Pending | JobState::Scheduled | JobState::Dispatched | JobState::Running => {
                Self::Open
            }
            JobState::ApprovalRequired => Self::Held,
            JobState::Succeeded | JobState::OutputQuarantined => Self::Over(TryEnd::Undone),
            JobState::Denied => Self::Over(TryEnd::Denied),
            JobState::Failed if run_end == Some(RunEnd::FailedFatal) => Self::Over(TryEnd::Fatal),
            JobState::Failed | JobState::Timeout | JobState::Cancelled => {
                Self::Over(TryEnd::Failed)
            }
        }
    }
}

/// A job that can be undone, and how far that has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Rises in the order in which the jobs were done.
    pub id: i64,
    pub state: CompensationState,
    /// Tries begun, ever.
    pub tries: u32,
    /// Tries begun before somebody asked for more.
    pub tries_before: u32,
    /// When the next try begins, once the last one has failed.
    pub not_before: Option<Timestamp>,
    /// `None` before the first try.
    pub last_try: Option<TryStatus>,
    /// Why its last try ended so, in the job's words.
    pub try_reason: Option<String>,
}

/// A saga with all its records, oldest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saga {
    pub state: SagaState,
    pub mode: RollbackMode,
    pub records: Vec<Record>,
}

/// A record takes another state, or waits for its next try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub id: i64,
    pub state: CompensationState,
    pub not_before: Option<Timestamp>,
    pub reason: Option<String>,
    /// All tries begun so far no longer count.
    pub reset_tries: bool,
}

/// A try to begin: the job and the record's move are one transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Submit {
    pub id: i64,
    /// From 1.
    pub try_number: u32,
}

/// What follows from an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decided {
    pub state: SagaState,
    /// At most one per record.
    pub changes: Vec<Change>,
    /// Of records that have no change; each is RUNNING then.
    pub submits: Vec<Submit>,
    /// When to look again, whatever happens before.
    pub wake_at: Option<Timestamp>,
    /// Why nothing moves at the moment.
    pub waiting_reason: Option<String>,
}

impl Decided {
    fn to(state: SagaState) -> Self {
        Self {
            state,
            changes: Vec::new(),
            submits: Vec::new(),
            wake_at: None,
            waiting_reason: None,
        }
    }

    fn change(&mut self, record: &mut Record, state: CompensationState, reason: Option<String>) {
        record.state = state;
        record.not_before = None;
        self.changes.push(Change {
            id: record.id,
            state,
            not_before: None,
            reason,
            reset_tries: false,
        });
    }
}

/// What follows when `event` happens to `saga`. Never blocks, same answer every time.
///
/// A person's reason is not its business: the ledger writes it beside the change.
pub fn decide(
    saga: &Saga,
    event: SagaEvent,
    now: Timestamp,
    limits: &SagaLimits,
) -> Result<Decided, WrongState> {
    let mut decided = Decided::to(saga.state.next(event)?);
    let mut records = saga.records.clone();
    match event {
        SagaEvent::Recorded
        | SagaEvent::Triggered
        | SagaEvent::RollBack
        | SagaEvent::Examine
        | SagaEvent::AllOver
        | SagaEvent::GaveUp => {}
        SagaEvent::Retry => {
            for r in records.iter_mut().filter(|r| r.state.is_stuck()) {
                decided.change(r, CompensationState::Recorded, None);
                r.tries_before = r.tries;
            }
            for change in &mut decided.changes {
                change.reset_tries = true;
            }
        }
        SagaEvent::Skip => {
            for r in records.iter_mut().filter(|r| r.state.is_stuck()) {
                decided.change(r, CompensationState::Skipped, None);
            }
        }
        SagaEvent::Resolve => {
            for r in records.iter_mut().filter(|r| !r.state.is_over()) {
                decided.change(r, CompensationState::Skipped, None);
            }
        }
        SagaEvent::Complete => {
            for r in records.iter_mut().filter(|r| !r.state.is_over()) {
                decided.change(r, CompensationState::Discarded, None);
            }
        }
    }
    match decided.state {
        SagaState::Open | SagaState::RolledBack | SagaState::Stuck => {}
        // What is recorded after somebody completed it is not undone either.
        SagaState::Completed => {
            let left = |r: &&mut Record| r.state == CompensationState::Recorded;
            for r in records.iter_mut().filter(left) {
                decided.change(r, CompensationState::Discarded, None);
            }
        }
        // A person's action is one transaction of its own; a manager goes on from there.
        SagaState::RollingBack if event != SagaEvent::Examine => {
            decided.wake_at = Some(now);
        }
        SagaState::RollingBack => roll_back(&mut decided, &mut records, saga.mode, now, limits),
    }
    Ok(decided)
}

fn roll_back(
    decided: &mut Decided,
    records: &mut [Record],
    mode: RollbackMode,
    now: Timestamp,
    limits: &SagaLimits,
) {
    let live = |r: &&mut Record| r.state.is_live();
    for r in records.iter_mut().filter(live) {
        observe_try(decided, r, now, limits);
    }
    let is_live = |r: &Record| r.state.is_live();
    if records.iter().any(|r| r.state == CompensationState::Held) {
        decided.waiting_reason = Some("a compensation is held for approval".to_owned());
    }
    decided.wake_at = records
        .iter()
        .filter(|r| is_live(r))
        .filter_map(|r| r.not_before)
        .min();
    let stuck = records.iter().any(|r| r.state.is_stuck());
    let busy = records.iter().any(is_live);
    if stuck {
        // Those under way end first, so that a person decides about something at rest.
        if !busy && let Ok(to) = decided.state.next(SagaEvent::GaveUp) {
            decided.state = to;
        }
        return;
    }
    let mut recorded = records
        .iter_mut()
        .rev()
        .filter(|r| r.state == CompensationState::Recorded);
    match mode {
        RollbackMode::Sequential if busy => {}
        RollbackMode::Sequential => {
            if let Some(newest) = recorded.next() {
                decided.submits.push(Submit {
                    id: newest.id,
                    try_number: newest.tries + 1,
                });
                return;
            }
        }
        RollbackMode::Parallel => decided.submits.extend(recorded.map(|r| Submit {
            id: r.id,
            try_number: r.tries + 1,
        })),
    }
    if !busy
        && decided.submits.is_empty()
        && let Ok(to) = decided.state.next(SagaEvent::AllOver)
    {
        decided.state = to;
    }
}

/// What became of the try under way, and whether another follows.
fn observe_try(decided: &mut Decided, r: &mut Record, now: Timestamp, limits: &SagaLimits) {
    let reason = r.try_reason.clone();
    match r.last_try {
        Some(TryStatus::Open) if r.state == CompensationState::Held => {
            decided.change(r, CompensationState::Running, None);
        }
        Some(TryStatus::Held) if r.state == CompensationState::Running => {
            decided.change(r, CompensationState::Held, reason);
        }
        Some(TryStatus::Open | TryStatus::Held) => {}
        Some(TryStatus::Over(TryEnd::Undone)) => decided.change(r, CompensationState::Done, None),
        Some(TryStatus::Over(TryEnd::Denied)) => {
            decided.change(r, CompensationState::Denied, reason);
        }
        Some(TryStatus::Over(TryEnd::Fatal)) => {
            decided.change(r, CompensationState::Failed, reason);
        }
        None | Some(TryStatus::Over(TryEnd::Gone)) => {
            let reason = "the job of its last try is not in the ledger".to_owned();
            decided.change(r, CompensationState::Unreadable, Some(reason));
        }
        Some(TryStatus::Over(TryEnd::Failed)) => {
            let counted = r.tries.saturating_sub(r.tries_before);
            match r.not_before {
                _ if counted >= limits.max_tries => {
                    decided.change(r, CompensationState::Failed, reason);
                }
                None => {
                    let at = now + std::time::Duration::from_millis(limits.pause_ms(counted));
                    r.state = CompensationState::Running;
                    r.not_before = Some(at);
                    decided.changes.push(Change {
                        id: r.id,
                        state: CompensationState::Running,
                        not_before: Some(at),
                        reason,
                        reset_tries: false,
                    });
                }
                Some(at) if at <= now => {
                    r.not_before = None;
                    decided.submits.push(Submit {
                        id: r.id,
                        try_number: r.tries + 1,
                    });
                }
                Some(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
