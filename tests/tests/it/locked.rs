//! Rows that somebody else holds, leaders that cannot write, and leaders that wake too late
//! while jobs of every kind are open. On the real binaries.

use std::time::{Duration, Instant};

use airlock_client::SubmitRequest;
use airlock_model::JobState;
use airlock_testkit::{Seen, Stack, eventually, http_get};
use anyhow::{Result, ensure};
use serde_json::json;

use crate::support::{ask_scheduler, cell, client, end_the_lease, leader, until};

const WAIT: Duration = Duration::from_secs(60);
/// Longer than every limit on waiting for a lock or idling in a transaction.
const HELD: Duration = Duration::from_secs(7);

/// Holds what `lock` locks in an open transaction while `work` is done.
pub async fn holding(
    stack: &Stack,
    lock: &str,
    work: impl Future<Output = Result<()>>,
) -> Result<()> {
    const OF_HOLDER: &str = "FROM pg_stat_activity
        WHERE query LIKE '%pg_sleep(600)%' AND pid <> pg_backend_pid() AND state = 'active'";
    let sql = format!("{lock}; SELECT pg_sleep(600)");
    let hold = async {
        // It ends when it is told to.
        let _ = stack.postgres().query(&sql).await;
        anyhow::Ok(())
    };
    let work = async {
        until(stack, &format!("SELECT count(*)::text {OF_HOLDER}"), "1").await?;
        let done = work.await;
        let end = format!("SELECT pg_cancel_backend(pid)::text {OF_HOLDER}");
        ensure!(cell(stack, &end).await? == "true", "nothing was held");
        done
    };
    tokio::try_join!(hold, work)?;
    Ok(())
}

#[tokio::test]
async fn a_locked_row_delays_that_job_alone() -> Result<()> {
    let stack = Stack::builder().start().await?;
    let client = client(&stack)?;
    let sleep = SubmitRequest::new("job.sleep").payload(&json!({"ms": 3000}))?;
    let running = client.submit(&sleep).await?.job_id;
    let state = format!("SELECT state::text FROM job_state WHERE job_id = '{running}'");
    until(&stack, &state, "4").await?;
    let mut later = SubmitRequest::new("job.echo");
    later.delay_ms = Some(1_500);
    let due = client.submit(&later).await?.job_id;
    let lock = format!("SELECT 1 FROM job_state WHERE job_id IN ('{running}', '{due}') FOR UPDATE");
    let others = async || -> Result<()> {
        for _ in 0..3 {
            let request = SubmitRequest::new("job.echo");
            let job = client.submit_wait(&request, WAIT).await?;
            ensure!(job.state == JobState::Succeeded, "{job:?}");
        }
        Ok(())
    };
    holding(&stack, &lock, async {
        let began = Instant::now();
        // The run ends and the other job comes due meanwhile.
        while began.elapsed() < HELD {
            others().await?;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let health = ask_scheduler(&stack, 0, "/health/ready").await?;
        ensure!(health.contains("\"ready\":true"), "{health}");
        ensure!(health.contains("last_good_round_age_ms"), "{health}");
        let ids = format!("'{running}', '{due}'");
        let open = format!("SELECT count(*)::text FROM job_state WHERE open AND job_id IN ({ids})");
        ensure!(
            cell(&stack, &open).await? == "2",
            "somebody moved a locked row"
        );
        Ok(())
    })
    .await?;
    for id in [&running, &due] {
        let job = client.wait(id, WAIT).await?;
        ensure!(job.state == JobState::Succeeded, "{job:?}");
        ensure!(job.attempts == 1, "{job:?}");
    }
    Ok(())
}

/// The database refuses one row and somebody holds another, in one round: the refused job
/// ends, the locked one waits, and nobody else does.
#[tokio::test]
async fn a_refused_row_beside_a_locked_one_holds_up_nobody() -> Result<()> {
    let stack = Stack::builder().start().await?;
    let client = client(&stack)?;
    let gate = stack.dir().path().join("gate");
    let sleep = SubmitRequest::new("job.sleep").payload(&json!({"until_file": &gate}))?;
    let mut ids = Vec::new();
    for _ in 0..3 {
        let id = client.submit(&sleep).await?.job_id;
        let state = format!("SELECT state::text FROM job_state WHERE job_id = '{id}'");
        until(&stack, &state, "4").await?;
        ids.push(id);
    }
    let [locked, refused, plain] = ids.as_slice() else {
        anyhow::bail!("three jobs")
    };
    let no_success = format!(
        "ALTER TABLE job_state ADD CONSTRAINT no_success
         CHECK (job_id <> '{refused}' OR state <> 10) NOT VALID"
    );
    stack.postgres().query(&no_success).await?;
    let lock = format!("SELECT 1 FROM job_state WHERE job_id = '{locked}' FOR UPDATE");
    holding(&stack, &lock, async {
        // All three results reach the leader together.
        stack.scheduler(0).stop()?;
        std::fs::write(&gate, "")?;
        eventually(WAIT, "the end of the runs", || async {
            let runs = stack.journal()?;
            let ended = runs.iter().all(|run| run.ended.is_some());
            Ok(Seen::when(ended, format!("{runs:?}")))
        })
        .await?;
        stack.scheduler(0).cont()?;
        let job = client.wait(plain, WAIT).await?;
        ensure!(job.state == JobState::Succeeded, "{job:?}");
        let job = client.wait(refused, WAIT).await?;
        ensure!(job.state == JobState::Failed, "{job:?}");
        ensure!(
            job.error_code.as_deref() == Some("ledger_refused"),
            "{job:?}"
        );
        let echo = SubmitRequest::new("job.echo");
        let job = client.submit_wait(&echo, WAIT).await?;
        ensure!(job.state == JobState::Succeeded, "{job:?}");
        let state = format!("SELECT state::text FROM job_state WHERE job_id = '{locked}'");
        ensure!(cell(&stack, &state).await? == "4", "a locked row was moved");
        Ok(())
    })
    .await?;
    let job = client.wait(locked, WAIT).await?;
    ensure!(job.state == JobState::Succeeded, "{job:?}");
    ensure!(job.attempts == 1, "{job:?}");
    let letters = format!("SELECT count(*)::text FROM dead_letter WHERE job_id = '{refused}'");
    ensure!(cell(&stack, &letters).await? == "1", "one dead letter");
    Ok(())
}

#[tokio::test]
async fn a_leader_without_a_good_round_is_not_ready_and_says_since_when() -> Result<()> {
    let stack = Stack::builder().start().await?;
    let client = client(&stack)?;
    let ready = async |wanted: bool| {
        eventually(WAIT, "the leader's readiness", || async {
            let health = ask_scheduler(&stack, 0, "/health/ready").await?;
            let told = match wanted {
                true => health.contains("\"ready\":true"),
                false => health.contains("the last good round is"),
            };
            Ok(Seen::when(told, health))
        })
        .await
    };
    // The gateway goes on, and says what it knows of the leader.
    let gateway_shows = async |status: &str, reason: &str| {
        eventually(WAIT, "the gateway's word on the leader", || async {
            let addr = stack.api_url().replace("http://", "").parse()?;
            let health = http_get(addr, "/health/ready").await?;
            let json: serde_json::Value = serde_json::from_str(&health.body)?;
            let leader = &json["components"]["leader"];
            let so = leader["status"] == status && leader.to_string().contains(reason);
            Ok(Seen::when(so && health.status == 200, leader))
        })
        .await
    };
    ready(true).await?;
    gateway_shows("ok", "").await?;
    // Whoever ends a job writes here.
    let lock = "LOCK TABLE change_log IN SHARE MODE";
    let job = std::cell::RefCell::new(String::new());
    holding(&stack, lock, async {
        let id = client.submit(&SubmitRequest::new("job.echo")).await?.job_id;
        *job.borrow_mut() = id;
        ready(false).await?;
        gateway_shows("degraded", "last good round").await
    })
    .await?;
    ready(true).await?;
    gateway_shows("ok", "").await?;
    let job = job.into_inner();
    let job = client.wait(&job, WAIT).await?;
    ensure!(
        job.state == JobState::Succeeded && job.attempts == 1,
        "{job:?}"
    );
    Ok(())
}

#[tokio::test]
async fn a_leader_whose_writes_can_never_succeed_steps_down() -> Result<()> {
    let stack = Stack::builder().start().await?;
    let client = client(&stack)?;
    crate::support::runs(&stack).await?;
    let rename = "ALTER TABLE change_log RENAME TO elsewhere";
    stack.postgres().query(rename).await?;
    client.submit(&SubmitRequest::new("job.echo")).await?;
    let ended = stack.scheduler(0).wait(WAIT).await?;
    ensure!(!ended.success(), "{ended}");
    Ok(())
}

const POLICY: &str = "version: 1
default_decision: allow
rules:
  - id: payments
    match: {risk_tags: [money]}
    decision: require_approval
    reason: money moves
";

/// The old leader wakes while its successor stands still too, so that whatever changes is
/// its doing: a job is due, one runs and ends, one is held for too long.
#[tokio::test]
async fn a_replaced_leader_wakes_to_open_jobs_and_changes_none() -> Result<()> {
    let stack = Stack::builder()
        .schedulers(2)
        .policy(POLICY)
        .start()
        .await?;
    let client = client(&stack)?;
    let first = leader(&stack, 2).await?;
    let (old, new) = (stack.scheduler(first), stack.scheduler(1 - first));
    let mut asks = SubmitRequest::new("job.echo");
    asks.risk_tags = vec!["money".to_owned()];
    let held = client.submit(&asks).await?.job_id;
    let gate = stack.dir().path().join("gate");
    let sleep = SubmitRequest::new("job.sleep").payload(&json!({"until_file": &gate}))?;
    let running = client.submit(&sleep).await?.job_id;
    let state = |id: &str| format!("SELECT state::text FROM job_state WHERE job_id = '{id}'");
    until(&stack, &state(&held), "5").await?;
    until(&stack, &state(&running), "4").await?;
    old.stop()?;
    end_the_lease(&stack).await?;
    until(&stack, "SELECT epoch::text FROM leadership", "2").await?;
    new.stop()?;
    std::fs::write(&gate, "")?;
    eventually(WAIT, "the end of the run", || async {
        let runs = stack.journal()?;
        let ended = runs.iter().all(|run| run.ended.is_some());
        Ok(Seen::when(ended, format!("{runs:?}")))
    })
    .await?;
    let mut later = SubmitRequest::new("job.echo");
    later.delay_ms = Some(300);
    let due = client.submit(&later).await?.job_id;
    let over = "SELECT count(*)::text FROM job_due WHERE due_at < clock_timestamp()";
    until(&stack, over, "1").await?;
    let expire = "UPDATE approval SET expires_at = clock_timestamp() - interval '1 s'";
    stack.postgres().query(expire).await?;
    let books = "SELECT concat((SELECT json_agg(t ORDER BY job_id) FROM job_state t),
        (SELECT json_agg(t) FROM job_due t), (SELECT json_agg(t) FROM approval t),
        (SELECT json_agg(t) FROM change_log t), (SELECT json_agg(t) FROM log_reader t),
        (SELECT json_agg(t) FROM dead_letter t))";
    let before = cell(&stack, books).await?;
    old.cont()?;
    let ended = old.wait(WAIT).await?;
    ensure!(!ended.success(), "{ended}");
    let after = cell(&stack, books).await?;
    ensure!(after == before, "{before}\n{after}");
    new.cont()?;
    for id in [&running, &due] {
        let job = client.wait(id, WAIT).await?;
        ensure!(job.state == JobState::Succeeded, "{job:?}");
    }
    let job = client.wait(&held, WAIT).await?;
    ensure!(job.state == JobState::Denied, "{job:?}");
    Ok(())
}
