//! Two live processes under one worker id.

use std::collections::HashSet;

use super::*;

fn register(name: &str) -> Input {
    Input::Register(Box::new(worker("w", name, 2)))
}

fn beat_of(name: &str, active: &[DispatchId]) -> Input {
    let mut b = heartbeat("w", active);
    b.incarnation = Some(incarnation(name));
    b.max_parallel = 2;
    Input::Heartbeat(b)
}

fn inventory(name: &str, running: &[DispatchId]) -> Input {
    Input::Inventory {
        worker: worker_id("w"),
        incarnation: incarnation(name),
        running: running.iter().copied().collect(),
        finished: HashSet::new(),
    }
}

fn deregister(name: &str) -> Input {
    Input::Deregister {
        worker: worker_id("w"),
        incarnation: Some(incarnation(name)),
    }
}

fn duplicates(fixture: &Fixture) -> Vec<String> {
    fixture
        .engine
        .duplicate_worker_ids()
        .map(ToString::to_string)
        .collect()
}

/// "one" runs job a, then "two" comes up beside it and both go on speaking.
fn both() -> (Fixture, Assignment) {
    let mut fixture = Fixture::new();
    fixture.feed(register("one"));
    let a = fixture.assigned(job("a"));
    assert_eq!(short(&fixture.feed(register("two"))), ["inventory w"]);
    let answer = fixture.feed(inventory("one", &[a.dispatch]));
    assert_eq!(short(&answer), ["inventory w"], "once may be an echo");
    assert_eq!(duplicates(&fixture), nothing());
    let answer = fixture.feed(inventory("one", &[a.dispatch]));
    assert_eq!(short(&answer), ["duplicate w"]);
    assert_eq!(duplicates(&fixture), ["w"]);
    (fixture, a)
}

/// Both heartbeat for so long; what happens is given but for marks.
fn speak(
    fixture: &mut Fixture,
    time: u64,
    of_one: &[DispatchId],
    of_two: &[DispatchId],
) -> Vec<String> {
    let mut seen = Vec::new();
    for _ in 0..time / 5 {
        seen.extend(
            fixture
                .run_for(secs(5))
                .into_iter()
                .map(|(_, e)| summary(&e)),
        );
        seen.extend(short(&fixture.feed(beat_of("one", of_one))));
        seen.extend(short(&fixture.feed(beat_of("two", of_two))));
    }
    seen.retain(|e| !e.starts_with("mark"));
    seen
}

#[test]
fn neither_loses_its_jobs_because_of_the_other() {
    let (mut fixture, a) = both();
    // New work goes to the one that is registered, and both go on for as long as they like.
    let b = fixture.assigned(job("b"));
    assert_eq!(b.incarnation.as_str(), "two");
    assert_eq!(
        speak(&mut fixture, 300, &[a.dispatch], &[b.dispatch]),
        nothing(),
        "reported once, and nothing is lost"
    );
    for (id, run) in [("a", &a), ("b", &b)] {
        let effects = short(&fixture.result(id, run, Outcome::Succeeded));
        assert_eq!(effects[1], format!("finish {id} SUCCEEDED "));
    }
}

#[test]
fn introductions_of_both_change_nothing() {
    let (mut fixture, a) = both();
    for _ in 0..3 {
        assert_eq!(short(&fixture.feed(register("one"))), nothing());
        assert_eq!(short(&fixture.feed(register("two"))), nothing());
    }
    assert_eq!(fixture.worker("w").incarnation.as_str(), "two");
    assert_eq!(speak(&mut fixture, 60, &[a.dispatch], &[]), nothing());
}

#[test]
fn a_heartbeat_from_before_the_death_proves_nothing() {
    let mut fixture = Fixture::new();
    fixture.feed(register("one"));
    let a = fixture.assigned(job("a"));
    fixture.feed(register("two"));
    fixture.feed(beat_of("one", &[a.dispatch]));
    let seen: Vec<_> = fixture
        .run_for(secs(6))
        .iter()
        .map(|(_, e)| summary(e))
        .collect();
    assert!(
        seen.contains(&"requeue a worker_lost".to_owned()),
        "{seen:?}"
    );
    assert_eq!(duplicates(&fixture), nothing());
}

#[test]
fn when_one_of_two_dies_only_its_own_jobs_are_lost() {
    for dies in ["one", "two"] {
        let (mut fixture, a) = both();
        let b = fixture.assigned(job("b"));
        let mut seen = Vec::new();
        for _ in 0..10 {
            seen.extend(
                fixture
                    .run_for(secs(5))
                    .into_iter()
                    .map(|(_, e)| summary(&e)),
            );
            let lives = if dies == "two" {
                beat_of("one", &[a.dispatch])
            } else {
                beat_of("two", &[b.dispatch])
            };
            seen.extend(short(&fixture.feed(lives)));
            if seen.contains(&"register w".to_owned()) {
                fixture.feed(register("one"));
            }
        }
        let lost = if dies == "one" { "a" } else { "b" };
        seen.retain(|e| e.starts_with("requeue"));
        assert_eq!(seen, [format!("requeue {lost} worker_lost")], "{dies} died");
        assert_eq!(duplicates(&fixture), nothing());
        let left = if dies == "one" { "two" } else { "one" };
        assert_eq!(fixture.worker("w").incarnation.as_str(), left);
    }
}

#[test]
fn when_the_registered_one_leaves_the_other_takes_its_place() {
    let (mut fixture, a) = both();
    assert_eq!(short(&fixture.feed(deregister("two"))), ["register w"]);
    assert_eq!(short(&fixture.feed(register("one"))), nothing());
    assert_eq!(duplicates(&fixture), nothing());
    assert_eq!(fixture.worker("w").in_flight, 1, "what it had counts");
    let b = fixture.assigned(job("b"));
    assert_eq!(b.incarnation.as_str(), "one");
    for (id, run) in [("a", &a), ("b", &b)] {
        let effects = short(&fixture.result(id, run, Outcome::Succeeded));
        assert_eq!(effects[1], format!("finish {id} SUCCEEDED "));
    }
}

#[test]
fn a_leader_that_takes_over_from_another_finds_both() {
    let (_, a) = both();
    let mut fixture = Fixture::new();
    fixture.feed(register("two"));
    let mut recovered = a.clone();
    recovered.recovered = true;
    fixture.feed(Input::Recovered(Box::new(RecoveredJob {
        queued: job("a"),
        state: JobState::Running,
        assignment: Some(recovered),
        silent_for: Duration::ZERO,
        output_held: None,
    })));
    assert_eq!(short(&fixture.feed(inventory("two", &[]))), ["inventory w"]);
    fixture.feed(inventory("one", &[a.dispatch]));
    assert_eq!(
        short(&fixture.feed(beat_of("one", &[a.dispatch]))),
        ["duplicate w"]
    );
    assert_eq!(speak(&mut fixture, 60, &[a.dispatch], &[]), nothing());
}

#[test]
fn no_process_loses_its_jobs_for_an_answer_that_the_bus_did_not_carry() {
    let mut fixture = Fixture::new();
    fixture.feed(register("one"));
    let a = fixture.assigned(job("a"));
    fixture.feed(register("two"));
    fixture.feed(Input::BusDown);
    fixture.run_for(secs(60));
    fixture.feed(Input::BusUp);
    fixture.feed(beat_of("one", &[a.dispatch]));
    assert_eq!(
        short(&fixture.feed(beat_of("one", &[a.dispatch]))),
        ["duplicate w"]
    );
    assert_eq!(speak(&mut fixture, 60, &[a.dispatch], &[]), nothing());
}

#[test]
fn many_processes_under_one_id_are_bounded() {
    let mut fixture = Fixture::new();
    for n in 0..1000 {
        fixture.feed(register(&format!("p{n}")));
    }
    let a = fixture.assigned(job("a"));
    assert_eq!(a.incarnation.as_str(), "p999");
    // The shell takes these after every round.
    fixture.engine.take_worker_changes();
    assert!(format!("{:?}", fixture.engine).len() < 20_000);
}
