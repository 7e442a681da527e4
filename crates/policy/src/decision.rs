//! The words a policy decides with.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a rule says about a job. The other spellings are Cordum's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    #[serde(alias = "permit")]
    Allow,
    #[serde(alias = "block")]
    Deny,
    /// A human must say yes first.
    #[serde(alias = "require_human", alias = "require-approval")]
    RequireApproval,
    /// It may run, within bounds that travel with it.
    #[serde(alias = "allow-with-constraints")]
    AllowWithConstraints,
    /// Ask again later.
    Throttle,
}

impl Decision {
    pub const ALL: [Self; 5] = [
        Self::Allow,
        Self::Deny,
        Self::RequireApproval,
        Self::AllowWithConstraints,
        Self::Throttle,
    ];

    /// The word in the file, in metrics and in logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::RequireApproval => "require_approval",
            Self::AllowWithConstraints => "allow_with_constraints",
            Self::Throttle => "throttle",
        }
    }

    /// The word in answers over REST, where clients know exactly these.
    pub fn as_api_str(self) -> &'static str {
        match self {
            Self::Allow => "ALLOW",
            Self::Deny => "DENY",
            Self::RequireApproval => "REQUIRE_APPROVAL",
            Self::AllowWithConstraints => "ALLOW_WITH_CONSTRAINTS",
            Self::Throttle => "THROTTLE",
        }
    }

    /// Reads either spelling, in any case. `None` is for a word that we do not know;
    /// whoever meets one denies.
    pub fn parse(word: &str) -> Option<Self> {
        let word = word.trim();
        Self::ALL
            .into_iter()
            .find(|d| d.as_str().eq_ignore_ascii_case(word))
    }

    /// Whether a job so decided may run as it is.
    pub fn may_run(self) -> bool {
        match self {
            Self::Allow | Self::AllowWithConstraints => true,
            Self::Deny | Self::RequireApproval | Self::Throttle => false,
        }
    }

    /// How strict it is, compared with the others. A content rule may only go up.
    pub fn strictness(self) -> u8 {
        match self {
            Self::Allow => 0,
            Self::AllowWithConstraints => 1,
            Self::Throttle => 2,
            Self::RequireApproval => 3,
            Self::Deny => 4,
        }
    }

    /// How a reason begins: `denied by rule …`.
    pub(crate) fn participle(self) -> &'static str {
        match self {
            Self::Allow | Self::AllowWithConstraints => "allowed",
            Self::Deny => "denied",
            Self::RequireApproval => "held for approval",
            Self::Throttle => "throttled",
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_is_read_in_both_spellings_and_others_are_not() {
        for decision in Decision::ALL {
            assert_eq!(Decision::parse(decision.as_str()), Some(decision));
            assert_eq!(Decision::parse(decision.as_api_str()), Some(decision));
        }
        assert_eq!(Decision::parse("allowed"), None);
        assert_eq!(Decision::parse(""), None);
    }

    #[test]
    fn what_may_run_is_less_strict_than_what_may_not() {
        for a in Decision::ALL {
            for b in Decision::ALL {
                if a.may_run() && !b.may_run() {
                    assert!(a.strictness() < b.strictness(), "{a} {b}");
                }
            }
        }
    }
}
