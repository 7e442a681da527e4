//! The file in `config/` is what people start from, so its behaviour is pinned here.

use airlock_policy::{Decision, FailMode, NoCounters, Outcome, Policy, Request};

fn shipped() -> Policy {
    Policy::load(include_str!("../../../../config/safety.yaml")).expect("the shipped policy loads")
}

fn tags(tags: &[&str]) -> Vec<String> {
    tags.iter().map(|t| (*t).to_owned()).collect()
}

#[test]
fn it_allows_ordinary_jobs() {
    let verdict = shipped().evaluate(&Request::new("job.image.resize"), &mut NoCounters);
    assert_eq!(verdict.decision, Decision::Allow);
    assert_eq!(verdict.rule_id.as_deref(), Some("ordinary-jobs"));
    assert_eq!(&*verdict.reason, "allowed by rule \"ordinary-jobs\"");
}

#[test]
fn it_denies_what_is_destructive_however_it_is_spelt() {
    for spelling in ["destructive", "DESTRUCTIVE", " Destructive "] {
        let risk_tags = tags(&["network", spelling]);
        let verdict = shipped().evaluate(
            &Request {
                risk_tags: &risk_tags,
                ..Request::new("job.disk.wipe")
            },
            &mut NoCounters,
        );
        assert_eq!(verdict.decision, Decision::Deny);
        assert_eq!(verdict.rule_id.as_deref(), Some("destructive"));
        assert!(
            verdict
                .reason
                .starts_with("denied by rule \"destructive\": "),
            "{}",
            verdict.reason
        );
    }
}

#[test]
fn it_denies_by_default() {
    let policy = shipped();
    // Another risk tag, a blank one, and a topic that is no job's.
    for (topic, risk_tags) in [
        ("job.mail.send", tags(&["network"])),
        ("job.mail.send", tags(&[""])),
        ("sys.job.submit", tags(&[])),
    ] {
        let verdict = policy.evaluate(
            &Request {
                risk_tags: &risk_tags,
                ..Request::new(topic)
            },
            &mut NoCounters,
        );
        assert_eq!(verdict.decision, Decision::Deny);
        assert_eq!(verdict.rule_id, None);
        assert_eq!(&*verdict.reason, "denied by default: no rule matches");
        assert_eq!(&verdict.snapshot, policy.snapshot());
    }
    assert_eq!(policy.fail_mode(), FailMode::Closed);
    assert_eq!(policy.default_tenant(), "default");
}

#[test]
fn a_malformed_topic_is_denied_even_by_a_policy_that_allows_everything() {
    let policy = Policy::load(
        "version: 1\ndefault_decision: allow\nrules:\n  - {id: all, match: {topics: ['*']}, decision: allow}\n",
    )
    .unwrap();
    let long = format!("job.{}", "a".repeat(300));
    for (topic, word) in [
        ("", "names no topic"),
        ("job..a", "empty part"),
        ("job.a.", "empty part"),
        ("job.*", "'*'"),
        ("job.a b", "' '"),
        (long.as_str(), "304 bytes"),
    ] {
        let verdict = policy.evaluate(&Request::new(topic), &mut NoCounters);
        assert_eq!(verdict.decision, Decision::Deny, "{topic:?}");
        assert!(verdict.reason.contains(word), "{}", verdict.reason);
    }
}

#[test]
fn an_explanation_names_what_was_passed_over() {
    let explained = shipped().explain(&Request::new("job.a"), &mut NoCounters);
    let outcomes: Vec<_> = explained.steps.iter().map(|s| s.outcome).collect();
    assert!(matches!(
        outcomes[..],
        [Outcome::Missed, Outcome::Missed, Outcome::Matched]
    ));
    assert_eq!(
        explained.to_string(),
        "allowed by rule \"ordinary-jobs\"; because no_risk_tags none ([]), topics job.* (job.a); \
         passed over: \"destructive\" (risk_tags), \"needs-approval\" (risk_tags); otherwise: \
         without rule \"ordinary-jobs\": denied by default: no rule matches, denied by rule \
         \"destructive\" if risk_tags were one of [destructive] (it is []), held for approval by \
         rule \"needs-approval\" if risk_tags were one of [needs-approval] (it is [])"
    );
}

#[test]
fn an_oversized_input_is_denied() {
    let policy = shipped();
    let many = vec!["x".to_owned(); Request::MAX_LIST + 1];
    let long = vec!["x".repeat(Request::MAX_WORD + 1)];
    for (list, word) in [(&many, "257 requirements"), (&long, "4097 bytes")] {
        let verdict = policy.evaluate(
            &Request {
                requires: list,
                ..Request::new("job.a")
            },
            &mut NoCounters,
        );
        assert_eq!(verdict.decision, Decision::Deny);
        assert!(verdict.reason.contains(word), "{}", verdict.reason);
    }
}
