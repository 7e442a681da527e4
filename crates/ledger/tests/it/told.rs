//! A leader's transaction that waits for the submission it was told of.

use airlock_ledger::{Assign, Commit, LedgerError, MoveKind, NewJob, Submitted};
use airlock_model::{DispatchId, JobState, Timestamp};
use airlock_testkit::{Seen, eventually};
use sqlx::Executor;
use uuid::Uuid;

use crate::fixture::{BOUND, Fixture, assign, id, job};

const NUMBER: i64 = -7;
/// Made by the leader's session, and gone with it.
const FUNCTIONS: &str = "SELECT count(*) FROM pg_proc WHERE proname = 'assign_after'";

fn long_ago(job: &str) -> Assign {
    Assign {
        dispatch_id: DispatchId(Uuid::new_v4()),
        at: Timestamp(1),
        ..assign(job, 1, 0)
    }
}

fn after(jobs: &[&str]) -> Commit {
    Commit {
        after: vec![NUMBER],
        ..jobs.iter().map(|j| long_ago(j)).collect()
    }
}

/// Held up in the middle of its insert, a submission has the lock; when it is over, the
/// leader that waited for it finds the job.
async fn found_when_over(fixture: &Fixture, new: NewJob, functions: i64) -> anyhow::Result<()> {
    let mut writer = fixture.lead().await?;
    let mut holdup = fixture.session().await?;
    let (ledger, name) = (fixture.ledger.clone(), new.job_id.to_string());
    let same = format!(
        r#"BEGIN; INSERT INTO job_request
           SELECT (jsonb_populate_record(r, '{{"job_id": "{name}"}}')).*
           FROM job_request r WHERE job_id = 'template'"#
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(same))
        .execute(&mut holdup)
        .await?;
    let submission =
        tokio::spawn(async move { ledger.submit_announced(&[new], Some(NUMBER)).await });
    fixture.waiters(1).await?;
    let locked = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted";
    assert_eq!(fixture.number(locked).await?, 1);

    // The leader does not wait for ever.
    let commit = after(&[&name]);
    let error = writer.commit(&commit).await.expect_err("it is not over");
    assert!(matches!(error, LedgerError::NotOver), "{error}");

    let (ended, written) = tokio::join!(holdup.execute("ROLLBACK"), async {
        loop {
            match writer.commit(&commit).await {
                // A slow machine.
                Err(LedgerError::NotOver) => {}
                done => return done,
            }
        }
    });
    ended?;
    assert!(written?.contains(MoveKind::Assign, &id(&name)));
    assert_eq!(fixture.number(FUNCTIONS).await?, functions);
    let submitted = submission.await??;
    assert!(matches!(submitted[..], [Submitted::Accepted { .. }]));
    let view = fixture.job(&name).await?;
    assert_eq!(view.state, JobState::Scheduled);
    // Whatever the leader's clock says.
    let states: Vec<_> = view.history.iter().map(|h| (h.state, h.at)).collect();
    assert!(states.is_sorted_by_key(|(_, at)| *at), "{states:?}");
    assert_eq!(fixture.number(locked).await?, 0);
    drop(writer);
    eventually(BOUND, "the leader's session over", || async {
        let left = fixture.number(FUNCTIONS).await?;
        Ok(Seen::when(left == 0, left))
    })
    .await
}

#[tokio::test]
async fn a_leader_waits_for_the_submission_it_was_told_of() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    fixture.accept(&["template"]).await?;
    found_when_over(&fixture, job("plain"), 1).await?;
    let mut keyed = job("keyed");
    keyed.idempotency_key = Some("k".to_owned());
    found_when_over(&fixture, keyed, 1).await?;
    // Not every role may make temporary functions.
    fixture
        .postgres
        .query("REVOKE TEMP ON DATABASE airlock FROM PUBLIC, airlock")
        .await?;
    let may = "SELECT has_database_privilege(current_user, current_database(), 'TEMP')::int";
    assert_eq!(fixture.number(may).await?, 0);
    found_when_over(&fixture, job("restricted"), 0).await
}

#[tokio::test]
async fn a_submission_that_nobody_makes_is_not_waited_for() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = fixture.lead().await?;
    let written = writer.commit(&after(&["nowhere"])).await?;
    assert!(written.jobs_moved_by(MoveKind::Assign).next().is_none());
    // Waiting alone is no write, and fenced all the same.
    writer.commit(&after(&[])).await?;
    fixture.raise().await?;
    let error = writer.commit(&after(&[])).await.expect_err("a later term");
    assert!(matches!(error, LedgerError::StaleEpoch { .. }), "{error}");
    Ok(())
}
