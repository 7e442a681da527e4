//! What the kernel says, and what becomes of it.

use super::*;

#[test]
fn an_allowed_job_goes_to_a_worker_at_once() {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 2);
    let effects = fixture.allow(job("a"));
    let [
        Effect::Assign {
            job,
            assignment,
            verdict,
        },
    ] = effects.as_slice()
    else {
        panic!("{effects:?}")
    };
    assert_eq!(job.id, job_id("a"));
    assert_eq!(assignment.attempt, Attempt(1));
    assert_eq!(assignment.accept_by, fixture.now + secs(10));
    assert!(verdict.decision.allows());
    assert_eq!(fixture.worker("w").in_flight, 1);
    assert_eq!(fixture.engine.counts().waiting, 0);
}

#[test]
fn constraints_and_fail_open_allow_too() {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 2);
    let effects = fixture.decide(job("a"), Decision::AllowWithConstraints);
    assert_eq!(short(&effects), ["assign a to w"]);
    let effects = fixture.decide(job("b"), Decision::FailOpen);
    assert_eq!(short(&effects), ["assign b to w"]);
    let Some(Effect::Assign { verdict, .. }) = effects.first() else {
        panic!()
    };
    assert_eq!(
        verdict.decision,
        Decision::FailOpen,
        "it is recorded as such"
    );
}

#[test]
fn a_denied_job_ends_with_its_verdict() {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 2);
    let effects = fixture.decide(job("a"), Decision::Deny);
    assert_eq!(short(&effects), ["close a DENIED safety_denied"]);
    let Some(Effect::Close {
        verdict, reason, ..
    }) = effects.first()
    else {
        panic!()
    };
    assert_eq!(verdict.as_ref().map(|v| v.rule_id.as_str()), Some("rule"));
    assert_eq!(reason, "because");
    assert!(!fixture.engine.jobs.contains_key(&job_id("a")));
}

#[test]
fn a_held_job_waits_for_a_human_and_runs_when_it_is_decided_again() {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 2);
    let effects = fixture.decide(job("a"), Decision::RequireApproval);
    assert_eq!(short(&effects), ["hold a"]);
    assert!(
        fixture.engine.jobs.contains_key(&job_id("a")),
        "the replayer leaves it alone"
    );
    assert!(fixture.run_for(secs(20)).is_empty());
    // Approved, it is PENDING again, and the kernel has been asked again.
    let effects = fixture.allow(job("a"));
    assert_eq!(short(&effects), ["assign a to w"]);
}

#[test]
fn an_approved_job_is_not_forgotten_when_the_kernel_is_away() {
    let mut fixture = Fixture::new();
    fixture.decide(job("a"), Decision::RequireApproval);
    let effects = fixture.feed(undecided("a", secs(3)));
    assert_eq!(short(&effects), nothing());
    assert_eq!(short(&fixture.pass(secs(3))), ["recheck a"]);
}

#[test]
fn a_held_job_is_ended_by_its_deadline() {
    let mut fixture = Fixture::new();
    let mut queued = job("a");
    queued.deadline_at = Some(fixture.now + secs(60));
    fixture.decide(queued, Decision::RequireApproval);
    assert_eq!(short(&fixture.pass(ms(59_999))), nothing());
    assert_eq!(
        short(&fixture.pass(ms(1))),
        ["close a TIMEOUT deadline_exceeded"]
    );
}

#[test]
fn a_throttled_job_is_asked_about_again_later() {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 2);
    assert_eq!(
        short(&fixture.decide(job("a"), Decision::Throttle)),
        nothing()
    );
    assert_eq!(short(&fixture.pass(ms(4_999))), nothing());
    assert_eq!(short(&fixture.pass(ms(1))), ["recheck a"]);
    assert_eq!(short(&fixture.allow(job("a"))), ["assign a to w"]);
}

fn undecided(id: &str, delay: Duration) -> Input {
    Input::Undecided {
        job: Box::new(job(id)),
        delay,
        reason: WaitReason::SafetyUnavailable,
        detail: "safety kernel circuit open".into(),
    }
}

#[test]
fn an_undecided_job_is_asked_about_again_and_never_fails_of_it() {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 2);
    for _ in 0..200 {
        assert_eq!(short(&fixture.feed(undecided("a", secs(1)))), nothing());
        fixture.heartbeat("w", &[]);
        assert_eq!(short(&fixture.pass(secs(1))), ["recheck a"]);
    }
    assert_eq!(short(&fixture.allow(job("a"))), ["assign a to w"]);
}

#[test]
fn putting_a_job_off_leaves_no_timers_behind() {
    let mut fixture = Fixture::new();
    let mut queued = job("a");
    queued.deadline_at = Some(fixture.now + secs(1_000_000));
    for _ in 0..5_000 {
        fixture.decide(queued.clone(), Decision::Throttle);
        fixture.pass(secs(5));
    }
    assert!(
        fixture.engine.timers.len() < 10,
        "{}",
        fixture.engine.timers.len()
    );
}

#[test]
fn jobs_that_end_early_leave_few_timers_behind() {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 1);
    for i in 0..5_000 {
        let id = format!("j{i}");
        let a = fixture.assigned(job(&id));
        fixture.result(&id, &a, Outcome::Succeeded);
    }
    assert!(
        fixture.engine.timers.len() < 1_100,
        "{}",
        fixture.engine.timers.len()
    );
}

#[test]
fn a_deadline_that_has_passed_decides_by_itself() {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 2);
    let mut queued = job("a");
    queued.deadline_at = Some(fixture.now);
    assert_eq!(
        short(&fixture.allow(queued)),
        ["close a TIMEOUT deadline_exceeded"]
    );
}

#[test]
fn a_second_submission_of_a_job_in_hand_changes_nothing() {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 2);
    fixture.assigned(job("a"));
    assert_eq!(short(&fixture.allow(job("a"))), nothing());
    assert_eq!(short(&fixture.decide(job("a"), Decision::Deny)), nothing());
    assert_eq!(short(&fixture.feed(undecided("a", secs(1)))), nothing());
    assert_eq!(fixture.worker("w").in_flight, 1);
}

#[test]
fn a_second_submission_of_a_waiting_job_gives_it_one_place() {
    let mut fixture = Fixture::new();
    fixture.allow(job("a"));
    fixture.allow(job("a"));
    fixture.feed(undecided("a", secs(1)));
    fixture.allow(job("a"));
    assert_eq!(fixture.engine.counts().waiting, 1);
    assert_eq!(short(&fixture.register_worker("w", 5)), ["assign a to w"]);
}

#[test]
fn a_late_answer_brings_back_neither_attempts_nor_an_earlier_try() {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 2);
    let a = fixture.assigned(job("a"));
    fixture.result("a", &a, Outcome::FailedRetryable);
    // The question was put before the first run, when its row said attempt 0.
    assert_eq!(
        short(&fixture.allow(job("a"))),
        nothing(),
        "it is backing off"
    );
    assert_eq!(short(&fixture.feed(undecided("a", ms(1)))), nothing());
    assert_eq!(short(&fixture.pass(ms(10))), ["recheck a"]);
    assert_eq!(
        short(&fixture.allow(job("a"))),
        nothing(),
        "still backing off"
    );
    assert_eq!(short(&fixture.pass(secs(2))), ["recheck a"]);
    let again = fixture.assigned(job("a"));
    assert_eq!(again.attempt, Attempt(2));
}

#[test]
fn the_backoff_in_the_ledger_is_kept() {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 2);
    let mut queued = job("a");
    queued.not_before = Some(fixture.now + secs(4));
    assert_eq!(short(&fixture.allow(queued.clone())), nothing());
    assert_eq!(short(&fixture.pass(ms(3_999))), nothing());
    assert_eq!(short(&fixture.pass(ms(1))), ["recheck a"]);
    assert_eq!(short(&fixture.allow(queued)), ["assign a to w"]);
}

#[test]
fn an_old_verdict_is_not_acted_on() {
    let mut fixture = Fixture::new();
    fixture.allow(job("a"));
    fixture.pass(ms(1_001));
    assert_eq!(short(&fixture.register_worker("w", 2)), ["recheck a"]);
    assert_eq!(short(&fixture.allow(job("a"))), ["assign a to w"]);
}

#[test]
fn a_confirmed_snapshot_keeps_its_verdicts_fresh() {
    let mut fixture = Fixture::new();
    fixture.allow(job("a"));
    fixture.pass(secs(5));
    fixture.feed(confirmed(SNAPSHOT));
    fixture.pass(secs(1));
    assert_eq!(short(&fixture.register_worker("w", 2)), ["assign a to w"]);
}

#[test]
fn fail_open_is_never_kept_fresh() {
    let mut fixture = Fixture::new();
    fixture.decide(job("a"), Decision::FailOpen);
    fixture.pass(secs(5));
    fixture.feed(confirmed(SNAPSHOT));
    assert_eq!(short(&fixture.register_worker("w", 2)), ["recheck a"]);
}

#[test]
fn a_new_snapshot_ends_even_a_young_verdict() {
    let mut fixture = Fixture::new();
    fixture.allow(job("a"));
    fixture.pass(ms(100));
    fixture.feed(confirmed("policy-2"));
    fixture.pass(ms(100));
    assert_eq!(short(&fixture.register_worker("w", 2)), ["recheck a"]);
}

#[test]
fn a_verdict_on_one_job_tells_of_the_policy_for_all() {
    let mut fixture = Fixture::new();
    fixture.allow(job("a"));
    fixture.pass(secs(5));
    fixture.decide(job("b"), Decision::Deny);
    assert_eq!(
        short(&fixture.register_worker("w", 2)),
        ["assign a to w"],
        "the same policy still"
    );
}

#[test]
fn when_those_asked_again_are_denied_the_others_have_their_turn() {
    let mut fixture = Fixture::new();
    for id in ["a", "b", "c"] {
        fixture.allow(job(id));
    }
    fixture.pass(secs(5));
    // One free slot: one is asked about.
    assert_eq!(short(&fixture.register_worker("w", 1)), ["recheck a"]);
    let mut newer = |id: &str, decision| {
        let mut verdict = verdict(decision, fixture.now);
        verdict.snapshot = "policy-2".to_owned();
        fixture.feed(Input::Decided {
            job: Box::new(job(id)),
            verdict,
        })
    };
    let effects = newer("a", Decision::Deny);
    assert_eq!(
        short(&effects),
        ["close a DENIED safety_denied", "recheck b"]
    );
    let effects = newer("b", Decision::RequireApproval);
    assert_eq!(short(&effects), ["hold b", "recheck c"]);
}

fn confirmed(snapshot: &str) -> Input {
    Input::PolicyConfirmed {
        snapshot: snapshot.to_owned(),
    }
}
