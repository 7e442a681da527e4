//! Tests of a policy that stand beside it.

use airlock_policy::fixtures::{Suite, run_suites};

use crate::asking::rules;

const RULES: &str = "  - {id: destructive, match: {risk_tags: [destructive]}, decision: deny, reason: no}
  - {id: tried, match: {topics: ['*']}, decision: deny, enforce: false}
  - {id: often, match: {topics: ['job.*']}, velocity: {max_requests: 3, window_seconds: 60}, decision: throttle}
  - {id: unused, match: {topics: [job.unused]}, decision: deny}
  - {id: all, match: {topics: ['job.*']}, decision: allow}
";

#[test]
fn good_cases_pass_and_coverage_is_told() {
    let suite = Suite::load(
        "safety.test.yaml",
        "tests:
  - name: wiping is denied
    request: {topic: job.wipe, meta: {risk_tags: [destructive]}}
    expect: {decision: deny, rule: destructive, reason: 'no'}
  - name: ordinary work runs
    request: {topic: job.a}
    expect: {decision: allow, rule: all, shadows: [tried]}
  - name: but not too often
    request: {topic: job.a}
    velocity: {often: 4}
    expect: {decision: throttle, rule: often}
  - name: nothing else does
    request: {topic: sys.a}
    expect: {decision: deny, rule: default}
",
    )
    .unwrap();
    assert_eq!(suite.len(), 4);
    let report = run_suites(&rules(RULES), &[suite]);
    assert!(report.all_passed(), "{report:#?}");
    let ids =
        |list: &[std::sync::Arc<str>]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(
        ids(&report.covered),
        ["destructive", "tried", "often", "all"]
    );
    assert_eq!(ids(&report.uncovered), ["unused"]);
}

#[test]
fn a_bad_case_says_why() {
    let suite = Suite::load(
        "t.yaml",
        "tests:
  - {name: a, request: {topic: job.a}, expect: {decision: deny}}
  - {name: b, request: {topic: job.a}, expect: {decision: allow, rule: other}}
  - {name: c, request: {topic: job.a}, expect: {decision: allow, reason: banana}}
  - {name: d, request: {topic: job.a}, expect: {decision: allow, shadows: []}}
",
    )
    .unwrap();
    let report = run_suites(&rules(RULES), &[suite]);
    assert_eq!(report.failure_count(), 4);
    let why: Vec<_> = report
        .cases
        .iter()
        .map(|c| (c.line, c.why.clone().unwrap()))
        .collect();
    assert_eq!(
        why[0],
        (
            2,
            "expected deny, got allow: allowed by rule \"all\"".to_owned()
        )
    );
    assert_eq!(why[1].1, "expected rule \"other\" to decide, \"all\" did");
    assert!(why[2].1.contains("banana"));
    assert_eq!(why[3].1, "expected the shadows [], got [\"tried\"]");
}

#[test]
fn a_mistake_in_a_test_has_its_place() {
    let error = Suite::load(
        "t.yaml",
        "tests:\n  - {name: a, request: {topik: job.a}, expect: {decision: deny}}\n",
    )
    .unwrap_err();
    assert!(error.to_string().starts_with("t.yaml:2:"), "{error}");
    assert!(error.to_string().contains("did you mean topic?"), "{error}");
    assert!(Suite::load("t.yaml", "tests: []\n").is_err());
}
