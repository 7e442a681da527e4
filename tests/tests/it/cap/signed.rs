//! Signatures of packets, made and checked by the public SDK on the other side.

use airlock_client::SubmitRequest;
use airlock_testkit::{Seen, TestDir, eventually};
use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::python::{Program, keys, runs};
use super::submits::{ended, order, reasons};
use super::{WAIT, echo, result, stack};
use crate::support::{ask_scheduler, client};

#[tokio::test]
async fn only_those_with_a_key_are_heard_when_signatures_are_required() -> Result<()> {
    let dir = TestDir::new()?;
    let (own, own_public) = keys(&dir, "scheduler").await?;
    let (worker, worker_public) = keys(&dir, "worker").await?;
    let (submitter, submitter_public) = keys(&dir, "submitter").await?;
    let config = json!({
        "bus": {
            "signatures": "require",
            "sender_id": "airlock",
            "private_key": own,
            "senders": {
                "py": {"public_key": worker_public},
                "cap-client": {"public_key": submitter_public},
            },
        },
    });
    let stack = stack()
        .dir(&dir)
        // JSON is YAML too.
        .config_file("scheduler.yaml", &config.to_string())
        .start()
        .await?;
    let client = client(&stack)?;
    // It signs what it says, and takes nothing but what the scheduler's key signed.
    let env = [
        ("WORKER_ID", "py"),
        ("TOPICS", "job.cap.echo"),
        ("PRIVATE_KEY", worker.as_str()),
        ("SCHEDULER_KEY", own_public.as_str()),
        ("SCHEDULER_ID", "airlock"),
    ];
    let signed = Program::agent(&stack, "py", &env).await?;
    // An empty label is where encoders differ.
    let job = echo("signed")?.label("empty", "").label("full", "x");
    let job = client.submit_wait(&job, WAIT).await?;
    ensure!(result(&job)? == json!({"text": "signed"}), "{job:?}");

    // One that signs nothing is as good as absent.
    let env = [("WORKER_ID", "stranger"), ("TOPICS", "job.cap.sleep")];
    let stranger = Program::agent(&stack, "stranger", &env).await?;
    let nap = SubmitRequest::new("job.cap.sleep").payload(&json!({"ms": 1}))?;
    let nap = client.submit(&nap).await?;
    eventually(WAIT, "a refused packet", || async {
        let metrics = ask_scheduler(&stack, 0, "/metrics").await?;
        let line = metrics
            .lines()
            .find(|l| l.contains("signatures_refused_total"));
        let line = line.unwrap_or("no such metric").to_owned();
        let counted = line.split(' ').nth(1).and_then(|n| n.parse::<u64>().ok());
        Ok(Seen::when(counted.is_some_and(|n| n > 0), line))
    })
    .await?;
    let state = client.get(&nap.job_id).await?.state.to_string();
    ensure!(state == "PENDING", "{state}");
    ensure!(stranger.ran()?.is_empty());

    // The same for who submits on the bus.
    let payload = json!({"by": "bus"});
    let unsigned = order("unsigned", &payload, json!({}));
    Program::submit(&stack, "client", &unsigned).await?;
    eventually(WAIT, "a dead letter", || async {
        let found = reasons(&stack).await?;
        let told = found.iter().any(|r| r.contains("not signed"));
        Ok(Seen::when(told, format!("{found:?}")))
    })
    .await?;
    ensure!(client.get("unsigned").await.is_err());
    let env = [("PRIVATE_KEY", submitter.as_str())];
    let good = order("signed", &payload, json!({"labels": {"empty": ""}}));
    Program::submit_with(&stack, "client-signed", &good, &env).await?;
    let job = ended(&stack, "signed").await?;
    ensure!(result(&job)? == payload, "{job:?}");
    let runs = runs(&[&signed])?;
    runs.get("signed").context("never ran")?;
    Ok(())
}
