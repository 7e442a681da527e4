//! Tasks: a time and a payload.

use serde::{Deserialize, Serialize};

/// The gateway has the task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskResponse {
    pub id: String,
    /// PENDING, RUNNING, COMPLETED or FAILED.
    pub status: String,
}

/// A task as the gateway shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskStatus {
    pub id: String,
    /// PENDING, RUNNING, COMPLETED or FAILED.
    pub status: String,
    pub due_at: Option<String>,
    pub attempts: u32,
    pub error: Option<String>,
}
