//! Runs that end without ending the job.

use airlock_ledger::{Commit, MoveKind};
use airlock_model::{Attempt, JobState};
use sqlx::Connection;

use crate::fixture::{Fixture, assign, finish, id, moved, requeue, t};

#[tokio::test]
async fn a_run_that_began_counts_and_one_that_did_not_does_not() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = fixture.scheduled(&["ran", "not"]).await?;
    let mut began = requeue("ran", 1, true);
    began.dispatched_at = Some(t(11));
    began.running_at = Some(t(12));
    let commit = Commit::from_iter([began, requeue("not", 2, false)]);
    let written = writer.commit(&commit).await?;
    assert_eq!(written.jobs_moved_by(MoveKind::Requeue).count(), 2);
    assert_eq!(
        written.position, None,
        "nobody else needs to hear of a retry"
    );
    let mut loaded = fixture.ledger.load_jobs(&[id("ran"), id("not")], 0).await?;
    loaded.sort_by(|a, b| b.job_id.cmp(&a.job_id));
    for (job, attempt) in loaded.iter().zip([1, 0]) {
        assert_eq!(
            (job.state, job.attempt),
            (JobState::Pending, Attempt(attempt))
        );
        assert_eq!(
            (job.not_before, &job.worker, job.dispatch_id),
            (Some(t(99)), &None, None)
        );
        let code = match attempt {
            1 => "worker_lost",
            _ => "dispatch_failed",
        };
        assert_eq!(job.reason_code.as_deref(), Some(code));
    }
    // A second word on the same run, and its late result, change nothing.
    for late in [
        Commit::single(requeue("ran", 1, true)),
        Commit::single(finish("ran", 1, JobState::Succeeded)),
    ] {
        assert_eq!(moved(&writer.commit(&late).await?), 0);
    }
    // The next run has the next number, or the same where none began.
    let miss = writer.commit(&Commit::single(assign("ran", 1, 7))).await?;
    assert_eq!(moved(&miss), 0);
    let next = Commit::from_iter([assign("ran", 2, 8), assign("not", 1, 9)]);
    assert_eq!(moved(&writer.commit(&next).await?), 2);
    let again = &fixture.ledger.load_jobs(&[id("ran")], 0).await?[0];
    assert_eq!(
        (again.not_before, again.reason_code.as_deref()),
        (None, None)
    );
    Ok(())
}

#[tokio::test]
async fn wrong_dispatch_requeues_nothing() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = fixture.scheduled(&["j1"]).await?;
    let miss = writer
        .commit(&Commit::single(requeue("j1", 2, true)))
        .await?;
    assert_eq!(moved(&miss), 0);
    assert_eq!(fixture.number("SELECT count(*) FROM job_attempt").await?, 0);
    assert_eq!(fixture.state("j1").await?, JobState::Scheduled);
    Ok(())
}

/// A cancel that is under way when the run is given up: the job is cancelled, and its
/// one run stands in the history once.
#[tokio::test]
async fn a_cancel_under_way_leaves_no_past_run_behind() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = fixture.scheduled(&["j1"]).await?;
    let mut session = fixture.session().await?;
    let mut cancel = session.begin().await?;
    sqlx::query(
        "UPDATE job_state SET state = 13, open = false, finished_at = now() WHERE job_id = 'j1'",
    )
    .execute(&mut *cancel)
    .await?;
    let giving_up =
        tokio::spawn(async move { writer.commit(&Commit::single(requeue("j1", 1, true))).await });
    fixture.waiters(1).await?;
    cancel.commit().await?;
    assert_eq!(moved(&giving_up.await??), 0);
    assert_eq!(fixture.number("SELECT count(*) FROM job_attempt").await?, 0);
    assert_eq!(fixture.state("j1").await?, JobState::Cancelled);
    Ok(())
}
