//! Workers that are not well: deaf ones, ones a job kills, ones nobody knows, ones that
//! share a name.

use super::*;

fn plain(id: &str) -> Worker {
    let mut w = worker(id, "cap-1", 1);
    w.sdk = false;
    w.pool = None;
    w.topics = ["job.echo".to_owned()].into();
    w
}

fn plain_beat(id: &str, active: u32) -> Heartbeat {
    Heartbeat {
        incarnation: None,
        active_jobs: active,
        max_parallel: 1,
        ..beat(id, &[])
    }
}

#[test]
fn a_deaf_worker_is_found_out_and_its_jobs_go_elsewhere() {
    let mut rig = Rig::new();
    rig.hello("deaf", 3);
    for i in 0..3 {
        rig.assigned(job(&format!("j{i}")));
    }
    let mut requeued = 0;
    for _ in 0..60 {
        rig.beat("deaf", &[]);
        requeued += rig
            .live(secs(1))
            .iter()
            .filter(|(_, e)| one_short(e).starts_with("requeue"))
            .count();
    }
    assert_eq!(requeued, 3, "they do not wait for the dispatch timeout");
    assert!(rig.worker("deaf").care.unresponsive_until.is_some());
    assert_eq!(
        short(&rig.allow(job("new"))),
        nothing(),
        "nothing more for it"
    );
    assert_eq!(short(&rig.hello("well", 1)), ["assign new to well"]);
}

#[test]
fn one_that_hears_again_is_used_again() {
    let mut rig = Rig::new();
    rig.hello("w", 3);
    for i in 0..3 {
        rig.assigned(job(&format!("j{i}")));
    }
    for _ in 0..13 {
        rig.beat("w", &[]);
        rig.live(secs(1));
    }
    assert!(rig.worker("w").care.unresponsive_until.is_some());
    // It says hello again: it was started anew, or its connection was.
    rig.hello("w", 9);
    assert_eq!(short(&rig.allow(job("new"))), ["assign new to w"]);
}

#[test]
fn after_a_while_a_deaf_worker_is_tried_with_one() {
    let mut rig = Rig::new();
    rig.hello("w", 1);
    rig.engine.missed(&worker_id("w"));
    rig.engine.missed(&worker_id("w"));
    rig.engine.missed(&worker_id("w"));
    assert_eq!(short(&rig.allow(job("a"))), nothing());
    let mut seen = Vec::new();
    for _ in 0..32 {
        rig.beat("w", &[]);
        let snapshot = SNAPSHOT.to_owned();
        rig.feed(Input::PolicyConfirmed { snapshot });
        seen.extend(rig.live(secs(1)).into_iter().map(|(_, e)| one_short(&e)));
    }
    assert_eq!(seen, ["assign a to w"]);
    assert_eq!(
        rig.worker("w").care.missed,
        2,
        "one more and it is deaf again"
    );
}

#[test]
fn a_job_that_kills_its_worker_ends_alone() {
    // Three workers of four slots; one job kills whatever it runs on.
    let mut rig = Rig::new();
    for w in ["w1", "w2", "w3"] {
        rig.hello(w, 4);
    }
    let mut known: BTreeMap<String, QueuedJob> = BTreeMap::new();
    for i in 0..11 {
        let id = format!("good-{i}");
        known.insert(id.clone(), job(&id));
    }
    known.insert("killer".to_owned(), job("killer"));
    let mut where_: BTreeMap<String, Assignment> = BTreeMap::new();
    let mut ended: Vec<String> = Vec::new();
    let mut queue: Vec<Effect> = Vec::new();
    for job in known.values() {
        queue.extend(rig.allow(job.clone()));
    }
    let mut deaths = 0;
    for _ in 0..200 {
        for e in std::mem::take(&mut queue) {
            match &e {
                Effect::Assign {
                    job, assignment, ..
                } => {
                    where_.insert(job.id.to_string(), assignment.clone());
                }
                Effect::Requeue { job, .. } => {
                    where_.remove(job.as_str());
                }
                Effect::Recheck(job) => {
                    let again = (**job).clone();
                    queue.extend(rig.allow(again));
                }
                Effect::Finish { job, to, code, .. } => {
                    where_.remove(job.id.as_str());
                    ended.push(format!("{} {to} {code}", job.id));
                }
                _ => {}
            }
        }
        if !queue.is_empty() {
            continue;
        }
        if let Some(a) = where_.get("killer").cloned() {
            // Its worker dies and comes back as a new process.
            deaths += 1;
            let life = format!("life-{deaths}");
            queue.extend(rig.replaced(a.worker.as_str(), &life, 4));
            continue;
        }
        if ended.iter().any(|e| e.starts_with("killer")) {
            break;
        }
        queue.extend(rig.live(secs(1)).into_iter().map(|(_, e)| e));
        let alive: Vec<Worker> = rig.engine.workers().cloned().collect();
        for w in alive {
            let held = where_.values().filter(|a| a.worker == w.id);
            let held: Vec<DispatchId> = held.map(|a| a.dispatch).collect();
            let mut b = beat(w.id.as_str(), &held);
            b.incarnation = Some(w.incarnation);
            b.max_parallel = 4;
            queue.extend(rig.feed(Input::Heartbeat(b)));
        }
        let snapshot = SNAPSHOT.to_owned();
        queue.extend(rig.feed(Input::PolicyConfirmed { snapshot }));
        let done = where_.iter().find(|(id, _)| id.starts_with("good"));
        if let Some((id, a)) = done.map(|(id, a)| (id.clone(), a.clone())) {
            queue.extend(rig.result(&id, &a, Outcome::Succeeded));
        }
    }
    ended.retain(|e| !e.contains("SUCCEEDED"));
    assert_eq!(ended, ["killer FAILED worker_lost"], "nobody else");
    assert_eq!(deaths, 3, "as many as its attempts");
    assert_eq!(rig.engine.census().workers, 3, "the pool is there");
}

#[test]
fn two_jobs_on_their_last_chance_are_kept_apart() {
    let mut rig = Rig::new();
    rig.hello("w", 4);
    let last = |id: &str| {
        let mut known = job(id);
        known.attempt = Attempt(2);
        known.lost = true;
        known
    };
    let a = rig.assigned(last("a"));
    assert_eq!(short(&rig.allow(last("b"))), nothing());
    assert_eq!(short(&rig.allow(job("fresh"))), ["assign fresh to w"]);
    let effects = rig.result("a", &a, Outcome::Succeeded);
    assert!(short(&effects).contains(&"assign b to w".to_owned()));
}

#[test]
fn a_second_loss_waits_before_the_third_run() {
    let mut rig = Rig::new();
    rig.hello("w", 1);
    rig.assigned(job("a"));
    let effects = rig.replaced("w", "two", 1);
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
    rig.assigned(again);
    let effects = rig.replaced("w", "three", 1);
    assert_eq!(waits(&effects), Some(true));
}

#[test]
fn a_goodbye_of_a_worker_nobody_knows_frees_its_jobs() {
    let mut rig = Rig::new();
    rig.hello("w", 1);
    let a = rig.assigned(job("a"));
    let mut next = Rig::new();
    next.now = rig.now;
    next.feed(Input::Recovered(Box::new(RecoveredJob {
        known: job("a"),
        state: JobState::Scheduled,
        assignment: Some(a.clone()),
        silent_for: Duration::ZERO,
    })));
    let goodbye = |incarnation_: &str| Input::Deregister {
        worker: worker_id("w"),
        incarnation: Some(incarnation(incarnation_)),
    };
    assert_eq!(short(&next.feed(goodbye("another"))), nothing());
    assert_eq!(
        short(&next.feed(goodbye("one"))),
        ["requeue a worker_lost", "recheck a"]
    );
}

#[test]
fn a_draining_worker_finishes_and_gets_nothing_new() {
    let mut rig = Rig::new();
    rig.hello("w", 4);
    let a = rig.assigned(job("a"));
    let mut leaving = beat("w", &[a.dispatch]);
    leaving.draining = true;
    rig.feed(Input::Heartbeat(leaving));
    assert_eq!(short(&rig.allow(job("b"))), nothing());
    let effects = rig.result("a", &a, Outcome::Succeeded);
    assert_eq!(short(&effects), ["receipt w", "finish a SUCCEEDED "]);
}

#[test]
fn a_worker_that_cannot_list_shows_life_by_its_count() {
    let mut rig = Rig::new();
    rig.feed(Input::Register(Box::new(plain("p"))));
    let a = rig.assigned(job("a"));
    rig.feed(Input::Published {
        job: job_id("a"),
        run: a.run(),
        at: rig.now,
    });
    for _ in 0..200 {
        rig.feed(Input::Heartbeat(plain_beat("p", 1)));
        let seen: Vec<_> = rig
            .live(secs(5))
            .into_iter()
            .map(|(_, e)| one_short(&e))
            .collect();
        assert!(seen.iter().all(|e| e == "mark a"), "{seen:?}");
    }
    assert!(
        rig.engine.knows(&job_id("a")),
        "far beyond the dispatch timeout"
    );
}

#[test]
fn a_worker_that_twice_says_it_has_nothing_does_not_have_it() {
    let mut rig = Rig::new();
    rig.feed(Input::Register(Box::new(plain("p"))));
    rig.assigned(job("a"));
    let mut seen = Vec::new();
    for _ in 0..5 {
        rig.live(secs(5));
        seen.extend(short(&rig.feed(Input::Heartbeat(plain_beat("p", 0)))));
    }
    assert_eq!(seen[..2], ["requeue a worker_lost", "recheck a"]);
}

#[test]
fn a_beat_that_crossed_a_result_does_not_close_a_small_worker() {
    let mut rig = Rig::new();
    rig.feed(Input::Register(Box::new(plain("p"))));
    let a = rig.assigned(job("a"));
    rig.result("a", &a, Outcome::Succeeded);
    rig.feed(Input::Heartbeat(plain_beat("p", 1)));
    assert_eq!(short(&rig.allow(job("b"))), ["assign b to p"]);
}

#[test]
fn those_who_share_a_name_do_not_lose_each_other_s_jobs() {
    let mut shared = plain("cap-runtime");
    shared.reach = Addressing::Shared;
    shared.incarnation = shared_incarnation();
    shared.max_parallel = 1;
    let mut rig = Rig::new();
    rig.feed(Input::Register(Box::new(shared.clone())));
    let a = rig.assigned(job("a"));
    assert_eq!(a.reach, Addressing::Shared);
    shared.max_parallel = 2;
    shared.topics = ["job.other".to_owned()].into();
    assert_eq!(
        short(&rig.feed(Input::Register(Box::new(shared)))),
        nothing()
    );
    assert_eq!(
        short(&rig.allow(job("b"))),
        ["assign b to cap-runtime"],
        "both topics, one more slot"
    );
    assert_eq!(addressing_of(&shared_incarnation()), Addressing::Shared);
    assert_eq!(
        addressing_of(&topic_incarnation()),
        Addressing::Unregistered
    );
    assert_eq!(
        addressing_of(&cap_incarnation(Timestamp(1))),
        Addressing::Direct
    );
}

#[test]
fn whoever_listens_unregistered_is_the_last_resort_and_may_answer_by_any_name() {
    let mut nobody = plain("topic");
    nobody.reach = Addressing::Unregistered;
    nobody.incarnation = topic_incarnation();
    nobody.max_parallel = 100;
    let mut rig = Rig::new();
    rig.feed(Input::Register(Box::new(nobody)));
    rig.hello("w", 1);
    let a = rig.assigned(job("a"));
    assert_eq!(a.worker.as_str(), "w", "a registered one first");
    assert_eq!(short(&rig.allow(job("b"))), nothing(), "full is not absent");
    rig.result("a", &a, Outcome::Succeeded);
    rig.feed(Input::Ended {
        job: job_id("b"),
        state: JobState::Cancelled,
    });
    rig.live(secs(40));
    assert_eq!(rig.engine.census().workers, 1, "the silent one is gone");
    let c = rig.assigned(job("c"));
    assert_eq!(c.worker.as_str(), "topic");
    let mut by = report("c", &c, Outcome::Succeeded);
    by.worker = worker_id("somebody");
    let effects = rig.feed(Input::Result(by));
    assert!(short(&effects).contains(&"finish c SUCCEEDED ".to_owned()));
}

#[test]
fn a_worker_whose_topics_nobody_knows_is_not_given_one_it_did_not_take_again() {
    let mut rig = Rig::new();
    let unknown = Heartbeat {
        pool: None,
        ..plain_beat("p", 0)
    };
    rig.feed(Input::Heartbeat(unknown.clone()));
    rig.assigned(job("a"));
    let mut seen = Vec::new();
    for _ in 0..5 {
        rig.live(secs(5));
        seen.extend(short(&rig.feed(Input::Heartbeat(unknown.clone()))));
    }
    assert_eq!(seen[..2], ["requeue a worker_lost", "recheck a"]);
    assert_eq!(short(&rig.allow(job("a"))), nothing(), "not to p again");
}

#[test]
fn a_pool_named_by_a_heartbeat_counts_from_then_on() {
    let mut rig = Rig::new();
    rig.feed(Input::Register(Box::new(plain("p"))));
    let elsewhere = Heartbeat {
        pool: Some(PoolName::new("elsewhere").unwrap()),
        ..plain_beat("p", 0)
    };
    rig.feed(Input::Heartbeat(elsewhere));
    assert_eq!(short(&rig.allow(job("a"))), nothing());
    let here = Heartbeat {
        pool: Some(PoolName::new("default").unwrap()),
        ..plain_beat("p", 0)
    };
    assert_eq!(short(&rig.feed(Input::Heartbeat(here))), ["assign a to p"]);
}
