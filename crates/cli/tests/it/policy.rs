//! `airlock policy` without any API: checking, testing and asking a file.

use std::path::Path;

use crate::{airlock, stderr};

const GOOD: &str = "version: 1
default_decision: deny
rules:
  - id: payments
    match: {risk_tags: [money]}
    decision: require_approval
    reason: money moves
  - id: ordinary
    match: {topics: [\"job.*\"]}
    decision: allow
";

const TESTS: &str = "tests:
  - name: money is held
    request: {topic: job.pay, meta: {risk_tags: [money]}}
    expect: {decision: require_approval, rule: payments}
";

fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("writing a file");
    path.display().to_string()
}

fn said(folder: &Path, args: &[&str]) -> (Option<i32>, String) {
    let output = airlock(folder, args);
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&stderr(&output));
    (output.status.code(), text)
}

#[test]
fn a_policy_is_checked_and_mistakes_have_a_place() {
    let folder = tempfile::tempdir().unwrap();
    let good = write(folder.path(), "good.yaml", GOOD);
    let bad = write(
        folder.path(),
        "bad.yaml",
        &GOOD.replace("decision: allow", "decision: alow"),
    );
    let (code, text) = said(folder.path(), &["policy", "check", &good]);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("2 rules") && text.contains("sha256:"),
        "{text}"
    );
    let (code, text) = said(folder.path(), &["policy", "check", &bad]);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("bad.yaml:10:") && text.contains("alow"),
        "{text}"
    );
    let (code, text) = said(folder.path(), &["policy", "check", "/no/such.yaml"]);
    assert_eq!(code, Some(2), "{text}");
}

#[test]
fn tests_beside_the_policy_are_run_and_coverage_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let good = write(folder.path(), "good.yaml", GOOD);
    let (code, text) = said(folder.path(), &["policy", "test", &good]);
    assert_eq!(code, Some(2), "without tests: {text}");
    write(folder.path(), "good.test.yaml", TESTS);
    let (code, text) = said(folder.path(), &["policy", "test", &good]);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("1 of 2 rules") && text.contains("never decides: ordinary"),
        "{text}"
    );
    let (code, text) = said(
        folder.path(),
        &["policy", "test", &good, "--coverage", "60"],
    );
    assert_eq!(code, Some(1), "{text}");
    write(
        folder.path(),
        "good.test.yaml",
        &TESTS.replace("require_approval", "allow"),
    );
    let (code, text) = said(folder.path(), &["policy", "test", &good]);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("FAILED") && text.contains("money is held"),
        "{text}"
    );
}

#[test]
fn a_file_is_asked_without_any_api() {
    let folder = tempfile::tempdir().unwrap();
    let good = write(folder.path(), "good.yaml", GOOD);
    let ask = |what: &str, extra: &[&str]| {
        let mut args = vec!["policy", what, "job.pay", "--file", &good];
        args.extend(extra);
        said(folder.path(), &args)
    };
    let (code, text) = ask("simulate", &[]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.starts_with("ALLOW by ordinary"), "{text}");
    let (_, text) = ask("simulate", &["--risk-tag", "Money"]);
    assert!(
        text.starts_with("REQUIRE_APPROVAL by payments: ") && text.contains("money moves"),
        "{text}"
    );
    let (code, text) = ask("explain", &["--risk-tag", "money", "--json"]);
    assert_eq!(code, Some(0), "{text}");
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(json["evaluation"]["rule_id"], "payments", "{text}");
}
