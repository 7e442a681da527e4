//! The leader's moves, and the compare-and-set that refuses what came too late.

use airlock_ledger::{Commit, Failure, Finish, NewDeadLetter, UnmatchedResult};
use airlock_model::{Decision, JobState};
use bytes::Bytes;

use crate::bed::{Bed, One, assign, finish, id, mark, moved, refuse, requeue, t, verdict};

#[tokio::test]
async fn one_transaction_writes_every_kind() -> anyhow::Result<()> {
    let bed = Bed::start().await?;
    let mut writer = bed.scheduled(&["done", "again", "marked"]).await?;
    bed.accept(&["new", "denied"]).await?;
    let mut result = finish("done", 1, JobState::Succeeded);
    result.result = Some(Bytes::from_static(b"out\0put"));
    let commit = Commit {
        after: Vec::new(),
        assign: vec![assign("new", 1, 10)],
        refuse: vec![refuse("denied", JobState::Denied, Some(Decision::Deny))],
        finish: vec![result],
        requeue: vec![requeue("again", 2, true)],
        mark: vec![mark("marked", 3, Some(11), None)],
        stray: vec![UnmatchedResult {
            job_id: "who\0".to_owned(),
            dispatch_id: "?".to_owned(),
            worker_id: "w9".to_owned(),
            status: "SUCCEEDED".to_owned(),
            why: "not asked for".to_owned(),
        }],
        letters: vec![NewDeadLetter {
            job_id: Some("denied".to_owned()),
            tenant: Some("acme".to_owned()),
            reason_code: "safety_denied".to_owned(),
            ..NewDeadLetter::default()
        }],
        given_up: false,
    };
    assert_eq!(commit.len(), 7);
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
        assert_eq!(bed.state(name).await?, state, "{name}");
    }
    let done = bed.job("done").await?;
    assert_eq!(done.result.as_deref(), Some(&b"out\0put"[..]));
    assert_eq!((done.finished_at, done.reason), (Some(t(30)), None));
    let denied = bed.job("denied").await?;
    assert_eq!(denied.decision, Some(Decision::Deny));
    assert_eq!(denied.rule_id.as_deref(), Some("rule-1"));
    assert_eq!(denied.reason_code.as_deref(), Some("code"));
    assert_eq!(
        bed.number("SELECT count(*) FROM job_stray_result").await?,
        1
    );
    assert_eq!(
        bed.ledger
            .letters(&airlock_ledger::DeadLetterFilter::default(), None, 9)
            .await?
            .len(),
        1
    );
    let open = bed
        .number("SELECT count(*) FROM job_state WHERE open")
        .await?;
    assert_eq!(open, 3, "ended jobs are no longer open");
    Ok(())
}

#[tokio::test]
async fn an_assignment_needs_a_pending_job_and_the_next_attempt() -> anyhow::Result<()> {
    let bed = Bed::start().await?;
    let mut writer = bed.scheduled(&["j1"]).await?;
    bed.accept(&["j2"]).await?;
    let misses = [
        assign("j1", 1, 9), // Scheduled already.
        assign("j1", 2, 9),
        assign("j2", 0, 9),
        assign("j2", 2, 9), // The row has begun no run yet.
        assign("unknown", 1, 9),
    ];
    for miss in misses {
        let written = writer.commit(&One::assign(miss.clone())).await?;
        assert_eq!(moved(&written), 0, "{miss:?}");
    }
    let loaded = bed.ledger.load(&[id("j1")], 0).await?;
    assert_eq!(loaded[0].dispatch_id, Some(crate::bed::dispatch(1)));
    assert_eq!(bed.state("j2").await?, JobState::Pending);
    let other_shard = airlock_model::Shard(3);
    let mut lease = bed.ledger.lease_connection("s3").await?;
    let epoch = lease
        .raise_epoch(other_shard, "s3", crate::bed::BOUND)
        .await?;
    let mut stranger = bed.ledger.leader_writer(other_shard, epoch).await?;
    let written = stranger.commit(&One::assign(assign("j2", 1, 9))).await?;
    assert_eq!(moved(&written), 0, "another shard's leader has no say");
    Ok(())
}

#[tokio::test]
async fn a_result_counts_once_and_only_for_its_dispatch() -> anyhow::Result<()> {
    let bed = Bed::start().await?;
    let mut writer = bed.scheduled(&["j1"]).await?;
    let wrong = writer
        .commit(&One::finish(finish("j1", 2, JobState::Failed)))
        .await?;
    assert_eq!((moved(&wrong), wrong.position), (0, None));
    assert_eq!(bed.state("j1").await?, JobState::Scheduled);
    let mut good = finish("j1", 1, JobState::Succeeded);
    good.result_ptr = Some("res:j1".to_owned());
    good.result_missing = true;
    let written = writer.commit(&One::finish(good.clone())).await?;
    assert!(written.finished.contains(&id("j1")) && written.position.is_some());
    // The same again, and another end: the first one stands.
    for late in [good, finish("j1", 1, JobState::Failed)] {
        assert_eq!(moved(&writer.commit(&One::finish(late)).await?), 0);
    }
    let late = writer.commit(&One::requeue(requeue("j1", 1, true))).await?;
    assert_eq!(moved(&late), 0);
    let late = writer
        .commit(&One::refuse(refuse("j1", JobState::Failed, None)))
        .await?;
    assert_eq!(moved(&late), 0);
    writer
        .commit(&One::mark(mark("j1", 1, Some(1), Some(2))))
        .await?;
    let view = bed.job("j1").await?;
    assert_eq!((view.state, view.attempt), (JobState::Succeeded, 1));
    assert_eq!(view.result_ptr.as_deref(), Some("res:j1"));
    assert!(view.result_missing);
    assert_eq!(bed.number("SELECT count(*) FROM change_log").await?, 1);
    assert_eq!(bed.number("SELECT count(*) FROM job_attempt").await?, 0);
    Ok(())
}

#[tokio::test]
async fn refusals_go_where_the_table_says() -> anyhow::Result<()> {
    let bed = Bed::start().await?;
    let mut writer = bed.scheduled(&["flying"]).await?;
    bed.accept(&["failed", "late", "held"]).await?;
    let commit = Commit {
        refuse: vec![
            refuse("late", JobState::Timeout, None),
            refuse("failed", JobState::Failed, None),
            refuse(
                "held",
                JobState::ApprovalRequired,
                Some(Decision::RequireApproval),
            ),
            refuse("flying", JobState::Timeout, None),
        ],
        ..Commit::default()
    };
    let written = writer.commit(&commit).await?;
    assert_eq!(written.refused.len(), 3, "{written:?}");
    assert_eq!(bed.state("flying").await?, JobState::Scheduled);
    let held = bed.job("held").await?;
    assert_eq!(
        (held.state, held.finished_at),
        (JobState::ApprovalRequired, None)
    );
    assert_eq!(
        bed.ledger
            .open_jobs(crate::bed::SHARD, None, 9)
            .await?
            .len(),
        2
    );
    // A held job is not assigned, and is denied by nobody but a human; its deadline
    // still counts.
    let miss = writer.commit(&One::assign(assign("held", 1, 9))).await?;
    assert_eq!(moved(&miss), 0);
    let expired = refuse("held", JobState::Timeout, None);
    assert_eq!(moved(&writer.commit(&One::refuse(expired)).await?), 1);
    let held = bed.job("held").await?;
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
    let bed = Bed::start().await?;
    let mut writer = bed.scheduled(&["j1", "j2"]).await?;
    writer
        .commit(&One::mark(mark("j1", 7, Some(1), Some(1))))
        .await?;
    assert_eq!(
        bed.state("j1").await?,
        JobState::Scheduled,
        "not that dispatch"
    );
    writer
        .commit(&One::mark(mark("j1", 1, Some(11), None)))
        .await?;
    assert_eq!(bed.state("j1").await?, JobState::Dispatched);
    writer
        .commit(&One::mark(mark("j1", 1, None, Some(12))))
        .await?;
    assert_eq!(bed.state("j1").await?, JobState::Running);
    writer
        .commit(&One::mark(mark("j1", 1, Some(50), None)))
        .await?;
    let loaded = &bed.ledger.load(&[id("j1")], 0).await?[0];
    assert_eq!(loaded.state, JobState::Running);
    assert_eq!(
        (loaded.dispatched_at, loaded.running_at),
        (Some(t(11)), Some(t(12)))
    );
    // The worker's word may be heard before the bus's acknowledgement.
    writer
        .commit(&One::mark(mark("j2", 2, None, Some(12))))
        .await?;
    let loaded = &bed.ledger.load(&[id("j2")], 0).await?[0];
    assert_eq!(
        (loaded.dispatched_at, loaded.running_at),
        (Some(t(12)), Some(t(12)))
    );
    Ok(())
}

#[tokio::test]
async fn words_with_nul_are_stored_without_it() -> anyhow::Result<()> {
    let bed = Bed::start().await?;
    bed.accept(&["j1", "j2"]).await?;
    let mut writer = bed.lead().await?;
    let mut first = assign("j1", 1, 1);
    first.verdict.reason = "a\0b".to_owned();
    let mut second = refuse("j2", JobState::Denied, None);
    let mut why = verdict(Decision::Deny);
    why.rule_id = "r\0".to_owned();
    second.verdict = Some(why);
    second.reason = "c\0d".to_owned();
    let commit = Commit {
        assign: vec![first],
        refuse: vec![second],
        ..Commit::default()
    };
    assert_eq!(moved(&writer.commit(&commit).await?), 2);
    let mut end = finish("j1", 1, JobState::Failed);
    end.reason = "e\0f".to_owned();
    assert_eq!(moved(&writer.commit(&One::finish(end)).await?), 1);
    assert_eq!(bed.job("j1").await?.reason.as_deref(), Some("e\u{fffd}f"));
    assert_eq!(bed.job("j2").await?.reason.as_deref(), Some("c\u{fffd}d"));
    Ok(())
}

#[tokio::test]
async fn a_repeat_of_the_taken_result_is_no_stray() -> anyhow::Result<()> {
    let bed = Bed::start().await?;
    let mut writer = bed.scheduled(&["j1", "j2"]).await?;
    writer
        .commit(&Commit {
            finish: vec![
                finish("j1", 1, JobState::Succeeded),
                finish("j2", 2, JobState::Timeout),
            ],
            ..Commit::default()
        })
        .await?;
    let stray = |job: &str, n: u128, worker: &str| UnmatchedResult {
        job_id: job.to_owned(),
        dispatch_id: crate::bed::dispatch(n).to_string(),
        worker_id: worker.to_owned(),
        status: "SUCCEEDED".to_owned(),
        why: "late".to_owned(),
    };
    let commit = Commit {
        stray: vec![
            stray("j1", 1, "w1"),
            stray("j1", 1, "w2"),
            stray("j2", 2, "w1"),
        ],
        ..Commit::default()
    };
    writer.commit(&commit).await?;
    let rows = bed
        .postgres
        .query("SELECT job_id || ' ' || worker_id FROM job_stray_result ORDER BY id")
        .await?;
    let kept: Vec<&str> = rows.iter().filter_map(|r| r[0].as_deref()).collect();
    assert_eq!(kept, ["j1 w2", "j2 w1"]);
    Ok(())
}

#[tokio::test]
async fn data_the_database_refuses_is_found_one_by_one() -> anyhow::Result<()> {
    let bed = Bed::start().await?;
    let mut writer = bed.scheduled(&["a", "bad", "c"]).await?;
    bed.postgres
        .query("ALTER TABLE job_state ADD CONSTRAINT no_bad CHECK (job_id <> 'bad' OR state <> 10)")
        .await?;
    let commit = Commit {
        finish: vec![
            finish("a", 1, JobState::Succeeded),
            finish("bad", 2, JobState::Succeeded),
            finish("c", 3, JobState::Succeeded),
        ],
        ..Commit::default()
    };
    let error = writer.commit(&commit).await.expect_err("the constraint");
    assert!(error.is_data_error(), "{error}");
    assert_eq!(error.failure(), airlock_ledger::Failure::Fatal);
    assert_eq!(bed.state("a").await?, JobState::Scheduled, "all or nothing");
    let mut refused = Vec::new();
    for single in commit.singles() {
        match writer.commit(&single).await {
            Ok(written) => assert_eq!(moved(&written), 1),
            Err(e) if e.is_data_error() => refused.extend(single.job_ids()),
            Err(e) => return Err(e.into()),
        }
    }
    assert_eq!(refused, [id("bad")]);
    assert_eq!(bed.state("c").await?, JobState::Succeeded);
    Ok(())
}

#[tokio::test]
async fn a_worker_s_bytes_cost_a_field_and_a_refused_row_ends_with_one_letter() -> anyhow::Result<()>
{
    let bed = Bed::start().await?;
    let mut writer = bed.scheduled(&["nul", "bad"]).await?;
    bed.postgres
        .query("ALTER TABLE job_state ADD CONSTRAINT no_bad CHECK (job_id <> 'bad' OR reason_code <> 'bad')")
        .await?;
    let letter = |name: &str, code: &str| NewDeadLetter {
        job_id: Some(id(name).to_string()),
        reason_code: code.to_owned(),
        ..NewDeadLetter::default()
    };
    let failed = |name: &str, n: u128, code: &str| Finish {
        reason_code: code.to_owned(),
        ..finish(name, n, JobState::Failed)
    };
    let commit = Commit {
        finish: vec![failed("nul", 1, "n\0ul"), failed("bad", 2, "bad")],
        letters: vec![letter("nul", "n\0ul"), letter("bad", "bad")],
        ..Commit::default()
    };
    let error = writer.commit(&commit).await.expect_err("the constraint");
    assert!(error.is_data_error(), "{error}");
    for single in commit.singles() {
        if let Err(error) = writer.commit(&single).await {
            assert!(error.is_data_error(), "{error}");
            assert_eq!(single.job_ids(), [id("bad")]);
            let end = single.give_up("ledger_refused", "not taken", t(31));
            let end = end.expect("an end");
            assert!(end.give_up("ledger_refused", "not taken", t(31)).is_none());
            writer.commit(&end).await?;
        }
    }
    let ends = bed
        .postgres
        .query("SELECT reason_code FROM job_state ORDER BY job_id");
    let ends: Vec<_> = ends.await?.into_iter().flatten().flatten().collect();
    assert_eq!(ends, ["ledger_refused", "n\u{fffd}ul"]);
    let letters = bed
        .postgres
        .query("SELECT reason_code FROM dead_letter ORDER BY job_id");
    let letters: Vec<_> = letters.await?.into_iter().flatten().flatten().collect();
    assert_eq!(letters, ["ledger_refused", "n\u{fffd}ul"], "one each");
    let leader = bed.current().await?;
    leader
        .put_letter_once(letter("bad", "ledger_refused"))
        .await?;
    assert_eq!(bed.number("SELECT count(*) FROM dead_letter").await?, 2);
    Ok(())
}

/// A row that somebody else holds is left out and named; the others of the transaction are
/// written, without waiting for it.
#[tokio::test]
async fn a_locked_row_is_left_out_and_the_others_are_written() -> anyhow::Result<()> {
    let bed = Bed::start().await?;
    let mut writer = bed.scheduled(&["free", "held", "again"]).await?;
    let mut session = bed.session().await?;
    sqlx::raw_sql("BEGIN; SELECT 1 FROM job_state WHERE job_id = 'held' FOR UPDATE")
        .execute(&mut session)
        .await?;
    let letter = |name: &str| NewDeadLetter {
        job_id: Some(name.to_owned()),
        reason_code: "x".to_owned(),
        ..NewDeadLetter::default()
    };
    let commit = Commit {
        finish: vec![
            finish("free", 1, JobState::Failed),
            finish("held", 2, JobState::Failed),
        ],
        requeue: vec![requeue("again", 3, true)],
        letters: vec![letter("free"), letter("held")],
        ..Commit::default()
    };
    let error = writer.commit(&commit).await.expect_err("a locked row");
    assert!(error.is_lock_timeout(), "{error}");
    let (written, locked) = writer.commit_free(&commit).await?;
    assert_eq!(locked, [id("held")].into());
    assert_eq!(written.finished, [id("free")].into());
    assert_eq!(written.requeued, [id("again")].into());
    assert_eq!(bed.state("free").await?, JobState::Failed);
    assert_eq!(bed.state("held").await?, JobState::Scheduled);
    assert_eq!(bed.number("SELECT count(*) FROM dead_letter").await?, 1);
    assert_eq!(writer.locked(&[id("free"), id("held")]).await?, locked);
    sqlx::raw_sql("ROLLBACK").execute(&mut session).await?;
    assert!(writer.locked(&[id("held"), id("nobody")]).await?.is_empty());
    let (written, locked) = writer.commit_free(&commit).await?;
    assert_eq!(written.finished, [id("held")].into());
    assert!(locked.is_empty());
    assert_eq!(bed.number("SELECT count(*) FROM dead_letter").await?, 2);
    Ok(())
}

/// What trying again cannot cure is told apart from what it can.
#[tokio::test]
async fn a_missing_table_or_right_is_fatal() -> anyhow::Result<()> {
    let bed = Bed::start().await?;
    let mut writer = bed.scheduled(&["j"]).await?;
    bed.postgres
        .query("ALTER TABLE job_attempt RENAME TO elsewhere")
        .await?;
    let commit = One::requeue(requeue("j", 1, true));
    let error = writer.commit(&commit).await.expect_err("no such table");
    assert_eq!(error.failure(), Failure::Fatal);
    assert!(
        !error.is_data_error() && !error.is_lock_timeout(),
        "{error}"
    );
    Ok(())
}
