//! The leader's moves, and the compare-and-set that refuses what came too late.

use airlock_ledger::{Commit, Failure, Finish, GiveUp, Move, MoveKind, UnmatchedResult};
use airlock_model::output::OutputSwitch;
use airlock_model::{Decision, JobState, Released, Verdict};
use bytes::Bytes;

use crate::fixture::{
    Fixture, allowed, assign, close, finish, hold, id, letter, moved, record_times, requeue, t,
    verdict,
};

#[tokio::test]
async fn one_transaction_writes_every_kind() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = fixture.scheduled(&["done", "again", "marked"]).await?;
    fixture.accept(&["new", "denied"]).await?;
    let mut result = finish("done", 1, JobState::Succeeded);
    let output = Bytes::from_static(b"out\0put");
    result.result = Released::without_output_policy(OutputSwitch::Off, output);
    let mut denied = close("denied", JobState::Denied, Some(Decision::Deny));
    denied.dead_letter = Some(letter("denied", "safety_denied"));
    let stray = UnmatchedResult {
        job_id: "who\0".to_owned(),
        dispatch_id: "?".to_owned(),
        worker_id: "w9".to_owned(),
        status: "SUCCEEDED".to_owned(),
        why: "not asked for".to_owned(),
    };
    let commit = Commit::from_iter([
        Move::from(assign("new", 1, 10)),
        denied.into(),
        result.into(),
        requeue("again", 2, true).into(),
        record_times("marked", 3, Some(11), None).into(),
        stray.into(),
    ]);
    let written = writer.commit(&commit).await?;
    assert_eq!(moved(&written), 4);
    assert!(written.position.is_some());
    let states = [
        ("done", JobState::Succeeded),
        ("again", JobState::Pending),
        ("marked", JobState::Dispatched),
        ("new", JobState::Scheduled),
        ("denied", JobState::Denied),
    ];
    for (name, state) in states {
        assert_eq!(fixture.state(name).await?, state, "{name}");
    }
    let done = fixture.job("done").await?;
    let output = done.result.map(Released::into_inner);
    assert_eq!(output.as_deref(), Some(&b"out\0put"[..]));
    assert_eq!((done.finished_at, done.reason), (Some(t(30)), None));
    let denied = fixture.job("denied").await?;
    assert_eq!(denied.decision, Some(Decision::Deny));
    assert_eq!(denied.rule_id.as_deref(), Some("rule-1"));
    assert_eq!(denied.reason_code.as_deref(), Some("code"));
    assert_eq!(
        fixture
            .number("SELECT count(*) FROM job_stray_result")
            .await?,
        1
    );
    assert_eq!(
        fixture
            .ledger
            .dead_letters(&airlock_ledger::DeadLetterFilter::default(), None, 9)
            .await?
            .len(),
        1
    );
    let open = fixture
        .number("SELECT count(*) FROM job_state WHERE open")
        .await?;
    assert_eq!(open, 3, "ended jobs are no longer open");
    Ok(())
}

#[tokio::test]
async fn an_assignment_needs_a_pending_job_and_the_next_attempt() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = fixture.scheduled(&["j1"]).await?;
    fixture.accept(&["j2"]).await?;
    let misses = [
        assign("j1", 1, 9), // Scheduled already.
        assign("j1", 2, 9),
        assign("j2", 0, 9),
        assign("j2", 2, 9), // The row has begun no run yet.
        assign("unknown", 1, 9),
    ];
    for miss in misses {
        let written = writer.commit(&Commit::single(miss.clone())).await?;
        assert_eq!(moved(&written), 0, "{miss:?}");
    }
    let loaded = fixture.ledger.load_jobs(&[id("j1")], 0).await?;
    assert_eq!(loaded[0].dispatch_id, Some(crate::fixture::dispatch(1)));
    assert_eq!(fixture.state("j2").await?, JobState::Pending);
    let other_shard = airlock_model::Shard(3);
    let epoch = fixture.ledger.raise_epoch(other_shard, "s3").await?;
    let mut stranger = fixture.ledger.leader_writer(other_shard, epoch).await?;
    let written = stranger.commit(&Commit::single(assign("j2", 1, 9))).await?;
    assert_eq!(moved(&written), 0, "another shard's leader has no say");
    Ok(())
}

#[tokio::test]
async fn a_result_counts_once_and_only_for_its_dispatch() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = fixture.scheduled(&["j1"]).await?;
    let wrong = writer
        .commit(&Commit::single(finish("j1", 2, JobState::Failed)))
        .await?;
    assert_eq!((moved(&wrong), wrong.position), (0, None));
    assert_eq!(fixture.state("j1").await?, JobState::Scheduled);
    let mut good = finish("j1", 1, JobState::Succeeded);
    good.result_missing = true;
    let written = writer.commit(&Commit::single(good.clone())).await?;
    assert!(written.contains(MoveKind::Finish, &id("j1")) && written.position.is_some());
    // The same again, and another end: the first one stands.
    for late in [good, finish("j1", 1, JobState::Failed)] {
        assert_eq!(moved(&writer.commit(&Commit::single(late)).await?), 0);
    }
    let late = writer
        .commit(&Commit::single(requeue("j1", 1, true)))
        .await?;
    assert_eq!(moved(&late), 0);
    let late = writer
        .commit(&Commit::single(close("j1", JobState::Failed, None)))
        .await?;
    assert_eq!(moved(&late), 0);
    writer
        .commit(&Commit::single(record_times("j1", 1, Some(1), Some(2))))
        .await?;
    let view = fixture.job("j1").await?;
    assert_eq!((view.state, view.attempt), (JobState::Succeeded, 1));
    assert!(view.result_missing);
    assert_eq!(fixture.number("SELECT count(*) FROM change_log").await?, 1);
    assert_eq!(fixture.number("SELECT count(*) FROM job_attempt").await?, 0);
    Ok(())
}

#[tokio::test]
async fn refusals_go_where_the_table_says() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = fixture.scheduled(&["flying"]).await?;
    fixture.accept(&["failed", "late", "held"]).await?;
    let mut commit = Commit::from_iter([
        close("late", JobState::Timeout, None),
        close("failed", JobState::Failed, None),
        close("flying", JobState::Timeout, None),
    ]);
    commit.push(hold("held"));
    let written = writer.commit(&commit).await?;
    assert_eq!(
        written.jobs_moved_by(MoveKind::Close).count(),
        2,
        "{written:?}"
    );
    assert!(written.contains(MoveKind::Hold, &id("held")), "{written:?}");
    assert_eq!(fixture.state("flying").await?, JobState::Scheduled);
    let held = fixture.job("held").await?;
    assert_eq!(
        (held.state, held.finished_at),
        (JobState::ApprovalRequired, None)
    );
    assert_eq!(
        fixture
            .ledger
            .open_jobs(crate::fixture::SHARD, None, 9)
            .await?
            .len(),
        2
    );
    // A held job is not assigned, and is denied by nobody but a human; its deadline
    // still counts.
    let miss = writer.commit(&Commit::single(assign("held", 1, 9))).await?;
    assert_eq!(moved(&miss), 0);
    let expired = close("held", JobState::Timeout, None);
    assert_eq!(moved(&writer.commit(&Commit::single(expired)).await?), 1);
    let held = fixture.job("held").await?;
    assert_eq!(held.state, JobState::Timeout);
    assert_eq!(
        held.decision,
        Some(Decision::RequireApproval),
        "the decision stays"
    );
    Ok(())
}

#[tokio::test]
async fn marks_only_lead_forward() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = fixture.scheduled(&["j1", "j2"]).await?;
    writer
        .commit(&Commit::single(record_times("j1", 7, Some(1), Some(1))))
        .await?;
    assert_eq!(
        fixture.state("j1").await?,
        JobState::Scheduled,
        "not that dispatch"
    );
    writer
        .commit(&Commit::single(record_times("j1", 1, Some(11), None)))
        .await?;
    assert_eq!(fixture.state("j1").await?, JobState::Dispatched);
    writer
        .commit(&Commit::single(record_times("j1", 1, None, Some(12))))
        .await?;
    assert_eq!(fixture.state("j1").await?, JobState::Running);
    writer
        .commit(&Commit::single(record_times("j1", 1, Some(50), None)))
        .await?;
    let loaded = &fixture.ledger.load_jobs(&[id("j1")], 0).await?[0];
    assert_eq!(loaded.state, JobState::Running);
    assert_eq!(
        (loaded.dispatched_at, loaded.running_at),
        (Some(t(11)), Some(t(12)))
    );
    // The worker's word may be heard before the bus's acknowledgement.
    writer
        .commit(&Commit::single(record_times("j2", 2, None, Some(12))))
        .await?;
    let loaded = &fixture.ledger.load_jobs(&[id("j2")], 0).await?[0];
    assert_eq!(
        (loaded.dispatched_at, loaded.running_at),
        (Some(t(12)), Some(t(12)))
    );
    Ok(())
}

#[tokio::test]
async fn words_with_nul_are_stored_without_it() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    fixture.accept(&["j1", "j2"]).await?;
    let mut writer = fixture.lead().await?;
    let mut first = assign("j1", 1, 1);
    first.verdict = allowed(Verdict {
        reason: "a\0b".to_owned(),
        ..verdict(Decision::Allow)
    });
    let mut second = close("j2", JobState::Denied, None);
    let mut why = verdict(Decision::Deny);
    why.rule_id = "r\0".to_owned();
    second.verdict = Some(why);
    second.reason = "c\0d".to_owned();
    let commit = Commit::from_iter([Move::from(first), second.into()]);
    assert_eq!(moved(&writer.commit(&commit).await?), 2);
    let mut end = finish("j1", 1, JobState::Failed);
    end.reason = "e\0f".to_owned();
    assert_eq!(moved(&writer.commit(&Commit::single(end)).await?), 1);
    assert_eq!(
        fixture.job("j1").await?.reason.as_deref(),
        Some("e\u{fffd}f")
    );
    assert_eq!(
        fixture.job("j2").await?.reason.as_deref(),
        Some("c\u{fffd}d")
    );
    Ok(())
}

#[tokio::test]
async fn a_repeat_of_the_taken_result_is_no_stray() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = fixture.scheduled(&["j1", "j2"]).await?;
    writer
        .commit(&Commit::from_iter([
            finish("j1", 1, JobState::Succeeded),
            finish("j2", 2, JobState::Timeout),
        ]))
        .await?;
    let stray = |job: &str, n: u128, worker: &str| UnmatchedResult {
        job_id: job.to_owned(),
        dispatch_id: crate::fixture::dispatch(n).to_string(),
        worker_id: worker.to_owned(),
        status: "SUCCEEDED".to_owned(),
        why: "late".to_owned(),
    };
    let commit = Commit::from_iter([
        stray("j1", 1, "w1"),
        stray("j1", 1, "w2"),
        stray("j2", 2, "w1"),
    ]);
    writer.commit(&commit).await?;
    let rows = fixture
        .postgres
        .query("SELECT job_id || ' ' || worker_id FROM job_stray_result ORDER BY id")
        .await?;
    let kept: Vec<&str> = rows.iter().filter_map(|r| r[0].as_deref()).collect();
    assert_eq!(kept, ["j1 w2", "j2 w1"]);
    Ok(())
}

#[tokio::test]
async fn data_the_database_refuses_is_found_one_by_one() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = fixture.scheduled(&["a", "bad", "c"]).await?;
    fixture
        .postgres
        .query("ALTER TABLE job_state ADD CONSTRAINT no_bad CHECK (job_id <> 'bad' OR state <> 10)")
        .await?;
    let commit = Commit::from_iter([
        finish("a", 1, JobState::Succeeded),
        finish("bad", 2, JobState::Succeeded),
        finish("c", 3, JobState::Succeeded),
    ]);
    let error = writer.commit(&commit).await.expect_err("the constraint");
    assert!(error.is_data_error(), "{error}");
    assert_eq!(error.failure(), airlock_ledger::Failure::Fatal);
    assert_eq!(
        fixture.state("a").await?,
        JobState::Scheduled,
        "all or nothing"
    );
    let mut refused = Vec::new();
    for single in commit.into_single_moves() {
        match writer.commit(&single).await {
            Ok(written) => assert_eq!(moved(&written), 1),
            Err(e) if e.is_data_error() => refused.extend(single.job_ids().cloned()),
            Err(e) => return Err(e.into()),
        }
    }
    assert_eq!(refused, [id("bad")]);
    assert_eq!(fixture.state("c").await?, JobState::Succeeded);
    Ok(())
}

#[tokio::test]
async fn a_worker_s_bytes_cost_a_field_and_a_refused_row_ends_with_one_letter() -> anyhow::Result<()>
{
    let fixture = Fixture::start().await?;
    let mut writer = fixture.scheduled(&["nul", "bad"]).await?;
    fixture.postgres
        .query("ALTER TABLE job_state ADD CONSTRAINT no_bad CHECK (job_id <> 'bad' OR reason_code <> 'bad')")
        .await?;
    let failed = |name: &str, n: u128, code: &str| Finish {
        reason_code: code.to_owned(),
        dead_letter: Some(letter(name, code)),
        saga: None,
        ..finish(name, n, JobState::Failed)
    };
    let commit = Commit::from_iter([failed("nul", 1, "n\0ul"), failed("bad", 2, "bad")]);
    let error = writer.commit(&commit).await.expect_err("the constraint");
    assert!(error.is_data_error(), "{error}");
    for single in commit.into_single_moves() {
        if let Err(error) = writer.commit(&single).await {
            assert!(error.is_data_error(), "{error}");
            assert!(single.job_ids().eq([&id("bad")]));
            let why = GiveUp {
                code: "ledger_refused",
                reason: "not taken",
                at: t(31),
            };
            let end = single.give_up(&why).expect("an end");
            assert!(end.give_up(&why).is_none());
            writer.commit(&end).await?;
        }
    }
    let ends = fixture
        .postgres
        .query("SELECT reason_code FROM job_state ORDER BY job_id");
    let ends: Vec<_> = ends.await?.into_iter().flatten().flatten().collect();
    assert_eq!(ends, ["ledger_refused", "n\u{fffd}ul"]);
    let letters = fixture
        .postgres
        .query("SELECT reason_code FROM dead_letter ORDER BY job_id");
    let letters: Vec<_> = letters.await?.into_iter().flatten().flatten().collect();
    assert_eq!(letters, ["ledger_refused", "n\u{fffd}ul"], "one each");
    let leader = fixture.current().await?;
    leader
        .insert_dead_letter_once(letter("bad", "ledger_refused"))
        .await?;
    assert_eq!(fixture.number("SELECT count(*) FROM dead_letter").await?, 2);
    Ok(())
}

/// A row that somebody else holds is left out and named; the others of the transaction are
/// written, without waiting for it.
#[tokio::test]
async fn a_locked_row_is_left_out_and_the_others_are_written() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = fixture.scheduled(&["free", "held", "again"]).await?;
    let mut session = fixture.session().await?;
    sqlx::raw_sql("BEGIN; SELECT 1 FROM job_state WHERE job_id = 'held' FOR UPDATE")
        .execute(&mut session)
        .await?;
    let failed = |name: &str, n: u128| Finish {
        dead_letter: Some(letter(name, "x")),
        saga: None,
        ..finish(name, n, JobState::Failed)
    };
    let mut commit = Commit::from_iter([failed("free", 1), failed("held", 2)]);
    commit.push(requeue("again", 3, true));
    let error = writer.commit(&commit).await.expect_err("a locked row");
    assert!(error.is_lock_timeout(), "{error}");
    let (written, locked) = writer.commit_unlocked(&commit).await?;
    assert_eq!(locked, [id("held")].into());
    assert!(written.jobs_moved_by(MoveKind::Finish).eq([&id("free")]));
    assert!(written.jobs_moved_by(MoveKind::Requeue).eq([&id("again")]));
    assert_eq!(fixture.state("free").await?, JobState::Failed);
    assert_eq!(fixture.state("held").await?, JobState::Scheduled);
    assert_eq!(fixture.number("SELECT count(*) FROM dead_letter").await?, 1);
    assert_eq!(writer.locked_jobs(&[id("free"), id("held")]).await?, locked);
    sqlx::raw_sql("ROLLBACK").execute(&mut session).await?;
    assert!(
        writer
            .locked_jobs(&[id("held"), id("nobody")])
            .await?
            .is_empty()
    );
    let (written, locked) = writer.commit_unlocked(&commit).await?;
    assert!(written.jobs_moved_by(MoveKind::Finish).eq([&id("held")]));
    assert!(locked.is_empty());
    assert_eq!(fixture.number("SELECT count(*) FROM dead_letter").await?, 2);
    Ok(())
}

/// What trying again cannot cure is told apart from what it can.
#[tokio::test]
async fn a_missing_table_or_right_is_fatal() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = fixture.scheduled(&["j"]).await?;
    fixture
        .postgres
        .query("ALTER TABLE job_attempt RENAME TO elsewhere")
        .await?;
    let commit = Commit::single(requeue("j", 1, true));
    let error = writer.commit(&commit).await.expect_err("no such table");
    assert_eq!(error.failure(), Failure::Fatal);
    assert!(
        !error.is_data_error() && !error.is_lock_timeout(),
        "{error}"
    );
    Ok(())
}
