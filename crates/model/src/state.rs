//! The states of a job and every way between them.
//!
//! [`TRANSITIONS`] is the one source: [`JobState::after_event`] looks it up, the exhaustive
//! test walks every (state, event) pair against it, and `docs/states.md` is generated
//! from it. A pair that is not in the table is illegal: the caller must treat it as a
//! lost race, never as a reason to write.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::run_end::RunEnd;

/// Where a job stands. The numbers are what the ledger stores: never reuse one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[repr(i16)]
pub enum JobState {
    /// Accepted: waits for its time, a decision, or a worker.
    Pending = 1,
    /// Allowed and given to a worker, in the ledger.
    Scheduled = 2,
    /// The assignment is on the wire.
    Dispatched = 3,
    /// The worker says that it started.
    Running = 4,
    /// The policy asks for a human.
    ApprovalRequired = 5,
    Succeeded = 10,
    Failed = 11,
    Timeout = 12,
    Cancelled = 13,
    Denied = 14,
    /// The output policy blocked the result.
    OutputQuarantined = 15,
}

/// What can happen to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobEvent {
    /// Allowed (with or without constraints), and a worker was chosen.
    Assign,
    /// The policy asks for a human.
    Hold,
    /// Denied, or the decision is unknown to us.
    Deny,
    /// All placement tries are used up, or nothing can be done with its row.
    GiveUp,
    /// A human approved this very request.
    Approve,
    /// Rejected, expired, or the policy now denies it.
    Reject,
    /// The bus acknowledged the dispatch.
    Publish,
    /// It surely could not be put on the wire.
    Unpublish,
    /// The worker says that it started.
    Start,
    /// The worker succeeded and the output policy let it pass.
    Succeed,
    /// The worker failed for good, or its attempts are used up.
    Fail,
    /// A retryable failure or a lost worker, with attempts left.
    Requeue,
    /// A deadline or a timeout passed.
    Expire,
    /// Asked for by a user.
    Cancel,
    /// The output policy blocked the result.
    Quarantine,
}

/// What follows from a state, for everybody who must hear of it: the one answer for the
/// commit loop, the change log's reader and the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aftermath {
    /// A job event is published.
    pub event: bool,
    /// The job goes to the dead-letter queue, in the ledger and on the bus, under this code.
    pub dead_letter: Option<DeadLetterCode>,
    /// A worker that may still run it gets a cancel.
    pub cancel_run: bool,
    /// The saga it belongs to is rolled back.
    pub rollback: bool,
}

/// The reason code of a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeadLetterCode {
    /// The reason code of the job.
    AsRecorded,
    /// Whatever led to the denial: `safety_denied`.
    SafetyDenied,
}

impl DeadLetterCode {
    /// The code of a job with this reason code.
    pub fn for_reason_code(self, recorded: &str) -> &str {
        match self {
            Self::AsRecorded => recorded,
            Self::SafetyDenied => "safety_denied",
        }
    }
}

impl JobState {
    pub const ALL: [Self; 11] = [
        Self::Pending,
        Self::Scheduled,
        Self::Dispatched,
        Self::Running,
        Self::ApprovalRequired,
        Self::Succeeded,
        Self::Failed,
        Self::Timeout,
        Self::Cancelled,
        Self::Denied,
        Self::OutputQuarantined,
    ];

    /// Whether the job has ended. Only [`JobEvent::Quarantine`] leads out of one.
    pub const fn is_final(self) -> bool {
        match self {
            Self::Pending
            | Self::Scheduled
            | Self::Dispatched
            | Self::Running
            | Self::ApprovalRequired => false,
            Self::Succeeded
            | Self::Failed
            | Self::Timeout
            | Self::Cancelled
            | Self::Denied
            | Self::OutputQuarantined => true,
        }
    }

    /// Whether a worker may be holding it.
    pub const fn is_in_flight(self) -> bool {
        match self {
            Self::Scheduled | Self::Dispatched | Self::Running => true,
            Self::Pending
            | Self::ApprovalRequired
            | Self::Succeeded
            | Self::Failed
            | Self::Timeout
            | Self::Cancelled
            | Self::Denied
            | Self::OutputQuarantined => false,
        }
    }

    /// Where `event` leads from here; `None` when it may not happen.
    pub fn after_event(self, event: JobEvent) -> Option<Self> {
        TRANSITIONS
            .iter()
            .find(|(from, on, _)| *from == self && *on == event)
            .map(|(_, _, to)| *to)
    }

    /// What others must hear of when a job is in this state. `end` is how its last run
    /// ended, if it had one.
    pub const fn aftermath(self, end: Option<RunEnd>) -> Aftermath {
        const NOTHING: Aftermath = Aftermath {
            event: false,
            dead_letter: None,
            cancel_run: false,
            rollback: false,
        };
        let event = Aftermath {
            event: true,
            ..NOTHING
        };
        match self {
            Self::Pending => NOTHING,
            Self::Scheduled | Self::Dispatched | Self::Running | Self::ApprovalRequired => event,
            Self::Succeeded => event,
            Self::Failed => Aftermath {
                dead_letter: Some(DeadLetterCode::AsRecorded),
                cancel_run: true,
                rollback: matches!(end, Some(RunEnd::FailedFatal)),
                ..event
            },
            Self::Timeout => Aftermath {
                dead_letter: Some(DeadLetterCode::AsRecorded),
                cancel_run: true,
                ..event
            },
            // Somebody wanted it: no dead letter.
            Self::Cancelled => Aftermath {
                cancel_run: true,
                ..event
            },
            Self::Denied => Aftermath {
                dead_letter: Some(DeadLetterCode::SafetyDenied),
                cancel_run: true,
                ..event
            },
            Self::OutputQuarantined => Aftermath {
                dead_letter: Some(DeadLetterCode::AsRecorded),
                cancel_run: true,
                ..event
            },
        }
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Scheduled => "SCHEDULED",
            Self::Dispatched => "DISPATCHED",
            Self::Running => "RUNNING",
            Self::ApprovalRequired => "APPROVAL_REQUIRED",
            Self::Succeeded => "SUCCEEDED",
            Self::Failed => "FAILED",
            Self::Timeout => "TIMEOUT",
            Self::Cancelled => "CANCELLED",
            Self::Denied => "DENIED",
            Self::OutputQuarantined => "OUTPUT_QUARANTINED",
        }
    }

    pub const fn code(self) -> i16 {
        self as i16
    }

    pub fn from_code(code: i16) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.code() == code)
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl std::str::FromStr for JobState {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|state| state.as_str().eq_ignore_ascii_case(s))
            .ok_or_else(|| {
                format!(
                    "unknown state {s:?}; expected one of {}",
                    Self::ALL.map(Self::as_str).join(", ")
                )
            })
    }
}

impl JobEvent {
    pub const ALL: [Self; 15] = [
        Self::Assign,
        Self::Hold,
        Self::Deny,
        Self::GiveUp,
        Self::Approve,
        Self::Reject,
        Self::Publish,
        Self::Unpublish,
        Self::Start,
        Self::Succeed,
        Self::Fail,
        Self::Requeue,
        Self::Expire,
        Self::Cancel,
        Self::Quarantine,
    ];
}

use JobEvent as E;
use JobState as S;

/// Every legal move. A result implies RUNNING, so results are taken in all three
/// in-flight states.
pub const TRANSITIONS: &[(JobState, JobEvent, JobState)] = &[
    (S::Pending, E::Assign, S::Scheduled),
    (S::Pending, E::Hold, S::ApprovalRequired),
    (S::Pending, E::Deny, S::Denied),
    (S::Pending, E::GiveUp, S::Failed),
    (S::Pending, E::Expire, S::Timeout),
    (S::Pending, E::Cancel, S::Cancelled),
    (S::ApprovalRequired, E::Approve, S::Pending),
    (S::ApprovalRequired, E::Reject, S::Denied),
    (S::ApprovalRequired, E::GiveUp, S::Failed),
    (S::ApprovalRequired, E::Expire, S::Timeout),
    (S::ApprovalRequired, E::Cancel, S::Cancelled),
    (S::Scheduled, E::Publish, S::Dispatched),
    (S::Scheduled, E::Unpublish, S::Pending),
    (S::Scheduled, E::Start, S::Running),
    (S::Scheduled, E::Succeed, S::Succeeded),
    (S::Scheduled, E::Fail, S::Failed),
    (S::Scheduled, E::Requeue, S::Pending),
    (S::Scheduled, E::Expire, S::Timeout),
    (S::Scheduled, E::Cancel, S::Cancelled),
    (S::Scheduled, E::Quarantine, S::OutputQuarantined),
    (S::Dispatched, E::Start, S::Running),
    (S::Dispatched, E::Succeed, S::Succeeded),
    (S::Dispatched, E::Fail, S::Failed),
    (S::Dispatched, E::Requeue, S::Pending),
    (S::Dispatched, E::Expire, S::Timeout),
    (S::Dispatched, E::Cancel, S::Cancelled),
    (S::Dispatched, E::Quarantine, S::OutputQuarantined),
    (S::Running, E::Succeed, S::Succeeded),
    (S::Running, E::Fail, S::Failed),
    (S::Running, E::Requeue, S::Pending),
    (S::Running, E::Expire, S::Timeout),
    (S::Running, E::Cancel, S::Cancelled),
    (S::Running, E::Quarantine, S::OutputQuarantined),
    (S::Succeeded, E::Quarantine, S::OutputQuarantined),
];

/// The diagram in `docs/states.md`, in Mermaid.
pub fn transition_diagram() -> String {
    let mut out = String::from("stateDiagram-v2\n    [*] --> PENDING: accepted\n");
    for (from, on, to) in TRANSITIONS {
        out.push_str(&format!("    {from} --> {to}: {on:?}\n"));
    }
    for state in JobState::ALL.into_iter().filter(|s| s.is_final()) {
        out.push_str(&format!("    {state} --> [*]\n"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_end_but_success_and_a_cancel_is_a_dead_letter() {
        for state in JobState::ALL {
            let after = state.aftermath(None);
            assert_eq!(after.event, state != S::Pending, "{state}");
            let dead = state.is_final() && state != S::Succeeded && state != S::Cancelled;
            assert_eq!(after.dead_letter.is_some(), dead, "{state}");
            let stop = state.is_final() && state != S::Succeeded;
            assert_eq!(after.cancel_run, stop, "{state}");
            for end in RunEnd::ALL {
                let rollback = state == S::Failed && end == RunEnd::FailedFatal;
                assert_eq!(
                    state.aftermath(Some(end)).rollback,
                    rollback,
                    "{state} {end:?}"
                );
            }
        }
        assert_eq!(
            DeadLetterCode::AsRecorded.for_reason_code("worker_lost"),
            "worker_lost"
        );
        assert_eq!(
            DeadLetterCode::SafetyDenied.for_reason_code("rejected"),
            "safety_denied"
        );
    }

    /// Written apart from the table, state by state, so that a slip in either shows.
    fn expected(from: JobState, on: JobEvent) -> Option<JobState> {
        match from {
            S::Pending => match on {
                E::Assign => Some(S::Scheduled),
                E::Hold => Some(S::ApprovalRequired),
                E::Deny => Some(S::Denied),
                E::GiveUp => Some(S::Failed),
                E::Expire => Some(S::Timeout),
                E::Cancel => Some(S::Cancelled),
                E::Approve
                | E::Reject
                | E::Publish
                | E::Unpublish
                | E::Start
                | E::Succeed
                | E::Fail
                | E::Requeue
                | E::Quarantine => None,
            },
            S::ApprovalRequired => match on {
                E::Approve => Some(S::Pending),
                E::Reject => Some(S::Denied),
                E::GiveUp => Some(S::Failed),
                E::Expire => Some(S::Timeout),
                E::Cancel => Some(S::Cancelled),
                E::Assign
                | E::Hold
                | E::Deny
                | E::Publish
                | E::Unpublish
                | E::Start
                | E::Succeed
                | E::Fail
                | E::Requeue
                | E::Quarantine => None,
            },
            S::Scheduled | S::Dispatched | S::Running => match on {
                E::Publish => (from == S::Scheduled).then_some(S::Dispatched),
                E::Unpublish => (from == S::Scheduled).then_some(S::Pending),
                E::Start => (from != S::Running).then_some(S::Running),
                E::Succeed => Some(S::Succeeded),
                E::Fail => Some(S::Failed),
                E::Requeue => Some(S::Pending),
                E::Expire => Some(S::Timeout),
                E::Cancel => Some(S::Cancelled),
                E::Quarantine => Some(S::OutputQuarantined),
                E::Assign | E::Hold | E::Deny | E::GiveUp | E::Approve | E::Reject => None,
            },
            S::Succeeded => match on {
                E::Quarantine => Some(S::OutputQuarantined),
                E::Assign
                | E::Hold
                | E::Deny
                | E::GiveUp
                | E::Approve
                | E::Reject
                | E::Publish
                | E::Unpublish
                | E::Start
                | E::Succeed
                | E::Fail
                | E::Requeue
                | E::Expire
                | E::Cancel => None,
            },
            S::Failed | S::Timeout | S::Cancelled | S::Denied | S::OutputQuarantined => None,
        }
    }

    #[test]
    fn every_state_and_event_pair_is_as_designed() {
        for from in JobState::ALL {
            for on in JobEvent::ALL {
                assert_eq!(from.after_event(on), expected(from, on), "{from} on {on:?}");
            }
        }
    }

    #[test]
    fn the_table_has_no_pair_twice() {
        for (i, (from, on, _)) in TRANSITIONS.iter().enumerate() {
            assert!(
                !TRANSITIONS[..i]
                    .iter()
                    .any(|(f, o, _)| f == from && o == on),
                "{from} on {on:?} stands twice"
            );
        }
    }

    #[test]
    fn codes_and_names_round_trip() {
        for s in JobState::ALL {
            assert_eq!(JobState::from_code(s.code()), Some(s));
            assert_eq!(s.as_str().parse(), Ok(s));
            assert_eq!(serde_json::to_string(&s).unwrap(), format!("\"{s}\""));
        }
    }

    /// `AIRLOCK_BLESS=1` writes the page anew.
    #[test]
    fn the_documented_diagram_is_this_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/states.md");
        let page = format!(
            "# States of a job\n\nGenerated from the transition table in `crates/model/src/state.rs`; \
             `AIRLOCK_BLESS=1 cargo test -p airlock-model` writes it anew.\n\n```mermaid\n{}```\n",
            transition_diagram()
        );
        if std::env::var_os("AIRLOCK_BLESS").is_some() {
            std::fs::write(path, &page).unwrap();
        }
        assert_eq!(std::fs::read_to_string(path).unwrap_or_default(), page);
    }
}
