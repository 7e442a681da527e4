//! Python workers that die, and stores that are away when they speak.

use airlock_client::{Client, SubmitRequest};
use airlock_testkit::{Seen, Stack, eventually};
use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::python::{Program, runs};
use super::{WAIT, echo, result, stack};
use crate::support::client;

fn nap(ms: u64) -> Result<SubmitRequest> {
    Ok(SubmitRequest::new("job.cap.sleep").payload(&json!({ "ms": ms }))?)
}

/// Submits a job that takes long and waits until `worker` runs it.
async fn in_the_middle(client: &Client, worker: &Program, ms: u64) -> Result<String> {
    let job = client.submit(&nap(ms)?).await?.job_id;
    let log = format!("sleeping {job}");
    worker.process.wait_for_log(&log, WAIT).await?;
    Ok(job)
}

#[tokio::test]
async fn an_agent_killed_in_the_middle_comes_back() -> Result<()> {
    let stack = stack()
        // Nobody is found out by silence here.
        .env("AIRLOCK_SCHEDULER__WORKER_TTL", "10m")
        .start()
        .await?;
    let client = client(&stack)?;
    let agent = Program::agent(&stack, "py", &[("WORKER_ID", "py")]).await?;
    let job = in_the_middle(&client, &agent, 3000).await?;
    agent.process.kill9()?;
    // Its new handshake says that the old process is gone, and its job with it.
    agent.process.respawn()?;
    let job = client.wait(&job, WAIT).await?;
    ensure!(result(&job)? == json!({"slept": 3000}), "{job:?}");
    ensure!(job.attempts == 2, "{job:?}");
    ensure!(runs(&[&agent])?.get(&job.job_id) == Some(&2));
    let rows = stack.postgres().query("SELECT reason FROM job_attempt");
    let rows = rows.await?;
    let reason = rows.first().and_then(|r| r.first().cloned().flatten());
    let reason = reason.context("no attempt on record")?;
    ensure!(reason.contains("replaced by a new process"), "{reason}");
    Ok(())
}

#[tokio::test]
async fn an_agent_killed_for_good_leaves_its_job_to_another() -> Result<()> {
    let stack = stack()
        .env("AIRLOCK_SCHEDULER__WORKER_TTL", "8s")
        .start()
        .await?;
    let client = client(&stack)?;
    let first = Program::agent(&stack, "first", &[("WORKER_ID", "first")]).await?;
    let job = in_the_middle(&client, &first, 1000).await?;
    first.process.kill9()?;
    let second = Program::agent(&stack, "second", &[("WORKER_ID", "second")]).await?;
    let job = client.wait(&job, WAIT).await?;
    ensure!(result(&job)? == json!({"slept": 1000}), "{job:?}");
    ensure!(job.attempts == 2, "{job:?}");
    let runs = runs(&[&second])?;
    ensure!(runs.get(&job.job_id) == Some(&1), "{runs:?}");
    Ok(())
}

#[tokio::test]
async fn a_result_by_pointer_waits_for_redis() -> Result<()> {
    let stack = stack().proxies(true).start().await?;
    let client = client(&stack)?;
    let agent = Program::agent(&stack, "py", &[("WORKER_ID", "py")]).await?;
    let job = in_the_middle(&client, &agent, 2000).await?;
    // The worker's own way to Redis stays: it leaves its result there and says so.
    stack.scheduler(0).to_redis()?.cut();
    let log = "reading staged results failed, results retried later";
    stack.scheduler(0).wait_for_log(log, WAIT).await?;
    let state = client.get(&job).await?.state.to_string();
    ensure!(
        ["SCHEDULED", "DISPATCHED", "RUNNING"].contains(&state.as_str()),
        "its result was thrown away: {state}"
    );
    stack.scheduler(0).to_redis()?.heal().await?;
    let job = client.wait(&job, WAIT).await?;
    ensure!(result(&job)? == json!({"slept": 2000}), "{job:?}");
    ensure!(job.attempts == 1, "{job:?}");
    ensure!(runs(&[&agent])?.get(&job.job_id) == Some(&1));
    Ok(())
}

#[tokio::test]
async fn what_agents_run_survives_the_scheduler_and_nats() -> Result<()> {
    let stack = stack().start().await?;
    let client = client(&stack)?;
    let agent = Program::agent(&stack, "py", &[("WORKER_ID", "py")]).await?;
    // It introduces itself once in its life: the next leader must know it all the same.
    let job = in_the_middle(&client, &agent, 2000).await?;
    stack.scheduler(0).kill9()?;
    stack.restart_scheduler(0).await?;
    let job = client.wait(&job, WAIT).await?;
    ensure!(result(&job)? == json!({"slept": 2000}), "{job:?}");
    ensure!(job.attempts == 1, "{job:?}");
    let again = client.submit_wait(&echo("again")?, WAIT).await?;
    ensure!(result(&again)? == json!({"text": "again"}));
    // Without a word of the workers left: learned from the heartbeat.
    stack.scheduler(0).kill9()?;
    stack.redis().flushall().await?;
    stack.nats().restart().await?;
    stack.restart_scheduler(0).await?;
    eventually(WAIT, "a job done by the agent", || async {
        let job = client.submit_wait(&echo("at last")?, WAIT).await?;
        let done = job.state.to_string() == "SUCCEEDED";
        Ok(Seen::when(done, format!("{job:?}")))
    })
    .await?;
    let runs = runs(&[&agent])?;
    ensure!(runs.values().all(|n| *n == 1), "{runs:?}");
    runs.get(&again.job_id).context("never ran")?;
    Ok(())
}

/// Results that were recorded without changing anything: worker and status.
async fn strays(stack: &Stack, job: &str) -> Result<Vec<(String, String)>> {
    let sql =
        format!("SELECT worker_id, status FROM job_stray_result WHERE job_id = '{job}' ORDER BY 1");
    let rows = stack.postgres().query(&sql).await?;
    let text = |row: &[Option<String>], i: usize| row.get(i).cloned().flatten().unwrap_or_default();
    Ok(rows.iter().map(|r| (text(r, 0), text(r, 1))).collect())
}

#[tokio::test]
async fn a_late_result_of_an_earlier_attempt_changes_nothing() -> Result<()> {
    let stack = stack()
        .env("AIRLOCK_SCHEDULER__WORKER_TTL", "8s")
        .start()
        .await?;
    let client = client(&stack)?;
    let first = Program::agent(&stack, "first", &[("WORKER_ID", "first")]).await?;
    let job = in_the_middle(&client, &first, 1000).await?;
    // It stands still past its time, and the job goes to another.
    first.process.stop()?;
    let _second = Program::agent(&stack, "second", &[("WORKER_ID", "second")]).await?;
    let ended = client.wait(&job, WAIT).await?;
    ensure!(result(&ended)? == json!({"slept": 1000}), "{ended:?}");
    ensure!(ended.attempts == 2, "{ended:?}");
    // What it says when it goes on carries the trace of its own attempt.
    first.process.cont()?;
    eventually(WAIT, "the late result on record", || async {
        let found = strays(&stack, &job).await?;
        let late = ("first".to_owned(), "SUCCEEDED".to_owned());
        Ok(Seen::when(found == [late], format!("{found:?}")))
    })
    .await?;
    let after = client.get(&job).await?;
    ensure!(
        after.state == ended.state && after.attempts == 2,
        "{after:?}"
    );
    Ok(())
}

#[tokio::test]
async fn a_result_from_anyone_else_is_recorded_and_ignored() -> Result<()> {
    let stack = stack().start().await?;
    let client = client(&stack)?;
    let agent = Program::agent(&stack, "py", &[("WORKER_ID", "py")]).await?;
    let job = in_the_middle(&client, &agent, 4000).await?;
    // One under another name, one under the right name that knows no dispatch; and two
    // that are no results at all.
    let forged =
        |worker: &str| json!({"jobId": job, "status": "JOB_STATUS_FAILED", "workerId": worker});
    let order = json!({
        "results": [forged("stranger"), forged("py")],
        "raw_results": ["ff", "0a0174"],
    });
    Program::submit(&stack, "forger", &order).await?;
    eventually(WAIT, "both on record, and two dead letters", || async {
        let found = strays(&stack, &job).await?;
        let dead = super::submits::reasons(&stack).await?;
        let seen = format!("{found:?}, {dead:?}");
        Ok(Seen::when(found.len() == 2 && dead.len() == 2, seen))
    })
    .await?;
    let job = client.wait(&job, WAIT).await?;
    ensure!(result(&job)? == json!({"slept": 4000}), "{job:?}");
    ensure!(job.attempts == 1, "{job:?}");
    Ok(())
}

#[tokio::test]
async fn a_cancelled_job_ends_though_its_agent_goes_on() -> Result<()> {
    let stack = stack().start().await?;
    let client = client(&stack)?;
    let agent = Program::agent(&stack, "py", &[("WORKER_ID", "py")]).await?;
    let job = in_the_middle(&client, &agent, 3000).await?;
    client.cancel(&job, Some("no longer needed")).await?;
    let ended = client.wait(&job, WAIT).await?;
    ensure!(ended.state.to_string() == "CANCELLED", "{ended:?}");
    // It does not listen for that: what it says at the end is too late, and then it goes
    // on with the next.
    let next = client.submit_wait(&echo("next")?, WAIT).await?;
    ensure!(result(&next)? == json!({"text": "next"}), "{next:?}");
    eventually(WAIT, "the late result on record", || async {
        let found = strays(&stack, &job).await?;
        let late = ("py".to_owned(), "SUCCEEDED".to_owned());
        Ok(Seen::when(found == [late], format!("{found:?}")))
    })
    .await?;
    let after = client.get(&job).await?;
    ensure!(after.state.to_string() == "CANCELLED", "{after:?}");
    Ok(())
}
