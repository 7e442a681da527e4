//! What a tenant may do at all.

use airlock_policy::{Decision, OwnedRequest, Policy, Source};

use crate::asking::{ask, labelled, policy};

fn limits() -> Policy {
    policy(
        "version: 1
default_tenant: house
tenants:
  Acme:
    allow_topics: ['job.*']
    deny_topics: ['job.pay.*']
    max_concurrent_jobs: 5
    mcp: {allow_servers: [github], deny_tools: [delete]}
  house: {deny_topics: [job.secret]}
rules:
  - {id: all, match: {topics: ['*']}, decision: allow}
",
    )
}

fn of(tenant: &str, topic: &str, labels: &[(&str, &str)]) -> OwnedRequest {
    OwnedRequest {
        topic: topic.to_owned(),
        tenant: tenant.to_owned(),
        ..labelled(labels)
    }
}

#[test]
fn its_lists_take_away_before_any_rule_is_asked() {
    let policy = limits();
    for (tenant, topic, why) in [
        ("acme", "job.a", None),
        ("ACME", "job.pay.out", Some("deny list")),
        ("acme", "other.a", Some("not on its allow list")),
        ("globex", "other.a", None),
        ("", "job.secret", Some("deny list")),
        ("house", "job.secret", Some("deny list")),
        ("", "job.open", None),
    ] {
        let answer = ask(&policy, &of(tenant, topic, &[]));
        match why {
            None => assert_eq!(answer.rule_id.as_deref(), Some("all"), "{tenant} {topic}"),
            Some(why) => {
                assert_eq!(answer.decision, Decision::Deny, "{tenant} {topic}");
                assert_eq!(answer.rule_id, None);
                assert!(answer.reason.contains(why), "{}", answer.reason);
                assert!(
                    answer.reason.starts_with("denied for tenant"),
                    "{}",
                    answer.reason
                );
            }
        }
    }
}

#[test]
fn its_mcp_lists_hold_for_calls_and_only_for_them() {
    let policy = limits();
    let denied = |labels: &[(&str, &str)]| {
        ask(&policy, &of("acme", "job.a", labels)).decision == Decision::Deny
    };
    assert!(!denied(&[("env", "x")]));
    assert!(!denied(&[("mcp.server", "GitHub"), ("mcp.tool", "read")]));
    assert!(denied(&[("mcp.server", "github"), ("mcp.tool", "Delete")]));
    assert!(denied(&[("mcp.server", "gitlab")]));
    // A call that does not name its server is on no allow list.
    assert!(denied(&[("mcp.tool", "read")]));
    let free = of("globex", "job.a", &[("mcp.server", "gitlab")]);
    assert_eq!(ask(&policy, &free).decision, Decision::Allow);
}

#[test]
fn its_concurrency_comes_with_the_answer() {
    let policy = limits();
    assert_eq!(
        ask(&policy, &of("acme", "job.a", &[])).tenant_concurrency,
        Some(5)
    );
    assert_eq!(
        ask(&policy, &of("globex", "job.a", &[])).tenant_concurrency,
        None
    );
    assert_eq!(policy.tenant_concurrency("ACME"), Some(5));
    assert_eq!(policy.tenant_concurrency(""), None);
}

#[test]
fn what_several_files_take_is_taken() {
    let file = |name, text| Source { name, text };
    let policy = Policy::load_files(&[
        file("a", "version: 1\ntenants: {acme: {deny_topics: [job.a], max_concurrent_jobs: 9}}\nrules: [{id: all, match: {topics: ['*']}, decision: allow}]\n"),
        file("b", "version: 1\ntenants: {ACME: {deny_topics: [job.b], max_concurrent_jobs: 3}}\nrules: []\n"),
        file("c", "version: 1\nenforce: false\ntenants: {acme: {deny_topics: [job.c], max_concurrent_jobs: 1}}\nrules: []\n"),
    ])
    .unwrap();
    for (topic, expected) in [
        ("job.a", Decision::Deny),
        ("job.b", Decision::Deny),
        ("job.c", Decision::Allow),
    ] {
        assert_eq!(
            ask(&policy, &of("acme", topic, &[])).decision,
            expected,
            "{topic}"
        );
    }
    let tried = ask(&policy, &of("acme", "job.c", &[]));
    assert_eq!(tried.shadows.len(), 1);
    assert_eq!(tried.tenant_concurrency, Some(3));
}
