//! How runs end, by the workers' word.

use super::*;

fn one_running() -> (Fixture, Assignment) {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 1);
    let a = fixture.assigned(job("a"));
    (fixture, a)
}

#[test]
fn success_ends_the_job_frees_the_slot_and_is_receipted() {
    let (mut fixture, a) = one_running();
    let effects = fixture.result("a", &a, Outcome::Succeeded);
    assert_eq!(short(&effects), ["receipt w", "finish a SUCCEEDED "]);
    let Some(Effect::Finish {
        report, assignment, ..
    }) = effects.last()
    else {
        panic!()
    };
    assert_eq!(*report, Some(7), "the shell finds the payload by it");
    assert!(assignment.dispatched_at.is_some() && assignment.started_at.is_some());
    assert_eq!(fixture.worker("w").in_flight, 0);
    assert!(!fixture.engine.jobs.contains_key(&job_id("a")));
}

#[test]
fn plain_fatal_cancelled_and_timed_out_are_final() {
    for (outcome, want) in [
        (Outcome::Failed, "finish a FAILED failed"),
        (Outcome::FailedFatal, "finish a FAILED failed_fatal"),
        (Outcome::Cancelled, "finish a CANCELLED cancelled"),
        (Outcome::TimedOut, "finish a TIMEOUT timeout"),
    ] {
        let (mut fixture, a) = one_running();
        assert_eq!(
            short(&fixture.result("a", &a, outcome)),
            ["receipt w", want]
        );
    }
}

#[test]
fn the_worker_s_own_code_and_words_are_kept() {
    let (mut fixture, a) = one_running();
    let mut r = report("a", &a, Outcome::Failed);
    r.error_code = "no_money".into();
    r.error_message = "the account is empty".into();
    let effects = fixture.feed(Input::Result(r));
    let Some(Effect::Finish { code, reason, .. }) = effects.last() else {
        panic!()
    };
    assert_eq!(
        (code.as_str(), reason.as_str()),
        ("no_money", "the account is empty")
    );
}

#[test]
fn a_fatal_failure_stays_fatal_under_the_worker_s_own_code() {
    let (mut fixture, a) = one_running();
    let mut r = report("a", &a, Outcome::FailedFatal);
    r.error_code = "no_money".into();
    let effects = fixture.feed(Input::Result(r));
    let Some(Effect::Finish { end, to, code, .. }) = effects.last() else {
        panic!()
    };
    assert_eq!(
        (*end, *to, code.as_str()),
        (RunEnd::FailedFatal, JobState::Failed, "no_money")
    );
}

#[test]
fn a_retryable_failure_runs_again_after_its_backoff_and_not_before() {
    let (mut fixture, a) = one_running();
    let effects = fixture.result("a", &a, Outcome::FailedRetryable);
    assert_eq!(short(&effects), ["receipt w", "requeue a failed_retryable"]);
    let Some(Effect::Requeue {
        not_before: Some(until),
        ..
    }) = effects.last()
    else {
        panic!()
    };
    let wait = until.since(fixture.now);
    assert!(wait >= secs(1) && wait < ms(1_500), "{wait:?}");
    assert_eq!(
        short(&fixture.pass(wait - Duration::from_micros(1))),
        nothing()
    );
    assert_eq!(
        short(&fixture.pass(Duration::from_micros(1))),
        ["recheck a"]
    );
    let mut queued = job("a");
    queued.attempt = Attempt(1);
    assert_eq!(fixture.assigned(queued).attempt, Attempt(2));
}

#[test]
fn the_last_attempt_ends_it() {
    let (mut fixture, mut a) = one_running();
    for attempt in 1..3 {
        fixture.result("a", &a, Outcome::FailedRetryable);
        fixture.heartbeat("w", &[]);
        fixture.pass(secs(10));
        let mut queued = job("a");
        queued.attempt = Attempt(attempt);
        a = fixture.assigned(queued);
    }
    assert_eq!(a.attempt, Attempt(3));
    let effects = fixture.result("a", &a, Outcome::FailedRetryable);
    assert_eq!(
        short(&effects),
        ["receipt w", "finish a FAILED attempts_exhausted"]
    );
}

#[test]
fn a_job_may_say_how_often_it_wants_to_be_tried() {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 1);
    let a = fixture.assigned(with_spec("a", |s| s.max_attempts = Some(1)));
    let effects = fixture.result("a", &a, Outcome::FailedRetryable);
    assert_eq!(
        short(&effects),
        ["receipt w", "finish a FAILED attempts_exhausted"]
    );
}

#[test]
fn a_run_handed_back_is_not_counted_and_goes_elsewhere() {
    let (mut fixture, a) = one_running();
    let effects = fixture.result("a", &a, Outcome::NotStarted);
    assert_eq!(
        short(&effects),
        ["receipt w", "requeue a not_started uncounted", "recheck a"]
    );
    // The one that handed it back is leaving, even if no heartbeat has shown it yet.
    assert_eq!(short(&fixture.allow(job("a"))), nothing());
    let effects = fixture.register_worker("other", 1);
    assert_eq!(short(&effects), ["assign a to other"]);
    let Some(Effect::Assign { assignment, .. }) = effects.first() else {
        panic!()
    };
    assert_eq!(assignment.attempt, Attempt(1));
}

#[test]
fn unmatched_results_change_nothing_and_are_recorded() {
    let (mut fixture, a) = one_running();
    let mut wrong_worker = report("a", &a, Outcome::Succeeded);
    wrong_worker.worker = worker_id("forger");
    assert_eq!(
        short(&fixture.feed(Input::Result(wrong_worker))),
        ["receipt forger", "unmatched a"]
    );
    let mut wrong_dispatch = report("a", &a, Outcome::Succeeded);
    wrong_dispatch.dispatch = "anything at all".into();
    assert_eq!(
        short(&fixture.feed(Input::Result(wrong_dispatch))),
        ["receipt w", "unmatched a"]
    );
    let unknown = report("nobody", &a, Outcome::Succeeded);
    assert_eq!(
        short(&fixture.feed(Input::Result(unknown))),
        ["receipt w", "unmatched nobody"]
    );
    assert_eq!(fixture.worker("w").in_flight, 1);
    assert_eq!(
        short(&fixture.result("a", &a, Outcome::Succeeded)),
        ["receipt w", "finish a SUCCEEDED "]
    );
}

#[test]
fn a_result_of_an_earlier_attempt_is_a_stray() {
    let (mut fixture, first) = one_running();
    fixture.replaced("w", "two", 1);
    let mut queued = job("a");
    queued.attempt = Attempt(1);
    let second = fixture.assigned(queued);
    assert_ne!(first.dispatch, second.dispatch);
    assert_eq!(
        short(&fixture.result("a", &first, Outcome::Succeeded)),
        ["receipt w", "unmatched a"]
    );
}

#[test]
fn a_repeated_result_is_only_receipted_again() {
    let (mut fixture, a) = one_running();
    fixture.result("a", &a, Outcome::Succeeded);
    for _ in 0..3 {
        assert_eq!(
            short(&fixture.result("a", &a, Outcome::Succeeded)),
            ["receipt w"]
        );
    }
    let (mut fixture, a) = one_running();
    fixture.result("a", &a, Outcome::FailedRetryable);
    assert_eq!(
        short(&fixture.result("a", &a, Outcome::FailedRetryable)),
        ["receipt w"]
    );
}

#[test]
fn the_memory_of_results_is_bounded() {
    let mut fixture = Fixture::with(Settings {
        remember_results: 2,
        ..Settings::default()
    });
    fixture.register_worker("w", 1);
    let mut all = Vec::new();
    for id in ["a", "b", "c"] {
        let a = fixture.assigned(job(id));
        fixture.result(id, &a, Outcome::Succeeded);
        all.push((id, a));
    }
    let again: Vec<_> = all
        .iter()
        .map(|(id, a)| fixture.result(id, a, Outcome::Succeeded).len())
        .collect();
    assert_eq!(again, [2, 1, 1], "the oldest is a stray now");
}

#[test]
fn a_worker_s_clock_is_kept_within_ours() {
    let (mut fixture, a) = one_running();
    fixture.pass(ms(50));
    let mut r = report("a", &a, Outcome::Succeeded);
    r.started_at = Some(fixture.now + secs(3600));
    let effects = fixture.feed(Input::Result(r));
    let Some(Effect::Finish { assignment, .. }) = effects.last() else {
        panic!()
    };
    assert_eq!(assignment.started_at, Some(fixture.now));
}

#[test]
fn a_result_that_overtakes_its_publication_keeps_its_times() {
    let (mut fixture, a) = one_running();
    fixture.pass(ms(10));
    let began = fixture.now;
    fixture.pass(ms(50));
    let mut r = report("a", &a, Outcome::Succeeded);
    r.started_at = Some(began);
    let effects = fixture.feed(Input::Result(r));
    let Some(Effect::Finish { assignment, .. }) = effects.last() else {
        panic!()
    };
    assert_eq!(assignment.started_at, Some(began));
    assert_eq!(assignment.dispatched_at, Some(began));
}

#[test]
fn an_end_by_another_hand_frees_the_slot_and_stops_the_worker() {
    let (mut fixture, a) = one_running();
    fixture.allow(job("b"));
    let effects = fixture.feed(Input::Ended {
        job: job_id("a"),
        state: JobState::Cancelled,
    });
    assert_eq!(short(&effects), ["cancel a at w", "assign b to w"]);
    let Some(Effect::CancelAtWorker { run, .. }) = effects.first() else {
        panic!()
    };
    assert_eq!(*run, a.run_id());
    let again = fixture.feed(Input::Ended {
        job: job_id("a"),
        state: JobState::Cancelled,
    });
    assert_eq!(short(&again), nothing());
}

#[test]
fn a_run_that_goes_out_after_its_end_is_cancelled_again() {
    let published = |a: &Assignment, at| Input::Published {
        job: job_id("a"),
        run: a.run_id(),
        at,
    };
    let failed = |a: &Assignment, sure| Input::PublishFailed {
        job: job_id("a"),
        run: a.run_id(),
        sure,
    };
    let (mut fixture, a) = one_running();
    fixture.feed(Input::Ended {
        job: job_id("a"),
        state: JobState::Cancelled,
    });
    let now = fixture.now;
    let effects = fixture.feed(published(&a, now));
    assert_eq!(short(&effects), ["cancel a at w"]);
    assert_eq!(short(&fixture.feed(failed(&a, false))), ["cancel a at w"]);
    assert_eq!(
        short(&fixture.feed(failed(&a, true))),
        nothing(),
        "never left"
    );
    // Another run of the same job is another matter.
    let b = fixture.assigned(job("a"));
    assert_eq!(short(&fixture.feed(published(&a, now))), ["cancel a at w"]);
    assert_eq!(short(&fixture.feed(published(&b, now))), nothing());
    // Short jobs end before their publication returns.
    fixture.result("a", &b, Outcome::Succeeded);
    assert_eq!(short(&fixture.feed(published(&b, now))), nothing());
}

#[test]
fn a_cancel_is_sent_again_while_the_run_is_listed() {
    let (mut fixture, a) = one_running();
    let ended = Input::Ended {
        job: job_id("a"),
        state: JobState::Cancelled,
    };
    assert_eq!(short(&fixture.feed(ended)), ["cancel a at w"]);
    // Written before the cancel came.
    assert_eq!(short(&fixture.heartbeat("w", &[a.dispatch])), nothing());
    fixture.pass(secs(2));
    assert_eq!(
        short(&fixture.heartbeat("w", &[a.dispatch])),
        ["cancel a at w"]
    );
    assert_eq!(
        short(&fixture.heartbeat("w", &[a.dispatch])),
        nothing(),
        "not at once"
    );
    fixture.pass(secs(2));
    assert_eq!(
        short(&fixture.heartbeat("w", &[])),
        nothing(),
        "it was obeyed"
    );
    let other = DispatchId(uuid::Uuid::from_u128(7));
    assert_eq!(
        short(&fixture.heartbeat("w", &[other])),
        nothing(),
        "not ours to end"
    );
}

#[test]
fn a_run_that_ended_under_another_leader_is_cancelled_once() {
    let (_, a) = one_running();
    let ended = || Input::EndedRun {
        job: job_id("a"),
        run: a.run_id(),
        state: JobState::Cancelled,
    };
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 1);
    assert_eq!(short(&fixture.feed(ended())), ["cancel a at w"]);
    assert_eq!(short(&fixture.feed(ended())), nothing());
    fixture.pass(secs(2));
    assert_eq!(
        short(&fixture.heartbeat("w", &[a.dispatch])),
        ["cancel a at w"]
    );
    // What this leader took the result of needs none.
    let (mut fixture, b) = one_running();
    fixture.result("a", &b, Outcome::Failed);
    let late = Input::EndedRun {
        job: job_id("a"),
        run: b.run_id(),
        state: JobState::Failed,
    };
    assert_eq!(short(&fixture.feed(late)), nothing());
}

#[test]
fn a_result_that_is_not_expected_is_looked_up_before_its_worker_may_forget_it() {
    let (_, a) = one_running();
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 1);
    let mut sent = report("a", &a, Outcome::Succeeded);
    sent.looked_up = false;
    let effects = fixture.feed(Input::Result(sent.clone()));
    assert_eq!(short(&effects), ["look up a"], "no receipt");
    // The row is in flight as this very run: it is taken.
    sent.looked_up = true;
    let row = Input::Recovered(Box::new(RecoveredJob {
        queued: job("a"),
        state: JobState::Running,
        assignment: Some(a.clone()),
        silent_for: Duration::ZERO,
        output_held: None,
    }));
    let effects = fixture.feed_all([row, Input::Result(sent.clone())]);
    assert_eq!(short(&effects), ["receipt w", "finish a SUCCEEDED "]);
    // A repeat of what was taken costs no second look.
    sent.looked_up = false;
    assert_eq!(short(&fixture.feed(Input::Result(sent))), ["receipt w"]);
}

#[test]
fn what_is_no_run_of_ours_is_recorded_after_the_look() {
    let (mut fixture, a) = one_running();
    let mut other = a.clone();
    other.dispatch = DispatchId(uuid::Uuid::from_u128(7));
    let mut sent = report("a", &other, Outcome::Succeeded);
    sent.looked_up = false;
    assert_eq!(
        short(&fixture.feed(Input::Result(sent.clone()))),
        ["look up a"]
    );
    sent.looked_up = true;
    assert_eq!(
        short(&fixture.feed(Input::Result(sent.clone()))),
        ["receipt w", "unmatched a"]
    );
    // What names no dispatch at all can be no row's.
    sent.looked_up = false;
    sent.dispatch = "rubbish".to_owned();
    assert_eq!(
        short(&fixture.feed(Input::Result(sent))),
        ["receipt w", "unmatched a"]
    );
    assert!(fixture.engine.jobs.contains_key(&job_id("a")));
}

#[test]
fn a_job_that_is_let_go_is_cancelled_only_where_it_may_be() {
    let (mut fixture, a) = one_running();
    assert_eq!(short(&fixture.feed(Input::Gone(job_id("a")))), nothing());
    let b = fixture.assigned(job("b"));
    fixture.feed(Input::Published {
        job: job_id("b"),
        run: b.run_id(),
        at: fixture.now,
    });
    assert_eq!(
        short(&fixture.feed(Input::Gone(job_id("b")))),
        ["cancel b at w"]
    );
    assert_eq!(fixture.worker("w").in_flight, 0, "{}", a.worker);
}
