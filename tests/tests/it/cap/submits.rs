//! Jobs that come over the bus alone.

use std::time::Duration;

use airlock_testkit::{Seen, Stack, eventually};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::python::{Program, runs};
use super::{WAIT, all_succeeded, result, stack};
use crate::support::client;

/// A job with a context of its own, as clients of the protocol name it.
pub fn order(id: &str, payload: &Value, job: Value) -> Value {
    let mut job = job;
    job["jobId"] = json!(id);
    job["topic"] = json!("job.cap.echo");
    job["contextPtr"] = json!(format!("redis://ctx:{id}"));
    json!({ "contexts": { format!("ctx:{id}"): payload.to_string() }, "jobs": [job] })
}

/// Waits for a job that is not there before its packet was read.
pub async fn ended(stack: &Stack, id: &str) -> Result<airlock_client::Job> {
    let client = client(stack)?;
    eventually(WAIT, "the job in the ledger", || async {
        let found = client.get(id).await;
        Ok(Seen::when(found.is_ok(), format!("{found:?}")))
    })
    .await?;
    Ok(client.wait(id, WAIT).await?)
}

/// Why packets were refused.
pub async fn reasons(stack: &Stack) -> Result<Vec<String>> {
    let sql = "SELECT reason FROM dead_letter WHERE reason_code = 'bad_message'";
    let rows = stack.postgres().query(sql).await?;
    Ok(rows
        .into_iter()
        .filter_map(|row| row.into_iter().next().flatten())
        .collect())
}

#[tokio::test]
async fn a_client_submits_on_the_bus() -> Result<()> {
    let stack = stack().start().await?;
    let payload = json!({"text": "über den Bus", "n": 7});
    let job = json!({
        "priority": "JOB_PRIORITY_CRITICAL",
        "labels": {"team": "a"},
        "principalId": "someone",
        "meta": {"capability": "echo", "labels": {"from": "meta"}},
    });
    let twice = order("bus-1", &payload, job);
    Program::submit(&stack, "client", &twice).await?;
    let client = client(&stack)?;
    eventually(WAIT, "the job in the ledger", || async {
        let found = client.get("bus-1").await;
        Ok(Seen::when(found.is_ok(), format!("{found:?}")))
    })
    .await?;
    // From here on the client's copy is not looked at again, and the same packet or
    // another under the same id is a wake-up, never a replacement.
    let mut other = order("bus-1", &json!({"text": "changed"}), json!({}));
    other["jobs"][0]["labels"] = json!({"team": "b"});
    Program::submit(&stack, "client-again", &other).await?;
    let agent = Program::agent(&stack, "py", &[("WORKER_ID", "py")]).await?;
    let job = client.wait("bus-1", WAIT).await?;
    ensure!(result(&job)? == payload, "{job:?}");
    ensure!(job.priority.as_str() == "CRITICAL", "{job:?}");
    ensure!(job.labels.get("team").is_some_and(|t| t == "a"), "{job:?}");
    ensure!(
        job.labels.get("from").is_some_and(|t| t == "meta"),
        "{job:?}"
    );
    // A sender is who it is, and whom it names is only its word.
    let said = job
        .on_behalf_of
        .as_ref()
        .and_then(|c| c.principal_id.as_deref());
    ensure!(said == Some("someone"), "{job:?}");
    ensure!(job.principal_id == job.submitted_by, "{job:?}");
    ensure!(job.tenant_id == "default", "{job:?}");
    ensure!(runs(&[&agent])?.get("bus-1") == Some(&1));
    // It was hashed with its content, like any other.
    let sql = "SELECT encode(job_hash, 'hex') FROM job_request WHERE job_id = 'bus-1'";
    let rows = stack.postgres().query(sql).await?;
    let hash = rows.first().and_then(|r| r.first().cloned().flatten());
    ensure!(hash.context("no hash")?.len() == 64);
    Ok(())
}

#[tokio::test]
async fn the_policy_is_asked_about_bus_submits_too() -> Result<()> {
    let stack = stack().start().await?;
    let job = json!({"meta": {"riskTags": ["destructive"]}});
    Program::submit(&stack, "client", &order("bad-1", &json!(1), job)).await?;
    let job = ended(&stack, "bad-1").await?;
    ensure!(job.state.to_string() == "DENIED", "{job:?}");
    Ok(())
}

#[tokio::test]
async fn what_is_not_a_job_is_dead_lettered_with_the_reason() -> Result<()> {
    let stack = stack().start().await?;
    let echo = |id: &str, more: Value| {
        let mut order = order(id, &json!({}), more);
        order["jobs"][0].take()
    };
    let mut nowhere = echo("r-2", json!({}));
    nowhere["contextPtr"] = json!("redis://ctx:nothing-there");
    let mut elsewhere = echo("r-3", json!({}));
    elsewhere["contextPtr"] = json!("redis://cordum:sched:something");
    let mut no_topic = echo("r-4", json!({}));
    no_topic["topic"] = json!("not a topic");
    let mut not_json = echo("r-5", json!({}));
    not_json["contextPtr"] = json!("redis://ctx:text");
    let orders = json!({
        "contexts": {"ctx:r-1": "{}", "ctx:r-6": "{}", "ctx:text": "just words"},
        "jobs": [
            echo("r-1", json!({"labels": {"approval_granted": "true"}})),
            nowhere,
            elsewhere,
            no_topic,
            not_json,
            echo("r-6", json!({"meta": {"labels": {"saga_rollback": "1"}}})),
        ],
        "raw": ["ff", ""],
    });
    Program::submit(&stack, "client", &orders).await?;
    let wanted = [
        "labels.approval_granted",
        "nothing at redis://ctx:nothing-there",
        "\"redis://cordum:sched:something\" is not",
        "topic",
        "not JSON",
        "labels.saga_rollback",
        "not a packet",
        "protocol version",
    ];
    eventually(WAIT, "a dead letter for each", || async {
        let found = reasons(&stack).await?;
        let missing: Vec<_> = wanted
            .iter()
            .filter(|w| !found.iter().any(|f| f.contains(**w)))
            .collect();
        Ok(Seen::when(
            missing.is_empty() && found.len() == wanted.len(),
            format!("missing {missing:?} of {found:?}"),
        ))
    })
    .await?;
    let rows = stack
        .postgres()
        .query("SELECT job_id FROM job_request")
        .await?;
    ensure!(rows.is_empty(), "a job came of it: {rows:?}");
    Ok(())
}

#[tokio::test]
async fn a_submit_waits_for_redis_with_its_context() -> Result<()> {
    let stack = stack().proxies(true).start().await?;
    stack.scheduler(0).to_redis()?.cut();
    let payload = json!({"text": "later"});
    Program::submit(&stack, "client", &order("late-1", &payload, json!({}))).await?;
    // It is neither accepted without its content nor thrown away.
    let log = "store unavailable, submission retried later";
    stack.scheduler(0).wait_for_log(log, WAIT).await?;
    ensure!(client(&stack)?.get("late-1").await.is_err());
    ensure!(reasons(&stack).await?.is_empty());
    stack.scheduler(0).to_redis()?.heal().await?;
    let _agent = Program::agent(&stack, "py", &[("WORKER_ID", "py")]).await?;
    let job = ended(&stack, "late-1").await?;
    ensure!(result(&job)? == payload, "{job:?}");
    Ok(())
}

#[tokio::test]
async fn hundreds_of_bus_submits_are_all_taken() -> Result<()> {
    let stack = stack().start().await?;
    let mut many = order("many", &json!({"n": 1}), json!({}));
    many["copies"] = json!(500);
    Program::submit(&stack, "client", &many).await?;
    let env = [("WORKER_ID", "py"), ("MAX_PARALLEL", "16")];
    let agent = Program::agent(&stack, "py", &env).await?;
    all_succeeded(&stack, 500, Duration::from_secs(120)).await?;
    let runs = runs(&[&agent])?;
    ensure!(runs.len() == 500, "{} ran", runs.len());
    ensure!(runs.values().all(|n| *n == 1), "some ran twice: {runs:?}");
    Ok(())
}
