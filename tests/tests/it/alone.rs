//! Each service by itself: one command starts it, it says how it is, and it writes its
//! own log, one JSON object a line, for whoever collects logs.

use std::time::Duration;

use airlock_testkit::{Node, Seen, Service, Stack, eventually, http_get};
use anyhow::{Context, Result, ensure};
use serde_json::Value;

const WAIT: Duration = Duration::from_secs(60);

/// Ready, without any other of our processes, and logging as it should.
async fn alone(service: Service) -> Result<Stack> {
    let stack = Stack::builder().services(&[service]).start().await?;
    ensure!(stack.nodes().len() == 1, "others run too");
    let node = stack.nodes().first().context("nothing runs")?;
    let addr = node.http_addr().context("it serves its health")?;
    let ready = http_get(addr, "/health/ready").await?;
    ensure!(ready.status == 200, "{ready:?}");
    let metrics = http_get(addr, "/metrics").await?;
    ensure!(metrics.status == 200 && metrics.body.contains("airlock_tasks_live"));
    logs_json(node)?;
    Ok(stack)
}

/// Every line it wrote is an object with a time, a level and words.
fn logs_json(node: &Node) -> Result<()> {
    let log = node.log();
    let mut said = 0;
    for line in log.lines() {
        let entry: Value = serde_json::from_str(line)
            .with_context(|| format!("{} wrote {line:?}", node.name()))?;
        for field in ["timestamp", "level", "message", "target"] {
            ensure!(entry[field].is_string(), "no {field} in {line}");
        }
        said += usize::from(entry["message"] == "starting");
    }
    ensure!(
        said == 1,
        "{} said {said} times that it starts",
        node.name()
    );
    Ok(())
}

#[tokio::test]
async fn the_gateway_starts_alone_and_takes_tasks() -> Result<()> {
    let stack = alone(Service::Gateway).await?;
    let answer = reqwest::Client::new()
        .post(format!("{}/tasks", stack.api_url()))
        .bearer_auth(stack.api_key())
        .header("content-type", "application/json")
        .body(r#"{"due_at": "2026-01-20T12:00:00Z", "payload": {"user_id": 42}}"#)
        .send()
        .await?;
    let status = answer.status();
    ensure!(status == 201, "{status}: {}", answer.text().await?);
    // It is in the ledger, for the scheduler that comes later.
    let rows = stack
        .postgres()
        .query("SELECT job_id FROM job_state WHERE state = 1")
        .await?;
    ensure!(rows.len() == 1, "{rows:?}");
    logs_json(stack.gateway())
}

#[tokio::test]
async fn the_scheduler_starts_alone_and_leads() -> Result<()> {
    let stack = alone(Service::Scheduler).await?;
    let node = stack.scheduler(0);
    let addr = node.http_addr().context("it serves its health")?;
    eventually(WAIT, "the only scheduler to lead", || async {
        let leader = http_get(addr, "/health/leader").await?.body;
        let leader: Value = serde_json::from_str(&leader)?;
        Ok(Seen::when(leader["leading"] == true, leader))
    })
    .await?;
    node.term()?;
    let status = node.wait(WAIT).await?;
    ensure!(status.success(), "{status}");
    logs_json(node)
}

#[tokio::test]
async fn the_safety_kernel_starts_alone() -> Result<()> {
    let stack = alone(Service::SafetyKernel).await?;
    stack
        .kernel()
        .wait_for_log("safety kernel listening", WAIT)
        .await?;
    logs_json(stack.kernel())
}
