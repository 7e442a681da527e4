//! A run on the wire: published or not, started, watched, marked, recovered.

use super::*;

pub fn one_running() -> (Fixture, Assignment) {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 1);
    let a = fixture.assigned(job("a"));
    (fixture, a)
}

fn published(at: Timestamp, a: &Assignment) -> Input {
    Input::Published {
        job: job_id("a"),
        run: a.run_id(),
        at,
    }
}

fn failed(a: &Assignment) -> Input {
    Input::PublishFailed {
        job: job_id("a"),
        run: a.run_id(),
        sure: false,
    }
}

pub fn started(a: &Assignment) -> Input {
    Input::Started {
        job: job_id("a"),
        dispatch: a.dispatch.to_string(),
        worker: a.worker.clone(),
        at: None,
    }
}

#[test]
fn times_are_written_after_a_while() {
    let (mut fixture, a) = one_running();
    fixture.feed(published(fixture.now, &a));
    let on_wire = fixture.now;
    assert_eq!(short(&fixture.pass(ms(99))), nothing());
    let effects = fixture.pass(ms(1));
    let [Effect::RecordTimes { assignment, .. }] = effects.as_slice() else {
        panic!("{effects:?}")
    };
    assert_eq!(assignment.dispatched_at, Some(on_wire));
    assert_eq!(assignment.started_at, None);
    fixture.feed(started(&a));
    let effects = fixture.pass(ms(100));
    let [Effect::RecordTimes { assignment, .. }] = effects.as_slice() else {
        panic!("{effects:?}")
    };
    assert!(assignment.started_at.is_some());
    fixture.feed(published(fixture.now, &a));
    fixture.feed(started(&a));
    assert_eq!(
        short(&fixture.pass(ms(100))),
        nothing(),
        "told twice, written once"
    );
}

#[test]
fn marks_are_not_written_when_the_end_came_first() {
    let (mut fixture, a) = one_running();
    fixture.feed(published(fixture.now, &a));
    fixture.feed(started(&a));
    fixture.result("a", &a, Outcome::Succeeded);
    assert_eq!(short(&fixture.pass(ms(100))), nothing());
    assert!(fixture.engine.unflushed_times.is_empty());
}

#[test]
fn a_failed_publish_is_repeated_with_the_same_dispatch() {
    let (mut fixture, a) = one_running();
    fixture.feed(failed(&a));
    assert_eq!(short(&fixture.pass(ms(1_999))), nothing());
    let effects = fixture.pass(ms(1));
    let [Effect::Republish { assignment, .. }] = effects.as_slice() else {
        panic!("{effects:?}")
    };
    assert_eq!(
        (assignment.dispatch, assignment.attempt),
        (a.dispatch, a.attempt)
    );
    assert_eq!(
        assignment.accept_by,
        fixture.now + secs(10),
        "it has its time again"
    );
    fixture.feed(failed(&a));
    assert_eq!(short(&fixture.pass(secs(2))), ["republish a"]);
    fixture.feed(published(fixture.now, &a));
    assert_eq!(fixture.worker("w").in_flight, 1);
}

#[test]
fn a_failed_publish_of_what_has_started_changes_nothing() {
    let (mut fixture, a) = one_running();
    fixture.feed(started(&a));
    fixture.feed(failed(&a));
    assert_eq!(short(&fixture.pass(secs(5))), ["record times a"]);
}

#[test]
fn a_cap_worker_is_never_sent_anything_twice() {
    let mut fixture = Fixture::new();
    let mut cap = worker("w", "cap-1", 1);
    cap.sdk = false;
    fixture.feed(Input::Register(Box::new(cap)));
    let a = fixture.assigned(job("a"));
    fixture.feed(failed(&a));
    let mut seen = Vec::new();
    for _ in 0..40 {
        let mut b = heartbeat("w", &[]);
        b.incarnation = None;
        seen.extend(short(&fixture.feed(Input::Heartbeat(b))));
        seen.extend(
            fixture
                .run_for(secs(10))
                .into_iter()
                .map(|(_, e)| summary(&e)),
        );
    }
    // It says again and again that it has nothing: the next run is another dispatch.
    assert_eq!(seen, ["requeue a worker_lost", "recheck a"]);
}

#[test]
fn a_cap_worker_need_not_say_which_run_it_speaks_of() {
    for (sdk, believed) in [
        (false, vec!["record times a".to_owned()]),
        (true, nothing()),
    ] {
        let mut fixture = Fixture::new();
        let mut w = worker("w", "cap-1", 1);
        w.sdk = sdk;
        fixture.feed(Input::Register(Box::new(w)));
        let a = fixture.assigned(job("a"));
        let vague = |worker: WorkerId| Input::Started {
            job: job_id("a"),
            dispatch: String::new(),
            worker,
            at: None,
        };
        fixture.feed(vague(worker_id("forger")));
        assert_eq!(short(&fixture.pass(ms(300))), nothing(), "a stranger");
        fixture.feed(vague(a.worker.clone()));
        assert_eq!(short(&fixture.pass(ms(300))), believed, "sdk: {sdk}");
    }
}

#[test]
fn the_dispatch_timeout_counts_from_the_assignment() {
    let mut fixture = Fixture::with(Settings {
        dispatch_timeout: secs(30),
        ..Settings::default()
    });
    fixture.register_worker("w", 1);
    fixture.assigned(job("a"));
    let start = fixture.now;
    let mut end = None;
    for _ in 0..40 {
        fixture.heartbeat("w", &[]);
        for (at, e) in fixture.run_for(secs(1)) {
            match e {
                Effect::RequestInventory { .. } => {}
                Effect::Finish { .. } => end = Some((at.since(start), summary(&e))),
                other => assert!(summary(&other).starts_with("cancel"), "{other:?}"),
            }
        }
    }
    let want = "finish a TIMEOUT dispatch_timeout".to_owned();
    assert_eq!(end, Some((secs(30), want)));
}

#[test]
fn the_running_timeout_counts_from_the_last_heartbeat() {
    let (mut fixture, a) = one_running();
    fixture.feed(started(&a));
    // Far beyond 900 s, but it shows life.
    for _ in 0..500 {
        fixture.heartbeat("w", &[a.dispatch]);
        fixture.run_for(secs(10));
    }
    assert!(fixture.engine.jobs.contains_key(&job_id("a")));
    fixture.heartbeat("w", &[a.dispatch]);
    let last = fixture.now;
    let mut end = None;
    for _ in 0..100 {
        fixture.heartbeat("w", &[]);
        for (at, e) in fixture.run_for(secs(10)) {
            if let Effect::Finish { .. } = e {
                end = Some((at.since(last), summary(&e)));
            }
        }
    }
    assert_eq!(
        end,
        Some((secs(900), "finish a TIMEOUT running_timeout".to_owned()))
    );
}

#[test]
fn the_deadline_stops_a_running_job() {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 1);
    let mut queued = job("a");
    queued.deadline_at = Some(fixture.now + secs(5));
    let a = fixture.assigned(queued);
    fixture.feed(started(&a));
    let effects = fixture.run_for(ms(4_999));
    assert_eq!(effects.len(), 1, "only the mark");
    assert_eq!(
        short(&fixture.pass(ms(1))),
        ["cancel a at w", "finish a TIMEOUT deadline_exceeded"]
    );
    assert_eq!(fixture.worker("w").in_flight, 0);
}

#[test]
fn a_start_from_the_wrong_worker_is_not_believed() {
    let (mut fixture, a) = one_running();
    let mut wrong = started(&a);
    if let Input::Started { worker, .. } = &mut wrong {
        *worker = worker_id("forger");
    }
    fixture.feed(wrong);
    assert_eq!(short(&fixture.pass(ms(200))), nothing());
}

fn recovered(queued: QueuedJob, state: JobState, assignment: Option<Assignment>) -> Input {
    Input::Recovered(Box::new(RecoveredJob {
        queued,
        state,
        assignment,
        silent_for: Duration::ZERO,
        output_held: None,
    }))
}

#[test]
fn the_ledger_s_word_replaces_ours() {
    let (mut fixture, a) = one_running();
    // It never was given away: its slot is free, and the kernel is asked anew.
    let effects = fixture.feed(recovered(job("a"), JobState::Pending, None));
    assert_eq!(short(&effects), ["recheck a"]);
    assert_eq!(fixture.worker("w").in_flight, 0);
    // It is with the worker after all.
    fixture.feed(recovered(job("a"), JobState::Scheduled, Some(a.clone())));
    assert_eq!(fixture.worker("w").in_flight, 1);
    fixture.feed(recovered(job("a"), JobState::Running, Some(a)));
    assert_eq!(fixture.worker("w").in_flight, 1, "not counted twice");
    fixture.feed(recovered(job("a"), JobState::ApprovalRequired, None));
    assert_eq!(fixture.worker("w").in_flight, 0);
    assert!(fixture.engine.jobs.contains_key(&job_id("a")));
    fixture.feed(recovered(job("a"), JobState::Succeeded, None));
    assert!(!fixture.engine.jobs.contains_key(&job_id("a")));
}

#[test]
fn a_waiting_job_that_is_reloaded_has_one_place_in_the_queue() {
    let mut fixture = Fixture::new();
    fixture.allow(job("a"));
    for _ in 0..3 {
        assert_eq!(
            short(&fixture.feed(recovered(job("a"), JobState::Pending, None))),
            ["recheck a"]
        );
        assert_eq!(fixture.engine.counts().waiting, 0);
        fixture.allow(job("a"));
    }
    assert_eq!(fixture.engine.counts().waiting, 1);
    assert_eq!(short(&fixture.register_worker("w", 9)), ["assign a to w"]);
}

#[test]
fn a_deadline_that_passed_under_an_earlier_leader_is_found_after_the_take_over() {
    let (_, a) = one_running();
    for (state, run, want) in [
        (
            JobState::Running,
            Some(a),
            vec!["cancel a at w", "finish a TIMEOUT deadline_exceeded"],
        ),
        (
            JobState::ApprovalRequired,
            None,
            vec!["close a TIMEOUT deadline_exceeded"],
        ),
    ] {
        let mut fixture = Fixture::new();
        let mut queued = job("a");
        queued.deadline_at = Some(fixture.now - secs(5));
        // Nothing can be committed while the ledger is read.
        assert_eq!(
            short(&fixture.feed(recovered(queued, state, run))),
            nothing()
        );
        assert_eq!(short(&fixture.pass(ms(1))), want);
    }
    let mut fixture = Fixture::new();
    let mut queued = job("a");
    queued.deadline_at = Some(fixture.now - secs(5));
    queued.not_before = Some(fixture.now + secs(5));
    let effects = fixture.feed(recovered(queued.clone(), JobState::Pending, None));
    assert_eq!(short(&effects), ["recheck a"]);
    assert_eq!(
        short(&fixture.allow(queued)),
        ["close a TIMEOUT deadline_exceeded"]
    );
}

#[test]
fn a_reloaded_backoff_is_waited_for() {
    let mut fixture = Fixture::new();
    let mut queued = job("a");
    queued.not_before = Some(fixture.now + secs(9));
    assert_eq!(
        short(&fixture.feed(recovered(queued, JobState::Pending, None))),
        nothing()
    );
    assert_eq!(short(&fixture.pass(secs(9))), ["recheck a"]);
}
