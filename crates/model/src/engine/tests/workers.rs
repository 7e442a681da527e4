//! Workers come, fall silent, return as new processes, and answer questions.

use std::collections::HashSet;

use super::*;

fn one_running() -> (Rig, Assignment) {
    let mut rig = Rig::new();
    rig.hello("w", 1);
    let a = rig.assigned(job("a"));
    (rig, a)
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
fn lost_within(rig: &mut Rig, time: Duration) -> Vec<String> {
    let effects = rig.live(time).into_iter().map(|(_, e)| one_short(&e));
    effects.filter(|e| !e.starts_with("inventory")).collect()
}

#[test]
fn a_silent_worker_is_gone_after_its_time_and_its_jobs_go_on() {
    let (mut rig, a) = one_running();
    rig.feed(started(&a));
    let start = rig.now;
    let effects: Vec<_> = rig
        .live(secs(40))
        .into_iter()
        .filter(|(_, e)| !matches!(e, Effect::RecordTimes { .. }))
        .collect();
    let shorts: Vec<_> = effects.iter().map(|(_, e)| one_short(e)).collect();
    assert_eq!(shorts, ["requeue a worker_lost", "recheck a"]);
    let took = effects[0].0.since(start);
    assert!(took > secs(30) && took <= secs(32), "{took:?}");
    assert_eq!(rig.engine.census().workers, 0);
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
    let (mut rig, a) = one_running();
    rig.feed(started(&a));
    rig.pass(ms(200));
    rig.feed(Input::BusDown);
    let effects = rig.live(secs(5_000));
    assert!(effects.is_empty(), "{effects:?}");
    assert_eq!(rig.engine.census().workers, 1);
    rig.feed(Input::BusUp);
    let effects = rig.live(secs(29));
    assert!(effects.is_empty(), "its time begins anew: {effects:?}");
    rig.beat("w", &[a.dispatch]);
    assert_eq!(rig.engine.census().workers, 1);
}

#[test]
fn time_without_the_bus_is_no_part_of_a_run_s_silence() {
    let (mut rig, a) = one_running();
    rig.feed(started(&a));
    let mut finished = None;
    let mut alive = Duration::ZERO;
    while finished.is_none() && alive < secs(2_000) {
        rig.feed(Input::BusDown);
        rig.live(secs(600));
        rig.feed(Input::BusUp);
        for _ in 0..10 {
            rig.beat("w", &[]);
            alive += secs(10);
            for (_, e) in rig.live(secs(10)) {
                if let Effect::Finish { .. } = e {
                    finished = Some(one_short(&e));
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
    let (mut rig, a) = one_running();
    rig.feed(started(&a));
    rig.feed(Input::BusDown);
    let mut rounds = 0;
    let end = rig.now + secs(2_000);
    while let Some(next) = rig.engine.next_deadline().filter(|at| *at <= end) {
        rig.now = next;
        rig.feed(Input::Tick);
        rounds += 1;
    }
    assert!(rounds < 2_100, "{rounds} rounds");
}

#[test]
fn a_new_process_under_the_name_means_the_old_one_s_jobs_are_lost_soon() {
    let (mut rig, _) = one_running();
    let start = rig.now;
    let effects = rig.feed(Input::Register(Box::new(worker("w", "two", 1))));
    assert_eq!(
        short(&effects),
        ["inventory w"],
        "the old one is asked first"
    );
    assert_eq!(rig.worker("w").in_flight, 0);
    let lost = lost_within(&mut rig, secs(4));
    assert_eq!(lost, ["requeue a worker_lost", "recheck a"]);
    assert!(rig.now.since(start) < secs(30), "long before the TTL");
    let mut known = job("a");
    known.attempt = Attempt(1);
    let again = rig.assigned(known);
    assert_eq!(
        (again.incarnation.as_str(), again.attempt),
        ("two", Attempt(2))
    );
}

#[test]
fn the_same_process_saying_hello_again_keeps_its_jobs() {
    let (mut rig, _) = one_running();
    assert_eq!(short(&rig.hello("w", 1)), nothing());
    assert_eq!(rig.worker("w").in_flight, 1);
    assert_eq!(short(&rig.allow(job("b"))), nothing(), "it is full");
}

#[test]
fn a_beat_of_a_new_process_is_enough() {
    let (mut rig, _) = one_running();
    let mut b = beat("w", &[]);
    b.incarnation = Some(incarnation("two"));
    let effects = rig.feed(Input::Heartbeat(b));
    assert_eq!(short(&effects), ["inventory w", "rehello w"]);
    assert_eq!(
        lost_within(&mut rig, secs(4)),
        ["requeue a worker_lost", "recheck a"]
    );
}

#[test]
fn an_unknown_worker_is_asked_who_it_is_and_a_cap_worker_is_taken_as_it_is() {
    let mut rig = Rig::new();
    assert_eq!(short(&rig.beat("w", &[])), ["rehello w"]);
    assert_eq!(rig.engine.census().workers, 0);
    rig.allow(job("a"));
    let mut b = beat("cap", &[]);
    b.incarnation = None;
    assert_eq!(short(&rig.feed(Input::Heartbeat(b))), ["assign a to cap"]);
}

#[test]
fn goodbye_loses_what_was_left_at_once_but_only_of_that_process() {
    let (mut rig, _) = one_running();
    let bye = |name: &str| Input::Deregister {
        worker: worker_id("w"),
        incarnation: Some(incarnation(name)),
    };
    assert_eq!(short(&rig.feed(bye("zero"))), nothing());
    assert_eq!(
        short(&rig.feed(bye("one"))),
        ["requeue a worker_lost", "recheck a"]
    );
    assert_eq!(rig.engine.census().workers, 0);
}

#[test]
fn the_last_attempt_of_a_lost_worker_ends_the_job() {
    let mut rig = Rig::new();
    rig.hello("w", 1);
    let mut known = job("a");
    known.attempt = Attempt(2);
    assert_eq!(rig.assigned(known).attempt, Attempt(3));
    let effects = rig.replaced("w", "two", 1);
    assert_eq!(short(&effects), ["finish a FAILED worker_lost"]);
}

#[test]
fn what_was_never_taken_is_given_away_only_after_accept_by_and_is_not_counted() {
    let (mut rig, a) = one_running();
    rig.pass(ms(10_999));
    // The answer may have been on its way when the worker took it in the last moment.
    assert_eq!(
        short(&rig.feed(inventory("one", &[], &[]))),
        nothing(),
        "too early"
    );
    assert_eq!(short(&rig.pass(ms(1))), ["inventory w"]);
    let effects = rig.feed(inventory("one", &[], &[]));
    assert_eq!(
        short(&effects),
        ["requeue a not_accepted uncounted", "recheck a"]
    );
    let again = rig.assigned(job("a"));
    assert_eq!(again.attempt, Attempt(1));
    assert_ne!(again.dispatch, a.dispatch);
}

#[test]
fn what_the_worker_lists_is_left_to_it() {
    let (mut rig, a) = one_running();
    rig.pass(secs(11));
    assert_eq!(
        short(&rig.feed(inventory("one", &[a.dispatch], &[]))),
        nothing()
    );
    rig.pass(secs(5));
    assert_eq!(
        short(&rig.feed(inventory("one", &[], &[a.dispatch]))),
        nothing()
    );
    assert!(rig.engine.knows(&job_id("a")));
}

#[test]
fn what_it_had_and_no_longer_lists_is_lost() {
    let (mut rig, a) = one_running();
    rig.feed(started(&a));
    rig.pass(secs(11));
    let effects = rig.feed(inventory("one", &[], &[]));
    assert_eq!(
        short(&effects),
        ["requeue a worker_lost", "recheck a"].map(|s| s.replace("worker_lost", "lost"))
    );
}

fn take_over(a: &Assignment, state: JobState) -> Rig {
    let mut rig = Rig::new();
    rig.hello("w", 1);
    let mut assignment = a.clone();
    assignment.recovered = true;
    assignment.accepted = state == JobState::Running;
    rig.feed(Input::Recovered(Box::new(RecoveredJob {
        known: job("a"),
        state,
        assignment: Some(assignment),
        silent_for: Duration::ZERO,
    })));
    rig
}

#[test]
fn after_a_take_over_what_the_worker_never_saw_is_published_again() {
    let (_, a) = one_running();
    let mut rig = take_over(&a, JobState::Scheduled);
    assert_eq!(rig.engine.holders(), HashSet::from([worker_id("w")]));
    let effects = rig.feed(inventory("one", &[], &[]));
    let [Effect::Republish { assignment, .. }] = effects.as_slice() else {
        panic!("{effects:?}")
    };
    assert_eq!(assignment.dispatch, a.dispatch);
    assert_eq!(
        short(&rig.feed(inventory("one", &[], &[]))),
        nothing(),
        "once"
    );
    assert_eq!(short(&rig.allow(job("b"))), nothing(), "its slot is taken");
}

#[test]
fn after_a_take_over_what_ran_and_is_not_listed_is_lost() {
    let (_, a) = one_running();
    let mut rig = take_over(&a, JobState::Running);
    let effects = rig.feed(inventory("one", &[], &[]));
    assert_eq!(short(&effects), ["requeue a lost", "recheck a"]);
}

#[test]
fn after_a_take_over_a_run_that_no_heartbeat_lists_is_asked_about_until_answered() {
    let (_, a) = one_running();
    let mut rig = take_over(&a, JobState::Running);
    for _ in 0..2 {
        assert_eq!(short(&rig.beat("w", &[])), ["inventory w"]);
    }
    assert_eq!(short(&rig.beat("w", &[a.dispatch])), nothing());
    let effects = rig.feed(inventory("one", &[], &[]));
    assert_eq!(short(&effects), ["requeue a lost", "recheck a"]);
}

#[test]
fn after_a_take_over_a_new_process_has_lost_what_the_old_one_held() {
    let (_, mut a) = one_running();
    a.incarnation = incarnation("zero");
    let mut rig = take_over(&a, JobState::Running);
    assert_eq!(rig.worker("w").in_flight, 0, "not this process's");
    let effects = rig.feed(inventory("one", &[], &[]));
    assert_eq!(
        short(&effects),
        ["inventory w"],
        "the old one is asked first"
    );
    assert_eq!(
        lost_within(&mut rig, secs(4)),
        ["requeue a worker_lost", "recheck a"]
    );
    // The same without an answer to the question.
    let mut rig = take_over(&a, JobState::Running);
    let mut seen = Vec::new();
    for _ in 0..10 {
        rig.beat("w", &[]);
        seen.extend(rig.live(secs(5)).into_iter().map(|(_, e)| one_short(&e)));
    }
    assert_eq!(seen, ["requeue a worker_lost", "recheck a"]);
}

#[test]
fn an_answer_of_a_process_that_is_gone_is_not_believed() {
    let (mut rig, _) = one_running();
    rig.pass(secs(11));
    assert_eq!(short(&rig.feed(inventory("zero", &[], &[]))), nothing());
    assert!(rig.engine.knows(&job_id("a")));
}

#[test]
fn after_a_take_over_a_worker_that_never_shows_itself_has_lost_its_jobs() {
    let (_, a) = one_running();
    let mut rig = Rig::new();
    let mut assignment = a;
    assignment.recovered = true;
    rig.feed(Input::Recovered(Box::new(RecoveredJob {
        known: job("a"),
        state: JobState::Dispatched,
        assignment: Some(assignment),
        silent_for: Duration::ZERO,
    })));
    let seen: Vec<_> = rig
        .live(secs(40))
        .into_iter()
        .map(|(_, e)| one_short(&e))
        .filter(|s| s != "inventory w")
        .collect();
    assert_eq!(seen, ["requeue a worker_lost", "recheck a"]);
}
