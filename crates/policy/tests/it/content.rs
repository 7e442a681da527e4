//! Rules about what is in an input.

use airlock_policy::{Content, Decision, NoCounters, OwnedRequest, Policy, Request};

use crate::asking::{ask, decision, job, policy};

fn with_content(content_rules: &str, decision: &str) -> Policy {
    policy(&format!(
        "version: 1
input_policy:
  content_rules:
{content_rules}rules:
  - {{id: base, match: {{topics: ['*']}}, decision: {decision}}}
"
    ))
}

fn input(text: &str) -> OwnedRequest {
    OwnedRequest {
        input: Some(text.to_owned()),
        ..job("job.a")
    }
}

const KEYS: &str = "  - id: keys
    patterns: ['-----BEGIN [A-Z ]*PRIVATE KEY-----', 'AKIA[0-9A-Z]{16}']
    keywords: ['Drop Table', straße]
    decision: deny
    reason: no secrets
";

#[test]
fn patterns_and_keywords_are_found_and_never_repeated() {
    let policy = with_content(KEYS, "allow");
    for (text, found) in [
        (
            "x -----BEGIN RSA PRIVATE KEY----- y",
            "the input contains pattern 1",
        ),
        ("AKIAABCDEFGHIJKLMNOP", "the input contains pattern 2"),
        (
            "; DROP TABLE users",
            "the input contains the keyword \"Drop Table\"",
        ),
        ("Die STRAßE", "the input contains the keyword \"straße\""),
    ] {
        let answer = ask(&policy, &input(text));
        assert_eq!(answer.decision, Decision::Deny, "{text}");
        assert_eq!(
            &*answer.reason,
            format!("denied by rule \"keys\": no secrets: {found}")
        );
        assert_eq!(answer.rule_id.as_deref(), Some("keys"));
        assert!(!answer.is_cacheable());
    }
    assert_eq!(decision(&policy, &input("nothing to see")), Decision::Allow);
    assert_eq!(decision(&policy, &job("job.a")), Decision::Allow);
    assert!(policy.reads_content());
}

#[test]
fn bytes_that_are_no_text_are_looked_at_too() {
    let policy = with_content(KEYS, "allow");
    let bytes = b"\xff\xfe drop table \xff";
    let request = Request {
        content: Some(Content {
            bytes: Some(bytes),
            content_type: "application/octet-stream",
            size: bytes.len() as u64,
        }),
        ..Request::new("job.a")
    };
    assert_eq!(
        policy.evaluate(&request, &mut NoCounters).decision,
        Decision::Deny
    );
}

#[test]
fn size_is_a_limit() {
    let policy = with_content(
        "  - {id: big, max_bytes: 10, decision: require_approval}\n",
        "allow",
    );
    assert_eq!(decision(&policy, &input("0123456789")), Decision::Allow);
    let answer = ask(&policy, &input("0123456789a"));
    assert_eq!(answer.decision, Decision::RequireApproval);
    assert!(answer.approval.is_some());
    assert!(
        answer.reason.contains("11 bytes long; at most 10"),
        "{}",
        answer.reason
    );
    assert!(!policy.reads_content(), "the size alone needs no input");
}

#[test]
fn an_input_that_is_not_shown_counts_as_the_worst() {
    let policy = with_content(KEYS, "allow");
    let unseen = OwnedRequest {
        input_size_bytes: Some(5),
        ..job("job.a")
    };
    let answer = ask(&policy, &unseen);
    assert_eq!(answer.decision, Decision::Deny);
    assert!(
        answer.reason.contains("could not be looked at"),
        "{}",
        answer.reason
    );
    let part = Request {
        content: Some(Content {
            bytes: Some(b"fine"),
            content_type: "",
            size: 5,
        }),
        ..Request::new("job.a")
    };
    assert_eq!(
        policy.evaluate(&part, &mut NoCounters).decision,
        Decision::Deny
    );
}

#[test]
fn a_decision_only_gets_stricter() {
    let order = ["allow", "throttle", "require_approval", "deny"];
    for (i, base) in order.iter().enumerate() {
        for (j, word) in order.iter().enumerate().skip(1) {
            let rule = format!("  - {{id: c, keywords: [bad], decision: {word}}}\n");
            let answer = ask(&with_content(&rule, base), &input("bad"));
            let expected = if j > i { word } else { base };
            assert_eq!(answer.decision.as_str(), *expected, "{base} {word}");
            let decider = if j > i { "c" } else { "base" };
            assert_eq!(answer.rule_id.as_deref(), Some(decider), "{base} {word}");
        }
    }
}

#[test]
fn the_strictest_decides_and_a_match_narrows() {
    let policy = with_content(
        "  - {id: held, keywords: [bad], decision: require_approval}
  - {id: elsewhere, match: {topics: [job.b]}, keywords: [bad], decision: deny}
  - {id: tried, keywords: [bad], decision: deny, enforce: false}
",
        "allow",
    );
    let answer = ask(&policy, &input("bad"));
    assert_eq!(answer.rule_id.as_deref(), Some("held"));
    assert_eq!(answer.shadows.len(), 1);
    assert!(
        answer.shadows[0]
            .reason
            .starts_with("would be denied by rule \"tried\"")
    );
    let there = OwnedRequest {
        topic: "job.b".to_owned(),
        ..input("bad")
    };
    assert_eq!(ask(&policy, &there).rule_id.as_deref(), Some("elsewhere"));
}

#[test]
fn what_bounds_a_job_stays_when_its_input_has_it_held() {
    let policy = policy(
        "version: 1
input_policy: {content_rules: [{id: c, keywords: [bad], decision: require_approval}]}
rules:
  - {id: base, match: {topics: ['*']}, decision: allow, constraints: {redaction_level: full}}
",
    );
    let answer = ask(&policy, &input("bad"));
    assert_eq!(answer.decision, Decision::RequireApproval);
    assert_eq!(answer.constraints.unwrap().redaction_level, "full");
}
