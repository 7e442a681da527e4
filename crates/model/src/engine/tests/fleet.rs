//! Workers that are not well: ones that do not receive, ones a job kills, ones nobody
//! knows, ones that share a name.

use super::*;

fn plain(id: &str) -> Worker {
    let mut w = worker(id, "cap-1", 1);
    w.sdk = false;
    w.pool = None;
    w.topics = ["job.echo".to_owned()].into();
    w
}

fn plain_heartbeat(id: &str, active: u32) -> Heartbeat {
    Heartbeat {
        incarnation: None,
        active_jobs: active,
        max_parallel: 1,
        ..heartbeat(id, &[])
    }
}

#[test]
fn a_deaf_worker_is_found_out_and_its_jobs_go_elsewhere() {
    let mut fixture = Fixture::new();
    fixture.register_worker("silent", 3);
    for i in 0..3 {
        fixture.assigned(job(&format!("j{i}")));
    }
    let mut requeued = 0;
    for _ in 0..60 {
        fixture.heartbeat("silent", &[]);
        requeued += fixture
            .run_for(secs(1))
            .iter()
            .filter(|(_, e)| summary(e).starts_with("requeue"))
            .count();
    }
    assert_eq!(requeued, 3, "they do not wait for the dispatch timeout");
    assert!(fixture.worker("silent").health.unresponsive_until.is_some());
    assert_eq!(
        short(&fixture.allow(job("new"))),
        nothing(),
        "nothing more for it"
    );
    assert_eq!(
        short(&fixture.register_worker("well", 1)),
        ["assign new to well"]
    );
}

#[test]
fn one_that_hears_again_is_used_again() {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 3);
    for i in 0..3 {
        fixture.assigned(job(&format!("j{i}")));
    }
    for _ in 0..13 {
        fixture.heartbeat("w", &[]);
        fixture.run_for(secs(1));
    }
    assert!(fixture.worker("w").health.unresponsive_until.is_some());
    // It registers again: it was started anew, or its connection was.
    fixture.register_worker("w", 9);
    assert_eq!(short(&fixture.allow(job("new"))), ["assign new to w"]);
}

#[test]
fn after_a_while_a_deaf_worker_is_tried_with_one() {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 1);
    fixture.engine.note_missed_accept(&worker_id("w"));
    fixture.engine.note_missed_accept(&worker_id("w"));
    fixture.engine.note_missed_accept(&worker_id("w"));
    assert_eq!(short(&fixture.allow(job("a"))), nothing());
    let mut seen = Vec::new();
    for _ in 0..32 {
        fixture.heartbeat("w", &[]);
        let snapshot = SNAPSHOT.to_owned();
        fixture.feed(Input::PolicyConfirmed { snapshot });
        seen.extend(
            fixture
                .run_for(secs(1))
                .into_iter()
                .map(|(_, e)| summary(&e)),
        );
    }
    assert_eq!(seen, ["assign a to w"]);
    assert_eq!(
        fixture.worker("w").health.missed_accepts,
        2,
        "one more and it is unresponsive again"
    );
}

/// Every worker reports the runs that it has.
fn all_heartbeats(fixture: &mut Fixture, running: &BTreeMap<String, Assignment>) -> Vec<Effect> {
    let mut effects = Vec::new();
    let alive: Vec<Worker> = fixture.engine.workers().cloned().collect();
    for w in alive {
        let held = running.values().filter(|a| a.worker == w.id);
        let held: Vec<DispatchId> = held.map(|a| a.dispatch).collect();
        let mut b = heartbeat(w.id.as_str(), &held);
        b.incarnation = Some(w.incarnation);
        b.max_parallel = 4;
        effects.extend(fixture.feed(Input::Heartbeat(b)));
    }
    effects
}

#[test]
fn a_job_that_kills_its_worker_ends_alone() {
    // Three workers of four slots; one job kills whatever it runs on.
    let mut fixture = Fixture::new();
    for w in ["w1", "w2", "w3"] {
        fixture.register_worker(w, 4);
    }
    let mut queued: BTreeMap<String, QueuedJob> = BTreeMap::new();
    for i in 0..11 {
        let id = format!("good-{i}");
        queued.insert(id.clone(), job(&id));
    }
    queued.insert("killer".to_owned(), job("killer"));
    let mut running: BTreeMap<String, Assignment> = BTreeMap::new();
    let mut ended: Vec<String> = Vec::new();
    let mut queue: Vec<Effect> = Vec::new();
    for job in queued.values() {
        queue.extend(fixture.allow(job.clone()));
    }
    let mut deaths = 0;
    for _ in 0..200 {
        for e in std::mem::take(&mut queue) {
            match &e {
                Effect::Assign {
                    job, assignment, ..
                } => {
                    running.insert(job.id.to_string(), assignment.clone());
                }
                Effect::Requeue { job, .. } => {
                    running.remove(job.as_str());
                }
                Effect::Recheck(job) => {
                    let again = (**job).clone();
                    queue.extend(fixture.allow(again));
                }
                Effect::Finish { job, to, code, .. } => {
                    running.remove(job.id.as_str());
                    ended.push(format!("{} {to} {code}", job.id));
                }
                _ => {}
            }
        }
        if !queue.is_empty() {
            continue;
        }
        if let Some(a) = running.get("killer").cloned() {
            // Its worker dies and comes back as a new process.
            deaths += 1;
            let life = format!("life-{deaths}");
            queue.extend(fixture.replaced(a.worker.as_str(), &life, 4));
            continue;
        }
        if ended.iter().any(|e| e.starts_with("killer")) {
            break;
        }
        queue.extend(fixture.run_for(secs(1)).into_iter().map(|(_, e)| e));
        queue.extend(all_heartbeats(&mut fixture, &running));
        let snapshot = SNAPSHOT.to_owned();
        queue.extend(fixture.feed(Input::PolicyConfirmed { snapshot }));
        let done = running.iter().find(|(id, _)| id.starts_with("good"));
        if let Some((id, a)) = done.map(|(id, a)| (id.clone(), a.clone())) {
            queue.extend(fixture.result(&id, &a, Outcome::Succeeded));
        }
    }
    ended.retain(|e| !e.contains("SUCCEEDED"));
    assert_eq!(ended, ["killer FAILED worker_lost"], "nobody else");
    assert_eq!(deaths, 3, "as many as its attempts");
    assert_eq!(fixture.engine.counts().workers, 3, "the pool is there");
}

#[test]
fn two_jobs_on_their_last_chance_are_kept_apart() {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 4);
    let last = |id: &str| {
        let mut queued = job(id);
        queued.attempt = Attempt(2);
        queued.lost = true;
        queued
    };
    let a = fixture.assigned(last("a"));
    assert_eq!(short(&fixture.allow(last("b"))), nothing());
    assert_eq!(short(&fixture.allow(job("fresh"))), ["assign fresh to w"]);
    let effects = fixture.result("a", &a, Outcome::Succeeded);
    assert!(short(&effects).contains(&"assign b to w".to_owned()));
}

#[test]
fn a_second_loss_waits_before_the_third_run() {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 1);
    fixture.assigned(job("a"));
    let effects = fixture.replaced("w", "two", 1);
    let waits = |effects: &[Effect]| {
        effects.iter().find_map(|e| match e {
            Effect::Requeue { not_before, .. } => Some(not_before.is_some()),
            _ => None,
        })
    };
    assert_eq!(waits(&effects), Some(false));
    let mut again = job("a");
    again.attempt = Attempt(1);
    again.lost = true;
    fixture.assigned(again);
    let effects = fixture.replaced("w", "three", 1);
    assert_eq!(waits(&effects), Some(true));
}

#[test]
fn deregistering_an_unknown_worker_frees_its_jobs() {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 1);
    let a = fixture.assigned(job("a"));
    let mut next = Fixture::new();
    next.now = fixture.now;
    next.feed(Input::Recovered(Box::new(RecoveredJob {
        queued: job("a"),
        state: JobState::Scheduled,
        assignment: Some(a.clone()),
        silent_for: Duration::ZERO,
        output_held: None,
    })));
    let deregister = |incarnation_: &str| Input::Deregister {
        worker: worker_id("w"),
        incarnation: Some(incarnation(incarnation_)),
    };
    assert_eq!(short(&next.feed(deregister("another"))), nothing());
    assert_eq!(
        short(&next.feed(deregister("one"))),
        ["requeue a worker_lost", "recheck a"]
    );
}

#[test]
fn a_draining_worker_finishes_and_gets_nothing_new() {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 4);
    let a = fixture.assigned(job("a"));
    let mut leaving = heartbeat("w", &[a.dispatch]);
    leaving.draining = true;
    fixture.feed(Input::Heartbeat(leaving));
    assert_eq!(short(&fixture.allow(job("b"))), nothing());
    let effects = fixture.result("a", &a, Outcome::Succeeded);
    assert_eq!(short(&effects), ["receipt w", "finish a SUCCEEDED "]);
}

#[test]
fn a_worker_that_cannot_list_shows_life_by_its_count() {
    let mut fixture = Fixture::new();
    fixture.feed(Input::Register(Box::new(plain("p"))));
    let a = fixture.assigned(job("a"));
    fixture.feed(Input::Published {
        job: job_id("a"),
        run: a.run_id(),
        at: fixture.now,
    });
    for _ in 0..200 {
        fixture.feed(Input::Heartbeat(plain_heartbeat("p", 1)));
        let seen: Vec<_> = fixture
            .run_for(secs(5))
            .into_iter()
            .map(|(_, e)| summary(&e))
            .collect();
        assert!(seen.iter().all(|e| e == "record times a"), "{seen:?}");
    }
    assert!(
        fixture.engine.jobs.contains_key(&job_id("a")),
        "far beyond the dispatch timeout"
    );
}

#[test]
fn a_worker_that_twice_says_it_has_nothing_does_not_have_it() {
    let mut fixture = Fixture::new();
    fixture.feed(Input::Register(Box::new(plain("p"))));
    fixture.assigned(job("a"));
    let mut seen = Vec::new();
    for _ in 0..5 {
        fixture.run_for(secs(5));
        seen.extend(short(
            &fixture.feed(Input::Heartbeat(plain_heartbeat("p", 0))),
        ));
    }
    assert_eq!(seen[..2], ["requeue a worker_lost", "recheck a"]);
}

#[test]
fn a_beat_that_crossed_a_result_does_not_close_a_small_worker() {
    let mut fixture = Fixture::new();
    fixture.feed(Input::Register(Box::new(plain("p"))));
    let a = fixture.assigned(job("a"));
    fixture.result("a", &a, Outcome::Succeeded);
    fixture.feed(Input::Heartbeat(plain_heartbeat("p", 1)));
    assert_eq!(short(&fixture.allow(job("b"))), ["assign b to p"]);
}

#[test]
fn those_who_share_a_name_do_not_lose_each_other_s_jobs() {
    let mut shared = plain("cap-runtime");
    shared.addressing = Addressing::Shared;
    shared.incarnation = Incarnation::shared();
    shared.max_parallel = 1;
    let mut fixture = Fixture::new();
    fixture.feed(Input::Register(Box::new(shared.clone())));
    let a = fixture.assigned(job("a"));
    assert_eq!(a.addressing, Addressing::Shared);
    shared.max_parallel = 2;
    shared.topics = ["job.other".to_owned()].into();
    assert_eq!(
        short(&fixture.feed(Input::Register(Box::new(shared)))),
        nothing()
    );
    assert_eq!(
        short(&fixture.allow(job("b"))),
        ["assign b to cap-runtime"],
        "both topics, one more slot"
    );
    assert_eq!(Incarnation::shared().addressing(), Addressing::Shared);
    assert_eq!(
        Incarnation::topic_listener().addressing(),
        Addressing::Unregistered
    );
    assert_eq!(
        Incarnation::agent_protocol(Timestamp(1)).addressing(),
        Addressing::Direct
    );
}

#[test]
fn whoever_listens_unregistered_is_the_last_resort_and_may_answer_by_any_name() {
    let mut nobody = plain("topic");
    nobody.addressing = Addressing::Unregistered;
    nobody.incarnation = Incarnation::topic_listener();
    nobody.max_parallel = 100;
    let mut fixture = Fixture::new();
    fixture.feed(Input::Register(Box::new(nobody)));
    fixture.register_worker("w", 1);
    let a = fixture.assigned(job("a"));
    assert_eq!(a.worker.as_str(), "w", "a registered one first");
    assert_eq!(
        short(&fixture.allow(job("b"))),
        nothing(),
        "full is not absent"
    );
    fixture.result("a", &a, Outcome::Succeeded);
    fixture.feed(Input::Ended {
        job: job_id("b"),
        state: JobState::Cancelled,
    });
    fixture.run_for(secs(40));
    assert_eq!(fixture.engine.counts().workers, 1, "the silent one is gone");
    let c = fixture.assigned(job("c"));
    assert_eq!(c.worker.as_str(), "topic");
    let mut by = report("c", &c, Outcome::Succeeded);
    by.worker = worker_id("somebody");
    let effects = fixture.feed(Input::Result(by));
    assert!(short(&effects).contains(&"finish c SUCCEEDED ".to_owned()));
}

#[test]
fn a_worker_whose_topics_nobody_knows_is_not_given_one_it_did_not_take_again() {
    let mut fixture = Fixture::new();
    let unknown = Heartbeat {
        pool: None,
        ..plain_heartbeat("p", 0)
    };
    fixture.feed(Input::Heartbeat(unknown.clone()));
    fixture.assigned(job("a"));
    let mut seen = Vec::new();
    for _ in 0..5 {
        fixture.run_for(secs(5));
        seen.extend(short(&fixture.feed(Input::Heartbeat(unknown.clone()))));
    }
    assert_eq!(seen[..2], ["requeue a worker_lost", "recheck a"]);
    assert_eq!(short(&fixture.allow(job("a"))), nothing(), "not to p again");
}

#[test]
fn a_pool_named_by_a_heartbeat_counts_from_then_on() {
    let mut fixture = Fixture::new();
    fixture.feed(Input::Register(Box::new(plain("p"))));
    let elsewhere = Heartbeat {
        pool: Some(PoolName::new("elsewhere").unwrap()),
        ..plain_heartbeat("p", 0)
    };
    fixture.feed(Input::Heartbeat(elsewhere));
    assert_eq!(short(&fixture.allow(job("a"))), nothing());
    let here = Heartbeat {
        pool: Some(PoolName::new("default").unwrap()),
        ..plain_heartbeat("p", 0)
    };
    assert_eq!(
        short(&fixture.feed(Input::Heartbeat(here))),
        ["assign a to p"]
    );
}
