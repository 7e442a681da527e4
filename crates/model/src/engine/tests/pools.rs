//! Topics, pools, capabilities, labels and status, as the rules have them.

use super::*;
use crate::routing::{Glob, Pool, PoolStatus};

/// Pools a and b; job.a.* → a, job.b → b, job.ab → both.
fn two_pools(change: impl FnOnce(&mut Rules)) -> Fixture {
    let mut rules = Rules::default();
    for name in ["a", "b"] {
        rules.routing.pools.insert(pool(name), Pool::default());
    }
    let topics = &mut rules.routing.topics;
    topics.insert(Glob::new("job.a.*"), vec![pool("a")]);
    topics.insert(Glob::new("job.b"), vec![pool("b")]);
    topics.insert(Glob::new("job.ab"), vec![pool("a"), pool("b")]);
    change(&mut rules);
    let mut fixture = Fixture::new();
    fixture.feed(Input::Rules(Arc::new(rules)));
    for name in ["a", "b"] {
        let mut w = worker(&format!("w-{name}"), "one", 2);
        w.pool = Some(pool(name));
        fixture.feed(Input::Register(Box::new(w)));
    }
    fixture
}

fn on(topic: &str, id: &str) -> QueuedJob {
    with_spec(id, |s| s.topic = Topic::new(topic).unwrap())
}

fn edit(rules: &mut Rules, name: &str, change: impl FnOnce(&mut Pool)) {
    change(rules.routing.pools.get_mut(name).unwrap());
}

#[test]
fn topics_go_to_their_pools() {
    let mut fixture = two_pools(|_| {});
    assert_eq!(
        short(&fixture.allow(on("job.a.x", "1"))),
        ["assign 1 to w-a"]
    );
    assert_eq!(short(&fixture.allow(on("job.b", "2"))), ["assign 2 to w-b"]);
    assert_eq!(short(&fixture.allow(on("job.c", "3"))), nothing());
    let standing = fixture.engine.explain(&job_id("3"));
    let crate::explain::WaitStatus::Waiting { reason, .. } = standing else {
        panic!("{standing:?}")
    };
    assert_eq!(reason, "no_pool_mapping");
}

#[test]
fn several_pools_share_a_topic() {
    let mut fixture = two_pools(|_| {});
    let mut seen: Vec<String> = (0..4)
        .map(|i| fixture.assigned(on("job.ab", &format!("j{i}"))))
        .map(|a| a.worker.to_string())
        .collect();
    seen.sort();
    assert_eq!(seen, ["w-a", "w-a", "w-b", "w-b"]);
}

#[test]
fn the_preferred_pool_is_the_only_one() {
    let mut fixture = two_pools(|_| {});
    let want = |id: &str, name: &str| {
        let mut queued = on("job.ab", id);
        let mut spec = (*queued.spec).clone();
        spec.labels.insert("preferred_pool".into(), name.into());
        queued.spec = Arc::new(spec);
        queued
    };
    for i in 0..2 {
        let a = fixture.assigned(want(&format!("j{i}"), "b"));
        assert_eq!(a.worker.as_str(), "w-b");
    }
    assert_eq!(short(&fixture.allow(want("full", "b"))), nothing());
    assert_eq!(short(&fixture.allow(want("none", "c"))), nothing());
}

#[test]
fn a_draining_pool_gets_nothing_new_and_an_inactive_one_is_not_there() {
    let mut fixture = two_pools(|r| edit(r, "a", |p| p.status = PoolStatus::Draining));
    assert_eq!(short(&fixture.allow(on("job.a.x", "1"))), nothing());
    assert_eq!(
        short(&fixture.allow(on("job.ab", "2"))),
        ["assign 2 to w-b"],
        "the other one takes it"
    );
    let text = format!("{:?}", fixture.engine.explain(&job_id("1")));
    assert!(
        text.contains("no_workers") && text.contains("draining"),
        "{text}"
    );

    let mut fixture = two_pools(|r| edit(r, "a", |p| p.status = PoolStatus::Inactive));
    assert_eq!(short(&fixture.allow(on("job.a.x", "1"))), nothing());
    let text = format!("{:?}", fixture.engine.explain(&job_id("1")));
    assert!(text.contains("no_pool_mapping"), "{text}");
}

#[test]
fn both_the_pool_and_the_worker_must_have_what_is_required() {
    let needs = |id: &str, what: &str| {
        let mut queued = on("job.ab", id);
        let mut spec = (*queued.spec).clone();
        spec.requires = vec![what.to_owned()];
        queued.spec = Arc::new(spec);
        queued
    };
    let mut fixture = two_pools(|r| {
        edit(r, "a", |p| p.capabilities = ["cuda".to_owned()].into());
        edit(r, "b", |p| p.capabilities = ["net".to_owned()].into());
    });
    // A worker that announces none has its pool's.
    assert_eq!(
        short(&fixture.allow(needs("1", "cuda"))),
        ["assign 1 to w-a"]
    );
    assert_eq!(
        short(&fixture.allow(needs("2", "net"))),
        ["assign 2 to w-b"]
    );
    // One that announces some has those, if its pool has them too.
    let mut w = worker("w-c", "one", 5);
    w.pool = Some(pool("b"));
    w.capabilities = ["cuda".to_owned()].into();
    fixture.feed(Input::Register(Box::new(w)));
    assert_eq!(
        short(&fixture.allow(needs("3", "cuda"))),
        ["assign 3 to w-a"]
    );
    assert_eq!(short(&fixture.allow(needs("4", "cuda"))), nothing());
    assert_eq!(
        short(&fixture.allow(needs("5", "net"))),
        ["assign 5 to w-b"]
    );
    assert_eq!(short(&fixture.allow(needs("6", "net"))), nothing());
}

#[test]
fn a_worker_gets_only_the_topics_it_announced() {
    let mut fixture = two_pools(|_| {});
    let mut w = worker("w-c", "one", 50);
    w.pool = Some(pool("b"));
    w.topics = ["job.ab".to_owned()].into();
    fixture.feed(Input::Register(Box::new(w)));
    for i in 0..5 {
        fixture.allow(on("job.b", &format!("b{i}")));
    }
    let given = |fixture: &Fixture| fixture.worker("w-c").in_flight;
    assert_eq!(given(&fixture), 0);
    for i in 0..6 {
        fixture.allow(on("job.ab", &format!("ab{i}")));
    }
    assert!(given(&fixture) >= 4);
}

#[test]
fn labels_of_placement_constraint_and_node_narrow() {
    let mut fixture = two_pools(|_| {});
    let mut w = worker("w-eu", "one", 9);
    w.pool = Some(pool("b"));
    w.labels.insert("zone".into(), "eu".into());
    w.capabilities.insert("ssd".into());
    fixture.feed(Input::Register(Box::new(w)));
    for (i, (key, value)) in [
        ("placement.zone", "eu"),
        ("node.zone", "eu"),
        ("constraint.ssd", "true"),
        ("constraint.disk", "ssd"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut queued = on("job.b", &format!("j{i}"));
        let mut spec = (*queued.spec).clone();
        spec.labels.insert(key.into(), value.into());
        queued.spec = Arc::new(spec);
        assert_eq!(fixture.assigned(queued).worker.as_str(), "w-eu", "{key}");
    }
}

#[test]
fn a_closed_pool_uses_up_no_tries() {
    for (status, code) in [
        (PoolStatus::Draining, "no_workers"),
        (PoolStatus::Inactive, "no_pool_mapping"),
    ] {
        let mut fixture = two_pools(|r| edit(r, "a", |p| p.status = status));
        let start = fixture.now;
        fixture.allow(on("job.a.x", "1"));
        // Ten hours, far beyond the 50 tries.
        while fixture.now < start + secs(36_000) {
            for id in ["w-a", "w-b"] {
                fixture.heartbeat(id, &[]);
            }
            let effects = fixture.run_for(secs(20));
            assert!(effects.is_empty(), "{status:?}: {effects:?}");
        }
        let standing = fixture.engine.explain(&job_id("1"));
        let crate::explain::WaitStatus::Waiting { reason, tries, .. } = standing else {
            panic!("{standing:?}")
        };
        assert_eq!((reason.as_str(), tries), (code, 0));
        // Open again, it runs.
        let mut open = (*fixture.engine.rules).clone();
        edit(&mut open, "a", |p| p.status = PoolStatus::Active);
        let effects = fixture.feed(Input::Rules(Arc::new(open)));
        assert_eq!(short(&effects), ["recheck 1"]);
    }
}

#[test]
fn one_draining_pool_of_several_keeps_a_job_from_being_given_up() {
    let mut fixture = two_pools(|r| edit(r, "a", |p| p.status = PoolStatus::Draining));
    fixture.feed(Input::Deregister {
        worker: worker_id("w-b"),
        incarnation: None,
    });
    fixture.allow(on("job.ab", "1"));
    fixture.allow(on("job.b", "2"));
    let seen: Vec<_> = fixture
        .run_for(secs(7_200))
        .into_iter()
        .map(|(_, e)| e)
        .collect();
    assert_eq!(short(&seen), ["close 2 FAILED no_workers"]);
    assert!(fixture.engine.jobs.contains_key(&job_id("1")));
}
