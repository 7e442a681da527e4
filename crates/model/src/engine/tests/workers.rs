//! Workers come, fall silent, return as new processes, and answer questions.

use std::collections::HashSet;

use super::*;

fn one_running() -> (Fixture, Assignment) {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 1);
    let a = fixture.assigned(job("a"));
    (fixture, a)
}

fn started(a: &Assignment) -> Input {
    Input::Started {
        job: job_id("a"),
        dispatch: a.dispatch.to_string(),
        worker: a.worker.clone(),
        at: None,
    }
}

fn inventory(name: &str, running: &[DispatchId], finished: &[DispatchId]) -> Input {
    Input::Inventory {
        worker: worker_id("w"),
        incarnation: incarnation(name),
        running: running.iter().copied().collect(),
        finished: finished.iter().copied().collect::<HashSet<_>>(),
    }
}

/// What happens within this time, but for questions to workers.
fn lost_within(fixture: &mut Fixture, time: Duration) -> Vec<String> {
    let effects = fixture.run_for(time).into_iter().map(|(_, e)| summary(&e));
    effects.filter(|e| !e.starts_with("inventory")).collect()
}

#[test]
fn a_silent_worker_is_gone_after_its_time_and_its_jobs_go_on() {
    let (mut fixture, a) = one_running();
    fixture.feed(started(&a));
    let start = fixture.now;
    let effects: Vec<_> = fixture
        .run_for(secs(40))
        .into_iter()
        .filter(|(_, e)| !matches!(e, Effect::RecordTimes { .. }))
        .collect();
    let shorts: Vec<_> = effects.iter().map(|(_, e)| summary(e)).collect();
    assert_eq!(shorts, ["requeue a worker_lost", "recheck a"]);
    let took = effects[0].0.since(start);
    assert!(took > secs(30) && took <= secs(32), "{took:?}");
    assert_eq!(fixture.engine.counts().workers, 0);
    let Effect::Requeue {
        not_before, end, ..
    } = &effects[0].1
    else {
        panic!()
    };
    assert_eq!(
        (*not_before, end.may_have_begun()),
        (None, true),
        "at once, and counted"
    );
}

#[test]
fn nobody_dies_of_silence_while_the_bus_is_away() {
    let (mut fixture, a) = one_running();
    fixture.feed(started(&a));
    fixture.pass(ms(200));
    fixture.feed(Input::BusDown);
    let effects = fixture.run_for(secs(5_000));
    assert!(effects.is_empty(), "{effects:?}");
    assert_eq!(fixture.engine.counts().workers, 1);
    fixture.feed(Input::BusUp);
    let effects = fixture.run_for(secs(29));
    assert!(effects.is_empty(), "its time begins anew: {effects:?}");
    fixture.heartbeat("w", &[a.dispatch]);
    assert_eq!(fixture.engine.counts().workers, 1);
}

#[test]
fn time_without_the_bus_is_no_part_of_a_run_s_silence() {
    let (mut fixture, a) = one_running();
    fixture.feed(started(&a));
    let mut finished = None;
    let mut alive = Duration::ZERO;
    while finished.is_none() && alive < secs(2_000) {
        fixture.feed(Input::BusDown);
        fixture.run_for(secs(600));
        fixture.feed(Input::BusUp);
        for _ in 0..10 {
            fixture.heartbeat("w", &[]);
            alive += secs(10);
            for (_, e) in fixture.run_for(secs(10)) {
                if let Effect::Finish { .. } = e {
                    finished = Some(summary(&e));
                }
            }
        }
    }
    assert_eq!(
        finished.as_deref(),
        Some("finish a TIMEOUT running_timeout")
    );
    assert_eq!(alive, secs(900));
}

#[test]
fn the_shell_does_not_spin_while_the_bus_is_away() {
    let (mut fixture, a) = one_running();
    fixture.feed(started(&a));
    fixture.feed(Input::BusDown);
    let mut rounds = 0;
    let end = fixture.now + secs(2_000);
    while let Some(next) = fixture.engine.next_deadline().filter(|at| *at <= end) {
        fixture.now = next;
        fixture.tick();
        rounds += 1;
    }
    assert!(rounds < 2_100, "{rounds} rounds");
}

#[test]
fn a_new_process_under_the_name_means_the_old_one_s_jobs_are_lost_soon() {
    let (mut fixture, _) = one_running();
    let start = fixture.now;
    let effects = fixture.feed(Input::Register(Box::new(worker("w", "two", 1))));
    assert_eq!(
        short(&effects),
        ["inventory w"],
        "the old one is asked first"
    );
    assert_eq!(fixture.worker("w").in_flight, 0);
    let lost = lost_within(&mut fixture, secs(4));
    assert_eq!(lost, ["requeue a worker_lost", "recheck a"]);
    assert!(fixture.now.since(start) < secs(30), "long before the TTL");
    let mut queued = job("a");
    queued.attempt = Attempt(1);
    let again = fixture.assigned(queued);
    assert_eq!(
        (again.incarnation.as_str(), again.attempt),
        ("two", Attempt(2))
    );
}

#[test]
fn the_same_process_registering_again_keeps_its_jobs() {
    let (mut fixture, _) = one_running();
    assert_eq!(short(&fixture.register_worker("w", 1)), nothing());
    assert_eq!(fixture.worker("w").in_flight, 1);
    assert_eq!(short(&fixture.allow(job("b"))), nothing(), "it is full");
}

#[test]
fn a_beat_of_a_new_process_is_enough() {
    let (mut fixture, _) = one_running();
    let mut b = heartbeat("w", &[]);
    b.incarnation = Some(incarnation("two"));
    let effects = fixture.feed(Input::Heartbeat(b));
    assert_eq!(short(&effects), ["inventory w", "register w"]);
    assert_eq!(
        lost_within(&mut fixture, secs(4)),
        ["requeue a worker_lost", "recheck a"]
    );
}

#[test]
fn an_unknown_worker_is_asked_who_it_is_and_a_cap_worker_is_taken_as_it_is() {
    let mut fixture = Fixture::new();
    assert_eq!(short(&fixture.heartbeat("w", &[])), ["register w"]);
    assert_eq!(fixture.engine.counts().workers, 0);
    fixture.allow(job("a"));
    let mut b = heartbeat("cap", &[]);
    b.incarnation = None;
    assert_eq!(
        short(&fixture.feed(Input::Heartbeat(b))),
        ["assign a to cap"]
    );
}

#[test]
fn deregistering_loses_what_was_left_at_once_but_only_of_that_process() {
    let (mut fixture, _) = one_running();
    let bye = |name: &str| Input::Deregister {
        worker: worker_id("w"),
        incarnation: Some(incarnation(name)),
    };
    assert_eq!(short(&fixture.feed(bye("zero"))), nothing());
    assert_eq!(
        short(&fixture.feed(bye("one"))),
        ["requeue a worker_lost", "recheck a"]
    );
    assert_eq!(fixture.engine.counts().workers, 0);
}

#[test]
fn the_last_attempt_of_a_lost_worker_ends_the_job() {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 1);
    let mut queued = job("a");
    queued.attempt = Attempt(2);
    assert_eq!(fixture.assigned(queued).attempt, Attempt(3));
    let effects = fixture.replaced("w", "two", 1);
    assert_eq!(short(&effects), ["finish a FAILED worker_lost"]);
}

#[test]
fn what_was_never_taken_is_given_away_only_after_accept_by_and_is_not_counted() {
    let (mut fixture, a) = one_running();
    fixture.pass(ms(10_999));
    // The answer may have been on its way when the worker took it in the last moment.
    assert_eq!(
        short(&fixture.feed(inventory("one", &[], &[]))),
        nothing(),
        "too early"
    );
    assert_eq!(short(&fixture.pass(ms(1))), ["inventory w"]);
    let effects = fixture.feed(inventory("one", &[], &[]));
    assert_eq!(
        short(&effects),
        ["requeue a not_accepted uncounted", "recheck a"]
    );
    let again = fixture.assigned(job("a"));
    assert_eq!(again.attempt, Attempt(1));
    assert_ne!(again.dispatch, a.dispatch);
}

#[test]
fn what_the_worker_lists_is_left_to_it() {
    let (mut fixture, a) = one_running();
    fixture.pass(secs(11));
    assert_eq!(
        short(&fixture.feed(inventory("one", &[a.dispatch], &[]))),
        nothing()
    );
    fixture.pass(secs(5));
    assert_eq!(
        short(&fixture.feed(inventory("one", &[], &[a.dispatch]))),
        nothing()
    );
    assert!(fixture.engine.jobs.contains_key(&job_id("a")));
}

#[test]
fn what_it_had_and_no_longer_lists_is_lost() {
    let (mut fixture, a) = one_running();
    fixture.feed(started(&a));
    fixture.pass(secs(11));
    let effects = fixture.feed(inventory("one", &[], &[]));
    assert_eq!(
        short(&effects),
        ["requeue a worker_lost", "recheck a"].map(|s| s.replace("worker_lost", "lost"))
    );
}

fn take_over(a: &Assignment, state: JobState) -> Fixture {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 1);
    let mut assignment = a.clone();
    assignment.recovered = true;
    assignment.accepted = state == JobState::Running;
    fixture.feed(Input::Recovered(Box::new(RecoveredJob {
        queued: job("a"),
        state,
        assignment: Some(assignment),
        silent_for: Duration::ZERO,
        output_held: None,
    })));
    fixture
}

#[test]
fn after_a_take_over_what_the_worker_never_saw_is_published_again() {
    let (_, a) = one_running();
    let mut fixture = take_over(&a, JobState::Scheduled);
    assert_eq!(
        fixture.engine.assigned_workers(),
        HashSet::from([worker_id("w")])
    );
    let effects = fixture.feed(inventory("one", &[], &[]));
    let [Effect::Republish { assignment, .. }] = effects.as_slice() else {
        panic!("{effects:?}")
    };
    assert_eq!(assignment.dispatch, a.dispatch);
    assert_eq!(
        short(&fixture.feed(inventory("one", &[], &[]))),
        nothing(),
        "once"
    );
    assert_eq!(
        short(&fixture.allow(job("b"))),
        nothing(),
        "its slot is taken"
    );
}

#[test]
fn after_a_take_over_what_ran_and_is_not_listed_is_lost() {
    let (_, a) = one_running();
    let mut fixture = take_over(&a, JobState::Running);
    let effects = fixture.feed(inventory("one", &[], &[]));
    assert_eq!(short(&effects), ["requeue a lost", "recheck a"]);
}

#[test]
fn after_a_take_over_a_run_that_no_heartbeat_lists_is_asked_about_until_answered() {
    let (_, a) = one_running();
    let mut fixture = take_over(&a, JobState::Running);
    for _ in 0..2 {
        assert_eq!(short(&fixture.heartbeat("w", &[])), ["inventory w"]);
    }
    assert_eq!(short(&fixture.heartbeat("w", &[a.dispatch])), nothing());
    let effects = fixture.feed(inventory("one", &[], &[]));
    assert_eq!(short(&effects), ["requeue a lost", "recheck a"]);
}

#[test]
fn after_a_take_over_a_new_process_has_lost_what_the_old_one_held() {
    let (_, mut a) = one_running();
    a.incarnation = incarnation("zero");
    let mut fixture = take_over(&a, JobState::Running);
    assert_eq!(fixture.worker("w").in_flight, 0, "not this process's");
    let effects = fixture.feed(inventory("one", &[], &[]));
    assert_eq!(
        short(&effects),
        ["inventory w"],
        "the old one is asked first"
    );
    assert_eq!(
        lost_within(&mut fixture, secs(4)),
        ["requeue a worker_lost", "recheck a"]
    );
    // The same without an answer to the question.
    let mut fixture = take_over(&a, JobState::Running);
    let mut seen = Vec::new();
    for _ in 0..10 {
        fixture.heartbeat("w", &[]);
        seen.extend(
            fixture
                .run_for(secs(5))
                .into_iter()
                .map(|(_, e)| summary(&e)),
        );
    }
    assert_eq!(seen, ["requeue a worker_lost", "recheck a"]);
}

#[test]
fn an_answer_of_a_process_that_is_gone_is_not_believed() {
    let (mut fixture, _) = one_running();
    fixture.pass(secs(11));
    assert_eq!(short(&fixture.feed(inventory("zero", &[], &[]))), nothing());
    assert!(fixture.engine.jobs.contains_key(&job_id("a")));
}

#[test]
fn after_a_take_over_a_worker_that_never_shows_itself_has_lost_its_jobs() {
    let (_, a) = one_running();
    let mut fixture = Fixture::new();
    let mut assignment = a;
    assignment.recovered = true;
    fixture.feed(Input::Recovered(Box::new(RecoveredJob {
        queued: job("a"),
        state: JobState::Dispatched,
        assignment: Some(assignment),
        silent_for: Duration::ZERO,
        output_held: None,
    })));
    let seen: Vec<_> = fixture
        .run_for(secs(40))
        .into_iter()
        .map(|(_, e)| summary(&e))
        .filter(|s| s != "inventory w")
        .collect();
    assert_eq!(seen, ["requeue a worker_lost", "recheck a"]);
}
