//! What can go wrong, with the gateway's own words where it had any.

use std::fmt;

use airlock_model::JobState;
use serde::{Deserialize, Serialize};

/// One field that was not as it must be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldProblem {
    pub field: String,
    pub message: String,
}

/// The gateway's description of an error (RFC 9457).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Problem {
    #[serde(rename = "type")]
    pub kind: String,
    pub title: String,
    pub status: u16,
    pub detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldProblem>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<JobState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.title, self.status)?;
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        Ok(())
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("{0}")]
    Config(String),
    /// The gateway answered with an error.
    #[error("{0}")]
    Problem(Box<Problem>),
    /// No answer, or not a whole one.
    #[error("asking the gateway: {}", causes(.0))]
    Transport(#[source] reqwest::Error),
    /// An answer that is not the gateway's.
    #[error("the answer (status {status}) is not the gateway's: {detail}")]
    Unexpected { status: u16, detail: String },
}

/// The error with what caused it; its own text is only "error sending request".
fn causes(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
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
