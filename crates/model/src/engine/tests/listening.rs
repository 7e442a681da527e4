//! Silence counts only where it could have been heard.

use super::*;
use crate::engine::tests::runs::{one_running, started};

/// The shell's rounds: one a second.
fn rounds(rig: &mut Rig, seconds: u64) -> Vec<Effect> {
    (0..seconds).flat_map(|_| rig.pass(secs(1))).collect()
}

/// A rig as the shell runs it, with a worker that has a run under way.
fn running() -> (Rig, Assignment) {
    let mut rig = Rig::with_gaps(Settings::default());
    rig.hello("w", 2);
    let a = rig.assigned(job("a"));
    rig.feed(started(&a));
    rounds(&mut rig, 1);
    (rig, a)
}

#[test]
fn a_step_of_the_ledgers_clock_loses_nobody() {
    for step in [secs(31), secs(600), secs(86_400)] {
        let (mut rig, a) = running();
        let taken = rig.assigned(job("b"));
        assert_eq!(short(&rig.step(step)), nothing());
        assert_eq!(short(&rounds(&mut rig, 5)), nothing(), "{step:?}");
        assert_eq!(rig.engine.census().workers, 1);
        rig.beat("w", &[a.dispatch, taken.dispatch]);
        assert_eq!(short(&rounds(&mut rig, 20)), nothing(), "{step:?}");
        assert_eq!(rig.engine.census().assigned, 2);
    }
}

#[test]
fn a_step_of_the_ledgers_clock_ends_no_run_but_a_deadline() {
    let mut rig = Rig::with_gaps(Settings::default());
    rig.hello("w", 2);
    let limited = with_spec("a", |spec| spec.timeout_ms = Some(60_000));
    let a = rig.assigned(limited);
    rig.feed(started(&a));
    let mut due = job("b");
    due.deadline_at = Some(rig.now + secs(300));
    rig.assigned(due);
    rounds(&mut rig, 1);
    assert_eq!(
        short(&rig.step(secs(600))),
        ["cancel b at w", "finish b TIMEOUT deadline_exceeded"]
    );
    rig.beat("w", &[a.dispatch]);
    assert_eq!(short(&rounds(&mut rig, 20)), nothing());
    // By its own time it ends when it may take no longer.
    let ended: Vec<String> = (0..50)
        .flat_map(|_| {
            rig.beat("w", &[a.dispatch]);
            short(&rig.pass(secs(1)))
        })
        .collect();
    assert_eq!(ended, ["cancel a at w", "finish a TIMEOUT timeout"]);
}

#[test]
fn before_anybody_can_be_heard_nobody_is_silent() {
    let (_, a) = one_running();
    let mut rig = Rig::deaf(Settings::default());
    rig.hello("w", 1);
    let mut assignment = a.clone();
    assignment.recovered = true;
    assignment.accepted = true;
    assignment.started_at = Some(rig.now);
    rig.feed(Input::Recovered(Box::new(RecoveredJob {
        known: job("a"),
        state: JobState::Running,
        assignment: Some(assignment),
        silent_for: Duration::ZERO,
    })));
    // A long recovery, then rounds without the bus.
    assert_eq!(short(&rig.pass(secs(300))), nothing());
    assert_eq!(short(&rounds(&mut rig, 100)), nothing());
    rig.feed(Input::BusUp);
    assert_eq!(short(&rounds(&mut rig, 30)), nothing(), "its whole time");
    rig.beat("w", &[a.dispatch]);
    assert_eq!(short(&rounds(&mut rig, 30)), nothing());
    assert_eq!(
        short(&rounds(&mut rig, 2)),
        ["requeue a worker_lost", "recheck a"],
        "but silence that could have been heard is silence"
    );
}

#[test]
fn an_outage_of_any_length_is_nobodys_silence() {
    let (mut rig, a) = running();
    rounds(&mut rig, 25);
    rig.feed(Input::BusDown);
    assert_eq!(short(&rounds(&mut rig, 45)), nothing());
    rig.feed(Input::BusUp);
    assert_eq!(short(&rounds(&mut rig, 30)), nothing());
    rig.beat("w", &[a.dispatch]);
    assert_eq!(rig.engine.census().assigned, 1);
}

#[test]
fn a_round_that_stood_still_is_nobodys_silence() {
    let (mut rig, a) = running();
    for _ in 0..5 {
        // A commit that waits for the ledger, or a process that was stopped.
        assert_eq!(short(&rig.pass(secs(300))), nothing());
    }
    rig.beat("w", &[a.dispatch]);
    assert_eq!(short(&rounds(&mut rig, 30)), nothing());
}

#[test]
fn real_silence_loses_a_worker_and_it_is_said_when_it_is_back() {
    let (mut rig, _) = running();
    assert_eq!(short(&rounds(&mut rig, 29)), nothing());
    assert_eq!(
        short(&rounds(&mut rig, 3)),
        ["requeue a worker_lost", "recheck a"]
    );
    rig.hello("w", 2);
    rig.hello("w", 2);
    rig.feed(Input::Register(Box::new(worker("w", "two", 1))));
    rig.feed(Input::Deregister {
        worker: worker_id("w"),
        incarnation: Some(incarnation("two")),
    });
    let changes = rig.engine.take_changes();
    let said: Vec<_> = changes
        .iter()
        .map(|c| (c.incarnation.as_str(), c.change))
        .collect();
    assert_eq!(
        said,
        [
            ("one", Change::Joined),
            ("one", Change::Lost("no heartbeat")),
            ("one", Change::Rejoined),
            ("two", Change::Rejoined),
            ("two", Change::Left),
        ]
    );
    assert_eq!(rig.engine.take_changes(), []);
}
