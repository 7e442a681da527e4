//! Why an answer came out as it did: every rule that was asked, each of its conditions
//! with what the job has there, and what would have changed the answer.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::Policy;
use crate::clause::{Clause, ClauseResult, Facts};
use crate::decision::Decision;
use crate::evaluate::Evaluation;
use crate::request::Request;
use crate::rule::{Rule, evaluate_velocity};
use crate::velocity::Counters;

/// An answer with the way to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explanation {
    pub evaluation: Evaluation,
    /// The rules that were asked, in order; of those that did not match only the first
    /// [`Explanation::MAX_STEPS`].
    pub steps: Vec<Step>,
    /// Rules that were asked and are not listed.
    pub more_steps: usize,
    /// What would have changed the answer, the likeliest first.
    pub changes: Vec<Change>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Step {
    pub rule_id: Arc<str>,
    pub decision: Decision,
    pub enforced: bool,
    pub outcome: Outcome,
    pub conditions: Vec<Condition>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It decided.
    Matched,
    /// It would have decided, but is not enforced.
    Shadow,
    Missed,
}

/// One condition of a rule, and what the job has there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Condition {
    /// As in the file: `topics`, `when`, `velocity`.
    pub field: &'static str,
    pub wanted: String,
    pub value: String,
    pub held: bool,
    /// Why it could not be judged. It then holds for a rule that is stricter than an
    /// allow, and for no other.
    pub failed: Option<String>,
}

/// Something that would have led to another answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The answer then.
    pub decision: Decision,
    /// The rule that would have decided; `None`: the default.
    pub rule_id: Option<Arc<str>>,
    pub text: String,
}

impl Explanation {
    /// Rules passed over that are listed.
    pub const MAX_STEPS: usize = 100;
    /// Changes that are listed.
    pub const MAX_CHANGES: usize = 10;
}

impl Policy {
    /// As [`Policy::evaluate`], and how it came to that. The answer is the same one.
    /// The counters are asked as often as for an answer, so they must not record.
    pub fn explain(&self, request: &Request<'_>, counters: &mut dyn Counters) -> Explanation {
        let evaluation = self.evaluate(request, counters);
        let mut explanation = Explanation {
            evaluation,
            steps: Vec::new(),
            more_steps: 0,
            changes: Vec::new(),
        };
        let facts = Facts::new(request, self.tenant_or_default(request));
        let objected = self
            .tenants
            .get(facts.tenant)
            .iter()
            .any(|t| t.enforced && t.denial_reason(request).is_some());
        if request.check().is_err() || objected {
            return explanation;
        }
        let mut near = Vec::new();
        let mut decided = None;
        for (number, rule) in self.rules.iter().enumerate() {
            let step = self.explain_rule(rule, &facts, counters);
            let outcome = step.outcome;
            if outcome == Outcome::Missed {
                near.extend(near_miss_change(&step, explanation.evaluation.decision));
            }
            if outcome != Outcome::Missed || explanation.steps.len() < Explanation::MAX_STEPS {
                explanation.steps.push(step);
            } else {
                explanation.more_steps += 1;
            }
            if outcome == Outcome::Matched {
                decided = Some(number);
                break;
            }
        }
        explanation.changes = self.collect_changes(request, counters, decided, near);
        explanation
    }

    fn explain_rule(&self, rule: &Rule, facts: &Facts<'_>, counters: &mut dyn Counters) -> Step {
        let head = &rule.head;
        let mut conditions: Vec<Condition> = head
            .clauses
            .iter()
            .map(|c| explain_clause(c, facts))
            .collect();
        let holds = |c: &Condition| {
            c.held || (c.failed.is_some() && head.treats_as_held(ClauseResult::Failed))
        };
        // A counter is asked only by a rule whose other conditions hold.
        if let Some(velocity) = &rule.velocity
            && conditions.iter().all(holds)
        {
            let count = counters.count(&velocity.to_query(&head.id, facts));
            let held = evaluate_velocity(velocity, count);
            conditions.push(Condition {
                field: "velocity",
                wanted: format!(
                    "more than {} in {} s",
                    velocity.max_requests, velocity.window_seconds
                ),
                value: match count {
                    crate::velocity::Count::Is(n) => n.to_string(),
                    crate::velocity::Count::Unknown => "unknown".to_owned(),
                },
                held: held == ClauseResult::Yes,
                failed: (held == ClauseResult::Failed).then(|| "nobody could count".to_owned()),
            });
        }
        let outcome = match (conditions.iter().all(holds), head.enforced) {
            (true, true) => Outcome::Matched,
            (true, false) => Outcome::Shadow,
            (false, _) => Outcome::Missed,
        };
        Step {
            rule_id: head.id.clone(),
            decision: head.decision,
            enforced: head.enforced,
            outcome,
            conditions,
        }
    }

    /// What would come without the rule that decided, then the rules that were missed
    /// by the fewest conditions.
    fn collect_changes(
        &self,
        request: &Request<'_>,
        counters: &mut dyn Counters,
        decided: Option<usize>,
        mut near: Vec<(usize, Change)>,
    ) -> Vec<Change> {
        let mut changes = Vec::new();
        if let Some(number) = decided
            && let Some(rule) = self.rules.get(number)
        {
            let otherwise = self.evaluate_excluding_rule(request, counters, Some(number));
            changes.push(Change {
                decision: otherwise.decision,
                rule_id: otherwise.rule_id.clone(),
                text: format!("without rule {:?}: {}", rule.head.id, otherwise.reason),
            });
        }
        near.sort_by_key(|(unmet, _)| *unmet);
        changes.extend(near.into_iter().map(|(_, change)| change));
        changes.truncate(Explanation::MAX_CHANGES);
        changes
    }
}

fn explain_clause(clause: &Clause, facts: &Facts<'_>) -> Condition {
    Condition {
        field: clause.field_name(),
        wanted: clause.expected_text(),
        value: clause.actual_text(facts),
        held: clause.evaluate(facts) == ClauseResult::Yes,
        failed: clause.failure_reason(facts),
    }
}

/// A rule that would have decided otherwise and was missed by one or two conditions.
fn near_miss_change(step: &Step, decided: Decision) -> Option<(usize, Change)> {
    let unmet: Vec<&Condition> = step.conditions.iter().filter(|c| !c.held).collect();
    if !step.enforced || step.decision == decided || unmet.len() > 2 {
        return None;
    }
    let needs: Vec<String> = unmet
        .iter()
        .map(|c| format!("{} were {} (it is {})", c.field, c.wanted, c.value))
        .collect();
    let change = Change {
        decision: step.decision,
        rule_id: Some(step.rule_id.clone()),
        text: format!(
            "{} by rule {:?} if {}",
            step.decision.participle(),
            step.rule_id,
            needs.join(" and ")
        ),
    };
    Some((unmet.len(), change))
}

/// Rules passed over that are named in the text; the rest are counted.
const MAX_NAMED: usize = 20;

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.evaluation.reason)?;
        let matched = self.steps.iter().find(|s| s.outcome == Outcome::Matched);
        if let Some(step) = matched {
            for (i, c) in step.conditions.iter().enumerate() {
                let lead = if i == 0 { "; because " } else { ", " };
                write!(f, "{lead}{} {} ({})", c.field, c.wanted, c.value)?;
            }
        }
        let missed = self.steps.iter().filter(|s| s.outcome == Outcome::Missed);
        let total = missed.clone().count() + self.more_steps;
        for (i, step) in missed.take(MAX_NAMED).enumerate() {
            let lead = if i == 0 { "; passed over: " } else { ", " };
            let unmet = step.conditions.iter().find(|c| !c.held);
            write!(
                f,
                "{lead}{:?} ({})",
                step.rule_id,
                unmet.map_or("", |c| c.field)
            )?;
        }
        if total > MAX_NAMED {
            write!(f, " and {} more", total - MAX_NAMED)?;
        }
        for shadow in &self.evaluation.shadows {
            write!(f, "; not enforced: {}", shadow.reason)?;
        }
        for (i, change) in self.changes.iter().enumerate() {
            let lead = if i == 0 { "; otherwise: " } else { ", " };
            write!(f, "{lead}{}", change.text)?;
        }
        Ok(())
    }
}
