//! Worker ids: processes of one name have their own, and two that were given one id do
//! each other no harm.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use airlock_client::{Client, SubmitRequest};
use airlock_testkit::{Process, Seen, Service, Stack, eventually};
use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::support::{ask_scheduler, client};

const WAIT: Duration = Duration::from_secs(60);

async fn worker(stack: &Stack, env: &[(&str, &str)]) -> Result<Process> {
    let (nats, redis) = (stack.nats().url(), stack.redis().url());
    let mut all = vec![("NATS_URL", nats.as_str()), ("REDIS_URL", redis.as_str())];
    all.extend(env);
    Process::spawn("demo-worker", &[], &all).await
}

async fn sleeps(client: &Client, count: usize, ms: u64) -> Result<Vec<String>> {
    let request = SubmitRequest::new("job.sleep").payload(&json!({ "ms": ms }))?;
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.push(client.submit(&request).await?.job_id);
    }
    Ok(ids)
}

/// Runs that began.
fn begun(journal: &Path) -> usize {
    let text = std::fs::read_to_string(journal).unwrap_or_default();
    text.lines().filter(|l| l.starts_with("start ")).count()
}

/// What the scheduler says of its workers' ids.
async fn shown(stack: &Stack) -> Result<(String, String)> {
    let metrics = ask_scheduler(stack, 0, "/metrics").await?;
    let gauge = metrics
        .lines()
        .find(|l| l.starts_with("cordum_scheduler_duplicate_worker_ids "))
        .context("no such metric")?;
    let health = ask_scheduler(stack, 0, "/health/ready").await?;
    let health: serde_json::Value = serde_json::from_str(&health)?;
    let workers = health["components"]["workers"].to_string();
    Ok((gauge.to_owned(), workers))
}

#[tokio::test]
async fn two_processes_under_one_id_lose_nothing_and_are_reported() -> Result<()> {
    // Every job outlives the TTL and many heartbeats.
    let stack = Stack::builder()
        .env_for(Service::Scheduler, "AIRLOCK_SCHEDULER__WORKER_TTL", "3s")
        .env_for(Service::Worker, "DEMO_HEARTBEAT_MS", "300")
        .start()
        .await?;
    let client = client(&stack)?;
    let mut ids = sleeps(&client, 3, 9_000).await?;
    eventually(WAIT, "three jobs to run", || async {
        let ran = stack.journal()?.len();
        Ok(Seen::when(ran == 3, ran))
    })
    .await?;
    let journal = stack.dir().path().join("second.journal");
    let journal_text = journal.to_str().context("a path that is not UTF-8")?;
    let env = [
        ("WORKER_ID", "worker-0"),
        ("DEMO_HEARTBEAT_MS", "300"),
        ("DEMO_JOURNAL", journal_text),
    ];
    let second = worker(&stack, &env).await?;
    let scheduler = stack.scheduler(0);
    scheduler.wait_for_log("duplicate worker id", WAIT).await?;
    let told = "another process runs under this worker id";
    second.wait_for_log(told, WAIT).await?;
    stack.worker(0).wait_for_log(told, WAIT).await?;
    eventually(WAIT, "health and metrics to show it", || async {
        let (gauge, health) = shown(&stack).await?;
        let seen =
            gauge.ends_with(" 1") && health.contains("degraded") && health.contains("worker-0");
        Ok(Seen::when(seen, format!("{gauge}, {health}")))
    })
    .await?;
    ids.extend(sleeps(&client, 3, 9_000).await?);
    for id in &ids {
        let job = client.wait(id, WAIT).await?;
        ensure!(job.state.to_string() == "SUCCEEDED", "{job:?}");
        ensure!(job.attempts == 1, "{job:?}");
    }
    let ran = (stack.journal()?.len(), begun(&journal));
    ensure!(ran == (3, 3), "{ran:?} runs of 3 and 3 jobs");
    // When one of them leaves, all is well again.
    second.term()?;
    second.wait(WAIT).await?;
    eventually(WAIT, "health to be well again", || async {
        let (gauge, health) = shown(&stack).await?;
        let well = gauge.ends_with(" 0") && health.contains("\"ok\"");
        Ok(Seen::when(well, format!("{gauge}, {health}")))
    })
    .await?;
    let last = sleeps(&client, 1, 1).await?;
    let job = client.wait(&last[0], WAIT).await?;
    ensure!(job.state.to_string() == "SUCCEEDED", "{job:?}");
    Ok(())
}

#[tokio::test]
async fn processes_of_one_name_share_the_work() -> Result<()> {
    let services = [Service::SafetyKernel, Service::Scheduler, Service::Gateway];
    let stack = Stack::builder().services(&services).start().await?;
    let client = client(&stack)?;
    let ids = sleeps(&client, 4, 2_000).await?;
    let env = [("DEMO_MAX_PARALLEL", "2")];
    let _workers = [worker(&stack, &env).await?, worker(&stack, &env).await?];
    let mut workers = BTreeSet::new();
    for id in &ids {
        let job = client.wait(id, WAIT).await?;
        ensure!(job.state.to_string() == "SUCCEEDED", "{job:?}");
        ensure!(job.attempts == 1, "{job:?}");
        workers.insert(job.worker_id.context("no worker")?);
    }
    ensure!(workers.len() == 2, "{workers:?}");
    ensure!(
        workers.iter().all(|id| id.starts_with("demo-")),
        "{workers:?}"
    );
    Ok(())
}
