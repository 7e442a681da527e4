//! What the reconciler finds, and how rows that cannot be read are ended.

use airlock_ledger::{DeadLetterFilter, NewJob, StaleAfter};
use airlock_model::{Due, JobId, JobState};

use crate::fixture::{Fixture, SHARD, id, job_with};

const AFTER: StaleAfter = StaleAfter {
    dispatch_ms: 300_000,
    running_ms: 900_000,
};

fn with_deadline(name: &str, ms: i64) -> NewJob {
    job_with(name, "acme", None, |spec| {
        spec.budget.get_or_insert_default().deadline_ms = Some(ms);
    })
}

async fn stale(fixture: &Fixture) -> anyhow::Result<Vec<JobId>> {
    Ok(fixture.ledger.stale_jobs(SHARD, AFTER, None, 200).await?)
}

#[tokio::test]
async fn deadlines_and_silent_runs_are_found_and_nothing_else() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    fixture
        .scheduled(&["dispatched", "fresh", "running", "young"])
        .await?;
    let mut later = with_deadline("delayed", 1);
    later.spec.due = Some(Due::After(3_600_000));
    fixture
        .ledger
        .submit(&[
            with_deadline("late", 1),
            with_deadline("intime", 3_600_000),
            later,
        ])
        .await?;
    fixture.accept(&["waiting"]).await?;
    fixture.postgres
        .query(
            "UPDATE job_state SET state = 3, dispatched_at = now() - interval '301 s' WHERE job_id = 'dispatched';
             UPDATE job_state SET state = 3, dispatched_at = now() - interval '200 s' WHERE job_id = 'fresh';
             UPDATE job_state SET state = 4, running_at = now() - interval '901 s' WHERE job_id = 'running';
             UPDATE job_state SET state = 4, running_at = now() - interval '800 s' WHERE job_id = 'young';
             SELECT pg_sleep(0.01)",
        )
        .await?;
    let found: Vec<String> = stale(&fixture)
        .await?
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(found, ["delayed", "dispatched", "late", "running"]);
    // In pages, in the order of the ids.
    let page = fixture
        .ledger
        .stale_jobs(SHARD, AFTER, Some(&id("delayed")), 2)
        .await?;
    assert_eq!(page, [id("dispatched"), id("late")]);
    let other = fixture
        .ledger
        .stale_jobs(airlock_model::Shard(1), AFTER, None, 200)
        .await?;
    assert_eq!(other, []);

    // A job past its deadline waits for no due time; others keep theirs.
    let mut other = job_with("other", "acme", None, |_| {});
    other.spec.due = Some(Due::After(3_600_000));
    fixture.ledger.submit(&[other]).await?;
    fixture
        .current()
        .await?
        .delete_due_times(&[id("delayed"), id("other")])
        .await?;
    let left = fixture.postgres.query("SELECT job_id FROM job_due").await?;
    assert_eq!(left, [[Some("other".to_owned())]]);
    Ok(())
}

#[tokio::test]
async fn a_row_that_cannot_be_read_stops_nobody_and_is_ended_with_a_letter() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    fixture.accept(&["a", "b", "c"]).await?;
    fixture
        .postgres
        .query("UPDATE job_request SET spec = 'nonsense' WHERE job_id = 'b'")
        .await?;
    let all = [id("a"), id("b"), id("c")];
    let loaded = fixture.ledger.load_jobs(&all, 0).await?;
    assert_eq!(loaded.len(), 2);
    // A page is as long as its rows, read or not: what follows is not forgotten.
    let (page, next) = fixture.ledger.open_jobs_page(SHARD, None, 2).await?;
    assert_eq!((page.len(), next), (1, Some(id("b"))));
    let (page, next) = fixture
        .ledger
        .open_jobs_page(SHARD, Some(&id("b")), 2)
        .await?;
    assert_eq!((page.len(), next), (1, None));

    let leader = fixture.leader().await?;
    let fail = async || {
        leader
            .force_fail_jobs(&[id("b")], "unreadable", "it\0s")
            .await
    };
    assert_eq!(fail().await?, 1);
    assert_eq!(fail().await?, 0, "once");
    let state = fixture
        .number("SELECT state FROM job_state WHERE job_id = 'b'")
        .await?;
    assert_eq!(state, i64::from(JobState::Failed.code()));
    let letters = fixture
        .ledger
        .dead_letters(&DeadLetterFilter::default(), None, 9)
        .await?;
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].last_state.as_deref(), Some("PENDING"));
    assert_eq!(letters[0].tenant.as_deref(), Some("acme"));
    let whole = fixture
        .ledger
        .dead_letter(None, letters[0].id)
        .await?
        .expect("it");
    assert!(whole.spec.is_none(), "nothing that could be tried again");
    assert_eq!(fixture.number("SELECT count(*) FROM change_log").await?, 1);
    Ok(())
}
