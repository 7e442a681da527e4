//! Errors: RFC 9457, `application/problem+json`.

use std::borrow::Cow;
use std::fmt;

use airlock_model::{JobState, SagaState};
use serde::{Deserialize, Serialize};

/// One field that is not as it must be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldProblem {
    pub field: String,
    pub message: String,
}

/// What went wrong with a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Problem {
    #[serde(rename = "type")]
    pub kind: String,
    pub title: Cow<'static, str>,
    pub status: u16,
    pub detail: String,
    /// The field, parameter or header in question.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// Every field that is wrong.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldProblem>,
    /// The job in question, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_id: Option<String>,
    /// The state of the job, when the state is why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<JobState>,
    /// The saga in question, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflow_id: Option<String>,
    /// The state of the saga, when the state is why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saga_state: Option<SagaState>,
    /// How many jobs are open, when the limit on them is why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_jobs: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
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
