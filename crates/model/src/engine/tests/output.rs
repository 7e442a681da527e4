//! What the output policy makes of a success, branch by branch.

use super::*;
use crate::explain::WaitStatus;
use crate::output::{CheckedOutput, OutputDecision};

fn one_running() -> (Fixture, Assignment) {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 1);
    let a = fixture.assigned(job("a"));
    (fixture, a)
}

fn checked(decision: Option<OutputDecision>, masked: bool) -> CheckedOutput {
    CheckedOutput {
        decision,
        masked,
        reason: Arc::from("because"),
    }
}

fn judged(a: &Assignment, outcome: Outcome, output: CheckedOutput) -> Input {
    let mut r = report("a", a, outcome);
    r.output = Some(output);
    Input::Result(r)
}

fn decided(a: &Assignment, output: CheckedOutput) -> Input {
    Input::OutputDecided {
        job: job_id("a"),
        dispatch: a.dispatch,
        key: 9,
        output,
    }
}

/// A job whose output is held.
fn held() -> (Fixture, Assignment) {
    let (mut fixture, a) = one_running();
    let effects = fixture.feed(judged(&a, Outcome::Succeeded, checked(None, false)));
    assert_eq!(short(&effects), ["receipt w", "hold output of a"]);
    (fixture, a)
}

#[test]
fn each_verdict_leads_to_its_state() {
    use OutputDecision as D;
    for (decision, masked, end) in [
        (D::Allow, false, "finish a SUCCEEDED "),
        (D::Redact, true, "finish a SUCCEEDED "),
        (
            D::Redact,
            false,
            "finish a OUTPUT_QUARANTINED output_quarantined",
        ),
        (
            D::Quarantine,
            true,
            "finish a OUTPUT_QUARANTINED output_quarantined",
        ),
        (
            D::Deny,
            true,
            "finish a OUTPUT_QUARANTINED output_quarantined",
        ),
    ] {
        let output = checked(Some(decision), masked);
        let (mut fixture, a) = one_running();
        let effects = fixture.feed(judged(&a, Outcome::Succeeded, output.clone()));
        assert_eq!(short(&effects), ["receipt w", end], "{decision:?}");
        let (mut fixture, a) = held();
        let effects = fixture.feed(decided(&a, output));
        assert_eq!(short(&effects), [end], "{decision:?} of one that was held");
        let Some(Effect::Finish { report, end, .. }) = effects.last() else {
            panic!()
        };
        assert_eq!((*report, *end), (Some(9), RunEnd::Succeeded));
    }
}

#[test]
fn the_reason_of_a_quarantine_is_the_rule_s() {
    let (mut fixture, a) = one_running();
    let output = checked(Some(OutputDecision::Deny), false);
    let effects = fixture.feed(judged(&a, Outcome::Succeeded, output));
    let Some(Effect::Finish { reason, .. }) = effects.last() else {
        panic!()
    };
    assert_eq!(reason, "because");
}

#[test]
fn a_failure_stays_one_whatever_is_in_its_output() {
    for decision in [None, Some(OutputDecision::Quarantine)] {
        let (mut fixture, a) = one_running();
        let effects = fixture.feed(judged(&a, Outcome::Failed, checked(decision, false)));
        assert_eq!(short(&effects), ["receipt w", "finish a FAILED failed"]);
    }
}

#[test]
fn a_held_output_frees_its_worker_and_outlasts_every_clock() {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 1);
    let mut queued = job("a");
    queued.deadline_at = Some(fixture.now + secs(60));
    let a = fixture.assigned(queued);
    fixture.feed(judged(&a, Outcome::Succeeded, checked(None, false)));
    assert_eq!(fixture.worker("w").in_flight, 0);
    assert_eq!(fixture.assigned(job("b")).worker, a.worker);
    // The worker dies, the deadline and every timeout pass.
    let happened: Vec<String> = fixture
        .run_for(secs(100_000))
        .iter()
        .map(|(_, e)| summary(e))
        .filter(|e| e.contains(" a"))
        .collect();
    assert_eq!(happened, nothing());
    assert!(fixture.engine.is_tracking(&job_id("a")));
    let WaitStatus::OutputHeld { detail, .. } = fixture.engine.explain(&job_id("a")) else {
        panic!()
    };
    assert_eq!(detail, "because");
    let output = checked(Some(OutputDecision::Allow), false);
    let effects = fixture.feed(decided(&a, output));
    assert_eq!(short(&effects), ["finish a SUCCEEDED "]);
}

#[test]
fn a_cancel_ends_a_held_job_and_its_worker_is_left_alone() {
    let (mut fixture, a) = held();
    let state = JobState::Cancelled;
    let job = job_id("a");
    assert_eq!(short(&fixture.feed(Input::Ended { job, state })), nothing());
    let late = checked(Some(OutputDecision::Allow), false);
    assert_eq!(short(&fixture.feed(decided(&a, late))), nothing());
}

#[test]
fn a_verdict_on_another_run_or_none_yet_changes_nothing() {
    let (mut fixture, a) = held();
    let mut other = a.clone();
    other.dispatch = DispatchId(uuid::Uuid::from_u128(99));
    let allow = checked(Some(OutputDecision::Allow), false);
    assert_eq!(short(&fixture.feed(decided(&other, allow))), nothing());
    assert_eq!(
        short(&fixture.feed(decided(&a, checked(None, false)))),
        nothing()
    );
    assert!(fixture.engine.is_tracking(&job_id("a")));
}

#[test]
fn a_repeated_result_of_a_held_job_is_receipted_and_no_more() {
    let (mut fixture, a) = held();
    let again = judged(&a, Outcome::Succeeded, checked(None, false));
    assert_eq!(short(&fixture.feed(again)), ["receipt w"]);
}

#[test]
fn a_held_job_survives_a_change_of_leader() {
    let (_, a) = held();
    let mut next = Fixture::new();
    next.register_worker("w", 1);
    next.feed(Input::Recovered(Box::new(RecoveredJob {
        queued: job("a"),
        state: JobState::Running,
        assignment: Some(a.clone()),
        silent_for: Duration::ZERO,
        output_held: Some(Arc::from("because")),
    })));
    assert_eq!(next.worker("w").in_flight, 0);
    let again = judged(&a, Outcome::Succeeded, checked(None, false));
    assert_eq!(short(&next.feed(again)), ["receipt w"], "its result again");
    let left = next.run_for(secs(10_000));
    assert!(left.iter().all(|(_, e)| !summary(e).contains(" a")));
    let output = checked(Some(OutputDecision::Quarantine), false);
    assert_eq!(
        short(&next.feed(decided(&a, output))),
        ["finish a OUTPUT_QUARANTINED output_quarantined"]
    );
}
