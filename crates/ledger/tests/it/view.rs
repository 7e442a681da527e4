//! A job's history replays to its state, without a gap.

use airlock_ledger::{CancelRequest, Commit, JobView};
use airlock_model::{Decision, JobEvent, JobState};

use crate::fixture::{Fixture, assign, close, finish, hold, id, record_times, requeue, t};

/// Each state follows from the one before by some event of the table.
fn replays(view: &JobView) {
    let states: Vec<JobState> = view.history.iter().map(|h| h.state).collect();
    assert_eq!(states.first(), Some(&JobState::Pending), "{states:?}");
    assert_eq!(states.last(), Some(&view.state), "{states:?}");
    for pair in states.windows(2) {
        let legal = JobEvent::ALL
            .into_iter()
            .any(|on| pair[0].after_event(on) == Some(pair[1]));
        assert!(legal, "{} → {} in {states:?}", pair[0], pair[1]);
    }
}

#[tokio::test]
async fn a_job_with_three_runs_tells_all_of_them() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = fixture.scheduled(&["j1"]).await?;
    replays(&fixture.job("j1").await?);
    // The first run is lost while it runs; of it only the start was heard.
    writer
        .commit(&Commit::single(record_times("j1", 1, None, Some(12))))
        .await?;
    replays(&fixture.job("j1").await?);
    writer
        .commit(&Commit::single(requeue("j1", 1, true)))
        .await?;
    replays(&fixture.job("j1").await?);
    // The second never got on the wire.
    let mut second = assign("j1", 2, 2);
    second.at = t(50);
    writer.commit(&Commit::single(second)).await?;
    let mut never = requeue("j1", 2, false);
    never.at = t(51);
    writer.commit(&Commit::single(never)).await?;
    // The third succeeds before any of its marks was flushed.
    let mut third = assign("j1", 2, 3);
    third.at = t(60);
    writer.commit(&Commit::single(third)).await?;
    let mut end = finish("j1", 3, JobState::Succeeded);
    end.dispatched_at = None;
    end.running_at = Some(t(62));
    end.at = t(70);
    writer.commit(&Commit::single(end)).await?;
    let view = fixture.job("j1").await?;
    replays(&view);
    use JobState::{Dispatched, Pending, Running, Scheduled, Succeeded};
    let told: Vec<(JobState, u32)> = view.history.iter().map(|h| (h.state, h.attempt)).collect();
    let expected = [
        (Pending, 0),
        (Scheduled, 1),
        (Dispatched, 1),
        (Running, 1),
        (Pending, 1),
        (Scheduled, 2),
        (Pending, 2),
        (Scheduled, 2),
        (Dispatched, 2),
        (Running, 2),
        (Succeeded, 2),
    ];
    assert_eq!(told, expected);
    let lost = &view.history[4];
    assert_eq!(lost.reason.as_deref(), Some("worker_lost: w1 is gone"));
    assert_eq!(
        (view.history[1].worker_id.as_deref(), lost.at),
        (Some("w1"), t(40))
    );
    let times: Vec<_> = view.history[1..].iter().map(|h| h.at).collect();
    assert!(times.is_sorted(), "{times:?}");
    Ok(())
}

#[tokio::test]
async fn every_end_replays() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let ends = [
        ("s", JobState::Succeeded),
        ("f", JobState::Failed),
        ("t", JobState::Timeout),
        ("q", JobState::OutputQuarantined),
    ];
    let names: Vec<&str> = ends.iter().map(|(n, _)| *n).chain(["c"]).collect();
    let mut writer = fixture.scheduled(&names).await?;
    let waiting = [
        "denied",
        "given-up",
        "expired",
        "held",
        "held-expired",
        "plain",
    ];
    fixture.accept(&waiting).await?;
    let ends = (1..).zip(ends);
    let mut commit = Commit::from_iter(ends.map(|(n, (name, to))| finish(name, n, to)));
    commit.push(close("denied", JobState::Denied, Some(Decision::Deny)));
    commit.push(close("given-up", JobState::Failed, None));
    commit.push(close("expired", JobState::Timeout, None));
    commit.push(hold("held"));
    commit.push(hold("held-expired"));
    writer.commit(&commit).await?;
    writer
        .commit(&Commit::single(close(
            "held-expired",
            JobState::Timeout,
            None,
        )))
        .await?;
    let job_id = id("c");
    let cancel = CancelRequest {
        job_id: &job_id,
        tenant: None,
        by: crate::fixture::by("ops"),
        reason: "",
    };
    fixture.ledger.cancel_job(cancel).await?;
    for name in names.into_iter().chain(waiting) {
        replays(&fixture.job(name).await?);
    }
    Ok(())
}
