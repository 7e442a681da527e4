//! What comes with a decision: the bounds a job runs in, who may let it through, and what
//! its sender could do instead. The first two are the model's, because the scheduler and
//! the ledger read them too.

use std::collections::BTreeMap;

pub use airlock_model::constraints::{
    ApprovalTerms, Budgets, Constraints, Diff, NOTHING, Sandbox, Toolchain,
};
use serde::{Deserialize, Serialize};

/// What the sender of a job could do instead.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Remediation {
    pub id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub title: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub summary: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub replacement_topic: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub replacement_capability: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub add_labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remove_labels: Vec<String>,
}
