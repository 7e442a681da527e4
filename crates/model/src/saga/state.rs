//! The states of a saga and of a compensation, and the one table of a saga's transitions.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Where a saga stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[repr(i16)]
pub enum SagaState {
    /// Its steps are recorded; nothing is being undone.
    Open = 1,
    RollingBack = 2,
    /// Every compensation is over.
    RolledBack = 3,
    /// A compensation failed for good; a person must decide.
    Stuck = 4,
    /// Somebody said that nothing will be undone.
    Completed = 5,
}

impl SagaState {
    pub const ALL: [Self; 5] = [
        Self::Open,
        Self::RollingBack,
        Self::RolledBack,
        Self::Stuck,
        Self::Completed,
    ];

    /// What the ledger stores.
    pub const fn code(self) -> i16 {
        self as i16
    }

    pub fn from_code(code: i16) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.code() == code)
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "OPEN",
            Self::RollingBack => "ROLLING_BACK",
            Self::RolledBack => "ROLLED_BACK",
            Self::Stuck => "STUCK",
            Self::Completed => "COMPLETED",
        }
    }

    /// Whether nothing more happens by itself.
    pub const fn is_at_rest(self) -> bool {
        match self {
            Self::RolledBack | Self::Stuck | Self::Completed => true,
            Self::Open | Self::RollingBack => false,
        }
    }

    /// Whether it is over, so that a receipt can be had.
    pub const fn is_over(self) -> bool {
        match self {
            Self::RolledBack | Self::Completed => true,
            Self::Open | Self::RollingBack | Self::Stuck => false,
        }
    }

    /// Where `event` leads. An event that a state ignores leads to itself.
    pub fn next(self, event: SagaEvent) -> Result<Self, WrongState> {
        let found = TRANSITIONS
            .iter()
            .find(|(from, on, _)| *from == self && *on == event);
        match found {
            Some((_, _, to)) => Ok(*to),
            None => Err(WrongState { state: self, event }),
        }
    }
}

impl fmt::Display for SagaState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl std::str::FromStr for SagaState {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        let found = Self::ALL
            .into_iter()
            .find(|x| x.as_str().eq_ignore_ascii_case(s));
        found.ok_or_else(|| {
            let all = Self::ALL.map(Self::as_str).join(", ");
            format!("unknown saga state {s:?}; expected one of {all}")
        })
    }
}

/// What can happen to a saga.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SagaEvent {
    /// A job that can be undone was recorded.
    Recorded,
    /// A job ended in a way that asks for a rollback.
    Triggered,
    /// A person or the workflow engine asks for a rollback.
    RollBack,
    /// A manager looks at what became of its compensations.
    Examine,
    /// The last compensation is over.
    AllOver,
    /// A compensation failed for good.
    GaveUp,
    /// A person asks for more tries.
    Retry,
    /// A person gives up the compensation that failed.
    Skip,
    /// A person gives up all that is left.
    Resolve,
    /// A person says that nothing will be undone.
    Complete,
}

impl SagaEvent {
    pub const ALL: [Self; 10] = [
        Self::Recorded,
        Self::Triggered,
        Self::RollBack,
        Self::Examine,
        Self::AllOver,
        Self::GaveUp,
        Self::Retry,
        Self::Skip,
        Self::Resolve,
        Self::Complete,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Recorded => "recorded",
            Self::Triggered => "triggered",
            Self::RollBack => "rollback",
            Self::Examine => "examine",
            Self::AllOver => "all_over",
            Self::GaveUp => "gave_up",
            Self::Retry => "retry",
            Self::Skip => "skip",
            Self::Resolve => "resolve",
            Self::Complete => "complete",
        }
    }
}

/// An event that cannot happen in a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the saga is {state}, which does not allow {}", .event.as_str())]
pub struct WrongState {
    pub state: SagaState,
    pub event: SagaEvent,
}

/// Every pair that is allowed; any other is a [`WrongState`].
pub const TRANSITIONS: &[(SagaState, SagaEvent, SagaState)] = {
    use SagaEvent as E;
    use SagaState as S;
    &[
        (S::Open, E::Recorded, S::Open),
        (S::Open, E::Triggered, S::RollingBack),
        (S::Open, E::RollBack, S::RollingBack),
        (S::Open, E::Examine, S::Open),
        (S::Open, E::Complete, S::Completed),
        (S::RollingBack, E::Recorded, S::RollingBack),
        (S::RollingBack, E::Triggered, S::RollingBack),
        (S::RollingBack, E::RollBack, S::RollingBack),
        (S::RollingBack, E::Examine, S::RollingBack),
        (S::RollingBack, E::AllOver, S::RolledBack),
        (S::RollingBack, E::GaveUp, S::Stuck),
        // A success that comes late is undone at once.
        (S::RolledBack, E::Recorded, S::RollingBack),
        (S::RolledBack, E::Triggered, S::RolledBack),
        (S::RolledBack, E::RollBack, S::RolledBack),
        (S::RolledBack, E::Examine, S::RolledBack),
        (S::Stuck, E::Recorded, S::Stuck),
        (S::Stuck, E::Triggered, S::Stuck),
        (S::Stuck, E::RollBack, S::Stuck),
        (S::Stuck, E::Examine, S::Stuck),
        (S::Stuck, E::Retry, S::RollingBack),
        (S::Stuck, E::Skip, S::RollingBack),
        (S::Stuck, E::Resolve, S::RolledBack),
        (S::Completed, E::Recorded, S::Completed),
        (S::Completed, E::Triggered, S::Completed),
        (S::Completed, E::Examine, S::Completed),
    ]
};

/// Where one compensation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[repr(i16)]
pub enum CompensationState {
    /// Can be undone; nothing was tried.
    Recorded = 1,
    /// A try is under way, or the next one waits for its time.
    Running = 2,
    /// The policy holds it for approval.
    Held = 3,
    Done = 4,
    /// The policy or a person refused it.
    Denied = 5,
    /// A person gave it up.
    Skipped = 6,
    /// Its tries are used up.
    Failed = 7,
    /// Its row or the job's cannot be read.
    Unreadable = 8,
    /// Its saga was completed.
    Discarded = 9,
}

impl CompensationState {
    pub const ALL: [Self; 9] = [
        Self::Recorded,
        Self::Running,
        Self::Held,
        Self::Done,
        Self::Denied,
        Self::Skipped,
        Self::Failed,
        Self::Unreadable,
        Self::Discarded,
    ];

    pub const fn code(self) -> i16 {
        self as i16
    }

    pub fn from_code(code: i16) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.code() == code)
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Recorded => "RECORDED",
            Self::Running => "RUNNING",
            Self::Held => "HELD",
            Self::Done => "DONE",
            Self::Denied => "DENIED",
            Self::Skipped => "SKIPPED",
            Self::Failed => "FAILED",
            Self::Unreadable => "UNREADABLE",
            Self::Discarded => "DISCARDED",
        }
    }

    /// Whether a try of it is under way or will follow by itself.
    pub const fn is_live(self) -> bool {
        match self {
            Self::Running | Self::Held => true,
            Self::Recorded
            | Self::Done
            | Self::Denied
            | Self::Skipped
            | Self::Failed
            | Self::Unreadable
            | Self::Discarded => false,
        }
    }

    /// Whether it makes its saga STUCK.
    pub const fn is_stuck(self) -> bool {
        match self {
            Self::Failed | Self::Unreadable => true,
            Self::Recorded
            | Self::Running
            | Self::Held
            | Self::Done
            | Self::Denied
            | Self::Skipped
            | Self::Discarded => false,
        }
    }

    /// Whether nothing more will come of it.
    pub const fn is_over(self) -> bool {
        match self {
            Self::Done | Self::Denied | Self::Skipped | Self::Discarded => true,
            Self::Recorded | Self::Running | Self::Held | Self::Failed | Self::Unreadable => false,
        }
    }
}

impl fmt::Display for CompensationState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// In which order a saga is undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(i16)]
pub enum RollbackMode {
    /// Newest first, each after the one before has ended.
    #[default]
    Sequential = 1,
    /// All at once.
    Parallel = 2,
}

impl RollbackMode {
    pub const fn code(self) -> i16 {
        self as i16
    }

    pub fn from_code(code: i16) -> Option<Self> {
        [Self::Sequential, Self::Parallel]
            .into_iter()
            .find(|m| m.code() == code)
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::Parallel => "parallel",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What every state makes of every event, written out: `.` ignored, `x` refused.
    #[test]
    fn every_pair_of_state_and_event() {
        //          recorded, triggered, rollback, examine, all_over, gave_up, retry, skip, resolve, complete
        let table = [
            (SagaState::Open, ". R R . x x x x x C"),
            (SagaState::RollingBack, ". . . . B S x x x x"),
            (SagaState::RolledBack, "R . . . x x x x x x"),
            (SagaState::Stuck, ". . . . x x R R B x"),
            (SagaState::Completed, ". . x . x x x x x x"),
        ];
        for (state, row) in table {
            let cells: Vec<&str> = row.split(' ').collect();
            assert_eq!(cells.len(), SagaEvent::ALL.len());
            for (event, cell) in SagaEvent::ALL.into_iter().zip(cells) {
                let expected = match cell {
                    "." => Ok(state),
                    "R" => Ok(SagaState::RollingBack),
                    "B" => Ok(SagaState::RolledBack),
                    "S" => Ok(SagaState::Stuck),
                    "C" => Ok(SagaState::Completed),
                    _ => Err(WrongState { state, event }),
                };
                assert_eq!(state.next(event), expected, "{state} {event:?}");
            }
        }
        assert_eq!(TRANSITIONS.len(), 25);
    }

    #[test]
    fn codes_and_names_round_trip() {
        for s in SagaState::ALL {
            assert_eq!(SagaState::from_code(s.code()), Some(s));
            assert_eq!(s.as_str().parse(), Ok(s));
            assert_eq!(serde_json::to_value(s).unwrap(), s.as_str());
        }
        for s in CompensationState::ALL {
            assert_eq!(CompensationState::from_code(s.code()), Some(s));
            assert_eq!(serde_json::to_value(s).unwrap(), s.as_str());
            let kinds = [s.is_live(), s.is_stuck(), s.is_over()];
            let recorded = s == CompensationState::Recorded;
            let kinds = kinds.into_iter().filter(|k| *k).count() + usize::from(recorded);
            assert_eq!(kinds, 1, "{s} is exactly one kind");
        }
        assert_eq!(SagaState::from_code(0), None);
        assert_eq!(RollbackMode::from_code(3), None);
    }
}
