//! The words a policy decides with, and the verdict that carries one.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// What a rule says about a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    Allow,
    Deny,
    /// A human must say yes first.
    RequireApproval,
    /// Ask again later.
    Throttle,
}

impl Decision {
    pub const ALL: [Self; 4] = [
        Self::Allow,
        Self::Deny,
        Self::RequireApproval,
        Self::Throttle,
    ];

    /// The word in the file, in metrics and in logs.
    pub fn word(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::RequireApproval => "require_approval",
            Self::Throttle => "throttle",
        }
    }

    /// How a reason begins: `denied by rule …`.
    pub(crate) fn participle(self) -> &'static str {
        match self {
            Self::Allow => "allowed",
            Self::Deny => "denied",
            Self::RequireApproval => "held for approval",
            Self::Throttle => "throttled",
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// What happens to a job while the safety kernel cannot be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailMode {
    /// It waits.
    #[default]
    Closed,
    /// It runs, and that is recorded.
    Open,
}

/// The answer about one job. The texts are shared with the policy, so that a verdict
/// costs a few reference counts and no copying.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub decision: Decision,
    /// In plain words, naming the rule.
    pub reason: Arc<str>,
    /// `None`: no rule matched, or the input was malformed.
    pub rule_id: Option<Arc<str>>,
    /// The policy this was decided under.
    pub snapshot: Arc<str>,
}
