//! A compiled rule and the question whether it is about a given job.
//!
//! Every condition must hold. The checks stand in the order of what they cost and how
//! often they fail, which changes nothing but the time and which condition
//! [`Rule::first_unmet`] names.

use std::sync::Arc;

use crate::decision::Decision;
use crate::glob::Glob;
use crate::input::PolicyInput;
use crate::words::Word;

#[derive(Debug, Clone)]
pub(crate) struct Rule {
    pub(crate) id: Arc<str>,
    pub(crate) decision: Decision,
    /// Made when the policy is loaded, so that deciding formats nothing.
    pub(crate) reason: Arc<str>,
    pub(crate) when: Match,
}

/// A label's name, as it is, and its value.
pub(crate) type Label = (Box<str>, Word);

/// `None` means that the rule does not ask. An empty list never gets here: it would
/// be unclear whether it asks for nothing or can never be met.
#[derive(Debug, Clone, Default)]
pub(crate) struct Match {
    pub(crate) topics: Option<Box<[Glob]>>,
    pub(crate) tenants: Option<Box<[Word]>>,
    pub(crate) capabilities: Option<Box<[Word]>>,
    pub(crate) risk_tags: Option<Box<[Word]>>,
    pub(crate) no_risk_tags: bool,
    pub(crate) requires: Option<Box<[Word]>>,
    pub(crate) labels: Option<Box<[Label]>>,
}

/// A condition of a match, named as in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    Topics,
    Tenants,
    Capabilities,
    RiskTags,
    NoRiskTags,
    Requires,
    Labels,
}

impl Condition {
    pub fn field(self) -> &'static str {
        match self {
            Self::Topics => "topics",
            Self::Tenants => "tenants",
            Self::Capabilities => "capabilities",
            Self::RiskTags => "risk_tags",
            Self::NoRiskTags => "no_risk_tags",
            Self::Requires => "requires",
            Self::Labels => "labels",
        }
    }
}

impl Rule {
    /// The first condition that does not hold; `None` means that the rule matches.
    pub(crate) fn first_unmet(&self, input: &PolicyInput<'_>, tenant: &str) -> Option<Condition> {
        let Match {
            topics,
            tenants,
            capabilities,
            risk_tags,
            no_risk_tags,
            requires,
            labels,
        } = &self.when;
        // A tag that is blank still counts as one: whoever sends it meant something,
        // and the job is then held to the rules for tagged jobs.
        if *no_risk_tags && !input.risk_tags.is_empty() {
            return Some(Condition::NoRiskTags);
        }
        if unmet(topics, |globs| globs.iter().any(|g| g.matches(input.topic))) {
            return Some(Condition::Topics);
        }
        if unmet(tenants, |words| words.iter().any(|w| w.fits(tenant))) {
            return Some(Condition::Tenants);
        }
        if unmet(capabilities, |words| {
            words.iter().any(|w| w.fits(input.capability))
        }) {
            return Some(Condition::Capabilities);
        }
        if unmet(risk_tags, |words| {
            words.iter().any(|w| carries(input.risk_tags, w))
        }) {
            return Some(Condition::RiskTags);
        }
        if unmet(requires, |words| {
            words.iter().all(|w| carries(input.requires, w))
        }) {
            return Some(Condition::Requires);
        }
        if unmet(labels, |pairs| {
            pairs.iter().all(|(key, value)| {
                input
                    .labels
                    .get(&**key)
                    .is_some_and(|given| value.fits(given))
            })
        }) {
            return Some(Condition::Labels);
        }
        None
    }
}

fn unmet<T: ?Sized>(condition: &Option<Box<T>>, holds: impl FnOnce(&T) -> bool) -> bool {
    condition.as_deref().is_some_and(|c| !holds(c))
}

fn carries(given: &[String], word: &Word) -> bool {
    given.iter().any(|g| word.fits(g))
}
