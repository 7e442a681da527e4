//! How a run ended, as a value: what follows from it is asked of it, never of a text.

use std::fmt;

use crate::engine::Outcome;
use crate::state::JobState;

/// How a run ended. The numbers are what the ledger stores: never reuse one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(i16)]
pub enum RunEnd {
    Succeeded = 1,
    /// The worker says that it failed.
    Failed = 2,
    /// The same, and that another run may do better.
    FailedRetryable = 3,
    /// The same, and that no run ever will.
    FailedFatal = 4,
    Cancelled = 5,
    /// It took longer than it may: by the worker's own measure, or by ours.
    TimedOut = 6,
    /// A draining worker handed it back.
    NotStarted = 7,
    /// Its worker is gone.
    WorkerLost = 8,
    /// Its worker is there and does not have it any more.
    RunLost = 9,
    /// Its worker is there and never took it.
    NotAccepted = 10,
    /// It surely could not be put on the wire.
    DispatchFailed = 11,
    /// No sign of life since it was dispatched.
    DispatchTimeout = 12,
    /// No sign of life since it was running.
    RunningTimeout = 13,
    /// No sign of life within the job's own visibility timeout.
    VisibilityTimeout = 14,
    /// The job's deadline passed while it was in flight.
    DeadlineExceeded = 15,
    /// Its job was ended because the ledger does not take its row.
    Abandoned = 16,
}

impl RunEnd {
    pub const ALL: [Self; 16] = [
        Self::Succeeded,
        Self::Failed,
        Self::FailedRetryable,
        Self::FailedFatal,
        Self::Cancelled,
        Self::TimedOut,
        Self::NotStarted,
        Self::WorkerLost,
        Self::RunLost,
        Self::NotAccepted,
        Self::DispatchFailed,
        Self::DispatchTimeout,
        Self::RunningTimeout,
        Self::VisibilityTimeout,
        Self::DeadlineExceeded,
        Self::Abandoned,
    ];

    /// The reason code where nothing else is said.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::FailedRetryable => "failed_retryable",
            Self::FailedFatal => "failed_fatal",
            Self::Cancelled => "cancelled",
            Self::TimedOut => "timeout",
            Self::NotStarted => "not_started",
            Self::WorkerLost => "worker_lost",
            Self::RunLost => "lost",
            Self::NotAccepted => "not_accepted",
            Self::DispatchFailed => "dispatch_failed",
            Self::DispatchTimeout => "dispatch_timeout",
            Self::RunningTimeout => "running_timeout",
            Self::VisibilityTimeout => "visibility_timeout",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::Abandoned => "abandoned",
        }
    }

    pub const fn code(self) -> i16 {
        self as i16
    }

    pub fn from_code(code: i16) -> Option<Self> {
        Self::ALL.into_iter().find(|end| end.code() == code)
    }

    /// From its reason code.
    pub fn from_reason_code(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|end| end.as_str() == text)
    }

    /// Where the job ends when no other run follows.
    pub const fn final_state(self) -> JobState {
        match self {
            Self::Succeeded => JobState::Succeeded,
            Self::Cancelled => JobState::Cancelled,
            Self::TimedOut
            | Self::DispatchTimeout
            | Self::RunningTimeout
            | Self::VisibilityTimeout
            | Self::DeadlineExceeded => JobState::Timeout,
            Self::Failed
            | Self::FailedRetryable
            | Self::FailedFatal
            | Self::NotStarted
            | Self::WorkerLost
            | Self::RunLost
            | Self::NotAccepted
            | Self::DispatchFailed
            | Self::Abandoned => JobState::Failed,
        }
    }

    /// Whether it may have begun. One that surely did not is not counted as an attempt.
    pub const fn may_have_begun(self) -> bool {
        match self {
            Self::NotStarted | Self::NotAccepted | Self::DispatchFailed => false,
            Self::Succeeded
            | Self::Failed
            | Self::FailedRetryable
            | Self::FailedFatal
            | Self::Cancelled
            | Self::TimedOut
            | Self::WorkerLost
            | Self::RunLost
            | Self::DispatchTimeout
            | Self::RunningTimeout
            | Self::VisibilityTimeout
            | Self::DeadlineExceeded
            | Self::Abandoned => true,
        }
    }

    /// Whether it ended with its worker, so that nobody says what became of it.
    pub const fn is_lost(self) -> bool {
        match self {
            Self::WorkerLost | Self::RunLost => true,
            Self::Succeeded
            | Self::Failed
            | Self::FailedRetryable
            | Self::FailedFatal
            | Self::Cancelled
            | Self::TimedOut
            | Self::NotStarted
            | Self::NotAccepted
            | Self::DispatchFailed
            | Self::DispatchTimeout
            | Self::RunningTimeout
            | Self::VisibilityTimeout
            | Self::DeadlineExceeded
            | Self::Abandoned => false,
        }
    }
}

impl From<Outcome> for RunEnd {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Succeeded => Self::Succeeded,
            Outcome::Failed => Self::Failed,
            Outcome::FailedRetryable => Self::FailedRetryable,
            Outcome::FailedFatal => Self::FailedFatal,
            Outcome::Cancelled => Self::Cancelled,
            Outcome::TimedOut => Self::TimedOut,
            Outcome::NotStarted => Self::NotStarted,
        }
    }
}

impl fmt::Display for RunEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_texts_are_apart_and_round_trip() {
        for (i, end) in RunEnd::ALL.into_iter().enumerate() {
            assert_eq!(usize::try_from(end.code()), Ok(i + 1), "{end}");
            assert_eq!(RunEnd::from_code(end.code()), Some(end));
            assert_eq!(RunEnd::from_reason_code(end.as_str()), Some(end));
            assert!(end.final_state().is_final(), "{end}");
        }
        assert_eq!(RunEnd::from_code(0), None);
        assert_eq!(RunEnd::from_reason_code("oom"), None);
    }

    #[test]
    fn a_lost_run_may_have_begun() {
        let lost = RunEnd::ALL.into_iter().filter(|end| end.is_lost());
        assert!(lost.clone().all(RunEnd::may_have_begun));
        assert_eq!(lost.count(), 2);
    }
}
