//! The safety policy: what `safety.yaml` says, and what that means for one job.
//!
//! [`Policy::load`] turns the text of the file into a [`Policy`], or into a
//! [`LoadError`] that names every mistake by line and column. [`Policy::decide`] asks
//! it about one job. What must stay true: the same policy and the same input give the
//! same verdict, always. So nothing here reads a clock, a file or a socket; whoever
//! owns the file does.
//!
//! The first rule that matches decides, and the file's order is the only order there
//! is. Priorities on rules and "the strictest match wins" were rejected: with either,
//! one cannot tell what a file does by reading it from the top.

mod compile;
mod decision;
mod document;
mod explain;
mod glob;
mod hint;
mod input;
mod load;
mod matcher;
mod words;

use std::sync::Arc;

pub use decision::{Decision, FailMode, Verdict};
pub use explain::{Explanation, Outcome, Step};
pub use glob::{Glob, GlobError};
pub use input::{InputFault, PolicyInput};
pub use load::{LoadError, Problem, limits};
pub use matcher::Condition;

use matcher::Rule;

/// A loaded policy. It never changes: a new file makes a new one.
#[derive(Debug, Clone)]
pub struct Policy {
    snapshot: Arc<str>,
    rules: Box<[Rule]>,
    default_decision: Decision,
    default_reason: Arc<str>,
    default_tenant: Box<str>,
    fail_mode: FailMode,
}

impl Policy {
    /// Names this content: `sha256:` and 16 hexadecimal digits. Comments, layout and
    /// the order of keys do not count, anything that could change a verdict does.
    pub fn snapshot(&self) -> &Arc<str> {
        &self.snapshot
    }

    pub fn rule_count(&self) -> usize {
        self.rules.len()
    }

    /// What the scheduler does while the kernel cannot be asked.
    pub fn fail_mode(&self) -> FailMode {
        self.fail_mode
    }

    pub fn default_decision(&self) -> Decision {
        self.default_decision
    }

    pub fn default_tenant(&self) -> &str {
        &self.default_tenant
    }

    /// The verdict on one job.
    pub fn decide(&self, input: &PolicyInput<'_>) -> Verdict {
        if let Err(fault) = input.check() {
            return self.malformed(fault);
        }
        let tenant = self.tenant_of(input);
        self.rules
            .iter()
            .find(|rule| rule.first_unmet(input, tenant).is_none())
            .map_or_else(|| self.by_default(), |rule| self.by_rule(rule))
    }

    /// The input's tenant, or the default one when it names none.
    fn tenant_of<'a>(&'a self, input: &PolicyInput<'a>) -> &'a str {
        match input.tenant.trim() {
            "" => &self.default_tenant,
            named => named,
        }
    }

    fn by_rule(&self, rule: &Rule) -> Verdict {
        Verdict {
            decision: rule.decision,
            reason: rule.reason.clone(),
            rule_id: Some(rule.id.clone()),
            snapshot: self.snapshot.clone(),
        }
    }

    fn by_default(&self) -> Verdict {
        Verdict {
            decision: self.default_decision,
            reason: self.default_reason.clone(),
            rule_id: None,
            snapshot: self.snapshot.clone(),
        }
    }

    /// What is malformed is denied whatever the rules say, because a pattern such as
    /// `*` would otherwise allow what no worker could ever be asked to do.
    fn malformed(&self, fault: InputFault) -> Verdict {
        Verdict {
            decision: Decision::Deny,
            reason: format!("denied: {fault}").into(),
            rule_id: None,
            snapshot: self.snapshot.clone(),
        }
    }
}
