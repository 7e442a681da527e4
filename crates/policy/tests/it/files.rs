//! Which files are refused, where the error points, and what a snapshot covers.

use airlock_policy::{Decision, LoadError, NoCounters, Policy, Problem, Request, limits};

fn refused(text: &str) -> LoadError {
    Policy::load(text).expect_err("this file has a mistake")
}

/// The only problem of a file.
fn problem(text: &str) -> Problem {
    let mut error = refused(text);
    assert_eq!(error.problems.len(), 1, "{error}");
    error.problems.remove(0)
}

/// A file with one rule, whose lines after `- id: r` are given.
fn with_rule(lines: &str) -> String {
    format!("version: 1\nrules:\n  - id: r\n{lines}")
}

#[test]
fn an_unknown_field_is_named_with_its_place_and_what_was_meant() {
    let p = problem(&with_rule("    match: {topic: [a]}\n    decision: allow\n"));
    assert_eq!((p.line, p.field.as_str()), (4, "rules[0].match.topic"));
    assert!(p.column > 1, "{p:?}");
    assert_eq!(p.hint.as_deref(), Some("did you mean topics?"));
    let p = problem("version: 1\ndefault_decison: deny\nrules: []\n");
    assert_eq!((p.line, p.field.as_str()), (2, "default_decison"));
    assert_eq!(p.hint.as_deref(), Some("did you mean default_decision?"));
}

#[test]
fn an_unknown_decision_is_named_with_its_place_and_what_was_meant() {
    let rule = |word: &str| {
        with_rule(&format!(
            "    match: {{topics: [a]}}\n    decision: {word}\n"
        ))
    };
    let p = problem(&rule("alow"));
    assert_eq!((p.line, p.field.as_str()), (5, "rules[0].decision"));
    assert_eq!(p.hint.as_deref(), Some("did you mean allow?"));
    let p = problem(&rule("approval"));
    assert_eq!(p.hint.as_deref(), Some("did you mean require_approval?"));
    let p = problem("version: 1\ninput_policy: {fail_mode: shut}\nrules: []\n");
    assert_eq!((p.line, p.field.as_str()), (2, "input_policy.fail_mode"));
}

#[test]
fn form_mistakes_have_a_place() {
    for (text, line) in [
        ("version: 1\nrules: [\n", 3),
        ("version: 1\nversion: 1\nrules: []\n", 2),
        ("version: x\nrules: []\n", 1),
        ("version: 1\nrules: 7\n", 2),
    ] {
        let p = problem(text);
        assert!(p.line > 0 && p.line <= line, "{text:?}: {p}");
        assert!(!p.message.is_empty());
    }
    assert_eq!(problem("rules: []\n").field, "version");
    assert_eq!(problem("version: 2\nrules: []\n").field, "version");
}

#[test]
fn every_mistake_of_meaning_is_reported_at_once() {
    let error = refused(
        "version: 1
rules:
  - id: a
    match: {topics: ['job.>', '']}
    decision: allow
  - id: a
    match: {tenants: []}
    decision: deny
  - id: b
    match: {}
    decision: deny
  - id: c
    match: {no_risk_tags: true, risk_tags: [x]}
    decision: deny
  - id: d
    match: {no_risk_tags: false}
    decision: deny
  - id: ''
    match: {requires: ['  ']}
    decision: deny
",
    );
    let found: Vec<_> = error
        .problems
        .iter()
        .map(|p| (p.line, p.field.as_str()))
        .collect();
    assert_eq!(
        found,
        [
            (4, "rules[0].match.topics[0]"),
            (4, "rules[0].match.topics[1]"),
            (6, "rules[1].id"),
            (7, "rules[1].match.tenants"),
            (10, "rules[2].match"),
            (13, "rules[3].match.no_risk_tags"),
            (16, "rules[4].match.no_risk_tags"),
            (18, "rules[5].id"),
            (19, "rules[5].match.requires[0]"),
        ]
    );
    let text = error.to_string();
    assert!(text.contains("line 6, column"), "{text}");
    assert!(text.contains("already used on line 3"), "{text}");
    assert!(text.contains("write *, which matches dots too"), "{text}");
}

#[test]
fn a_forgotten_value_never_widens_a_rule() {
    for field in [
        "topics",
        "tenants",
        "capabilities",
        "risk_tags",
        "requires",
        "labels",
        "no_risk_tags",
    ] {
        // Beside a condition that is fine, so that only the forgotten one can object.
        let other = if field == "topics" {
            "tenants: [a]"
        } else {
            "topics: [a]"
        };
        let text = with_rule(&format!(
            "    match:\n      {other}\n      {field}:\n    decision: allow\n"
        ));
        assert!(
            Policy::load(&text).is_err(),
            "{field}: null was taken for absent"
        );
    }
    let text = with_rule("    match:\n    decision: allow\n");
    assert!(
        Policy::load(&text).is_err(),
        "a match without a value was accepted"
    );
}

#[test]
fn limits_are_kept() {
    let long = "x".repeat(limits::FILE_BYTES + 1);
    assert!(problem(&long).message.contains("1048576"));
    let many: String = (0..=limits::RULES)
        .map(|i| format!("- {{id: r{i}, match: {{topics: [a]}}, decision: deny}}\n"))
        .collect();
    assert_eq!(
        problem(&format!("version: 1\nrules:\n{many}")).field,
        "rules"
    );
    let pattern = "a".repeat(300);
    let text = with_rule(&format!(
        "    match: {{topics: [{pattern}]}}\n    decision: deny\n"
    ));
    assert!(problem(&text).message.contains("300 bytes"));
    let bad = "    match: {tenants: []}\n    decision: deny\n";
    let rules: String = (0..30).map(|i| format!("  - id: r{i}\n{bad}")).collect();
    let error = refused(&format!("version: 1\nrules:\n{rules}"));
    assert_eq!((error.problems.len(), error.more), (limits::PROBLEMS, 10));
}

#[test]
fn a_snapshot_is_of_the_content_and_not_of_the_layout() {
    let snapshot = |text: &str| Policy::load(text).unwrap().snapshot().to_string();
    let one = snapshot(&with_rule("    match: {topics: [a]}\n    decision: deny\n"));
    let same = snapshot(
        "# A comment\nrules: [{decision: deny, id: r, match: {topics: ['a']}}]\nversion: 1\n",
    );
    assert_eq!(one, same);
    assert_eq!(one.len(), "sha256:".len() + 16);
    let other = snapshot(&with_rule(
        "    match: {topics: [a]}\n    decision: allow\n",
    ));
    let reason = snapshot(&with_rule(
        "    match: {topics: [a]}\n    decision: deny\n    reason: no\n",
    ));
    assert_ne!(one, other);
    assert_ne!(one, reason);
}

#[test]
fn each_condition_counts() {
    let policy = Policy::load(&with_rule(
        "    match:
      topics: [job.*]
      tenants: [Acme]
      capabilities: [read]
      requires: [gpu, ssd]
      labels: {env: Prod}
    decision: require_approval
    reason: ask first
",
    ))
    .unwrap();
    let requires = vec!["SSD".to_owned(), "gpu".to_owned(), "x".to_owned()];
    let labels = [("env".to_owned(), "prod".to_owned())].into();
    let full = Request {
        tenant: "acme",
        capability: "READ",
        requires: &requires,
        labels: &labels,
        ..Request::new("job.a")
    };
    let verdict = policy.evaluate(&full, &mut NoCounters);
    assert_eq!(verdict.decision, Decision::RequireApproval);
    assert_eq!(
        &*verdict.reason,
        "held for approval by rule \"r\": ask first"
    );
    let nothing = Request::new("job.a");
    for less in [
        Request {
            topic: "sys.a",
            ..full
        },
        Request { tenant: "", ..full },
        Request {
            capability: "",
            ..full
        },
        Request {
            requires: &requires[..1],
            ..full
        },
        Request {
            labels: nothing.labels,
            ..full
        },
    ] {
        assert_eq!(
            policy.evaluate(&less, &mut NoCounters).decision,
            Decision::Deny,
            "{less:?}"
        );
    }
}

#[test]
fn a_job_without_a_tenant_is_the_default_tenants() {
    let policy = Policy::load(
        "version: 1\ndefault_tenant: house\nrules:\n  - {id: r, match: {tenants: [house]}, decision: throttle}\n",
    )
    .unwrap();
    for (tenant, expected) in [
        ("", Decision::Throttle),
        ("house", Decision::Throttle),
        ("x", Decision::Deny),
    ] {
        let input = Request {
            tenant,
            ..Request::new("job.a")
        };
        assert_eq!(
            policy.evaluate(&input, &mut NoCounters).decision,
            expected,
            "{tenant:?}"
        );
    }
}
