//! What a candidate would have decided about jobs of the past.

use airlock_policy::Decision;
use airlock_policy::replay::{MAX_LISTED, PastJob, Replay, replay_jobs};

use crate::asking::{job, rules};

fn past(topic: &str, decision: Decision) -> PastJob {
    PastJob {
        job_id: format!("j-{topic}"),
        request: job(topic),
        decision,
        rule_id: Some("old".to_owned()),
    }
}

#[test]
fn each_change_is_of_its_kind() {
    let candidate = rules(
        "  - {id: deny, match: {topics: [job.deny]}, decision: deny}
  - {id: hold, match: {topics: [job.hold]}, decision: require_approval}
  - {id: slow, match: {topics: [job.slow]}, velocity: {max_requests: 1, window_seconds: 9}, decision: deny}
  - {id: throttle, match: {topics: [job.throttle]}, decision: throttle}
  - {id: bound, match: {topics: [job.bound]}, decision: allow, constraints: {redaction_level: full}}
  - {id: all, match: {topics: ['*']}, decision: allow}
",
    );
    let replay = replay_jobs(
        &candidate,
        &[
            past("job.deny", Decision::Allow),
            past("job.hold", Decision::Allow),
            past("job.throttle", Decision::Allow),
            past("job.was-denied", Decision::Deny),
            past("job.was-held", Decision::RequireApproval),
            past("job.bound", Decision::Allow),
            past("job.slow", Decision::Allow),
            past("job.deny", Decision::Deny),
        ],
    );
    let topics = |changes: &airlock_policy::replay::Changes| {
        changes
            .jobs
            .iter()
            .map(|c| c.topic.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(topics(&replay.newly_denied), ["job.deny"]);
    assert_eq!(topics(&replay.newly_held), ["job.hold"]);
    assert_eq!(topics(&replay.newly_throttled), ["job.throttle"]);
    assert_eq!(
        topics(&replay.newly_allowed),
        ["job.was-denied", "job.was-held"]
    );
    assert_eq!(
        (replay.unchanged, replay.uncertain, replay.changed_count()),
        (3, 1, 5)
    );
    let change = &replay.newly_denied.jobs[0];
    assert_eq!(
        (change.before, change.after),
        (Decision::Allow, Decision::Deny)
    );
    assert_eq!(change.rule_after.as_deref(), Some("deny"));
    assert_eq!(change.rule_before.as_deref(), Some("old"));
}

#[test]
fn all_are_counted_and_only_so_many_listed() {
    let candidate = rules("  - {id: r, match: {topics: ['*']}, decision: deny}\n");
    let mut replay = Replay::default();
    for _ in 0..MAX_LISTED + 5 {
        replay.compare_job(&candidate, &past("job.a", Decision::Allow));
    }
    assert_eq!(replay.newly_denied.count as usize, MAX_LISTED + 5);
    assert_eq!(replay.newly_denied.jobs.len(), MAX_LISTED);
}
