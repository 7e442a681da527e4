//! Rules that can never decide, because an earlier one always does first.
//!
//! That is a warning and no mistake: the policy does what it says, only somebody may
//! not have read it from the top. The check may miss such a rule and never names one
//! wrongly.

use serde_saphyr::Location;

use super::{PolicyDefaults, head_covers};
use crate::clause::Clause;
use crate::decision::Decision;
use crate::problem::{Problem, Problems};
use crate::rule::Rule;

/// Comparisons that are worth a warning. Beyond, the rest is not looked at.
const MAX_COMPARISONS: usize = 2_000_000;

pub(super) fn warn_unreachable_or_catch_all(
    rules: &[Rule],
    scalars: &PolicyDefaults<'_>,
    problems: &mut Problems,
) {
    let mut left = MAX_COMPARISONS;
    for (i, rule) in rules.iter().enumerate() {
        let Some(rest) = left.checked_sub(i) else {
            break;
        };
        left = rest;
        let earlier = rules.iter().take(i);
        if let Some(first) = earlier
            .into_iter()
            .find(|first| makes_unreachable(first, rule))
        {
            let of = if first.head.place.file == rule.head.place.file {
                String::new()
            } else {
                format!(" of {}", first.head.place.file)
            };
            let message = format!(
                "rule {:?} can never match: rule {:?} on line {}{of} matches first",
                rule.head.id, first.head.id, first.head.place.line
            );
            problems.warn(rule_warning(rule, &message).with_hint("move it up, or take it out"));
        }
    }
    rules
        .iter()
        .enumerate()
        .filter_map(|(i, rule)| catch_all_warning(rule, rules.iter().take(i)))
        .for_each(|warning| problems.warn(warning));
    let on = rules.iter().any(|r| r.head.enforced);
    if let Some(first) = rules.first().filter(|_| !on) {
        let word = match scalars.default_decision {
            Decision::Allow | Decision::AllowWithConstraints => "allows",
            Decision::Deny | Decision::RequireApproval | Decision::Throttle => "denies",
        };
        let message = format!("no rule is enforced: the default {word} every job");
        problems.warn(rule_warning(first, &message));
    }
}

/// What is to be said of a rule that matches every job: that it lets everything run, or
/// that nothing can. One that denies what others left over, or holds it, is a default.
fn catch_all_warning<'a>(rule: &Rule, earlier: impl Iterator<Item = &'a Rule>) -> Option<Problem> {
    let head = &rule.head;
    let always = head.clauses.iter().all(Clause::is_always_true);
    if !head.enforced || rule.velocity.is_some() || !always {
        return None;
    }
    let earlier: Vec<&Rule> = earlier.filter(|r| r.head.enforced).collect();
    let id = &head.id;
    match head.decision {
        Decision::Allow | Decision::AllowWithConstraints => {
            let rest = if earlier.is_empty() {
                ""
            } else {
                " that no rule above it decides"
            };
            let message = format!("rule {id:?} allows every job{rest}");
            let hint = "name the topics, tenants or tags that are meant; default_decision: allow says so where it is meant";
            Some(rule_warning(rule, &message).with_hint(hint))
        }
        Decision::Deny if !earlier.iter().any(|r| r.head.decision != Decision::Deny) => {
            let message = format!("rule {id:?} denies every job: no rule above it lets one run");
            Some(
                rule_warning(rule, &message)
                    .with_hint("move it down, or name the jobs that are meant"),
            )
        }
        Decision::Deny | Decision::RequireApproval | Decision::Throttle => None,
    }
}

fn rule_warning(rule: &Rule, message: &str) -> Problem {
    let place = &rule.head.place;
    Problem {
        line: place.line,
        column: place.column,
        ..Problem::at(Location::UNKNOWN, rule.head.id.to_string(), message)
    }
    .in_file(&place.file)
}

fn may_fail(clause: &Clause) -> bool {
    matches!(clause, Clause::When(_) | Clause::LabelNotIn(_))
}

/// Whether `first` decides whenever `later` would match.
fn makes_unreachable(first: &Rule, later: &Rule) -> bool {
    let whens = |rule: &Rule| {
        rule.head
            .clauses
            .iter()
            .any(|c| may_fail(c) && !c.is_always_true())
    };
    // A condition that fails counts differently for the two kinds of decisions.
    let alike = first.head.decision.may_run() == later.head.decision.may_run();
    first.head.enforced
        && first.velocity.is_none()
        && (alike || !whens(first))
        && head_covers(&first.head, &later.head)
}
