//! Rules about how often something happens.

use airlock_policy::{Decision, KnownCounts, Meta, OwnedRequest, Policy};

use crate::asking::{Counted, job, labelled, rules};

fn limited(key: &str, decision: &str) -> Policy {
    rules(&format!(
        "  - {{id: r, match: {{topics: ['job.*']}}, velocity: {{max_requests: 3, window_seconds: 60{key}}}, decision: {decision}}}
  - {{id: rest, match: {{topics: ['*']}}, decision: allow}}\n"
    ))
}

#[test]
fn it_matches_once_the_limit_is_exceeded() {
    let policy = limited("", "throttle");
    for (count, expected) in [(1, "rest"), (3, "rest"), (4, "r"), (1_000, "r")] {
        let mut counters = Counted::of(&[("r", count)]);
        let answer = policy.evaluate(&job("job.a").as_request(), &mut counters);
        assert_eq!(answer.rule_id.as_deref(), Some(expected), "{count}");
        assert!(answer.counted && !answer.is_cacheable());
        assert_eq!(counters.asked.len(), 1);
        let query = &counters.asked[0];
        assert_eq!((query.max_requests, query.window_seconds), (3, 60));
        assert_eq!(query.key.len(), 32);
    }
}

#[test]
fn only_jobs_the_rule_is_about_are_counted() {
    let policy = limited("", "deny");
    let mut counters = Counted::of(&[("r", 100)]);
    let answer = policy.evaluate(&job("other.a").as_request(), &mut counters);
    assert_eq!(answer.rule_id.as_deref(), Some("rest"));
    assert!(counters.asked.is_empty());
    assert!(answer.is_cacheable());
}

#[test]
fn what_cannot_be_counted_is_on_the_safe_side() {
    let unknown = || Counted::default();
    let ask = |policy: &Policy| {
        policy
            .evaluate(&job("job.a").as_request(), &mut unknown())
            .rule_id
            .unwrap()
            .to_string()
    };
    assert_eq!(ask(&limited("", "throttle")), "r");
    assert_eq!(ask(&limited("", "deny")), "r");
    assert_eq!(ask(&limited("", "allow")), "rest");
}

/// The key under which a request is counted.
fn key(policy: &Policy, request: &OwnedRequest) -> String {
    let mut counters = Counted::of(&[("r", 0)]);
    policy.evaluate(&request.as_request(), &mut counters);
    counters.asked.remove(0).key
}

#[test]
fn a_key_keeps_apart_exactly_what_it_names() {
    let tenant = |t: &str| OwnedRequest {
        tenant: t.to_owned(),
        ..job("job.a")
    };
    let by_tenant = limited("", "deny");
    assert_ne!(key(&by_tenant, &tenant("a")), key(&by_tenant, &tenant("b")));
    assert_eq!(
        key(&by_tenant, &tenant("a")),
        key(&by_tenant, &tenant(" A"))
    );
    assert_eq!(
        key(&by_tenant, &tenant("")),
        key(&by_tenant, &tenant("default"))
    );

    let by_topic = limited(", key: [topic]", "deny");
    assert_ne!(key(&by_topic, &job("job.a")), key(&by_topic, &job("job.b")));
    assert_eq!(key(&by_topic, &tenant("a")), key(&by_topic, &tenant("b")));

    let by_label = limited(", key: [labels.customer, labels.region]", "deny");
    let of = |pairs: &[(&str, &str)]| key(&by_label, &labelled(pairs));
    assert_ne!(of(&[("customer", "1")]), of(&[("customer", "2")]));
    assert_ne!(of(&[("customer", "")]), of(&[]));
    assert_ne!(of(&[("customer", "x")]), of(&[("region", "x")]));

    let by_all = limited(", key: [labels]", "deny");
    let of = |pairs: &[(&str, &str)]| key(&by_all, &labelled(pairs));
    assert_ne!(of(&[("customer", "1")]), of(&[("customer", "2")]));
    assert_ne!(of(&[("customer", "1")]), of(&[("region", "1")]));
    assert_ne!(
        of(&[("customer", "1")]),
        of(&[("customer", "1"), ("b", "2")])
    );
    assert_eq!(of(&[("a", "X"), ("b", "2")]), of(&[("b", "2"), ("a", "x")]));
    assert_ne!(of(&[("a", "=b"), ("c", "")]), of(&[("a", ""), ("c", "=b")]));

    let by_actor = limited(
        ", key: [actor, principal_id, capability, pack_id, actor_type, priority]",
        "deny",
    );
    let actor = |id: &str| OwnedRequest {
        meta: Meta {
            actor_id: id.to_owned(),
            ..Meta::default()
        },
        ..job("job.a")
    };
    assert_ne!(key(&by_actor, &actor("a")), key(&by_actor, &actor("b")));
    // Another window is another count.
    let other = rules(
        "  - {id: r, match: {topics: ['job.*']}, velocity: {max_requests: 3, window_seconds: 61}, decision: deny}\n",
    );
    assert_ne!(key(&other, &job("job.a")), key(&by_tenant, &job("job.a")));
}

#[test]
fn counts_that_must_be_fetched_are_asked_for_one_after_the_other() {
    let policy = rules(
        "  - {id: first, match: {topics: ['*']}, velocity: {max_requests: 1, window_seconds: 60}, decision: deny}
  - {id: second, match: {topics: ['*']}, velocity: {max_requests: 1, window_seconds: 60}, decision: throttle}
  - {id: rest, match: {topics: ['*']}, decision: allow}\n",
    );
    let request = job("job.a");
    let request = request.as_request();
    // A limit that is kept leads to the next one, a limit that is exceeded does not.
    for (count, expected, fetched) in [(1, Decision::Throttle, 2), (9, Decision::Deny, 1)] {
        let mut known = KnownCounts::default();
        let mut fetches = 0;
        let answer = loop {
            let answer = policy.evaluate(&request, &mut known);
            let Some(query) = known.first_missing().cloned() else {
                break answer;
            };
            fetches += 1;
            let count = if &*query.rule_id == "first" { count } else { 9 };
            known.insert(query.key, count);
        };
        assert_eq!((answer.decision, fetches), (expected, fetched));
    }
}

#[test]
fn a_strict_rule_says_so_and_is_bounded() {
    let strict = limited(", strict: true", "deny");
    assert!(strict.counts_strictly() && !limited("", "deny").counts_strictly());
    let mut counters = Counted::of(&[("r", 0)]);
    strict.evaluate(&job("job.a").as_request(), &mut counters);
    assert!(counters.asked[0].strict);
    assert_ne!(strict.snapshot(), limited("", "deny").snapshot());
    let text = "version: 1
rules:
  - {id: r, match: {topics: ['*']}, velocity: {max_requests: 100001, window_seconds: 60, strict: true}, decision: deny}
";
    let refused = Policy::load(text).expect_err("too many rows").to_string();
    assert!(refused.contains("max_requests"), "{refused}");
}

#[test]
fn a_count_that_tenants_share_is_warned_of() {
    let warned = |key: &str, matches: &str| {
        let policy = rules(&format!(
            "  - {{id: r, match: {{topics: ['job.a']{matches}}}, velocity: {{max_requests: 3, window_seconds: 60{key}}}, decision: deny}}\n"
        ));
        let warnings: Vec<String> = policy.warnings().iter().map(ToString::to_string).collect();
        warnings.join("\n").contains("all tenants together")
    };
    assert!(warned(", key: [topic]", ""));
    assert!(warned(", key: [labels.customer]", ""));
    assert!(!warned("", ""), "by default the tenant");
    assert!(!warned(", key: [topic, tenant]", ""));
    assert!(
        !warned(", key: [topic]", ", tenants: [acme]"),
        "there is only one"
    );
}
