//! Why a verdict came out as it did: every rule that was asked, and what it missed.

use std::fmt;
use std::sync::Arc;

use crate::Policy;
use crate::decision::Verdict;
use crate::input::PolicyInput;
use crate::matcher::Condition;

/// A verdict with the rules that were asked on the way to it, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    pub verdict: Verdict,
    pub steps: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub rule_id: Arc<str>,
    pub outcome: Outcome,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Matched,
    /// Passed over, because this condition does not hold.
    Missed(Condition),
}

impl Policy {
    /// As [`Policy::decide`], and how it came to that. The verdict is the same one.
    pub fn explain(&self, input: &PolicyInput<'_>) -> Explanation {
        let verdict = self.decide(input);
        if input.check().is_err() {
            return Explanation {
                verdict,
                steps: Vec::new(),
            };
        }
        let tenant = self.tenant_of(input);
        let mut steps = Vec::new();
        for rule in &self.rules {
            let unmet = rule.first_unmet(input, tenant);
            steps.push(Step {
                rule_id: rule.id.clone(),
                outcome: unmet.map_or(Outcome::Matched, Outcome::Missed),
            });
            if unmet.is_none() {
                break;
            }
        }
        Explanation { verdict, steps }
    }
}

/// Rules passed over that are named in the text; the rest are counted.
const NAMED: usize = 20;

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.verdict.reason)?;
        let missed = self.steps.iter().filter_map(|s| match s.outcome {
            Outcome::Matched => None,
            Outcome::Missed(condition) => Some((&s.rule_id, condition)),
        });
        let total = missed.clone().count();
        for (i, (id, condition)) in missed.take(NAMED).enumerate() {
            let lead = if i == 0 { "; passed over: " } else { ", " };
            write!(f, "{lead}{id:?} ({})", condition.field())?;
        }
        if total > NAMED {
            write!(f, " and {} more", total - NAMED)?;
        }
        Ok(())
    }
}
