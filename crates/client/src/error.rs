//! What can go wrong, with the gateway's problem where it sent one.

use airlock_api::{PayloadError, Problem};

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("{0}")]
    Config(String),
    /// The gateway answered with an error.
    #[error("{0}")]
    Problem(Box<Problem>),
    /// No answer, or not a whole one.
    #[error("calling the gateway: {}", join_causes(.0))]
    Transport(#[source] reqwest::Error),
    /// An answer that is not the gateway's.
    #[error("the answer (status {status}) is not the gateway's: {detail}")]
    Unexpected { status: u16, detail: String },
}

/// The error with its causes; its own text is only "error sending request".
fn join_causes(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}

impl From<PayloadError> for ClientError {
    fn from(error: PayloadError) -> Self {
        Self::Config(error.to_string())
    }
}

impl ClientError {
    /// The status of the answer, if there was one.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Problem(problem) => Some(problem.status),
            Self::Unexpected { status, .. } => Some(*status),
            Self::Config(_) | Self::Transport(_) => None,
        }
    }

    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Problem(problem) => Some(problem),
            Self::Config(_) | Self::Transport(_) | Self::Unexpected { .. } => None,
        }
    }

    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Problem(problem) => matches!(problem.status, 429 | 502 | 503 | 504),
            Self::Transport(error) => !error.is_builder(),
            Self::Unexpected { status, .. } => matches!(status, 429 | 502 | 503 | 504),
            Self::Config(_) => false,
        }
    }

    /// Whether a submission that ended so may have been accepted all the same.
    pub fn is_ambiguous(&self) -> bool {
        match self {
            Self::Problem(problem) => problem.status >= 500,
            Self::Transport(error) => !error.is_connect() && !error.is_builder(),
            Self::Unexpected { .. } => true,
            Self::Config(_) => false,
        }
    }
}
