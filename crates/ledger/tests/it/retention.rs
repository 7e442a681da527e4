//! What is old goes, with all that belongs to it; what is open, young or untold stays.

use airlock_ledger::{
    Change, Commit, EVENTS, LogEntry, LogPosition, NewDeadLetter, Sweep, Swept, id_floor,
};
use airlock_model::output::OutputSwitch;
use airlock_model::{Epoch, JobState, Released, Timestamp};

use crate::fixture::{Fixture, SHARD, finish, requeue};

const HOUR: u64 = 3_600_000;

/// `old` and `young` have ended, `open` has not; each but the last with a past run.
async fn ended(fixture: &Fixture) -> anyhow::Result<Epoch> {
    let mut leader = fixture.scheduled(&["old", "open", "young"]).await?;
    for (name, n) in [("old", 1), ("young", 3)] {
        leader
            .commit(&Commit::single(requeue(name, n, true)))
            .await?;
        let next = crate::fixture::assign(name, 2, n + 10);
        leader.commit(&Commit::single(next)).await?;
        let mut end = finish(name, n + 10, JobState::Succeeded);
        let output = bytes::Bytes::from_static(b"{}");
        end.result = Released::without_output_policy(OutputSwitch::Off, output);
        leader.commit(&Commit::single(end)).await?;
    }
    fixture
        .postgres
        .query(
            "UPDATE job_state SET finished_at = now() - interval '2 h' WHERE job_id = 'old';
             UPDATE job_state SET finished_at = now() WHERE job_id = 'young';
             UPDATE job_request SET payload = 'x';
             INSERT INTO job_stray_result (job_id, dispatch_id, worker_id, status, why)
             VALUES ('old', 'd', 'w', 's', 'y'), ('young', 'd', 'w', 's', 'y')",
        )
        .await?;
    Ok(leader.epoch())
}

fn all(limit: u32) -> Sweep<'static> {
    Sweep {
        after: "",
        below: None,
        older_than_ms: HOUR,
        limit,
    }
}

#[tokio::test]
async fn only_what_ended_long_ago_is_removed_and_all_of_it() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    ended(&fixture).await?;
    let first = fixture.current().await?.sweep_jobs(all(2)).await?;
    let expected = Swept {
        examined: 2,
        removed: 1,
        last: Some("open".to_owned()),
    };
    assert_eq!(first, expected);
    let rest = Sweep {
        after: "open",
        ..all(2)
    };
    let rest = fixture.current().await?.sweep_jobs(rest).await?;
    assert_eq!((rest.examined, rest.removed), (1, 0));
    for table in [
        "job_request",
        "job_state",
        "job_attempt",
        "job_stray_result",
    ] {
        let sql = format!("SELECT count(*) FROM {table} WHERE job_id = 'old'");
        assert_eq!(fixture.number(&sql).await?, 0, "{table}");
        let sql = format!("SELECT count(*) FROM {table} WHERE job_id = 'young'");
        assert_eq!(fixture.number(&sql).await?, 1, "{table}");
    }
    // Bounded above: what is not in the stretch is not looked at.
    let none = Sweep {
        below: Some("o"),
        ..all(9)
    };
    assert_eq!(
        fixture.current().await?.sweep_jobs(none).await?,
        Swept::default()
    );
    assert_eq!(fixture.state("open").await?, JobState::Scheduled);
    Ok(())
}

#[tokio::test]
async fn payloads_and_histories_may_go_before_their_jobs() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    ended(&fixture).await?;
    assert_eq!(
        fixture
            .current()
            .await?
            .sweep_payloads(all(9))
            .await?
            .removed,
        1
    );
    assert_eq!(
        fixture
            .current()
            .await?
            .sweep_payloads(all(9))
            .await?
            .removed,
        0
    );
    assert_eq!(
        fixture
            .current()
            .await?
            .sweep_history(all(9))
            .await?
            .removed,
        1
    );
    let old = fixture.job("old").await?;
    assert!(old.payload.is_none() && old.result.is_none());
    assert_eq!(old.state, JobState::Succeeded);
    let young = fixture.job("young").await?;
    assert!(young.payload.is_some() && young.result.is_some());
    assert!(fixture.job("open").await?.payload.is_some());
    let runs = fixture.number("SELECT count(*) FROM job_attempt").await?;
    assert_eq!(runs, 1);
    Ok(())
}

#[tokio::test]
async fn letters_and_strays_go_by_their_own_age() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let letter = NewDeadLetter {
        reason_code: "x".to_owned(),
        ..NewDeadLetter::default()
    };
    fixture
        .current()
        .await?
        .insert_dead_letters(&vec![letter; 5])
        .await?;
    fixture
        .postgres
        .query("UPDATE dead_letter SET created_at = now() - interval '2 h' WHERE id <= 3")
        .await?;
    assert_eq!(
        fixture.current().await?.sweep_dead_letters(HOUR, 2).await?,
        2
    );
    assert_eq!(
        fixture.current().await?.sweep_dead_letters(HOUR, 2).await?,
        1
    );
    assert_eq!(
        fixture.current().await?.sweep_dead_letters(HOUR, 2).await?,
        0
    );
    assert_eq!(fixture.number("SELECT count(*) FROM dead_letter").await?, 2);
    fixture.postgres
        .query(
            "INSERT INTO job_stray_result (job_id, dispatch_id, worker_id, status, why, received_at)
             VALUES ('a', 'd', 'w', 's', 'y', now() - interval '2 h'), ('b', 'd', 'w', 's', 'y', now())",
        )
        .await?;
    assert_eq!(
        fixture
            .current()
            .await?
            .sweep_unmatched_results(HOUR, 9)
            .await?,
        1
    );
    Ok(())
}

#[tokio::test]
async fn the_change_log_is_trimmed_behind_its_cursor_only() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let epoch = ended(&fixture).await?;
    let leader = fixture.ledger.as_leader(SHARD, epoch);
    fixture
        .postgres
        .query("UPDATE change_log SET at = now() - interval '2 h'")
        .await?;
    let start = LogPosition::default();
    let trim = async |after| leader.sweep_change_log(HOUR, 24 * HOUR, after, 10).await;
    // Nothing was told yet.
    assert_eq!(trim(start).await?, (0, start));
    let changes = Change::read_after(&fixture.ledger, SHARD, start, 10).await?;
    assert_eq!(changes.len(), 2);
    let told = changes[0].0;
    leader.leader_tail(EVENTS).advance(told).await?;
    assert_eq!(trim(start).await?, (1, told));
    assert_eq!(fixture.number("SELECT count(*) FROM change_log").await?, 1);
    let last = changes[1].0;
    leader.leader_tail(EVENTS).advance(last).await?;
    fixture
        .postgres
        .query("UPDATE change_log SET at = now()")
        .await?;
    assert_eq!(trim(told).await?, (0, told), "it is young");
    Ok(())
}

#[tokio::test]
async fn a_job_that_is_tried_again_after_its_removal_is_a_new_one() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut job = crate::fixture::keyed("old", "k", b"1");
    fixture.ledger.submit(std::slice::from_ref(&job)).await?;
    let mut leader = fixture.lead().await?;
    let commit = Commit::single(crate::fixture::assign("old", 1, 1));
    leader.commit(&commit).await?;
    leader
        .commit(&Commit::single(finish("old", 1, JobState::Succeeded)))
        .await?;
    fixture
        .postgres
        .query("UPDATE job_state SET finished_at = now() - interval '2 h'")
        .await?;
    assert_eq!(
        fixture.current().await?.sweep_jobs(all(9)).await?.removed,
        1
    );
    job.job_id = crate::fixture::id("new");
    fixture.ledger.submit(&[job]).await?;
    assert_eq!(fixture.state("new").await?, JobState::Pending);
    assert!(id_floor(Timestamp::from_millis(1)) < id_floor(Timestamp::from_millis(70_000)));
    Ok(())
}
