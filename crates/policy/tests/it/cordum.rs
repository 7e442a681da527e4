//! Files that were written for Cordum mean the same here.

use airlock_policy::{Decision, Policy};

use crate::asking::{Counted, ask, decision, job, labelled, policy, tagged};

const FILE: &str = r#"
version: "1"
default_decision: permit
rules:
  - id: blocked
    match: {risk_tags: [destructive]}
    decision: block
  - id: held
    match: {risk_tags: [review]}
    decision: require_human
  - id: held-too
    match: {risk_tags: [audit]}
    decision: require-approval
  - id: bounded
    match: {topics: [job.bounded]}
    decision: allow-with-constraints
    constraints: {budgets: {max_runtime_ms: 30000}}
  - id: regions
    match:
      label_allowlist: {region: [eu-1, eu-2]}
    decision: block
    reason: only in our regions
  - id: often
    match: {topics: ["job.mail.*"]}
    velocity: {max_requests: 5, window_seconds: 60, key: "tenant:labels.session_id"}
    decision: throttle
"#;

#[test]
fn its_words_are_understood() {
    let policy = policy(FILE);
    assert_eq!(policy.default_decision(), Decision::Allow);
    for (tag, expected) in [
        ("destructive", Decision::Deny),
        ("review", Decision::RequireApproval),
        ("audit", Decision::RequireApproval),
        ("other", Decision::Allow),
    ] {
        assert_eq!(decision(&policy, &tagged(&[tag])), expected, "{tag}");
    }
    let bounded = ask(&policy, &job("job.bounded"));
    assert_eq!(bounded.decision, Decision::AllowWithConstraints);
    for (region, expected) in [("eu-1", Decision::Allow), ("us-1", Decision::Deny)] {
        let request = labelled(&[("region", region)]);
        assert_eq!(decision(&policy, &request), expected, "{region}");
    }
}

#[test]
fn its_key_of_a_velocity_is_the_list_that_it_stands_for() {
    let asked = |text: &str| {
        let mut counters = Counted::default();
        let mut request = labelled(&[("session_id", "7")]);
        request.topic = "job.mail.send".to_owned();
        request
            .labels
            .insert("region".to_owned(), "eu-1".to_owned());
        policy(text).evaluate(&request.as_request(), &mut counters);
        counters.asked
    };
    let listed = FILE.replace(
        "\"tenant:labels.session_id\"",
        "[tenant, labels.session_id]",
    );
    assert_eq!(asked(FILE), asked(&listed));
    let snapshot = |text: &str| policy(text).snapshot().to_string();
    assert_eq!(snapshot(FILE), snapshot(&listed));
    let one = FILE.replace("\"tenant:labels.session_id\"", "actor_id");
    assert_eq!(asked(&one).len(), 1);
}

#[test]
fn a_version_may_be_a_text() {
    for version in ["1", "\"1\"", "v1", "'1.0'"] {
        let text = format!("version: {version}\nrules: []\n");
        assert!(Policy::load(&text).is_ok(), "{version}");
    }
    for version in ["2", "\"2\"", "v3", "[1]", "true"] {
        let text = format!("version: {version}\nrules: []\n");
        assert!(Policy::load(&text).is_err(), "{version}");
    }
}

#[test]
fn what_is_not_supported_is_named() {
    for (text, field) in [
        (
            "output_policy: {enabled: true}\nrules: []",
            "output_policy.enabled",
        ),
        ("input_rules: []\nrules: []", "input_rules"),
        (
            "rules: [{id: r, tier: job, match: {topics: [a]}, decision: deny}]",
            "tier",
        ),
        (
            "tenants: {a: {allow_topics: [x], allowed_repo_hosts: [y]}}\nrules: []",
            "allowed_repo_hosts",
        ),
    ] {
        let error = Policy::load(&format!("version: 1\n{text}\n")).unwrap_err();
        let problem = &error.problems[0];
        assert!(problem.field.ends_with(field), "{problem}");
        assert!(problem.message.contains("not supported"), "{problem}");
        assert!(problem.hint.is_some(), "{problem}");
    }
}
