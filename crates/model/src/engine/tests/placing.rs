//! Who gets a slot: capacity, turns, load.

use super::*;

/// Frees one slot at a time and notes who gets it.
fn serve(fixture: &mut Fixture, mut held: (String, Assignment), times: usize) -> Vec<String> {
    let mut order = Vec::new();
    for _ in 0..times {
        fixture.feed(Input::PolicyConfirmed {
            snapshot: SNAPSHOT.to_owned(),
        });
        let effects = fixture.result(&held.0, &held.1, Outcome::Succeeded);
        let next = effects.iter().find_map(|e| {
            if let Effect::Assign {
                job, assignment, ..
            } = e
            {
                Some((job.id.to_string(), assignment.clone()))
            } else {
                None
            }
        });
        let Some(next) = next else { break };
        order.push(next.0.clone());
        held = next;
    }
    order
}

fn first(fixture: &mut Fixture) -> (String, Assignment) {
    fixture.register_worker("w", 1);
    ("first".to_owned(), fixture.assigned(job("first")))
}

#[test]
fn slots_are_never_exceeded() {
    let mut fixture = Fixture::new();
    fixture.register_worker("w1", 2);
    fixture.register_worker("w2", 3);
    let mut assigned = 0;
    for i in 0..20 {
        assigned += fixture.allow(job(&format!("j{i}"))).len();
        for w in fixture.engine.workers() {
            assert!(w.in_flight <= w.slots());
        }
    }
    assert_eq!(assigned, 5);
    assert_eq!(fixture.engine.counts().waiting, 15);
}

#[test]
fn a_freed_slot_goes_to_the_next_at_once() {
    let mut fixture = Fixture::new();
    let held = first(&mut fixture);
    assert_eq!(short(&fixture.allow(job("a"))), nothing());
    assert_eq!(serve(&mut fixture, held, 1), ["a"]);
}

#[test]
fn the_urgent_go_first_and_nobody_starves() {
    let mut fixture = Fixture::new();
    let held = first(&mut fixture);
    for i in 0..20 {
        for (name, priority) in [
            ("batch", Priority::Batch),
            ("inter", Priority::Interactive),
            ("crit", Priority::Critical),
        ] {
            fixture.allow(with_spec(&format!("{name}-{i}"), |s| s.priority = priority));
        }
    }
    let order = serve(&mut fixture, held, 20);
    let count = |name: &str| order.iter().filter(|id| id.starts_with(name)).count();
    assert_eq!(
        (count("crit"), count("inter"), count("batch")),
        (12, 6, 2),
        "{order:?}"
    );
    assert!(
        order[..10].iter().any(|id| id.starts_with("batch")),
        "{order:?}"
    );
    assert_eq!(
        order.iter().find(|id| id.starts_with("crit")),
        Some(&"crit-0".to_owned())
    );
}

#[test]
fn an_empty_lane_gives_its_turns_away() {
    let mut fixture = Fixture::new();
    let held = first(&mut fixture);
    for i in 0..6 {
        fixture.allow(with_spec(&format!("b{i}"), |s| {
            s.priority = Priority::Batch
        }));
    }
    assert_eq!(
        serve(&mut fixture, held, 9),
        ["b0", "b1", "b2", "b3", "b4", "b5"]
    );
}

#[test]
fn tenants_take_turns() {
    let mut fixture = Fixture::new();
    let held = first(&mut fixture);
    for i in 0..4 {
        fixture.allow(job(&format!("acme-{i}")));
    }
    let mut other = job("other-0");
    other.tenant = TenantId::new("other").unwrap();
    fixture.allow(other);
    let order = serve(&mut fixture, held, 5);
    assert_eq!(order, ["acme-0", "other-0", "acme-1", "acme-2", "acme-3"]);
}

#[test]
fn a_kind_without_workers_holds_up_nobody_else() {
    let mut fixture = Fixture::new();
    fixture.allow(with_spec("gpu", |s| s.requires = vec!["cuda".into()]));
    fixture.register_worker("w", 1);
    assert_eq!(short(&fixture.allow(job("plain"))), ["assign plain to w"]);
}

#[test]
fn the_reported_load_counts() {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 10);
    let mut busy = heartbeat("w", &[]);
    busy.active_jobs = 9;
    fixture.feed(Input::Heartbeat(busy));
    assert_eq!(short(&fixture.allow(job("a"))), nothing());
    let mut hot = heartbeat("w", &[]);
    hot.cpu_load = 95.0;
    assert_eq!(short(&fixture.feed(Input::Heartbeat(hot))), nothing());
    assert_eq!(short(&fixture.heartbeat("w", &[])), ["assign a to w"]);
}

#[test]
fn the_end_of_our_job_is_not_the_end_of_another_s() {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 10);
    let a = fixture.assigned(job("a"));
    let mut busy = heartbeat("w", &[a.dispatch]);
    busy.active_jobs = 10;
    fixture.feed(Input::Heartbeat(busy));
    fixture.allow(job("b"));
    let effects = fixture.result("a", &a, Outcome::Succeeded);
    assert!(
        !short(&effects).contains(&"assign b to w".to_owned()),
        "it has 9 others"
    );
}

#[test]
fn what_it_lists_is_not_counted_twice() {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 10);
    let held: Vec<_> = (0..9)
        .map(|i| fixture.assigned(job(&format!("j{i}"))).dispatch)
        .collect();
    fixture.heartbeat("w", &held);
    assert_eq!(short(&fixture.allow(job("tenth"))), ["assign tenth to w"]);
}

#[test]
fn a_worker_that_grows_is_used_at_once() {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 1);
    let a = fixture.assigned(job("a"));
    assert_eq!(short(&fixture.allow(job("b"))), nothing());
    assert_eq!(
        short(&fixture.heartbeat("w", &[a.dispatch])),
        ["assign b to w"]
    );
}

#[test]
fn the_preferred_worker_is_preferred_and_not_insisted_on() {
    let mut fixture = Fixture::new();
    fixture.register_worker("w1", 1);
    fixture.register_worker("w2", 1);
    let wants_w2 = |id: &str| {
        with_spec(id, |s| {
            s.labels.insert("preferred_worker_id".into(), "w2".into());
        })
    };
    assert_eq!(short(&fixture.allow(wants_w2("a"))), ["assign a to w2"]);
    assert_eq!(short(&fixture.allow(wants_w2("b"))), ["assign b to w1"]);
}

#[test]
fn the_least_loaded_is_chosen_between_heartbeats_too() {
    let mut fixture = Fixture::new();
    fixture.register_worker("w1", 4);
    fixture.register_worker("w2", 4);
    let order: Vec<_> = (0..4)
        .map(|i| fixture.assigned(job(&format!("j{i}"))).worker.to_string())
        .collect();
    assert_eq!(order, ["w1", "w2", "w1", "w2"]);
}

#[test]
fn a_draining_worker_gets_nothing() {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 2);
    let mut leaving = heartbeat("w", &[]);
    leaving.draining = true;
    fixture.feed(Input::Heartbeat(leaving));
    assert_eq!(short(&fixture.allow(job("a"))), nothing());
    assert_eq!(
        short(&fixture.heartbeat("w", &[])),
        ["assign a to w"],
        "it stays after all"
    );
}

#[test]
fn an_ended_job_leaves_the_queue_and_its_class_is_forgotten() {
    let mut fixture = Fixture::new();
    for i in 0..1000 {
        let queued = with_spec(&format!("j{i}"), |s| {
            s.labels.insert("placement.rack".into(), i.to_string());
        });
        fixture.allow(queued);
    }
    assert_eq!(fixture.engine.ready.class_count(), 1000);
    for i in 0..1000 {
        fixture.feed(Input::Ended {
            job: job_id(&format!("j{i}")),
            state: JobState::Cancelled,
        });
    }
    assert_eq!(fixture.engine.counts(), EngineCounts::default());
    let kept = fixture.engine.ready.class_count();
    assert!(kept <= 64, "{kept} classes without jobs");
    fixture.engine.ready.check_invariants();
    assert_eq!(short(&fixture.register_worker("w", 5)), nothing());
}

#[test]
fn one_ended_among_many_does_not_disturb_the_others() {
    let mut fixture = Fixture::new();
    let held = first(&mut fixture);
    for i in 0..5 {
        fixture.allow(job(&format!("j{i}")));
    }
    for i in [0, 3] {
        fixture.feed(Input::Ended {
            job: job_id(&format!("j{i}")),
            state: JobState::Cancelled,
        });
    }
    assert_eq!(serve(&mut fixture, held, 9), ["j1", "j2", "j4"]);
}
