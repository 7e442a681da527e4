//! Why an answer came out as it did.

use airlock_policy::{Decision, NoCounters, Outcome, OwnedRequest};

use crate::asking::{Counted, job, labelled, rules, tagged};

const RULES: &str = "  - {id: destructive, match: {risk_tags: [destructive]}, decision: deny}
  - {id: tried, match: {topics: ['job.*']}, decision: throttle, enforce: false}
  - {id: big, match: {topics: ['job.pay.*'], label_threshold: {amount: 1000}}, decision: require_approval}
  - {id: prod, match: {when: \"labels.env == 'prod'\"}, decision: deny}
  - {id: all, match: {topics: ['job.*']}, decision: allow}
";

#[test]
fn every_condition_comes_with_its_value() {
    let policy = rules(RULES);
    let request = OwnedRequest {
        topic: "job.pay.out".to_owned(),
        ..labelled(&[("amount", "70"), ("env", "dev")])
    };
    let explained = policy.explain(&request.as_request(), &mut NoCounters);
    assert_eq!(explained.evaluation.decision, Decision::Allow);
    let outcomes: Vec<_> = explained
        .steps
        .iter()
        .map(|s| (&*s.rule_id, s.outcome))
        .collect();
    assert_eq!(
        outcomes,
        [
            ("destructive", Outcome::Missed),
            ("tried", Outcome::Shadow),
            ("big", Outcome::Missed),
            ("prod", Outcome::Missed),
            ("all", Outcome::Matched),
        ]
    );
    let big: Vec<_> = explained.steps[2]
        .conditions
        .iter()
        .map(|c| (c.field, c.wanted.as_str(), c.value.as_str(), c.held))
        .collect();
    assert_eq!(
        big,
        [
            ("topics", "job.pay.*", "job.pay.out", true),
            ("label_threshold", "amount over 1000", "amount=70", false),
        ]
    );
    let prod = &explained.steps[3].conditions[0];
    assert_eq!(
        (prod.wanted.as_str(), prod.value.as_str()),
        ("labels.env == 'prod'", "false")
    );
}

#[test]
fn it_says_what_would_have_changed_the_answer() {
    let policy = rules(RULES);
    let request = OwnedRequest {
        topic: "job.pay.out".to_owned(),
        ..labelled(&[("amount", "70"), ("env", "dev")])
    };
    let explained = policy.explain(&request.as_request(), &mut NoCounters);
    let changes: Vec<_> = explained
        .changes
        .iter()
        .map(|c| (c.decision, c.text.as_str()))
        .collect();
    assert_eq!(
        changes,
        [
            (
                Decision::Deny,
                "without rule \"all\": denied by default: no rule matches"
            ),
            (
                Decision::Deny,
                "denied by rule \"destructive\" if risk_tags were one of [destructive] (it is [])"
            ),
            (
                Decision::RequireApproval,
                "held for approval by rule \"big\" if label_threshold were amount over 1000 (it is amount=70)"
            ),
            (
                Decision::Deny,
                "denied by rule \"prod\" if when were labels.env == 'prod' (it is false)"
            ),
        ]
    );
    let text = explained.to_string();
    for part in [
        "allowed by rule \"all\"",
        "because topics job.* (job.pay.out)",
        "not enforced: would be throttled",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(serde_json::to_value(&explained).unwrap()["changes"].is_array());
}

#[test]
fn a_condition_that_fails_is_said_to() {
    let policy = rules(RULES);
    let explained = policy.explain(&job("job.a").as_request(), &mut NoCounters);
    assert_eq!(explained.evaluation.rule_id.as_deref(), Some("prod"));
    let last = explained.steps.last().unwrap();
    let condition = &last.conditions[0];
    assert!(!condition.held);
    assert!(
        condition
            .failed
            .as_deref()
            .is_some_and(|f| f.contains("env")),
        "{condition:?}"
    );
}

#[test]
fn a_count_is_shown() {
    let policy = rules(
        "  - {id: often, match: {topics: ['*']}, velocity: {max_requests: 3, window_seconds: 60}, decision: throttle}\n",
    );
    let explained = policy.explain(
        &job("job.a").as_request(),
        &mut Counted::of(&[("often", 2)]),
    );
    let condition = &explained.steps[0].conditions[1];
    assert_eq!(
        (
            condition.field,
            condition.wanted.as_str(),
            condition.value.as_str()
        ),
        ("velocity", "more than 3 in 60 s", "2")
    );
}

#[test]
fn what_no_rule_was_asked_about_has_no_steps() {
    let policy = rules(RULES);
    let explained = policy.explain(&job("job..a").as_request(), &mut NoCounters);
    assert!(explained.steps.is_empty() && explained.changes.is_empty());
    assert_eq!(
        explained.to_string(),
        explained.evaluation.reason.to_string()
    );
}

#[test]
fn a_long_way_is_cut_short() {
    let many: String = (0..300)
        .map(|i| format!("  - {{id: r{i}, match: {{risk_tags: [t{i}]}}, decision: deny}}\n"))
        .collect();
    let policy = rules(&many);
    let explained = policy.explain(&tagged(&["t299"]).as_request(), &mut NoCounters);
    assert_eq!(explained.evaluation.rule_id.as_deref(), Some("r299"));
    assert_eq!((explained.steps.len(), explained.more_steps), (101, 199));
    assert_eq!(explained.steps.last().unwrap().outcome, Outcome::Matched);
}
