//! A compiled rule and the question whether it is about a given job.

use std::sync::Arc;

use serde::Serialize;

use crate::clause::{Clause, ClauseResult, Facts};
use crate::decision::Decision;
use crate::terms::{ApprovalTerms, Constraints, Remediation};
use crate::velocity::{Count, Counters, Velocity};
use airlock_model::reads::Reads;

/// What every kind of rule has.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) id: Arc<str>,
    /// Names the rule's content: `sha256:` and 32 hexadecimal digits.
    pub(crate) hash: Arc<str>,
    pub(crate) decision: Decision,
    /// Made when the policy is loaded, so that deciding formats nothing.
    pub(crate) reason: Arc<str>,
    /// The same for a rule that is only tried out: `would be denied by …`.
    pub(crate) would: Arc<str>,
    /// Whether it decides, or is only recorded.
    pub(crate) enforced: bool,
    pub(crate) clauses: Box<[Clause]>,
    pub(crate) constraints: Option<Arc<Constraints>>,
    pub(crate) remediations: Arc<[Remediation]>,
    pub(crate) approval: Option<Arc<ApprovalTerms>>,
    pub(crate) place: Place,
}

/// Where a rule stands.
#[derive(Debug, Clone, Default)]
pub(crate) struct Place {
    pub(crate) file: Arc<str>,
    pub(crate) line: u64,
    pub(crate) column: u64,
}

#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) head: Head,
    pub(crate) velocity: Option<Velocity>,
    /// What this rule and all before it read.
    pub(crate) reads: Arc<Reads>,
}

impl Head {
    /// Whether a clause that cannot be judged counts as holding.
    fn failed_clause_holds(&self) -> bool {
        !self.decision.may_run()
    }

    pub(crate) fn treats_as_held(&self, held: ClauseResult) -> bool {
        match held {
            ClauseResult::Yes => true,
            ClauseResult::No => false,
            ClauseResult::Failed => self.failed_clause_holds(),
        }
    }

    pub(crate) fn matches(&self, facts: &Facts<'_>) -> bool {
        self.clauses
            .iter()
            .all(|c| self.treats_as_held(c.evaluate(facts)))
    }

    pub(crate) fn collect_reads(&self, reads: &mut Reads) {
        self.clauses.iter().for_each(|c| c.collect_reads(reads));
    }
}

/// Whether a rule matched, and whether a counter had to be asked for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RuleMatch {
    pub(crate) matched: bool,
    pub(crate) counted: bool,
}

impl Rule {
    /// The counter is asked last, so that only jobs the rule is about are counted.
    pub(crate) fn evaluate(&self, facts: &Facts<'_>, counters: &mut dyn Counters) -> RuleMatch {
        if !self.head.matches(facts) {
            return RuleMatch {
                matched: false,
                counted: false,
            };
        }
        let Some(velocity) = &self.velocity else {
            return RuleMatch {
                matched: true,
                counted: false,
            };
        };
        let count = counters.count(&velocity.to_query(&self.head.id, facts));
        RuleMatch {
            matched: self.head.treats_as_held(evaluate_velocity(velocity, count)),
            counted: true,
        }
    }
}

pub(crate) fn evaluate_velocity(velocity: &Velocity, count: Count) -> ClauseResult {
    match count {
        Count::Is(n) => (n > velocity.max_requests).into(),
        Count::Unknown => ClauseResult::Failed,
    }
}

/// A rule as it is listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RuleInfo {
    pub id: Arc<str>,
    pub hash: Arc<str>,
    /// `rule`, or `content` for one about what is in an input.
    pub kind: &'static str,
    pub decision: Decision,
    pub enforced: bool,
    pub reason: Arc<str>,
    /// What it asks for, each condition in words.
    pub conditions: Vec<String>,
    pub velocity: Option<String>,
    pub constraints: Option<Arc<Constraints>>,
    pub remediations: Arc<[Remediation]>,
    pub approval: Option<Arc<ApprovalTerms>>,
    /// The name of its file; empty when it has none.
    pub file: Arc<str>,
    pub line: u64,
}

impl Head {
    pub(crate) fn to_info(&self, kind: &'static str) -> RuleInfo {
        RuleInfo {
            id: self.id.clone(),
            hash: self.hash.clone(),
            kind,
            decision: self.decision,
            enforced: self.enforced,
            reason: self.reason.clone(),
            conditions: self
                .clauses
                .iter()
                .map(|c| format!("{}: {}", c.field_name(), c.expected_text()))
                .collect(),
            velocity: None,
            constraints: self.constraints.clone(),
            remediations: self.remediations.clone(),
            approval: self.approval.clone(),
            file: self.place.file.clone(),
            line: self.place.line,
        }
    }
}

impl Rule {
    pub(crate) fn to_info(&self) -> RuleInfo {
        RuleInfo {
            velocity: self
                .velocity
                .as_ref()
                .map(|v| format!("more than {} in {} s", v.max_requests, v.window_seconds)),
            ..self.head.to_info("rule")
        }
    }
}
