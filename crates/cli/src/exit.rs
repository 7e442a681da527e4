//! What the exit code says, so that scripts need not read the text.

use std::process::ExitCode;

use airlock_model::JobState;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The job succeeded, or the question was answered.
    Done,
    /// The job ended, but not in success; or `airlock dev` failed.
    Failed,
    /// The request is wrong: the arguments, the key, an unknown job.
    Usage,
    /// The API cannot be reached, or cannot answer now.
    Unreachable,
    /// The job had not ended when the wait was over.
    Unfinished,
}

impl Exit {
    pub const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Unreachable => 3,
            Self::Unfinished => 4,
        }
    }

    /// For whoever waited for a job that is now in `state`.
    pub const fn from_job_state(state: JobState) -> Self {
        match state {
            JobState::Succeeded => Self::Done,
            JobState::Failed
            | JobState::Timeout
            | JobState::Cancelled
            | JobState::Denied
            | JobState::OutputQuarantined => Self::Failed,
            JobState::Pending
            | JobState::ApprovalRequired
            | JobState::Scheduled
            | JobState::Dispatched
            | JobState::Running => Self::Unfinished,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_success_is_zero_and_only_an_end_is_an_answer() {
        for state in JobState::ALL {
            let exit = Exit::from_job_state(state);
            assert_eq!(exit == Exit::Done, state == JobState::Succeeded, "{state}");
            assert_eq!(exit == Exit::Unfinished, !state.is_final(), "{state}");
        }
    }

    #[test]
    fn the_codes_are_a_promise_to_scripts() {
        let codes = [
            Exit::Done,
            Exit::Failed,
            Exit::Usage,
            Exit::Unreachable,
            Exit::Unfinished,
        ]
        .map(Exit::code);
        assert_eq!(codes, [0, 1, 2, 3, 4]);
    }
}
