//! What the policy decided about a job, with everything that explains it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::constraints::{ApprovalTerms, Constraints};
use crate::job::JobSpec;
use crate::saga;
use crate::time::Timestamp;

/// What the policy decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[repr(i16)]
pub enum Decision {
    Allow = 1,
    Deny = 2,
    RequireApproval = 3,
    Throttle = 4,
    AllowWithConstraints = 5,
    /// The kernel could not be reached and the fail mode is open.
    FailOpen = 20,
    /// The kernel could not be reached, and the job undoes another.
    SagaSoft = 21,
}

impl Decision {
    pub const fn code(self) -> i16 {
        self as i16
    }

    pub fn from_code(code: i16) -> Option<Self> {
        [
            Self::Allow,
            Self::Deny,
            Self::RequireApproval,
            Self::Throttle,
            Self::AllowWithConstraints,
            Self::FailOpen,
            Self::SagaSoft,
        ]
        .into_iter()
        .find(|d| d.code() == code)
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "ALLOW",
            Self::Deny => "DENY",
            Self::RequireApproval => "REQUIRE_APPROVAL",
            Self::Throttle => "THROTTLE",
            Self::AllowWithConstraints => "ALLOW_WITH_CONSTRAINTS",
            Self::FailOpen => "FAIL_OPEN",
            Self::SagaSoft => "SAGA_SOFT",
        }
    }

    /// Whether a job may be dispatched on it.
    pub const fn allows(self) -> bool {
        match self {
            Self::Allow | Self::AllowWithConstraints | Self::FailOpen => true,
            // Only of a job that undoes another, for which there is a proof of its own.
            Self::Deny | Self::RequireApproval | Self::Throttle | Self::SagaSoft => false,
        }
    }
}

/// A decision with everything that explains it; what the ledger records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub decision: Decision,
    pub reason: String,
    pub rule_id: String,
    pub snapshot: String,
    pub decided_at: Timestamp,
    /// The snapshot was active at this moment or later. The time of the request, for an
    /// answer of the kernel; before that, for one from the cache.
    pub confirmed_at: Timestamp,
    /// The deciding rule's content; empty when no rule decided.
    pub rule_hash: String,
    /// What the job must keep to; of a held job, once it is approved.
    pub constraints: Option<Arc<Constraints>>,
    /// How the job may be let go, when a rule holds it.
    pub approval: Option<ApprovalTerms>,
    /// The round of the approval that turned a hold into an allow.
    pub approved: Option<u32>,
    /// How many jobs the policy lets this tenant have in flight.
    pub tenant_concurrency: Option<u32>,
}

/// A denial of nobody, to be filled in: what is forgotten must not allow.
impl Default for Verdict {
    fn default() -> Self {
        Self {
            decision: Decision::Deny,
            reason: String::new(),
            rule_id: String::new(),
            snapshot: String::new(),
            decided_at: Timestamp(0),
            confirmed_at: Timestamp(0),
            rule_hash: String::new(),
            constraints: None,
            approval: None,
            approved: None,
            tenant_concurrency: None,
        }
    }
}

/// A verdict on which a job may be dispatched. An assignment takes this and nothing else, so
/// that a job without an allowing decision cannot be given to a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowed(Verdict);

impl Allowed {
    /// The proof, or the verdict back when it does not allow.
    pub fn from_verdict(verdict: Verdict) -> Result<Self, Box<Verdict>> {
        if verdict.decision.allows() {
            Ok(Self(verdict))
        } else {
            Err(Box::new(verdict))
        }
    }

    /// The proof of a saga's soft decision, which only a compensation can have: its labels
    /// are reserved, so that nobody but the saga manager can have set them.
    pub fn for_compensation(verdict: Verdict, spec: &JobSpec) -> Result<Self, Box<Verdict>> {
        if verdict.decision == Decision::SagaSoft && saga::is_compensation(spec) {
            Ok(Self(verdict))
        } else {
            Err(Box::new(verdict))
        }
    }

    pub fn verdict(&self) -> &Verdict {
        &self.0
    }
}

impl std::ops::Deref for Allowed {
    type Target = Verdict;

    fn deref(&self) -> &Verdict {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_allowing_decisions_allow() {
        assert!(Decision::Allow.allows() && Decision::AllowWithConstraints.allows());
        for d in [
            Decision::Deny,
            Decision::RequireApproval,
            Decision::Throttle,
            Decision::SagaSoft,
        ] {
            assert!(!d.allows());
            assert_eq!(Decision::from_code(d.code()), Some(d));
            let verdict = Verdict {
                decision: d,
                ..Verdict::default()
            };
            assert!(Allowed::from_verdict(verdict).is_err(), "{d:?} is no proof");
        }
        let soft = || Verdict {
            decision: Decision::SagaSoft,
            ..Verdict::default()
        };
        let mut spec = JobSpec::new(crate::ids::Topic::new("job.undo").unwrap());
        assert!(Allowed::for_compensation(soft(), &spec).is_err());
        spec.labels.insert("is_compensation".into(), "true".into());
        assert!(Allowed::for_compensation(soft(), &spec).is_ok());
        assert!(
            Allowed::for_compensation(Verdict::default(), &spec).is_err(),
            "a denial is none, not even of a compensation"
        );
        for d in [
            Decision::Allow,
            Decision::AllowWithConstraints,
            Decision::FailOpen,
        ] {
            let verdict = Verdict {
                decision: d,
                ..Verdict::default()
            };
            assert_eq!(Allowed::from_verdict(verdict).map(|a| a.decision), Ok(d));
        }
    }
}
