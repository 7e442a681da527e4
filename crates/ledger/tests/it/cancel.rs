//! Cancelling, and what the leader then finds.

use airlock_ledger::{CancelOutcome, CancelRequest, Commit};
use airlock_model::{Due, JobState};

use crate::fixture::{Fixture, SHARD, assign, finish, id, job_with, moved, requeue, tenant};

pub async fn cancel(
    fixture: &Fixture,
    name: &str,
    of: Option<&str>,
) -> anyhow::Result<CancelOutcome> {
    let of = of.map(tenant);
    let request = CancelRequest {
        job_id: &id(name),
        tenant: of.as_ref(),
        by: crate::fixture::by("ann"),
        reason: "no longer\0 needed",
    };
    Ok(fixture.ledger.cancel_job(request).await?)
}

#[tokio::test]
async fn an_open_job_is_cancelled_once() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = fixture.scheduled(&["flying"]).await?;
    fixture.accept(&["waiting"]).await?;
    for name in ["flying", "waiting"] {
        assert_eq!(
            cancel(&fixture, name, Some("acme")).await?,
            CancelOutcome::Cancelled
        );
        let again = cancel(&fixture, name, Some("acme")).await?;
        assert_eq!(again, CancelOutcome::AlreadyFinal(JobState::Cancelled));
        let view = fixture.job(name).await?;
        assert_eq!(view.state, JobState::Cancelled);
        assert_eq!(view.reason_code.as_deref(), Some("cancelled"));
        let reason = view.reason.expect("a reason");
        assert!(
            reason.contains("ann") && reason.contains("needed"),
            "{reason}"
        );
    }
    assert_eq!(fixture.number("SELECT count(*) FROM change_log").await?, 2);
    // Whatever the leader had in mind for them misses.
    for late in [
        Commit::single(finish("flying", 1, JobState::Succeeded)),
        Commit::single(requeue("flying", 1, true)),
        Commit::single(assign("waiting", 1, 9)),
    ] {
        assert_eq!(moved(&writer.commit(&late).await?), 0);
    }
    assert!(fixture.ledger.open_jobs(SHARD, None, 10).await?.is_empty());
    let states = fixture
        .ledger
        .job_states(&[id("flying"), id("unknown")])
        .await?;
    assert_eq!(states, [(id("flying"), JobState::Cancelled)]);
    Ok(())
}

#[tokio::test]
async fn an_ended_job_stays_as_it_ended() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = fixture.scheduled(&["j1"]).await?;
    writer
        .commit(&Commit::single(finish("j1", 1, JobState::Failed)))
        .await?;
    let outcome = cancel(&fixture, "j1", None).await?;
    assert_eq!(outcome, CancelOutcome::AlreadyFinal(JobState::Failed));
    assert_eq!(fixture.state("j1").await?, JobState::Failed);
    assert_eq!(fixture.number("SELECT count(*) FROM change_log").await?, 1);
    Ok(())
}

#[tokio::test]
async fn another_tenants_job_is_not_there() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    fixture.accept(&["j1"]).await?;
    assert_eq!(
        cancel(&fixture, "j1", Some("globex")).await?,
        CancelOutcome::NotFound
    );
    assert_eq!(cancel(&fixture, "j2", None).await?, CancelOutcome::NotFound);
    assert_eq!(fixture.state("j1").await?, JobState::Pending);
    Ok(())
}

#[tokio::test]
async fn a_delayed_job_no_longer_comes_due() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let late = job_with("late", "acme", None, |s| s.due = Some(Due::After(60_000)));
    fixture.ledger.submit(&[late]).await?;
    assert!(fixture.ledger.next_due_time(SHARD).await?.0.is_some());
    cancel(&fixture, "late", None).await?;
    assert_eq!(fixture.ledger.next_due_time(SHARD).await?.0, None);
    Ok(())
}
