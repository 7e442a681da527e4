//! The epoch: whose writes count.

use airlock_ledger::{
    AUDIT, Commit, EVENTS, Fact, Failure, HeldJob, LeaderLedger, Ledger, LedgerConfig, LedgerError,
    LogPosition, NewDeadLetter, NewReport, NewTerm, Progress, Sweep,
};
use airlock_model::{Decision, Due, Epoch, JobState, Shard, WorkerId};
use airlock_testkit::PgBouncer;
use sqlx::Connection;

use crate::fixture::{
    BOUND, Fixture, SHARD, assign, finish, hold, id, job_with, moved, t, verdict,
};

fn is_stale<T: std::fmt::Debug>(done: Result<T, LedgerError>) {
    match done {
        Err(e @ LedgerError::StaleEpoch { .. }) => assert_eq!(e.failure(), Failure::Fatal),
        other => panic!("a stale leader got {other:?}"),
    }
}

#[tokio::test]
async fn an_older_term_writes_nothing() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut old = fixture.scheduled(&["j1"]).await?;
    assert_eq!(old.epoch(), Epoch(1));
    let mut new = fixture.lead().await?;
    assert_eq!(new.epoch(), Epoch(2));
    let end = Commit::single(finish("j1", 1, JobState::Succeeded));
    is_stale(old.commit(&end).await);
    is_stale(old.commit(&Commit::default()).await);
    assert_eq!(fixture.state("j1").await?, JobState::Scheduled);
    assert_eq!(moved(&new.commit(&end).await?), 1);
    assert_eq!(fixture.number("SELECT epoch FROM job_state").await?, 2);
    // A term that has not begun is no better than one that is over.
    let mut early = fixture.ledger.leader_writer(SHARD, Epoch(9)).await?;
    is_stale(early.commit(&Commit::default()).await);
    let mut nobody = fixture.ledger.leader_writer(Shard(5), Epoch(1)).await?;
    is_stale(nobody.commit(&Commit::default()).await);
    Ok(())
}

/// The new term waits for the old leader's transaction that is under way, and that
/// transaction is whole.
#[tokio::test]
async fn raising_the_epoch_waits_for_a_write_under_way() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut old = fixture
        .scheduled(&["j1"])
        .await?
        .with_row_wait(BOUND)
        .await?;
    // Whoever holds the job's row keeps the old leader inside its transaction, past
    // the check of its epoch.
    let mut session = fixture.session().await?;
    let mut hold = session.begin().await?;
    sqlx::query("SELECT 1 FROM job_state WHERE job_id = 'j1' FOR UPDATE")
        .execute(&mut *hold)
        .await?;
    let writing = tokio::spawn(async move {
        let done = old
            .commit(&Commit::single(finish("j1", 1, JobState::Succeeded)))
            .await;
        (old, done)
    });
    fixture.waiters(1).await?;
    let ledger = fixture.ledger.clone();
    let raising = tokio::spawn(async move { ledger.raise_epoch(SHARD, "new").await });
    fixture.waiters(2).await?;
    assert!(!raising.is_finished());
    hold.commit().await?;
    let (mut old, done) = writing.await?;
    assert_eq!(moved(&done?), 1, "it began in its term and is whole");
    assert_eq!(raising.await??, Epoch(2));
    is_stale(old.commit(&Commit::default()).await);
    Ok(())
}

/// The other way round: a write that begins while the new term is being committed
/// waits for it, and is refused.
#[tokio::test]
async fn a_write_that_meets_a_raise_under_way_is_refused() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    fixture.accept(&["j1"]).await?;
    let mut old = fixture.lead().await?;
    let mut session = fixture.session().await?;
    let mut raise = session.begin().await?;
    sqlx::query("UPDATE leadership SET epoch = epoch + 1")
        .execute(&mut *raise)
        .await?;
    let writing =
        tokio::spawn(async move { old.commit(&Commit::single(assign("j1", 1, 1))).await });
    fixture.waiters(1).await?;
    raise.commit().await?;
    is_stale(writing.await?);
    assert_eq!(fixture.state("j1").await?, JobState::Pending);
    Ok(())
}

#[tokio::test]
async fn a_writer_recovers_from_a_lost_connection() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = fixture.scheduled(&["j1"]).await?;
    fixture.postgres.restart().await?;
    let end = Commit::single(finish("j1", 1, JobState::Succeeded));
    let error = writer.commit(&end).await.expect_err("its session is gone");
    assert_ne!(error.failure(), Failure::Fatal, "{error}");
    assert!(error.ends_session(), "{error}");
    assert_eq!(moved(&writer.commit(&end).await?), 1);
    Ok(())
}

#[tokio::test]
async fn only_one_holds_the_lock_and_renewals_tell_terms_apart() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut a = fixture.ledger.lease_connection("a").await?;
    let mut b = fixture.ledger.lease_connection("b").await?;
    assert!(a.try_lock(7, BOUND).await?);
    assert!(!b.try_lock(7, BOUND).await?);
    assert!(b.try_lock(8, BOUND).await?);
    assert!(fixture.ledger.leader(SHARD).await?.is_none());
    let epoch = fixture.ledger.raise_epoch(SHARD, "a").await?;
    let mut term = fixture.ledger.term_connection("a");
    assert!(term.note_renewal(SHARD, epoch, BOUND).await?);
    let before = fixture.ledger.leader(SHARD).await?.expect("a leader");
    assert_eq!((before.leader.as_str(), before.epoch), ("a", epoch));
    let next = fixture.ledger.raise_epoch(SHARD, "b").await?;
    assert!(next > epoch);
    assert!(!term.note_renewal(SHARD, epoch, BOUND).await?);
    assert!(term.note_renewal(SHARD, next, BOUND).await?);
    a.unlock_and_close(7, BOUND).await;
    airlock_testkit::eventually(BOUND, "the lock to be free", || async {
        let mut c = fixture.ledger.lease_connection("c").await?;
        let free = c.try_lock(7, BOUND).await?;
        Ok(airlock_testkit::Seen::when(free, "held"))
    })
    .await
}

/// A candidate that won, stood still and was replaced before it began its term, begins none.
#[tokio::test]
async fn a_term_begins_only_after_the_one_that_was_seen() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut term = fixture.ledger.term_connection("slow");
    let seen = term.read_epoch(SHARD, BOUND).await?;
    assert_eq!(seen, Epoch(0));
    let slow = NewTerm {
        shard: SHARD,
        leader: "slow",
        backend: "postgres",
        seen,
        above: Epoch(0),
        cause: None,
    };
    let first = fixture.ledger.raise_epoch(SHARD, "quick").await?;
    assert_eq!(term.raise_epoch(slow, BOUND).await?, None);
    let leader = fixture.ledger.leader(SHARD).await?.expect("a leader");
    assert_eq!((leader.leader.as_str(), leader.epoch), ("quick", first));
    let next = NewTerm {
        seen: first,
        above: Epoch(7),
        ..slow
    };
    assert_eq!(term.raise_epoch(next, BOUND).await?, Some(Epoch(8)));
    Ok(())
}

/// Each term leaves a line: who, by what, why the one before ended, and the gap.
#[tokio::test]
async fn the_history_of_terms_tells_causes_and_gaps() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let ledger = &fixture.ledger;
    let first = ledger.raise_epoch(SHARD, "a").await?;
    ledger.raise_epoch(SHARD, "b").await?;
    let mut term = ledger.term_connection("b");
    let seen = term.read_epoch(SHARD, BOUND).await?;
    term.note_release(SHARD, first, "shutdown", BOUND).await?;
    let hung = NewTerm {
        shard: SHARD,
        leader: "c",
        backend: "postgres",
        seen,
        above: Epoch(0),
        cause: Some("hung"),
    };
    let third = term.raise_epoch(hung, BOUND).await?.expect("a term");
    term.note_release(SHARD, third, "step-down", BOUND).await?;
    ledger.raise_epoch(SHARD, "d").await?;
    let changes = ledger.leader_changes(SHARD, 10).await?;
    let told: Vec<_> = changes
        .iter()
        .map(|c| (c.epoch.0, c.leader.as_str(), c.cause.as_str()))
        .collect();
    // A release of a term that is over changes nothing.
    assert_eq!(
        told,
        [
            (4, "d", "step-down"),
            (3, "c", "hung"),
            (2, "b", "lost"),
            (1, "a", "first")
        ]
    );
    assert!(changes[..3].iter().all(|c| c.gap.is_some()));
    assert_eq!(changes[3].gap, None);
    assert_eq!(ledger.leader_changes(SHARD, 2).await?.len(), 2);
    for _ in 0..110 {
        ledger.raise_epoch(SHARD, "e").await?;
    }
    assert_eq!(ledger.leader_changes(SHARD, 1_000).await?.len(), 100);
    Ok(())
}

/// Only a pooler that gives sessions to others between transactions is one to refuse.
#[tokio::test]
async fn a_pooler_is_told_from_a_server() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    assert!(!fixture.ledger.shares_sessions().await?);
    for (mode, shared) in [("transaction", true), ("session", false)] {
        let pooler = PgBouncer::start(&fixture.postgres, mode).await?;
        let ledger = Ledger::connect(&LedgerConfig::from_url(&pooler.url()), "test").await?;
        assert_eq!(ledger.shares_sessions().await?, shared, "{mode}");
    }
    Ok(())
}

#[tokio::test]
async fn the_first_settles_the_number_of_shards() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    // All at once, as replicas start: each learns the same number.
    let asked = (1..=8).map(|n| fixture.ledger.init_shard_count(n));
    let answers = futures::future::try_join_all(asked).await?;
    assert!(answers.iter().all(|a| *a == answers[0]), "{answers:?}");
    assert_eq!(fixture.ledger.init_shard_count(99).await?, answers[0]);
    Ok(())
}

const ALL: Sweep<'static> = Sweep {
    after: "",
    below: None,
    older_than_ms: 0,
    limit: 100,
};

/// One of each kind of write that a leader makes beside its rounds, each with something to
/// do; the name and what came of it.
async fn each_write(
    leader: &LeaderLedger,
    held: &HeldJob,
) -> Vec<(&'static str, Result<u64, LedgerError>)> {
    let letter = NewDeadLetter {
        reason_code: "x".to_owned(),
        ..NewDeadLetter::default()
    };
    let report = NewReport {
        job_id: id("running"),
        dispatch_id: Some(crate::fixture::dispatch(1)),
        worker: WorkerId::new("w1").expect("a worker id"),
        progress: Some(Progress {
            percent: 1,
            step: None,
            message: None,
            at: t(1),
        }),
        partials: Vec::new(),
        artifacts: Vec::new(),
        constraints: Vec::new(),
    };
    let change = LogPosition { xid: 1, seq: 1 };
    let audit = LogPosition {
        xid: i64::MAX,
        seq: i64::MAX,
    };
    let deny = verdict(Decision::Deny);
    vec![
        (
            "claim_due",
            leader
                .claim_due_jobs(9, 0)
                .await
                .map(|jobs| jobs.len() as u64),
        ),
        (
            "forget_due",
            leader.delete_due_times(&[id("late")]).await.map(|()| 1),
        ),
        (
            "rejudge",
            leader.apply_reevaluation(held, &deny).await.map(|_| 1),
        ),
        (
            "expire_approvals",
            leader
                .expire_approvals(9)
                .await
                .map(|jobs| jobs.len() as u64),
        ),
        ("withdraw_approvals", leader.withdraw_approvals().await),
        (
            "record_reports",
            leader.record_reports(&[report]).await.map(|n| n as u64),
        ),
        (
            "put_dead_letters",
            leader.insert_dead_letters(&[letter]).await.map(|()| 1),
        ),
        (
            "force_fail",
            leader.force_fail_jobs(&[id("stuck")], "x", "y").await,
        ),
        (
            "sweep_payloads",
            leader.sweep_payloads(ALL).await.map(|s| s.removed),
        ),
        ("sweep_history", leader.sweep_history(ALL).await.map(|_| 1)),
        (
            "sweep_jobs",
            leader.sweep_jobs(ALL).await.map(|s| s.removed),
        ),
        ("sweep_dead_letters", leader.sweep_dead_letters(0, 9).await),
        ("sweep_strays", leader.sweep_unmatched_results(0, 9).await),
        (
            "sweep_changes",
            leader
                .sweep_change_log(0, 0, LogPosition::default(), 9)
                .await
                .map(|_| 1),
        ),
        (
            "advance_cursor",
            leader.leader_tail(EVENTS).advance(change).await.map(|()| 1),
        ),
        (
            "advance_audit_cursor",
            leader.leader_tail(AUDIT).advance(audit).await.map(|()| 1),
        ),
        (
            "remember",
            leader
                .write_fact(Fact::PolicyFailMode, "open")
                .await
                .map(|()| 1),
        ),
    ]
}

/// Everything that a write could have changed.
const CONTENTS: &str = "SELECT concat(
    (SELECT json_agg(t ORDER BY job_id) FROM job_state t),
    (SELECT json_agg(t ORDER BY job_id) FROM job_request t),
    (SELECT json_agg(t ORDER BY job_id) FROM job_due t),
    (SELECT json_agg(t ORDER BY job_id, round) FROM approval t),
    (SELECT json_agg(t ORDER BY id) FROM dead_letter t),
    (SELECT json_agg(t ORDER BY id) FROM job_stray_result t),
    (SELECT json_agg(t ORDER BY job_id) FROM job_report t),
    (SELECT json_agg(t ORDER BY xid, seq) FROM change_log t),
    (SELECT json_agg(t ORDER BY reader) FROM log_reader t),
    (SELECT json_agg(t ORDER BY id) FROM audit_log t),
    (SELECT json_agg(t ORDER BY name) FROM setting t))";

/// Open jobs of every kind: due, past its deadline, held, held too long, running; and what
/// retention would remove.
async fn busy() -> anyhow::Result<(Fixture, HeldJob)> {
    let fixture = Fixture::start().await?;
    let mut writer = fixture
        .scheduled(&["running", "ended", "held", "old", "gone", "stuck"])
        .await?;
    fixture
        .postgres
        .query(
            "UPDATE job_state SET state = 1, attempt = 0 WHERE job_id IN ('held', 'old', 'gone')",
        )
        .await?;
    let mut commit = Commit::single(finish("ended", 2, JobState::Succeeded));
    for name in ["held", "old", "gone"] {
        let mut one = hold(name);
        one.verdict.rule_hash = "hash-1".to_owned();
        commit.push(one);
    }
    writer.commit(&commit).await?;
    let delayed = |name: &str| job_with(name, "acme", None, |s| s.due = Some(Due::After(60_000)));
    fixture
        .ledger
        .submit(&[delayed("due"), delayed("late")])
        .await?;
    fixture
        .postgres
        .query(
            "UPDATE job_due SET due_at = now() - interval '1 minute' WHERE job_id = 'due';
             UPDATE job_state SET deadline_at = now() - interval '1 minute' WHERE job_id = 'late';
             UPDATE approval SET expires_at = now() - interval '1 minute' WHERE job_id = 'old';
             UPDATE job_state SET state = 13, open = false, finished_at = now()
                 WHERE job_id = 'gone';
             UPDATE job_state SET finished_at = now() - interval '1 minute', result = 'x'
                 WHERE job_id = 'ended';
             INSERT INTO dead_letter (reason_code, reason) VALUES ('x', 'y');
             INSERT INTO job_stray_result (job_id, dispatch_id, worker_id, status, why)
                 VALUES ('a', 'd', 'w', 's', 'y')",
        )
        .await?;
    let held = fixture
        .ledger
        .held_under_other_policy(SHARD, "cfg:2", None, 1)
        .await?
        .pop()
        .ok_or_else(|| anyhow::anyhow!("nothing is held"))?;
    Ok((fixture, held))
}

/// A leader that stood still before any of its writes, while jobs of every kind were open,
/// and was replaced meanwhile: each is refused, and nothing is different.
#[tokio::test]
async fn every_kind_of_write_of_an_older_term_is_refused() -> anyhow::Result<()> {
    let (fixture, held) = busy().await?;
    let leader = fixture.current().await?;
    fixture.raise().await?;
    let before = fixture.postgres.query(CONTENTS).await?;
    for (name, done) in each_write(&leader, &held).await {
        assert!(
            matches!(done, Err(LedgerError::StaleEpoch { .. })),
            "{name}: {done:?}"
        );
    }
    assert_eq!(fixture.postgres.query(CONTENTS).await?, before);
    tokio::time::timeout(BOUND, leader.wait_until_replaced()).await?;
    Ok(())
}

/// The same writes of the term that leads do something, or the test before shows nothing.
#[tokio::test]
async fn every_kind_of_write_of_the_term_that_leads_counts() -> anyhow::Result<()> {
    let (fixture, held) = busy().await?;
    let leader = fixture.current().await?;
    for (name, done) in each_write(&leader, &held).await {
        assert!(done.as_ref().is_ok_and(|n| *n > 0), "{name}: {done:?}");
    }
    Ok(())
}

/// Judged by a policy while another one was put in force and judged the same job: the
/// older answer changes nothing.
#[tokio::test]
async fn an_answer_of_an_outdated_policy_changes_nothing() -> anyhow::Result<()> {
    let (fixture, held) = busy().await?;
    let leader = fixture.current().await?;
    let mut same = verdict(Decision::RequireApproval);
    same.rule_hash.clone_from(&held.rule_hash);
    same.snapshot = "cfg:3".to_owned();
    let kept = leader.apply_reevaluation(&held, &same).await?;
    assert_eq!(kept, airlock_ledger::Reevaluated::Kept);
    let mut late = verdict(Decision::Deny);
    late.snapshot = "cfg:2".to_owned();
    let done = leader.apply_reevaluation(&held, &late).await?;
    let state = fixture.state(held.job_id.as_str()).await?;
    assert_eq!(done, airlock_ledger::Reevaluated::Nothing);
    assert_eq!(state, JobState::ApprovalRequired);
    Ok(())
}
