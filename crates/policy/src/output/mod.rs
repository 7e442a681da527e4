//! `output_rules` in `safety.yaml`: what happens to what a job put out.
//!
//! The first enabled rule whose conditions hold decides; without one the output is allowed.
//! Rules are asked in two phases. [`OutputRules::check_metadata`] needs no content: it
//! decides, unless a rule that could decide first looks at the content. Then
//! [`OutputRules::check_content`] does, by the same order, with what the scanner found.
//! What must stay true: where the first phase decides, the second would say the same.
//!
//! Nothing here runs the scanner: whoever holds the content does, and brings its report.

mod compile;
mod document;
mod request;
mod rule;

use std::sync::Arc;

use airlock_model::output::{ClosedRules, OutputDecision};
use airlock_scan::{Finding, Redacted, Scanner, Severity};

pub(crate) use compile::{compile_output_rules, warn_about_output_rules};
pub(crate) use document::{OutputPolicyDoc, OutputRuleDoc};
pub use request::{OutputRequest, OutputRequestFault};
pub use rule::OutputContent;
pub(crate) use rule::OutputRule;
use rule::{ContentFacts, OutputFacts};

use crate::decision::FailMode;

/// The compiled output rules of a policy.
#[derive(Debug)]
pub struct OutputRules {
    pub(crate) snapshot: Arc<str>,
    /// In the order in which they are asked; those that are switched off are not here.
    pub(crate) rules: Box<[OutputRule]>,
    pub(crate) fail_mode: Option<FailMode>,
    pub(crate) default_tenant: Box<str>,
}

/// What a rule, or the absence of one, says of an output.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputRuling {
    pub decision: OutputDecision,
    /// `None`: no rule matched, or the request was malformed.
    pub rule_id: Option<Arc<str>>,
    pub reason: Arc<str>,
    /// The rule's own, or the highest of the findings it was about.
    pub severity: Option<Severity>,
}

/// What the metadata of an output decides.
#[derive(Debug, Clone, PartialEq)]
pub enum MetadataCheck {
    Decided(OutputRuling),
    /// A rule looks at the content, or at a copy of it with the findings masked.
    ContentNeeded {
        /// One of the rules that may decide fails closed: nobody reads the output before.
        closed: bool,
    },
}

/// A copy of an output with every finding masked.
#[derive(Debug, Clone, PartialEq)]
pub struct MaskedOutput {
    /// `None`: something that was found cannot be masked.
    pub bytes: Option<Vec<u8>>,
    /// What the rule's own keywords and patterns found, with its place in the original.
    pub findings: Vec<Finding>,
}

impl OutputRules {
    /// Names these rules: `sha256:` and 16 hexadecimal digits.
    pub fn snapshot(&self) -> &Arc<str> {
        &self.snapshot
    }

    /// Rules that are switched on.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// What an absent scanner means for rules that do not say. `over` is the operator's
    /// setting, which stands over the file's.
    pub fn fail_mode(&self, over: Option<FailMode>) -> FailMode {
        over.or(self.fail_mode).unwrap_or(FailMode::Open)
    }

    /// The rules that fail closed, by what they say of metadata.
    pub fn closed_rules(&self, over: Option<FailMode>) -> ClosedRules {
        let default = self.fail_mode(over);
        let closed = self.rules.iter().filter(|r| r.is_closed(default));
        ClosedRules(closed.map(OutputRule::to_closed_rule).collect())
    }

    /// The names of detectors that rules ask for by `scanners`.
    pub fn named_scanners(&self) -> impl Iterator<Item = &str> {
        let lists = self
            .rules
            .iter()
            .filter_map(|r| r.conditions.scanners.as_ref());
        lists
            .flat_map(|list| list.iter())
            .filter_map(|name| match name {
                rule::ScannerName::Detector(name) => Some(&**name),
                rule::ScannerName::Section(_) => None,
            })
    }

    /// What the metadata alone decides.
    pub fn check_metadata(
        &self,
        request: &OutputRequest<'_>,
        over: Option<FailMode>,
    ) -> MetadataCheck {
        if let Err(fault) = request.check() {
            return MetadataCheck::Decided(malformed(&fault));
        }
        let default = self.fail_mode(over);
        let facts = OutputFacts::new(request, self.tenant_or_default(request));
        let (mut needed, mut closed) = (false, false);
        for rule in self.rules.iter().filter(|r| r.meets_metadata(&facts)) {
            if !needed && !rule.needs_content() && rule.decision != OutputDecision::Redact {
                return MetadataCheck::Decided(rule.ruling(None));
            }
            needed = true;
            closed |= rule.is_closed(default);
            if !rule.needs_content() {
                // It decides whatever no rule above it does, so none below it is asked.
                break;
            }
        }
        if needed {
            MetadataCheck::ContentNeeded { closed }
        } else {
            MetadataCheck::Decided(no_rule())
        }
    }

    /// What the metadata and the content decide.
    pub fn check_content(
        &self,
        request: &OutputRequest<'_>,
        content: &OutputContent<'_>,
    ) -> OutputRuling {
        if let Err(fault) = request.check() {
            return malformed(&fault);
        }
        let facts = OutputFacts::new(request, self.tenant_or_default(request));
        let content = ContentFacts::new(*content);
        for rule in self.rules.iter().filter(|r| r.meets_metadata(&facts)) {
            if let Some(found) = rule.match_content(&content) {
                return rule.ruling(Some(found));
            }
        }
        no_rule()
    }

    /// A copy of `bytes` with everything masked that `scanner` finds, and everything that
    /// the deciding rule's own keywords and patterns find.
    pub fn mask(&self, rule_id: Option<&str>, scanner: &Scanner, bytes: &[u8]) -> MaskedOutput {
        let rule = self.rules.iter().find(|r| Some(&*r.id) == rule_id);
        let locator = rule.and_then(|r| r.conditions.locator.as_ref());
        let masked = scanner.redact(bytes);
        let Some((rule, locator)) = rule.zip(locator) else {
            return MaskedOutput {
                bytes: usable(masked, bytes),
                findings: Vec::new(),
            };
        };
        let findings = locator.scan(bytes).findings;
        let masked = usable(masked, bytes)
            .and_then(|once| usable(locator.redact(&once), &once))
            // A mark beside what is left could make a finding of it again.
            .filter(|done| scanner.scan(done).is_clean() && !rule.conditions.finds_own_words(done));
        MaskedOutput {
            bytes: masked,
            findings,
        }
    }

    fn tenant_or_default<'a>(&'a self, request: &OutputRequest<'a>) -> &'a str {
        match request.tenant.trim() {
            "" => &self.default_tenant,
            named => named,
        }
    }
}

/// The masked copy, unless something is left in it.
fn usable(masked: Redacted, original: &[u8]) -> Option<Vec<u8>> {
    let whole = original.len() <= airlock_scan::limits::INPUT_BYTES;
    (whole && masked.remaining.is_empty()).then_some(masked.bytes)
}

impl OutputRule {
    fn ruling(&self, found: Option<rule::ContentMatch>) -> OutputRuling {
        let found = found.unwrap_or_default();
        let reason = if found.found.is_empty() {
            self.reason.clone()
        } else {
            format!("{}; found: {}", self.reason, found.found.join(", ")).into()
        };
        OutputRuling {
            decision: self.decision,
            rule_id: Some(self.id.clone()),
            reason,
            severity: self.severity.or(found.severity),
        }
    }
}

fn no_rule() -> OutputRuling {
    OutputRuling {
        decision: OutputDecision::Allow,
        rule_id: None,
        reason: "allowed: no output rule matches".into(),
        severity: None,
    }
}

/// Quarantined whatever the rules say: a rule cannot be asked about it.
fn malformed(fault: &OutputRequestFault) -> OutputRuling {
    OutputRuling {
        decision: OutputDecision::Quarantine,
        rule_id: None,
        reason: format!("quarantined: {fault}").into(),
        severity: None,
    }
}

#[cfg(test)]
mod tests;
