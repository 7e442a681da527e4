//! Waiting for capacity: scheduled tries, and giving up.

use super::*;

#[test]
fn without_workers_a_job_waits_and_the_first_hello_wakes_it() {
    let mut fixture = Fixture::new();
    assert_eq!(short(&fixture.allow(job("a"))), nothing());
    assert_eq!(fixture.engine.counts().waiting, 1);
    fixture.pass(ms(500));
    assert_eq!(short(&fixture.register_worker("w", 1)), ["assign a to w"]);
}

#[test]
fn fifty_counted_tries_and_it_fails_with_the_reason() {
    let mut fixture = Fixture::new();
    fixture.allow(job("a"));
    let effects = fixture.run_for(secs(3600));
    let [(at, effect)] = effects.as_slice() else {
        panic!("{effects:?}")
    };
    assert_eq!(summary(effect), "close a FAILED no_workers");
    let Effect::Close { reason, .. } = effect else {
        panic!()
    };
    assert!(reason.contains("50 tries"), "{reason}");
    // 2 s, then doubling to 30 s with jitter.
    let took = at.since(job("a").created_at);
    assert!(took > secs(1300) && took < secs(1500), "{took:?}");
    assert!(!fixture.engine.jobs.contains_key(&job_id("a")));
    assert_eq!(fixture.engine.counts().waiting, 0);
}

#[test]
fn no_pool_is_a_reason_of_its_own() {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 1);
    fixture.allow(with_spec("a", |s| {
        s.labels.insert("preferred_pool".into(), "elsewhere".into());
    }));
    let mut ended = Vec::new();
    for _ in 0..400 {
        fixture.heartbeat("w", &[]);
        ended.extend(
            fixture
                .run_for(secs(5))
                .into_iter()
                .map(|(_, e)| summary(&e)),
        );
    }
    assert_eq!(ended, ["close a FAILED no_pool_mapping"]);
}

#[test]
fn a_full_pool_never_fails_a_job() {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 1);
    let held = fixture.assigned(job("held"));
    let mut one_slot = heartbeat("w", &[held.dispatch]);
    one_slot.max_parallel = 1;
    fixture.allow(job("a"));
    for _ in 0..2_000 {
        fixture.feed(Input::Heartbeat(one_slot.clone()));
        let happened = fixture.run_for(secs(5));
        assert!(happened.is_empty(), "{happened:?}");
    }
    assert!(fixture.engine.jobs.contains_key(&job_id("a")));
    let effects = fixture.result("held", &held, Outcome::Succeeded);
    assert_eq!(
        short(&effects).last().map(String::as_str),
        Some("recheck a")
    );
}

#[test]
fn tries_of_many_waiting_jobs_become_rare() {
    let mut fixture = Fixture::new();
    for i in 0..50 {
        fixture.allow(job(&format!("j{i}")));
    }
    fixture.run_for(secs(120));
    let mut rounds = 0;
    let end = fixture.now + secs(30);
    while let Some(next) = fixture.engine.next_deadline().filter(|at| *at <= end) {
        fixture.now = next;
        fixture.tick();
        rounds += 1;
    }
    // Fifty jobs and one check of the workers each second.
    assert!(rounds <= 50 + 31, "{rounds}");
}

#[test]
fn a_worker_in_the_moment_of_the_last_try_saves_the_job() {
    let mut fixture = Fixture::with(Settings {
        max_scheduling_retries: 1,
        ..Settings::default()
    });
    fixture.allow(job("a"));
    fixture.now = fixture.now + secs(2);
    let inputs = [
        Input::Register(Box::new(worker("w", "one", 1))),
        Input::PolicyConfirmed {
            snapshot: SNAPSHOT.to_owned(),
        },
    ];
    assert_eq!(short(&fixture.feed_all(inputs)), ["assign a to w"]);
}

#[test]
fn a_scheduled_try_looks_at_a_blocked_class_again() {
    let mut fixture = Fixture::new();
    fixture.allow(job("a"));
    // Something that gives capacity without saying so.
    fixture.engine.workers.insert(worker_id("w"), {
        let mut w = worker("w", "one", 1);
        w.last_seen = fixture.engine.listening.now();
        w
    });
    let effects = fixture.run_for(secs(2));
    let effects: Vec<_> = effects.into_iter().map(|(_, e)| summary(&e)).collect();
    assert_eq!(effects, ["assign a to w"]);
}

#[test]
fn a_deadline_ends_the_waiting() {
    let mut fixture = Fixture::new();
    let mut queued = job("a");
    queued.deadline_at = Some(fixture.now + secs(7));
    fixture.allow(queued);
    let effects = fixture.run_for(secs(60));
    let [(at, effect)] = effects.as_slice() else {
        panic!("{effects:?}")
    };
    assert_eq!(summary(effect), "close a TIMEOUT deadline_exceeded");
    assert_eq!(
        at.since(job("a").created_at),
        secs(7),
        "neither early nor late"
    );
    assert_eq!(fixture.engine.counts(), EngineCounts::default());
}

#[test]
fn a_deadline_ends_the_sleep() {
    let mut fixture = Fixture::new();
    let mut queued = job("a");
    queued.deadline_at = Some(fixture.now + secs(3));
    fixture.decide(queued, Decision::Throttle);
    assert_eq!(
        short(&fixture.pass(secs(3))),
        ["close a TIMEOUT deadline_exceeded"]
    );
}

#[test]
fn what_was_taken_over_waits_since_the_ledger_says_so() {
    let mut fixture = Fixture::new();
    let mut queued = job("a");
    let since = fixture.now - secs(700);
    queued.since = Some(since);
    fixture.feed(Input::Recovered(Box::new(RecoveredJob {
        queued: queued.clone(),
        state: JobState::Pending,
        assignment: None,
        silent_for: Duration::ZERO,
        output_held: None,
    })));
    let taken_over = fixture.now;
    fixture.allow(queued);
    fixture.run_for(secs(10));
    let standing = fixture.engine.explain(&job_id("a"));
    let crate::explain::WaitStatus::Waiting {
        since: shown,
        tries,
        counted_since,
        ..
    } = &standing
    else {
        panic!("{standing:?}")
    };
    assert_eq!((*shown, *counted_since), (since, Some(taken_over)));
    assert!(*tries > 0);
    let text = standing.to_sentence(fixture.now);
    assert!(text.contains("counted anew by this leader"), "{text}");
}
