//! The change log: nothing is jumped over, and the cursor only goes forward.

use airlock_ledger::{
    AUDIT, Assign, AuditEntry, CancelRequest, Change, Commit, EVENTS, LogEntry, LogPosition,
    LogReader, Page, RecordTimes, Tail,
};
use airlock_model::{JobId, JobState, Shard};
use sqlx::Connection;

use crate::fixture::{BOUND, Fixture, SHARD, assign, by, finish, id, letter, record_times};

fn names(changes: &[(LogPosition, Change)]) -> Vec<&str> {
    let ids = changes.iter().flat_map(|(_, c)| &c.job_ids);
    ids.map(JobId::as_str).collect()
}

#[tokio::test]
async fn a_slow_transaction_is_waited_for_not_jumped_over() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = fixture.scheduled(&["j1", "j2"]).await?;
    let start = LogPosition::default();
    // An older transaction that has written and not committed.
    let mut session = fixture.session().await?;
    let mut slow = session.begin().await?;
    sqlx::query("INSERT INTO change_log (shard, job_ids) VALUES (0, '{slow}')")
        .execute(&mut *slow)
        .await?;
    let end = Commit::single(finish("j1", 1, JobState::Succeeded));
    let written = writer.commit(&end).await?;
    let seen = Change::read_after(&fixture.ledger, SHARD, start, 10).await?;
    assert!(seen.is_empty(), "something older may still come: {seen:?}");
    slow.commit().await?;
    let seen = Change::read_after(&fixture.ledger, SHARD, start, 10).await?;
    assert_eq!(names(&seen), ["slow", "j1"]);
    assert_eq!(Some(seen[1].0), written.position);
    assert!(seen[0].0 < seen[1].0);
    // From a position on, only what follows; and in pages.
    let page = Change::read_after(&fixture.ledger, SHARD, start, 1).await?;
    assert_eq!(names(&page), ["slow"]);
    let rest = Change::read_after(&fixture.ledger, SHARD, page[0].0, 10).await?;
    assert_eq!(names(&rest), ["j1"]);
    assert!(
        Change::read_after(&fixture.ledger, Shard(1), start, 10)
            .await?
            .is_empty()
    );
    Ok(())
}

#[tokio::test]
async fn one_entry_tells_of_all_that_ended_together() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = fixture.scheduled(&["j1", "j2", "j3"]).await?;
    let commit = Commit::from_iter([
        finish("j2", 2, JobState::Failed),
        finish("j1", 1, JobState::Succeeded),
        finish("j3", 77, JobState::Succeeded), // Not its dispatch: nothing to announce.
    ]);
    writer.commit(&commit).await?;
    let job_id = id("j3");
    let cancel = CancelRequest {
        job_id: &job_id,
        tenant: None,
        by: crate::fixture::by("ops"),
        reason: "",
    };
    fixture.ledger.cancel_job(cancel).await?;
    let seen = Change::read_after(&fixture.ledger, SHARD, LogPosition::default(), 10).await?;
    assert_eq!(seen.len(), 2, "{seen:?}");
    let mut first = names(&seen[..1]);
    first.sort_unstable();
    assert_eq!(first, ["j1", "j2"]);
    assert_eq!(names(&seen[1..]), ["j3"]);
    Ok(())
}

#[tokio::test]
async fn the_cursor_never_goes_back_and_obeys_the_epoch() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let leader = fixture.leader().await?;
    let at = |xid, seq| LogPosition { xid, seq };
    assert_eq!(
        fixture.ledger.tail(SHARD, EVENTS).position().await?,
        at(0, 0)
    );
    for (to, then) in [
        (at(10, 5), at(10, 5)),
        (at(10, 4), at(10, 5)),
        (at(9, 99), at(10, 5)),
        (at(11, 1), at(11, 1)),
    ] {
        leader.leader_tail(EVENTS).advance(to).await?;
        assert_eq!(
            fixture.ledger.tail(SHARD, EVENTS).position().await?,
            then,
            "after {to:?}"
        );
    }
    fixture.raise().await?;
    assert!(leader.leader_tail(EVENTS).advance(at(50, 1)).await.is_err());
    assert_eq!(
        fixture.ledger.tail(SHARD, EVENTS).position().await?,
        at(11, 1),
        "a stale leader"
    );
    assert_eq!(
        fixture.ledger.tail(Shard(1), EVENTS).position().await?,
        at(0, 0)
    );
    Ok(())
}

/// As a dump brings it from a cluster that had had more transactions than this one.
async fn brought_from_elsewhere(fixture: &Fixture) -> anyhow::Result<()> {
    for sql in [
        "INSERT INTO change_log (xid, seq, shard, job_ids) OVERRIDING SYSTEM VALUE VALUES
         (500, 1, 0, '{published-early}'), (5000000, 2, 0, '{published}'),
         (5000001, 4, 0, '{slow}'), (5000009, 3, 0, '{quick}')",
        "SELECT setval(pg_get_serial_sequence('change_log', 'seq'), 4)",
        "INSERT INTO log_reader (reader, shard, log, xid, seq, required) VALUES
         ('events', 0, 'changes', 5000000, 2, true), ('view', 0, 'changes', 500, 1, false)",
        "INSERT INTO audit_log (xid, id, kind, actor, detail) OVERRIDING SYSTEM VALUE VALUES
         (5000000, 1, 'policy.published', 'x', '{}'), (5000002, 2, 'policy.waiting', 'x', '{}')",
        "SELECT setval(pg_get_serial_sequence('audit_log', 'id'), 2)",
        "UPDATE log_reader SET xid = 5000000, seq = 1 WHERE reader = 'audit'",
        // Written here before anybody led.
        "INSERT INTO change_log (shard, job_ids) VALUES (0, '{here}')",
        "INSERT INTO audit_log (kind, actor, detail) VALUES ('policy.here', 'x', '{}')",
    ] {
        fixture.postgres.query(sql).await?;
    }
    Ok(())
}

#[tokio::test]
async fn after_a_logical_restore_what_was_not_published_is_and_nothing_else() -> anyhow::Result<()>
{
    let fixture = Fixture::start().await?;
    brought_from_elsewhere(&fixture).await?;
    let stale = fixture.raise().await?;
    let epoch = fixture.raise().await?;
    let refused = fixture
        .ledger
        .as_leader(SHARD, stale)
        .recover_cursors()
        .await;
    assert!(refused.is_err(), "{refused:?}");
    let cursor = fixture.ledger.tail(SHARD, EVENTS).position().await?;
    assert_eq!(cursor.xid, 5_000_000, "a leader that was replaced");

    let leader = fixture.ledger.as_leader(SHARD, epoch);
    assert_eq!(leader.recover_cursors().await?, 6);
    let from = fixture.ledger.tail(SHARD, EVENTS).position().await?;
    let seen = Change::read_after(&fixture.ledger, SHARD, from, 10).await?;
    assert_eq!(names(&seen), ["quick", "slow", "here"]);
    let from = fixture.ledger.tail(SHARD, AUDIT).position().await?;
    assert!(matches!(
        fixture
            .ledger
            .tail(SHARD, LogReader::<Change>::new("view"))
            .next(10)
            .await?,
        Page::Rescan
    ));
    let trail = AuditEntry::read_after(&fixture.ledger, SHARD, from, 10).await?;
    let kinds: Vec<_> = trail.iter().map(|(_, e)| e.kind.as_str()).collect();
    assert_eq!(kinds, ["policy.waiting", "policy.here"]);

    // From here on it is a ledger like any other.
    fixture
        .ledger
        .as_leader(SHARD, epoch)
        .leader_tail(EVENTS)
        .advance(seen[0].0)
        .await?;
    fixture
        .postgres
        .query("UPDATE change_log SET at = now() - interval '2 h'")
        .await?;
    let removed = fixture
        .ledger
        .as_leader(SHARD, epoch)
        .sweep_change_log(1, 1, LogPosition::default(), 10)
        .await?;
    assert_eq!(removed.0, 3, "published: two before, one now");
    let from = fixture.ledger.tail(SHARD, EVENTS).position().await?;
    let seen = Change::read_after(&fixture.ledger, SHARD, from, 10).await?;
    assert_eq!(names(&seen), ["slow", "here"]);
    assert_eq!(leader.recover_cursors().await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_cursor_of_this_cluster_stays_where_it_is() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = fixture.scheduled(&["j1"]).await?;
    let end = Commit::single(finish("j1", 1, JobState::Succeeded));
    let at = writer.commit(&end).await?.position.expect("an entry");
    let epoch = writer.epoch();
    fixture
        .ledger
        .as_leader(SHARD, epoch)
        .leader_tail(EVENTS)
        .advance(at)
        .await?;
    let leader = fixture.ledger.as_leader(SHARD, epoch);
    assert_eq!(leader.recover_cursors().await?, 0);
    assert_eq!(fixture.ledger.tail(SHARD, EVENTS).position().await?, at);
    Ok(())
}

/// Only who writes to the logs is waited for: neither an open transaction of another
/// database nor one of this database that writes elsewhere holds them up.
#[tokio::test]
async fn an_open_transaction_that_writes_elsewhere_holds_nothing_up() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = fixture.scheduled(&["j1", "j2"]).await?;
    let start = LogPosition::default();
    let mut elsewhere =
        sqlx::PgConnection::connect(&fixture.postgres.url().replace("/airlock", "/postgres"))
            .await?;
    let database: String = sqlx::query_scalar("SELECT current_database()::text")
        .fetch_one(&mut elsewhere)
        .await?;
    assert_eq!(database, "postgres");
    let mut here = fixture.session().await?;
    for session in [&mut elsewhere, &mut here] {
        sqlx::raw_sql("BEGIN; SELECT pg_current_xact_id()")
            .execute(session)
            .await?;
    }
    sqlx::raw_sql("SELECT 1 FROM job_request WHERE job_id = 'j2' FOR UPDATE")
        .execute(&mut here)
        .await?;
    writer
        .commit(&Commit::single(finish("j1", 1, JobState::Succeeded)))
        .await?;
    let seen = Change::read_after(&fixture.ledger, SHARD, start, 10).await?;
    assert_eq!(names(&seen), ["j1"]);
    // The lag is what is not published, whether it can be read yet or not.
    let behind = Change::lag(&fixture.ledger, SHARD, start).await?;
    assert!(!behind.is_zero());
    let published = Change::lag(&fixture.ledger, SHARD, seen[0].0).await?;
    assert!(published.is_zero());
    let audit = fixture.ledger.tail(SHARD, AUDIT).position().await?;
    sqlx::raw_sql("INSERT INTO audit_log (kind, actor, detail) VALUES ('x', 'y', '{}')")
        .execute(&mut fixture.session().await?)
        .await?;
    assert_eq!(
        AuditEntry::read_after(&fixture.ledger, SHARD, audit, 10)
            .await?
            .len(),
        1
    );
    assert!(
        !AuditEntry::lag(&fixture.ledger, SHARD, audit)
            .await?
            .is_zero()
    );
    Ok(())
}

/// A leader's transaction has its number before it writes to the log. It is waited for
/// from its beginning, or what ends later with a higher number would be read first and the
/// cursor pass it by.
#[tokio::test]
async fn a_writer_that_has_not_logged_yet_is_waited_for() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let writer = fixture.scheduled(&["j1", "j2"]).await?;
    let mut writer = writer.with_row_wait(BOUND).await?;
    let mut session = fixture.session().await?;
    let mut hold = session.begin().await?;
    sqlx::query("SELECT 1 FROM dead_letter FOR UPDATE")
        .execute(&mut *hold)
        .await?;
    sqlx::query("LOCK TABLE dead_letter IN SHARE MODE")
        .execute(&mut *hold)
        .await?;
    // Has moved j1 and stands before its dead letter, and before its entry.
    let mut end = finish("j1", 1, JobState::Failed);
    end.dead_letter = Some(letter("j1", "x"));
    let commit = Commit::single(end);
    let slow = tokio::spawn(async move { writer.commit(&commit).await });
    fixture.waiters(1).await?;
    let job_id = id("j2");
    let cancel = CancelRequest {
        job_id: &job_id,
        tenant: None,
        by: by("ops"),
        reason: "",
    };
    fixture.ledger.cancel_job(cancel).await?;
    let start = LogPosition::default();
    let seen = Change::read_after(&fixture.ledger, SHARD, start, 10).await?;
    assert!(seen.is_empty(), "j1 has the smaller number: {seen:?}");
    hold.rollback().await?;
    slow.await??;
    let seen = Change::read_after(&fixture.ledger, SHARD, start, 10).await?;
    assert_eq!(names(&seen), ["j1", "j2"]);
    Ok(())
}

/// What is the next page of a reader that is not to rescan.
async fn entries(tail: &mut Tail<Change>) -> anyhow::Result<Vec<(LogPosition, Change)>> {
    match tail.next(10).await? {
        Page::Entries(entries) => Ok(entries),
        Page::Rescan => anyhow::bail!("to rescan"),
    }
}

/// Each reader has its own position; the slowest keeps old entries, within the bound, and
/// one that stayed away for longer is told to rescan. Nothing passes a required reader.
#[tokio::test]
async fn old_entries_wait_for_the_slowest_reader_within_the_bound() -> anyhow::Result<()> {
    const HOUR: u64 = 3_600_000;
    const VIEW: LogReader<Change> = LogReader::new("view");
    let fixture = Fixture::start().await?;
    let mut writer = fixture.scheduled(&["j1", "j2", "j3"]).await?;
    let leader = fixture.ledger.as_leader(SHARD, writer.epoch());
    let mut events = leader.leader_tail(EVENTS);
    let mut view = fixture.ledger.tail(SHARD, VIEW);
    assert!(entries(&mut events).await?.is_empty());
    let first = view.next(10).await?;
    assert!(matches!(first, Page::Rescan), "a new reader knows nothing");
    view.finish_rescan().await?;
    for (name, n) in [("j1", 1), ("j2", 2), ("j3", 3)] {
        let end = Commit::single(finish(name, n, JobState::Succeeded));
        writer.commit(&end).await?;
    }
    let all = entries(&mut events).await?;
    assert_eq!(names(&all), ["j1", "j2", "j3"]);
    assert_eq!(names(&entries(&mut view).await?), ["j1", "j2", "j3"]);
    view.advance(all[0].0).await?;
    events.advance(all[1].0).await?;
    fixture
        .postgres
        .query("UPDATE change_log SET at = now() - interval '2 h'")
        .await?;
    let start = LogPosition::default();
    let (removed, _) = leader.sweep_change_log(HOUR, 24 * HOUR, start, 10).await?;
    assert_eq!(removed, 1, "the view has not read the second");
    assert_eq!(names(&entries(&mut view).await?), ["j2", "j3"]);
    let (removed, _) = leader.sweep_change_log(HOUR, HOUR, start, 10).await?;
    assert_eq!(removed, 1, "beyond the bound, but never past the publisher");
    assert!(matches!(view.next(10).await?, Page::Rescan));
    // Also for another process of that name, until it has rescanned.
    let mut view = fixture.ledger.tail(SHARD, VIEW);
    assert!(matches!(view.next(10).await?, Page::Rescan));
    view.finish_rescan().await?;
    assert_eq!(names(&entries(&mut view).await?), ["j3"]);
    assert_eq!(names(&entries(&mut events).await?), ["j3"]);
    Ok(())
}

/// SCHEDULED and RUNNING of a followed job are in the log; of plain jobs nothing is.
#[tokio::test]
async fn the_progress_of_followed_jobs_is_in_the_log() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    fixture.accept(&["plain", "followed"]).await?;
    let mut writer = fixture.lead().await?;
    let followed = Assign {
        followed: true,
        ..assign("followed", 1, 2)
    };
    writer
        .commit(&Commit::from_iter([assign("plain", 1, 1), followed]))
        .await?;
    let start = LogPosition::default();
    let seen = Change::read_after(&fixture.ledger, SHARD, start, 10).await?;
    assert_eq!(names(&seen), ["followed"]);
    let mut runs = Commit::single(record_times("plain", 1, Some(11), Some(12)));
    runs.push(RecordTimes {
        followed: true,
        ..record_times("followed", 2, Some(11), Some(12))
    });
    runs.push(finish("plain", 1, JobState::Succeeded));
    let written = writer.commit(&runs).await?;
    let seen = Change::read_after(&fixture.ledger, SHARD, seen[0].0, 10).await?;
    assert_eq!(names(&seen), ["followed", "plain"]);
    assert_eq!(written.position, Some(seen[1].0), "the entry of the end");
    Ok(())
}
