//! Silence counts only where it could have been heard.

use super::*;
use crate::engine::tests::runs::{one_running, started};

/// The shell's rounds: one a second.
fn rounds(fixture: &mut Fixture, seconds: u64) -> Vec<Effect> {
    (0..seconds).flat_map(|_| fixture.pass(secs(1))).collect()
}

/// A fixture as the shell runs it, with a worker that has a run under way.
fn running() -> (Fixture, Assignment) {
    let mut fixture = Fixture::with_gaps(Settings::default());
    fixture.register_worker("w", 2);
    let a = fixture.assigned(job("a"));
    fixture.feed(started(&a));
    rounds(&mut fixture, 1);
    (fixture, a)
}

#[test]
fn a_step_of_the_ledgers_clock_loses_nobody() {
    for step in [secs(31), secs(600), secs(86_400)] {
        let (mut fixture, a) = running();
        let taken = fixture.assigned(job("b"));
        assert_eq!(short(&fixture.step(step)), nothing());
        assert_eq!(short(&rounds(&mut fixture, 5)), nothing(), "{step:?}");
        assert_eq!(fixture.engine.counts().workers, 1);
        fixture.heartbeat("w", &[a.dispatch, taken.dispatch]);
        assert_eq!(short(&rounds(&mut fixture, 20)), nothing(), "{step:?}");
        assert_eq!(fixture.engine.counts().assigned, 2);
    }
}

#[test]
fn a_step_of_the_ledgers_clock_ends_no_run_but_a_deadline() {
    let mut fixture = Fixture::with_gaps(Settings::default());
    fixture.register_worker("w", 2);
    let limited = with_spec("a", |spec| spec.timeout_ms = Some(60_000));
    let a = fixture.assigned(limited);
    fixture.feed(started(&a));
    let mut due = job("b");
    due.deadline_at = Some(fixture.now + secs(300));
    fixture.assigned(due);
    rounds(&mut fixture, 1);
    assert_eq!(
        short(&fixture.step(secs(600))),
        ["cancel b at w", "finish b TIMEOUT deadline_exceeded"]
    );
    fixture.heartbeat("w", &[a.dispatch]);
    assert_eq!(short(&rounds(&mut fixture, 20)), nothing());
    // By its own time it ends when it may take no longer.
    let ended: Vec<String> = (0..50)
        .flat_map(|_| {
            fixture.heartbeat("w", &[a.dispatch]);
            short(&fixture.pass(secs(1)))
        })
        .collect();
    assert_eq!(ended, ["cancel a at w", "finish a TIMEOUT timeout"]);
}

#[test]
fn before_anybody_can_be_heard_nobody_is_silent() {
    let (_, a) = one_running();
    let mut fixture = Fixture::without_bus(Settings::default());
    fixture.register_worker("w", 1);
    let mut assignment = a.clone();
    assignment.recovered = true;
    assignment.accepted = true;
    assignment.started_at = Some(fixture.now);
    fixture.feed(Input::Recovered(Box::new(RecoveredJob {
        queued: job("a"),
        state: JobState::Running,
        assignment: Some(assignment),
        silent_for: Duration::ZERO,
        output_held: None,
    })));
    // A long recovery, then rounds without the bus.
    assert_eq!(short(&fixture.pass(secs(300))), nothing());
    assert_eq!(short(&rounds(&mut fixture, 100)), nothing());
    fixture.feed(Input::BusUp);
    assert_eq!(
        short(&rounds(&mut fixture, 30)),
        nothing(),
        "its whole time"
    );
    fixture.heartbeat("w", &[a.dispatch]);
    assert_eq!(short(&rounds(&mut fixture, 30)), nothing());
    assert_eq!(
        short(&rounds(&mut fixture, 2)),
        ["requeue a worker_lost", "recheck a"],
        "but silence that could have been heard is silence"
    );
}

#[test]
fn an_outage_of_any_length_is_nobodys_silence() {
    let (mut fixture, a) = running();
    rounds(&mut fixture, 25);
    fixture.feed(Input::BusDown);
    assert_eq!(short(&rounds(&mut fixture, 45)), nothing());
    fixture.feed(Input::BusUp);
    assert_eq!(short(&rounds(&mut fixture, 30)), nothing());
    fixture.heartbeat("w", &[a.dispatch]);
    assert_eq!(fixture.engine.counts().assigned, 1);
}

#[test]
fn a_round_that_stood_still_is_nobodys_silence() {
    let (mut fixture, a) = running();
    for _ in 0..5 {
        // A commit that waits for the ledger, or a process that was stopped.
        assert_eq!(short(&fixture.pass(secs(300))), nothing());
    }
    fixture.heartbeat("w", &[a.dispatch]);
    assert_eq!(short(&rounds(&mut fixture, 30)), nothing());
}

#[test]
fn real_silence_loses_a_worker_and_it_is_said_when_it_is_back() {
    let (mut fixture, _) = running();
    assert_eq!(short(&rounds(&mut fixture, 29)), nothing());
    assert_eq!(
        short(&rounds(&mut fixture, 3)),
        ["requeue a worker_lost", "recheck a"]
    );
    fixture.register_worker("w", 2);
    fixture.register_worker("w", 2);
    fixture.feed(Input::Register(Box::new(worker("w", "two", 1))));
    fixture.feed(Input::Deregister {
        worker: worker_id("w"),
        incarnation: Some(incarnation("two")),
    });
    let changes = fixture.engine.take_worker_changes();
    let seen: Vec<_> = changes
        .iter()
        .map(|c| (c.incarnation.as_str(), c.change))
        .collect();
    assert_eq!(
        seen,
        [
            ("one", WorkerChangeKind::Joined),
            ("one", WorkerChangeKind::Lost("no heartbeat")),
            ("one", WorkerChangeKind::Rejoined),
            ("two", WorkerChangeKind::Rejoined),
            ("two", WorkerChangeKind::Left),
        ]
    );
    assert_eq!(fixture.engine.take_worker_changes(), []);
}
