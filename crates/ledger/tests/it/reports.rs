//! What workers say of their runs: whose word is kept, how much of it, and for how long.

use airlock_ledger::{
    Artifact, Commit, ConstraintOutcome, ConstraintReport, KEPT_ARTIFACTS, KEPT_PARTIALS,
    NewReport, Partial, Progress, Sweep,
};
use airlock_model::{JobState, Shard, WorkerId};
use bytes::Bytes;

use crate::fixture::{Fixture, assign, dispatch, finish, id, requeue, t, tenant};

/// A word from worker `w1` on the run with this dispatch id, empty.
fn word(name: &str, n: u128) -> NewReport {
    NewReport {
        job_id: id(name),
        dispatch_id: Some(dispatch(n)),
        worker: WorkerId::new("w1").expect("a worker id"),
        progress: None,
        partials: Vec::new(),
        artifacts: Vec::new(),
        constraints: Vec::new(),
    }
}

fn progress(percent: i16, message: &str) -> Option<Progress> {
    Some(Progress {
        percent,
        step: None,
        message: Some(message.to_owned()),
        at: t(50),
    })
}

fn partial(n: i64) -> Partial {
    Partial {
        attempt: 0,
        percent: 1,
        pointer: format!("redis://p{n}"),
        size: Some(3),
        content: Some(Bytes::from(n.to_string())),
        at: t(n),
        output: None,
    }
}

fn artifact(n: i64) -> Artifact {
    Artifact {
        attempt: 0,
        name: format!("a{n}\0"),
        pointer: format!("redis://art:{n}"),
        media_type: "text/plain".to_owned(),
        size: Some(u64::MAX),
        sha256: Some(vec![1; 32]),
        at: t(n),
        output: None,
    }
}

fn refused() -> ConstraintReport {
    ConstraintReport {
        constraint: "toolchain.allowed_tools".to_owned(),
        outcome: ConstraintOutcome::Refused,
        detail: "shell".to_owned(),
    }
}

#[tokio::test]
async fn a_runs_words_are_put_together() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut leader = fixture.scheduled(&["a", "plain"]).await?;
    let mut first = word("a", 1);
    first.progress = progress(40, "resized");
    first.partials = vec![partial(1)];
    let mut second = word("a", 1);
    second.artifacts = vec![artifact(1), artifact(2)];
    second.constraints = vec![refused()];
    // Two words on one job in one call, and the second again.
    let both = [first, second.clone()];
    assert_eq!(fixture.current().await?.record_reports(&both).await?, 2);
    assert_eq!(fixture.current().await?.record_reports(&[second]).await?, 1);
    // What was said just before the end is heard just after it.
    let mut end = finish("a", 1, JobState::Succeeded);
    end.at = fixture.ledger.ping().await?;
    leader.commit(&Commit::single(end)).await?;
    // It need not say which run it means, when it is the one that has it.
    let mut late = word("a", 1);
    late.dispatch_id = None;
    late.progress = progress(100, "nul \0 and done");
    assert_eq!(fixture.current().await?.record_reports(&[late]).await?, 1);

    let view = fixture.job("a").await?;
    let report = view.report.expect("a report");
    assert_eq!(report.attempt, 1);
    let last = report.progress.expect("progress");
    assert_eq!(last.percent, 100);
    assert_eq!(last.message.as_deref(), Some("nul \u{fffd} and done"));
    assert_eq!(report.partials.len(), 1);
    assert_eq!(report.partials[0].content.as_deref(), Some(&b"1"[..]));
    assert_eq!(report.partials[0].attempt, 1);
    let names: Vec<_> = report.artifacts.iter().map(|a| a.name.as_str()).collect();
    assert_eq!(names, ["a1\u{fffd}", "a2\u{fffd}"], "each once, in order");
    assert_eq!(report.constraints, [refused()]);
    // A job whose worker said nothing has nothing, and nobody else sees any of it.
    assert_eq!(fixture.job("plain").await?.report, None);
    let other = fixture
        .ledger
        .job(Some(&tenant("globex")), &id("a"))
        .await?;
    assert!(other.is_none());
    Ok(())
}

#[tokio::test]
async fn only_the_run_a_job_is_in_is_believed() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut leader = fixture.scheduled(&["a"]).await?;
    let mut stranger = word("a", 1);
    stranger.worker = WorkerId::new("w2")?;
    stranger.progress = progress(99, "mine");
    let mut guess = word("a", 7);
    guess.progress = progress(99, "mine");
    let mut nobody = word("none", 1);
    nobody.progress = progress(99, "mine");
    let none = fixture
        .current()
        .await?
        .record_reports(&[stranger, guess, nobody])
        .await?;
    assert_eq!(none, 0);
    let mut vague = word("a", 1);
    vague.dispatch_id = None;
    vague.worker = WorkerId::new("w2")?;
    vague.progress = progress(99, "mine");
    assert_eq!(fixture.current().await?.record_reports(&[vague]).await?, 0);
    let mut elsewhere = word("a", 1);
    elsewhere.progress = progress(99, "mine");
    let epoch = fixture.ledger.raise_epoch(Shard(1), "other").await?;
    let other = fixture.ledger.as_leader(Shard(1), epoch);
    assert_eq!(other.record_reports(&[elsewhere]).await?, 0);
    assert_eq!(fixture.number("SELECT count(*) FROM job_report").await?, 0);

    let mut first = word("a", 1);
    first.progress = progress(40, "first run");
    first.constraints = vec![refused()];
    first.artifacts = vec![artifact(1)];
    fixture
        .current()
        .await?
        .record_reports(&[first.clone()])
        .await?;
    leader
        .commit(&Commit::single(requeue("a", 1, true)))
        .await?;
    assert_eq!(
        fixture.current().await?.record_reports(&[first]).await?,
        0,
        "a past run"
    );
    leader.commit(&Commit::single(assign("a", 2, 2))).await?;
    let mut second = word("a", 2);
    second.artifacts = vec![artifact(2)];
    fixture.current().await?.record_reports(&[second]).await?;
    // Of the past run only what it left behind is still there, and says so.
    let report = fixture.job("a").await?.report.expect("a report");
    assert_eq!((report.attempt, report.progress), (2, None));
    assert!(report.constraints.is_empty());
    let of: Vec<u32> = report.artifacts.iter().map(|a| a.attempt).collect();
    assert_eq!(of, [1, 2]);
    // Long after the end nothing is taken any more.
    let end = finish("a", 2, JobState::Succeeded);
    leader.commit(&Commit::single(end)).await?;
    fixture
        .postgres
        .query("UPDATE job_state SET finished_at = now() - interval '1 minute'")
        .await?;
    let mut late = word("a", 2);
    late.progress = progress(1, "late");
    assert_eq!(fixture.current().await?.record_reports(&[late]).await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_talkative_run_keeps_a_bounded_number_of_things() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    fixture.scheduled(&["a"]).await?;
    for round in 0..3 {
        let mut many = word("a", 1);
        many.partials = (0..12).map(|n| partial(round * 12 + n)).collect();
        many.artifacts = (0..100).map(|n| artifact(round * 100 + n)).collect();
        fixture.current().await?.record_reports(&[many]).await?;
    }
    let report = fixture.job("a").await?.report.expect("a report");
    assert_eq!(report.partials.len() as i64, KEPT_PARTIALS);
    assert_eq!(report.partials.last().map(|p| p.at), Some(t(35)));
    assert_eq!(report.artifacts.len() as i64, KEPT_ARTIFACTS);
    assert_eq!(report.artifacts.first().map(|a| a.at), Some(t(0)));
    Ok(())
}

#[tokio::test]
async fn retention_takes_contents_first_and_all_of_it_with_the_job() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut leader = fixture.scheduled(&["a"]).await?;
    let mut said = word("a", 1);
    said.progress = progress(1, "x");
    said.partials = vec![partial(1)];
    said.artifacts = vec![artifact(1)];
    fixture.current().await?.record_reports(&[said]).await?;
    leader
        .commit(&Commit::single(finish("a", 1, JobState::Succeeded)))
        .await?;
    fixture
        .postgres
        .query("UPDATE job_state SET finished_at = now() - interval '2 h'")
        .await?;
    let sweep = || Sweep {
        after: "",
        below: None,
        older_than_ms: 3_600_000,
        limit: 10,
    };
    fixture.current().await?.sweep_payloads(sweep()).await?;
    let report = fixture.job("a").await?.report.expect("a report");
    assert_eq!(report.partials[0].content, None);
    assert_eq!(report.partials[0].size, Some(3));
    fixture.current().await?.sweep_jobs(sweep()).await?;
    for table in ["job_report", "job_partial", "job_artifact"] {
        let sql = format!("SELECT count(*) FROM {table}");
        assert_eq!(fixture.number(&sql).await?, 0, "{table}");
    }
    Ok(())
}
