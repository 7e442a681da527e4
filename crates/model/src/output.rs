//! The verdict on what a job put out, and which outputs nobody may read before it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::glob::{Glob, Wildcards};
use crate::text::fold_name;

/// What became of a job's output. The numbers are what the ledger stores: never reuse one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(i16)]
pub enum OutputStatus {
    /// Nothing looked at it.
    Skipped = 0,
    Allowed = 1,
    /// Nobody reads it before its content is judged.
    Held = 2,
    /// Readable with its findings masked.
    Redacted = 3,
    /// Readable by reviewers only.
    Quarantined = 4,
    /// It was quarantined, and a reviewer released it.
    Released = 5,
    /// It was quarantined, and a reviewer decided that it stays so.
    Rejected = 6,
}

impl OutputStatus {
    pub const ALL: [Self; 7] = [
        Self::Skipped,
        Self::Allowed,
        Self::Held,
        Self::Redacted,
        Self::Quarantined,
        Self::Released,
        Self::Rejected,
    ];

    pub const fn code(self) -> i16 {
        self as i16
    }

    pub fn from_code(code: i16) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.code() == code)
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Skipped => "skipped",
            Self::Allowed => "allowed",
            Self::Held => "held",
            Self::Redacted => "redacted",
            Self::Quarantined => "quarantined",
            Self::Released => "released",
            Self::Rejected => "rejected",
        }
    }

    /// Whether whoever may see the job may read what its worker wrote.
    pub const fn is_readable(self) -> bool {
        match self {
            Self::Skipped | Self::Allowed | Self::Redacted | Self::Released => true,
            Self::Held | Self::Quarantined | Self::Rejected => false,
        }
    }
}

/// What a rule says. The numbers are what the ledger stores: never reuse one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(i16)]
pub enum OutputDecision {
    Allow = 0,
    Quarantine = 1,
    Redact = 2,
    /// Carried out like a quarantine.
    Deny = 3,
}

impl OutputDecision {
    pub const ALL: [Self; 4] = [Self::Allow, Self::Quarantine, Self::Redact, Self::Deny];

    pub const fn code(self) -> i16 {
        self as i16
    }

    pub fn from_code(code: i16) -> Option<Self> {
        Self::ALL.into_iter().find(|d| d.code() == code)
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "ALLOW",
            Self::Quarantine => "QUARANTINE",
            Self::Redact => "REDACT",
            Self::Deny => "DENY",
        }
    }
}

/// When a verdict came: before the job's end was committed, or after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(i16)]
pub enum OutputPhase {
    Sync = 1,
    Async = 2,
}

impl OutputPhase {
    pub const fn code(self) -> i16 {
        self as i16
    }

    pub fn from_code(code: i16) -> Option<Self> {
        [Self::Sync, Self::Async]
            .into_iter()
            .find(|p| p.code() == code)
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sync => "sync",
            Self::Async => "async",
        }
    }
}

/// What was found in an output, as `airlock output scan` prints it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OutputFinding {
    /// `secret_leak`, `pii`, `code_injection` or `custom`.
    pub kind: String,
    pub detector: String,
    pub severity: String,
    pub confidence: f64,
    pub pointer: Option<String>,
    pub start: u64,
    pub end: u64,
    pub encoding: Option<String>,
    /// Masked.
    pub excerpt: String,
}

/// The verdict on one output.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputVerdict {
    pub decision: OutputDecision,
    /// Empty: no rule matched, or no scanner could be asked.
    pub rule_id: String,
    pub reason: String,
    pub severity: String,
    pub phase: OutputPhase,
    pub policy_snapshot: String,
    pub findings: Vec<OutputFinding>,
}

/// Whether an output policy judges what jobs put out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputSwitch {
    Off,
    On,
}

/// The reason code of a job whose output is held, and of one whose output is quarantined.
pub const OUTPUT_HELD: &str = "output_held";
pub const OUTPUT_QUARANTINED: &str = "output_quarantined";

/// A verdict on a run's output, as far as it decides how the job goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedOutput {
    /// `None`: nobody reads the output before its content is judged.
    pub decision: Option<OutputDecision>,
    /// There is a copy in which every finding is masked.
    pub masked: bool,
    pub reason: Arc<str>,
}

impl CheckedOutput {
    /// What becomes of the output. What cannot be masked is quarantined.
    pub const fn status(&self) -> OutputStatus {
        match self.decision {
            None => OutputStatus::Held,
            Some(OutputDecision::Allow) => OutputStatus::Allowed,
            Some(OutputDecision::Redact) if self.masked => OutputStatus::Redacted,
            Some(OutputDecision::Redact | OutputDecision::Quarantine | OutputDecision::Deny) => {
                OutputStatus::Quarantined
            }
        }
    }
}

/// What is known of an output without looking at its content.
#[derive(Debug, Clone, Copy)]
pub struct OutputMetadata<'a> {
    pub tenant: &'a str,
    pub topic: &'a str,
    pub capabilities: &'a [String],
    pub risk_tags: &'a [String],
    pub content_type: &'a str,
    pub size: u64,
    pub has_error: bool,
}

/// The enabled rules that fail closed, by what they say of metadata. The scheduler keeps
/// them in the ledger, so that an absent scanner cannot weaken them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClosedRules(pub Vec<ClosedRule>);

/// One of them. An empty list says nothing; what cannot be decided here (`when`, content)
/// counts as met.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClosedRule {
    pub id: String,
    pub tenants: Vec<String>,
    pub topics: Vec<String>,
    pub capabilities: Vec<String>,
    pub risk_tags: Vec<String>,
    pub content_types: Vec<String>,
    pub output_size_gt: Option<u64>,
    pub has_error: Option<bool>,
}

impl ClosedRules {
    /// The id of the first rule that an output of this kind may meet.
    pub fn first_met(&self, output: &OutputMetadata<'_>) -> Option<&str> {
        let met = self.0.iter().find(|rule| rule.is_met_by(output));
        met.map(|rule| rule.id.as_str())
    }
}

impl ClosedRule {
    /// Compares as the policy does, and where the policy could not tell, it is met: without
    /// a scanner nothing may be held to less.
    fn is_met_by(&self, output: &OutputMetadata<'_>) -> bool {
        let any_word = |words: &[String], given: &[&str]| {
            words.is_empty() || given.iter().any(|g| words.iter().any(|w| same_word(w, g)))
        };
        let any_glob = |patterns: &[String], given: &str| {
            let matches =
                |p: &String| Glob::with_wildcards(p, Wildcards::StarAndQuestionMark).matches(given);
            patterns.is_empty() || patterns.iter().any(matches)
        };
        let content_type = media_type(output.content_type);
        any_word(&self.tenants, &[output.tenant])
            && any_glob(&self.topics, output.topic)
            && any_word(&self.capabilities, &as_strs(output.capabilities))
            && any_word(&self.risk_tags, &as_strs(output.risk_tags))
            && (content_type.is_empty() || any_glob(&self.content_types, &content_type))
            && self.output_size_gt.is_none_or(|size| output.size > size)
            && self.has_error.is_none_or(|error| error == output.has_error)
    }
}

/// `text/html` of `Text/HTML; charset=utf-8`.
pub fn media_type(content_type: &str) -> String {
    let essence = content_type.split(';').next().unwrap_or_default();
    essence.trim().to_ascii_lowercase()
}

fn same_word(a: &str, b: &str) -> bool {
    a.eq_ignore_ascii_case(b) || fold_name(a) == fold_name(b)
}

fn as_strs(list: &[String]) -> Vec<&str> {
    list.iter().map(String::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output<'a>() -> OutputMetadata<'a> {
        OutputMetadata {
            tenant: "acme",
            topic: "job.mail.send",
            capabilities: &[],
            risk_tags: &[],
            content_type: "application/json",
            size: 100,
            has_error: false,
        }
    }

    #[test]
    fn codes_and_names_are_one_to_one() {
        for status in OutputStatus::ALL {
            assert_eq!(OutputStatus::from_code(status.code()), Some(status));
            let json = serde_json::to_value(status).unwrap();
            assert_eq!(json, status.as_str());
        }
        for decision in OutputDecision::ALL {
            assert_eq!(OutputDecision::from_code(decision.code()), Some(decision));
        }
        assert_eq!(OutputStatus::from_code(7), None);
    }

    #[test]
    fn only_what_can_be_masked_is_redacted() {
        let status = |decision, masked| {
            let reason = Arc::from("why");
            let checked = CheckedOutput {
                decision,
                masked,
                reason,
            };
            checked.status()
        };
        use OutputDecision as D;
        assert_eq!(status(None, true), OutputStatus::Held);
        assert_eq!(status(Some(D::Allow), false), OutputStatus::Allowed);
        assert_eq!(status(Some(D::Redact), true), OutputStatus::Redacted);
        assert_eq!(status(Some(D::Redact), false), OutputStatus::Quarantined);
        for decision in [D::Quarantine, D::Deny] {
            assert_eq!(status(Some(decision), true), OutputStatus::Quarantined);
        }
    }

    #[test]
    fn a_closed_rule_is_met_by_metadata_alone() {
        let mut rule = ClosedRule {
            id: "mail".to_owned(),
            topics: vec!["job.mail.*".to_owned()],
            output_size_gt: Some(99),
            ..ClosedRule::default()
        };
        let met = |rule: &ClosedRule| {
            ClosedRules(vec![rule.clone()])
                .first_met(&output())
                .is_some()
        };
        assert!(met(&rule));
        rule.output_size_gt = Some(100);
        assert!(!met(&rule));
        rule.output_size_gt = None;
        rule.risk_tags = vec!["pii".to_owned()];
        assert!(!met(&rule), "the output has no risk tag");
        rule.risk_tags.clear();
        rule.has_error = Some(true);
        assert!(!met(&rule));
    }

    #[test]
    fn a_closed_rule_compares_words_and_types_as_the_policy_does() {
        let rule = |change: fn(&mut ClosedRule)| {
            let mut rule = ClosedRule::default();
            change(&mut rule);
            ClosedRules(vec![rule])
        };
        let met =
            |rules: &ClosedRules, output: &OutputMetadata<'_>| rules.first_met(output).is_some();
        assert!(met(
            &rule(|r| r.tenants = vec!["ACME".to_owned()]),
            &output()
        ));
        assert!(!met(
            &rule(|r| r.tenants = vec!["other".to_owned()]),
            &output()
        ));
        let topics = rule(|r| r.topics = vec!["job.mail.sen?".to_owned()]);
        assert!(met(&topics, &output()));
        let html = rule(|r| r.content_types = vec!["text/*".to_owned()]);
        assert!(!met(&html, &output()));
        let mut typed = output();
        typed.content_type = "Text/HTML; charset=utf-8";
        assert!(met(&html, &typed));
        typed.content_type = "";
        assert!(met(&html, &typed), "an unknown type may be any");
        let tags = ["p\u{200b}ii".to_owned()];
        let tagged = OutputMetadata {
            risk_tags: &tags,
            ..output()
        };
        assert!(met(
            &rule(|r| r.risk_tags = vec!["PII".to_owned()]),
            &tagged
        ));
    }
}
