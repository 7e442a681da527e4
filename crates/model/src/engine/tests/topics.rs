//! What a topic's settings make of the ends of runs: timeouts, attempts, retries.

use super::*;
use crate::job::RetryPlan;
use crate::rules::{Glob, RetryOn, TopicRule};

fn with_rule(rule: TopicRule) -> Fixture {
    let mut new = (*rules()).clone();
    new.topics.insert(Glob::new("job.*"), rule);
    let mut fixture = Fixture::new();
    fixture.feed(Input::Rules(Arc::new(new)));
    fixture.register_worker("w", 1);
    fixture
}

fn on(retry: RetryOn) -> TopicRule {
    TopicRule {
        retry_on: Some(retry),
        ..TopicRule::default()
    }
}

fn start(fixture: &mut Fixture, a: &Assignment) {
    fixture.feed(Input::Started {
        job: job_id("a"),
        dispatch: a.dispatch.to_string(),
        worker: a.worker.clone(),
        at: None,
    });
}

/// Lives for so long with a worker that shows its run, and says what came of it.
fn run_for(fixture: &mut Fixture, a: &Assignment, seconds: u64) -> Vec<(Duration, String)> {
    let begin = fixture.now;
    let mut seen = Vec::new();
    for _ in 0..seconds {
        fixture.heartbeat("w", &[a.dispatch]);
        for (at, e) in fixture.run_for(secs(1)) {
            if !matches!(e, Effect::RecordTimes { .. }) {
                seen.push((at.since(begin), summary(&e)));
            }
        }
    }
    seen
}

#[test]
fn a_run_that_takes_too_long_is_ended_at_its_worker() {
    let mut fixture = with_rule(TopicRule {
        timeout: Some(secs(20)),
        ..TopicRule::default()
    });
    let a = fixture.assigned(job("a"));
    assert_eq!(a.limits.run_limit, Some(secs(20)));
    start(&mut fixture, &a);
    let seen = run_for(&mut fixture, &a, 60);
    let (at, words): (Vec<_>, Vec<_>) = seen.into_iter().unzip();
    assert_eq!(words, ["cancel a at w", "finish a TIMEOUT timeout"]);
    // The worker may say so itself first.
    assert!(at[0] >= secs(20) && at[0] <= secs(26), "{at:?}");
}

#[test]
fn the_job_s_own_timeout_wins_over_its_topic_s() {
    let mut fixture = with_rule(TopicRule {
        timeout: Some(secs(20)),
        max_attempts: Some(7),
        ..TopicRule::default()
    });
    let a = fixture.assigned(with_spec("a", |s| {
        s.timeout_ms = Some(90_000);
        s.max_attempts = Some(2);
    }));
    assert_eq!(a.limits.run_limit, Some(secs(90)));
    assert_eq!(a.limits.max_attempts, 2);
    fixture.result("a", &a, Outcome::Succeeded);
    let b = fixture.assigned(job("b"));
    assert_eq!(b.limits.max_attempts, 7);
}

#[test]
fn a_timeout_is_tried_again_where_the_topic_says_so() {
    let mut fixture = with_rule(TopicRule {
        timeout: Some(secs(20)),
        ..on(RetryOn {
            timeout: true,
            ..RetryOn::default()
        })
    });
    let a = fixture.assigned(job("a"));
    start(&mut fixture, &a);
    let seen = run_for(&mut fixture, &a, 26);
    let words: Vec<_> = seen.into_iter().map(|(_, w)| w).collect();
    assert_eq!(words[..2], ["cancel a at w", "requeue a timeout"]);
    let reported = fixture.result("a", &a, Outcome::TimedOut);
    assert_eq!(
        short(&reported),
        ["receipt w", "unmatched a"],
        "its late word is recorded and changes nothing"
    );
}

#[test]
fn plain_failures_are_tried_again_where_the_topic_says_so() {
    let mut fixture = with_rule(on(RetryOn {
        failed: true,
        ..RetryOn::default()
    }));
    let a = fixture.assigned(job("a"));
    let effects = fixture.result("a", &a, Outcome::Failed);
    assert!(short(&effects).contains(&"requeue a failed".to_owned()));

    let mut fixture = Fixture::new();
    fixture.register_worker("w", 1);
    let a = fixture.assigned(job("a"));
    let effects = fixture.result("a", &a, Outcome::Failed);
    assert!(short(&effects).contains(&"finish a FAILED failed".to_owned()));
}

#[test]
fn a_topic_may_forbid_what_is_retried_by_default() {
    let none = RetryOn {
        failed: false,
        failed_retryable: false,
        timeout: false,
        worker_lost: false,
    };
    let mut fixture = with_rule(on(none));
    let a = fixture.assigned(job("a"));
    let effects = fixture.result("a", &a, Outcome::FailedRetryable);
    assert!(
        short(&effects).contains(&"finish a FAILED attempts_exhausted".to_owned()),
        "{effects:?}"
    );
    fixture.assigned(job("b"));
    let effects = fixture.replaced("w", "two", 1);
    assert_eq!(short(&effects)[0], "finish b FAILED worker_lost");
}

#[test]
fn a_fatal_failure_is_the_end_whatever_the_topic_says() {
    let mut fixture = with_rule(on(RetryOn {
        failed: true,
        failed_retryable: true,
        timeout: true,
        worker_lost: true,
    }));
    let a = fixture.assigned(job("a"));
    let effects = fixture.result("a", &a, Outcome::FailedFatal);
    assert!(short(&effects).contains(&"finish a FAILED failed_fatal".to_owned()));
}

#[test]
fn a_job_s_own_plan_of_retries_is_kept_to() {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 1);
    let plan = || {
        with_spec("a", |s| {
            s.max_attempts = Some(6);
            s.retry = Some(RetryPlan {
                delays_ms: vec![60_000, 300_000],
                on_failed: true,
                visibility_ms: Some(120_000),
            });
        })
    };
    let mut waits = Vec::new();
    let mut queued = plan();
    for attempt in 0..3 {
        queued.attempt = Attempt(attempt);
        fixture.heartbeat("w", &[]);
        let a = fixture.assigned(queued.clone());
        let effects = fixture.result("a", &a, Outcome::Failed);
        let until = effects.iter().find_map(|e| match e {
            Effect::Requeue { not_before, .. } => *not_before,
            _ => None,
        });
        waits.push(until.expect("a pause").since(fixture.now));
        fixture.feed(Input::Ended {
            job: job_id("a"),
            state: JobState::Cancelled,
        });
    }
    assert_eq!(waits, [secs(60), secs(300), secs(300)]);
}

#[test]
fn silence_beyond_the_visibility_timeout_is_another_run_not_the_end() {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 1);
    let a = fixture.assigned(with_spec("a", |s| {
        s.retry = Some(RetryPlan {
            delays_ms: vec![60_000],
            on_failed: false,
            visibility_ms: Some(120_000),
        });
    }));
    start(&mut fixture, &a);
    let begin = fixture.now;
    let mut seen = Vec::new();
    for _ in 0..25 {
        fixture.heartbeat("w", &[]);
        for (at, e) in fixture.run_for(secs(5)) {
            if !matches!(e, Effect::RecordTimes { .. }) {
                seen.push((at.since(begin), summary(&e)));
            }
        }
    }
    assert_eq!(
        seen,
        [
            (secs(120), "cancel a at w".to_owned()),
            (secs(120), "requeue a visibility_timeout".to_owned())
        ]
    );
}

#[test]
fn what_surely_never_left_waits_again_and_counts() {
    let mut fixture = Fixture::with(Settings {
        max_scheduling_retries: 3,
        ..Settings::default()
    });
    fixture.register_worker("w", 1);
    let mut queued = job("a");
    let mut seen = Vec::new();
    for _ in 0..3 {
        fixture.heartbeat("w", &[]);
        let a = fixture.assigned(queued.clone());
        let effects = fixture.feed(Input::PublishFailed {
            job: job_id("a"),
            run: a.run_id(),
            sure: true,
        });
        seen.extend(short(&effects));
        let wait = effects.iter().find_map(|e| match e {
            Effect::Requeue { not_before, .. } => *not_before,
            _ => None,
        });
        if let Some(until) = wait {
            assert!(until.since(fixture.now) >= secs(2), "its floor");
            let standing = format!("{:?}", fixture.engine.explain(&job_id("a")));
            assert!(standing.contains("dispatch_failed"), "{standing}");
            fixture.run_for(until.since(fixture.now) + ms(1));
        }
        queued = job("a");
    }
    assert_eq!(
        seen,
        [
            "requeue a dispatch_failed uncounted",
            "requeue a dispatch_failed uncounted",
            "finish a FAILED dispatch_failed"
        ]
    );
}
