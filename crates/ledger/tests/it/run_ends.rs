//! How runs ended, beside the codes that workers give.

use airlock_ledger::Commit;
use airlock_model::{JobState, RunEnd};

use crate::cancel::cancel;
use crate::fixture::{Fixture, assign, dispatch, finish, id, requeue};

async fn last_end(fixture: &Fixture, job: &str) -> anyhow::Result<Option<RunEnd>> {
    Ok(fixture.ledger.load_jobs(&[id(job)], 0).await?[0].run_end)
}

#[tokio::test]
async fn a_fatal_end_is_known_under_the_worker_s_own_code() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = fixture.scheduled(&["j"]).await?;
    assert_eq!(last_end(&fixture, "j").await?, None);
    let mut fatal = finish("j", 1, JobState::Failed);
    fatal.end = RunEnd::FailedFatal;
    fatal.reason_code = "no_money".to_owned();
    writer.commit(&Commit::single(fatal)).await?;
    let job = &fixture.ledger.load_jobs(&[id("j")], 0).await?[0];
    assert_eq!(
        (job.state, job.run_end, job.reason_code.as_deref()),
        (
            JobState::Failed,
            Some(RunEnd::FailedFatal),
            Some("no_money")
        )
    );
    Ok(())
}

/// A leader that takes over knows that a job lost its worker: while it waits, while its next
/// run is under way, and after one that never began.
#[tokio::test]
async fn a_lost_run_is_remembered_until_the_next_has_ended() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = fixture.scheduled(&["j"]).await?;
    let mut lost = requeue("j", 1, true);
    lost.end = RunEnd::RunLost;
    writer.commit(&Commit::single(lost)).await?;
    assert_eq!(last_end(&fixture, "j").await?, Some(RunEnd::RunLost));
    writer.commit(&Commit::single(assign("j", 2, 2))).await?;
    assert_eq!(last_end(&fixture, "j").await?, Some(RunEnd::RunLost));
    let never = requeue("j", 2, false);
    assert!(!never.end.may_have_begun());
    writer.commit(&Commit::single(never)).await?;
    assert_eq!(last_end(&fixture, "j").await?, Some(RunEnd::RunLost));
    writer.commit(&Commit::single(assign("j", 2, 3))).await?;
    let mut failed = requeue("j", 3, true);
    failed.end = RunEnd::FailedRetryable;
    writer.commit(&Commit::single(failed)).await?;
    assert_eq!(
        last_end(&fixture, "j").await?,
        Some(RunEnd::FailedRetryable)
    );
    for (n, end) in [
        (1, RunEnd::RunLost),
        (2, RunEnd::DispatchFailed),
        (3, RunEnd::FailedRetryable),
    ] {
        let run = dispatch(n).0;
        let sql = format!("SELECT run_end FROM job_attempt WHERE dispatch_id = '{run}'");
        assert_eq!(fixture.number(&sql).await?, i64::from(end.code()), "{end}");
    }
    Ok(())
}

#[tokio::test]
async fn a_cancel_ends_the_run_under_way_and_no_other() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = fixture.scheduled(&["flies", "waits"]).await?;
    writer
        .commit(&Commit::single(requeue("waits", 2, true)))
        .await?;
    for job in ["flies", "waits"] {
        cancel(&fixture, job, None).await?;
    }
    assert_eq!(last_end(&fixture, "flies").await?, Some(RunEnd::Cancelled));
    assert_eq!(last_end(&fixture, "waits").await?, Some(RunEnd::WorkerLost));
    Ok(())
}

/// As a version wrote it that kept the code alone.
#[tokio::test]
async fn the_end_of_a_run_is_read_from_its_code_where_only_that_was_kept() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = fixture.scheduled(&["j"]).await?;
    writer
        .commit(&Commit::single(requeue("j", 1, true)))
        .await?;
    for (code, end) in [
        ("lost", Some(RunEnd::RunLost)),
        ("worker_lost", Some(RunEnd::WorkerLost)),
        ("approved", None),
    ] {
        let old = format!("UPDATE job_state SET run_end = NULL, reason_code = '{code}'");
        fixture.postgres.query(&old).await?;
        assert_eq!(last_end(&fixture, "j").await?, end, "{code}");
    }
    Ok(())
}
