//! The policy of the benchmark: 100 rules, of which one of the last allows its jobs.
//!
//! The rules before it are of the kinds people write (topics, tenants, capabilities,
//! tags, labels), and none of them matches, so that every decision walks past them.

use std::fmt::Write;

pub const RULES: usize = 100;
/// Where the rule stands that allows the benchmark's jobs, counted from 1.
const ALLOWS: usize = 98;

/// The policy file's text.
pub fn policy_yaml() -> String {
    let mut text = String::from("version: 1\ndefault_decision: deny\nrules:\n");
    for number in 1..=RULES {
        let (condition, decision) = rule_condition_and_decision(number);
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "  - id: rule-{number:03}\n    match:\n{condition}    decision: {decision}\n"
        );
    }
    text
}

fn rule_condition_and_decision(number: usize) -> (String, &'static str) {
    if number == ALLOWS {
        let condition = "      topics: [\"job.no*\"]\n      no_risk_tags: true\n";
        return (condition.to_owned(), "allow");
    }
    match number % 5 {
        0 => (
            format!("      topics: [\"job.team{number}.*\", \"job.*.secret{number}\"]\n"),
            "deny",
        ),
        1 => (
            format!(
                "      topics: [\"job.*\"]\n      labels: {{customer: \"blocked-{number}\", region: \"eu-{}\"}}\n",
                number % 7
            ),
            "deny",
        ),
        2 => (
            format!("      risk_tags: [destructive-{number}, irreversible-{number}]\n"),
            "require_approval",
        ),
        3 => (
            format!(
                "      topics: [\"job.*\"]\n      tenants: [tenant-{number}, subsidiary-{number}]\n"
            ),
            "throttle",
        ),
        _ => (
            format!(
                "      topics: [\"job.*\"]\n      capabilities: [payments-{number}]\n      requires: [gpu-{number}]\n"
            ),
            "allow",
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use airlock_policy::{Decision, NoCounters, Policy, Request};

    use super::*;

    #[test]
    fn one_of_the_last_of_a_hundred_rules_allows_the_jobs() {
        let policy = Policy::load(&policy_yaml()).expect("a sound policy");
        assert_eq!(policy.rule_count(), RULES);
        let labels = BTreeMap::from([
            ("customer".to_owned(), "single-7".to_owned()),
            ("region".to_owned(), "eu-2".to_owned()),
        ]);
        let mut input = Request::new(crate::jobs::TOPIC);
        input.tenant = "default";
        input.labels = &labels;
        let verdict = policy.evaluate(&input, &mut NoCounters);
        assert_eq!(verdict.decision, Decision::Allow);
        assert!(verdict.reason.contains("rule-098"), "{verdict:?}");
    }

    #[test]
    fn the_customer_matters_to_the_rules() {
        let policy = Policy::load(&policy_yaml()).expect("a sound policy");
        let labels = BTreeMap::from([
            ("customer".to_owned(), "blocked-1".to_owned()),
            ("region".to_owned(), "eu-1".to_owned()),
        ]);
        let mut input = Request::new(crate::jobs::TOPIC);
        input.labels = &labels;
        assert_eq!(
            policy.evaluate(&input, &mut NoCounters).decision,
            Decision::Deny
        );
    }
}
