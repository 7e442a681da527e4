//! Shares and limits: of tenants, of rules, of priorities.

use super::*;
use crate::constraints::{Budgets, Constraints};
use crate::routing::Pool;
use crate::rules::{TenantRule, TenantRules};

fn tenant(name: &str) -> TenantId {
    TenantId::new(name).unwrap()
}

fn of(name: &str, id: &str) -> QueuedJob {
    let mut queued = job(id);
    queued.tenant = tenant(name);
    queued
}

fn with_tenants(named: &[(&str, u32, Option<u32>)]) -> Fixture {
    let mut rules = (*rules()).clone();
    rules.tenants = TenantRules {
        named: named
            .iter()
            .map(|(name, weight, max)| {
                let rule = TenantRule {
                    weight: *weight,
                    max_concurrent: *max,
                };
                (tenant(name), rule)
            })
            .collect(),
        others: TenantRule::default(),
    };
    let mut fixture = Fixture::new();
    fixture.feed(Input::Rules(Arc::new(rules)));
    fixture
}

fn limited(n: i32, rule: &str, at: Timestamp) -> Verdict {
    let mut v = verdict(Decision::AllowWithConstraints, at);
    v.rule_id = rule.to_owned();
    v.constraints = Some(Arc::new(Constraints {
        budgets: Some(Budgets {
            max_concurrent_jobs: n,
            ..Budgets::default()
        }),
        ..Constraints::default()
    }));
    v
}

/// Frees one slot at a time and notes whose job gets it.
fn order(fixture: &mut Fixture, mut held: (String, Assignment), times: usize) -> Vec<String> {
    let mut got = Vec::new();
    for _ in 0..times {
        let snapshot = SNAPSHOT.to_owned();
        fixture.feed(Input::PolicyConfirmed { snapshot });
        let effects = fixture.result(&held.0, &held.1, Outcome::Succeeded);
        let Some(Effect::Assign {
            job, assignment, ..
        }) = effects.iter().find(|e| matches!(e, Effect::Assign { .. }))
        else {
            break;
        };
        got.push(job.id.to_string());
        held = (job.id.to_string(), assignment.clone());
    }
    got
}

#[test]
fn tenants_share_by_their_weights() {
    let mut fixture = with_tenants(&[("big", 3, None), ("small", 1, None)]);
    fixture.register_worker("w", 1);
    let held = ("first".to_owned(), fixture.assigned(job("first")));
    for i in 0..60 {
        fixture.allow(of("big", &format!("big-{i}")));
        fixture.allow(of("small", &format!("small-{i}")));
    }
    let got = order(&mut fixture, held, 40);
    let small = got.iter().filter(|id| id.starts_with("small")).count();
    assert_eq!((got.len(), small), (40, 10), "{got:?}");
    // Evenly, not in one go.
    for window in got.windows(8) {
        let small = window.iter().filter(|id| id.starts_with("small")).count();
        assert!((1..=3).contains(&small), "{window:?}");
    }
}

#[test]
fn many_topics_are_no_way_to_a_larger_share() {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 1);
    let held = ("first".to_owned(), fixture.assigned(job("first")));
    for i in 0..40 {
        for t in 0..10 {
            let mut queued = with_spec(&format!("many-{t}-{i}"), |s| {
                s.topic = Topic::new(format!("job.t{t}")).unwrap();
            });
            queued.tenant = tenant("many");
            fixture.allow(queued);
        }
        fixture.allow(of("one", &format!("one-{i}")));
    }
    let got = order(&mut fixture, held, 40);
    let one = got.iter().filter(|id| id.starts_with("one")).count();
    assert!((19..=21).contains(&one), "{got:?}");
}

#[test]
fn a_tenant_at_its_limit_waits_and_holds_up_nobody() {
    let mut fixture = with_tenants(&[("acme", 1, Some(2))]);
    fixture.register_worker("w", 10);
    let a = fixture.assigned(job("a"));
    fixture.assigned(job("b"));
    assert_eq!(short(&fixture.allow(job("c"))), nothing());
    assert_eq!(
        short(&fixture.allow(of("other", "d"))),
        ["assign d to w"],
        "another tenant's"
    );
    let effects = fixture.result("a", &a, Outcome::Succeeded);
    assert!(
        short(&effects).contains(&"assign c to w".to_owned()),
        "{effects:?}"
    );
}

#[test]
fn a_tenant_limit_never_fails_a_job_unless_all_tries_count() {
    for all in [false, true] {
        let mut fixture = with_tenants(&[("acme", 1, Some(1))]);
        fixture.engine.settings.count_all_tries = all;
        fixture.register_worker("w", 10);
        let a = fixture.assigned(job("a"));
        fixture.feed(Input::Started {
            job: job_id("a"),
            dispatch: a.dispatch.to_string(),
            worker: a.worker.clone(),
            at: None,
        });
        fixture.allow(job("b"));
        let mut ended = Vec::new();
        for _ in 0..400 {
            fixture.heartbeat("w", &[a.dispatch]);
            let happened = fixture
                .run_for(secs(5))
                .into_iter()
                .map(|(_, e)| summary(&e));
            ended.extend(happened.filter(|e| e != "record times a"));
        }
        let want: &[&str] = if all {
            &["close b FAILED tenant_limit"]
        } else {
            &[]
        };
        assert_eq!(ended, want);
    }
}

#[test]
fn the_policy_s_limit_of_a_tenant_holds_too() {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 10);
    let mut put = |id: &str, limit: Option<u32>| {
        let mut v = verdict(Decision::Allow, fixture.now);
        v.tenant_concurrency = limit;
        let job = Box::new(job(id));
        short(&fixture.feed(Input::Decided { job, verdict: v }))
    };
    assert_eq!(put("a", Some(1)), ["assign a to w"]);
    assert_eq!(put("b", Some(1)), nothing());
}

#[test]
fn a_rule_s_limit_counts_the_jobs_under_it() {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 10);
    let now = fixture.now;
    let put = |fixture: &mut Fixture, id: &str, v: Verdict| {
        let job = Box::new(job(id));
        fixture.feed(Input::Decided { job, verdict: v })
    };
    let effects = put(&mut fixture, "a", limited(1, "r1", now));
    let Some(Effect::Assign { assignment, .. }) = effects.first() else {
        panic!("{effects:?}")
    };
    let a = assignment.clone();
    assert_eq!(
        short(&put(&mut fixture, "b", limited(1, "r1", now))),
        nothing()
    );
    let c = put(&mut fixture, "c", limited(1, "r2", now));
    assert_eq!(short(&c), ["assign c to w"], "another rule");
    assert_eq!(
        short(&fixture.allow(job("d"))),
        ["assign d to w"],
        "no limit"
    );
    let effects = fixture.result("a", &a, Outcome::Succeeded);
    assert!(
        short(&effects).contains(&"assign b to w".to_owned()),
        "{effects:?}"
    );
}

#[test]
fn fewer_retries_by_policy_bound_the_attempts() {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 1);
    let mut v = verdict(Decision::AllowWithConstraints, fixture.now);
    v.constraints = Some(Arc::new(Constraints {
        budgets: Some(Budgets {
            max_retries: 1,
            ..Budgets::default()
        }),
        ..Constraints::default()
    }));
    let decided = |job: QueuedJob, v: &Verdict| Input::Decided {
        job: Box::new(job),
        verdict: v.clone(),
    };
    let effects = fixture.feed(decided(job("a"), &v));
    let [Effect::Assign { assignment, .. }] = effects.as_slice() else {
        panic!("{effects:?}")
    };
    assert_eq!(assignment.limits.max_attempts, 2);
    let a = assignment.clone();
    let effects = fixture.result("a", &a, Outcome::FailedRetryable);
    assert!(short(&effects).contains(&"requeue a failed_retryable".to_owned()));
    fixture.run_for(secs(10));
    v.decided_at = fixture.now;
    v.confirmed_at = fixture.now;
    fixture.heartbeat("w", &[]);
    let effects = fixture.feed(decided(job("a"), &v));
    let [Effect::Assign { assignment, .. }] = effects.as_slice() else {
        panic!("{effects:?}")
    };
    let second = assignment.clone();
    let effects = fixture.result("a", &second, Outcome::FailedRetryable);
    assert!(
        short(&effects).contains(&"finish a FAILED attempts_exhausted".to_owned()),
        "{effects:?}"
    );
    // A policy that allows none any more ends what has had its runs.
    let mut had = job("b");
    had.attempt = Attempt(2);
    assert_eq!(
        short(&fixture.feed(decided(had, &v))),
        ["close b FAILED attempts_exhausted"]
    );
}

#[test]
fn new_rules_take_hold_of_what_waits() {
    let mut fixture = Fixture::new();
    let mut w = worker("w", "one", 4);
    w.pool = Some(pool("special"));
    fixture.feed(Input::Register(Box::new(w)));
    for i in 0..3 {
        assert_eq!(short(&fixture.allow(job(&format!("j{i}")))), nothing());
    }
    let mut new = Rules::with_routing(PoolRouting::single_pool(pool("special")));
    new.routing.pools.insert(pool("default"), Pool::default());
    let effects = fixture.feed(Input::Rules(Arc::new(new)));
    assert_eq!(
        short(&effects),
        ["assign j0 to w", "assign j1 to w", "assign j2 to w"]
    );
    fixture.engine.ready.check_invariants();
}
