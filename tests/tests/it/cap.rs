//! Workers and clients on the public Python SDK of the agent protocol, unmodified,
//! against the real services.
//!
//! What must stay true: nothing in `tests/cap` knows of Airlock. What such a worker
//! really ran is told by its own journal, not by the services.

mod python;
mod reports;
mod signed;
mod submits;
mod trouble;

use std::collections::BTreeSet;
use std::time::Duration;

use airlock_client::{Client, Job, SubmitRequest};
use airlock_testkit::{Seen, Service, Stack, StackBuilder, eventually};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::support::client;
use python::{Program, runs};

const WAIT: Duration = Duration::from_secs(60);

/// Everything but workers: those are Python's.
pub fn stack() -> StackBuilder {
    Stack::builder().services(&[Service::SafetyKernel, Service::Scheduler, Service::Gateway])
}

pub fn echo(text: &str) -> Result<SubmitRequest> {
    Ok(SubmitRequest::new("job.cap.echo").payload(&json!({ "text": text }))?)
}

/// The result of a job, which must have succeeded.
pub fn result(job: &Job) -> Result<Value> {
    ensure!(job.state.to_string() == "SUCCEEDED", "{job:?}");
    let raw = job.result.as_ref().context("a job without a result")?;
    Ok(serde_json::from_str(raw.get())?)
}

/// Submits copies of a request and returns the ids.
pub async fn submit_many(
    client: &Client,
    request: &SubmitRequest,
    count: usize,
) -> Result<BTreeSet<String>> {
    let mut ids = BTreeSet::new();
    while ids.len() < count {
        let batch = vec![request.clone(); (count - ids.len()).min(100)];
        for outcome in client.submit_batch(&batch).await? {
            let job = outcome.map_err(|p| anyhow::anyhow!("refused: {p:?}"))?;
            ids.insert(job.job_id);
        }
    }
    Ok(ids)
}

/// Waits until so many jobs have succeeded, and none has ended otherwise.
pub async fn all_succeeded(stack: &Stack, count: usize, bound: Duration) -> Result<()> {
    eventually(bound, "all jobs succeeded", || async {
        let states = crate::support::states(stack).await?;
        let of = |wanted: &dyn Fn(i16) -> bool| -> usize {
            let found = states.iter().filter(|(s, _)| s.parse().is_ok_and(wanted));
            found.map(|(_, n)| n).sum()
        };
        let otherwise = of(&|s| s > 10);
        Ok(if otherwise > 0 {
            Seen::Never(format!("{states:?}"))
        } else {
            Seen::when(of(&|s| s == 10) == count, format!("{states:?}"))
        })
    })
    .await
}

#[tokio::test]
async fn an_agent_has_work_within_a_second_of_its_start() -> Result<()> {
    let stack = stack().start().await?;
    let client = client(&stack)?;
    // Its first heartbeat comes after five seconds: who waits for that never makes it.
    // One or two of three may be slowed down by what else the machine does.
    let topics = ["job.cap.echo", "job.cap.sleep", "job.cap.fail"];
    let mut took = Vec::new();
    for topic in topics {
        let job = SubmitRequest::new(topic).payload(&json!({"ms": 0}))?;
        let job = client.submit(&job).await?;
        let env = [("WORKER_ID", topic), ("TOPICS", topic)];
        let agent = Program::agent(&stack, topic, &env).await?;
        let job = client.wait(&job.job_id, WAIT).await?;
        let wanted = if topic == "job.cap.fail" {
            "FAILED"
        } else {
            "SUCCEEDED"
        };
        ensure!(job.state.to_string() == wanted, "{job:?}");
        ensure!(job.attempts == 1, "{job:?}");
        let log = agent.process.log();
        let begun = log.lines().find_map(|l| l.strip_prefix("started "));
        let begun: f64 = begun.context("no start in the log")?.trim().parse()?;
        took.push(ended_at(&stack, &job.job_id).await? - begun);
    }
    ensure!(took.iter().any(|t| *t < 1.0), "seconds: {took:?}");
    Ok(())
}

/// Seconds since 1970, by the ledger, which runs on the same machine.
async fn ended_at(stack: &Stack, job: &str) -> Result<f64> {
    let sql = format!(
        "SELECT extract(epoch FROM finished_at)::text FROM job_state WHERE job_id = '{job}'"
    );
    let rows = stack.postgres().query(&sql).await?;
    let text = rows.first().and_then(|r| r.first().cloned().flatten());
    Ok(text.context("the job has not ended")?.parse()?)
}

#[tokio::test]
async fn workers_without_a_pool_get_only_what_they_know() -> Result<()> {
    let stack = stack().start().await?;
    let client = client(&stack)?;
    let env = [("WORKER_ID", "echoes"), ("TOPICS", "job.cap.echo")];
    let echoes = Program::agent(&stack, "echoes", &env).await?;
    let env = [("WORKER_ID", "sleeps"), ("TOPICS", "job.cap.sleep")];
    let sleeps = Program::agent(&stack, "sleeps", &env).await?;
    let naps = SubmitRequest::new("job.cap.sleep").payload(&json!({"ms": 1}))?;
    let echoed = submit_many(&client, &echo("x")?, 20).await?;
    let slept = submit_many(&client, &naps, 20).await?;
    all_succeeded(&stack, 40, WAIT).await?;
    let set = |jobs: Vec<String>| BTreeSet::from_iter(jobs);
    ensure!(
        set(echoes.ran()?) == echoed,
        "the echoing worker ran others"
    );
    ensure!(
        set(sleeps.ran()?) == slept,
        "the sleeping worker ran others"
    );
    Ok(())
}

#[tokio::test]
async fn agents_under_the_default_id_run_each_job_once() -> Result<()> {
    let stack = stack().start().await?;
    let client = client(&stack)?;
    // Both go by the SDK's default id, and a dispatch to that id would reach both.
    let first = Program::agent(&stack, "first", &[]).await?;
    let second = Program::agent(&stack, "second", &[]).await?;
    let nap = SubmitRequest::new("job.cap.sleep").payload(&json!({"ms": 5}))?;
    let ids = submit_many(&client, &nap, 200).await?;
    all_succeeded(&stack, ids.len(), WAIT).await?;
    let runs = runs(&[&first, &second])?;
    ensure!(runs.len() == ids.len(), "{} jobs ran", runs.len());
    ensure!(runs.values().all(|n| *n == 1), "some ran twice: {runs:?}");
    ensure!(!first.ran()?.is_empty(), "the first never had work");
    ensure!(!second.ran()?.is_empty(), "the second never had work");
    Ok(())
}

#[tokio::test]
async fn a_worker_that_never_registers_is_reached_by_its_topic() -> Result<()> {
    let stack = stack()
        .config_file(
            "scheduler.yaml",
            "scheduler:\n  unregistered_topics: [job.low]\n",
        )
        .start()
        .await?;
    let client = client(&stack)?;
    let env = [("TOPIC", "job.low")];
    let worker = Program::start(&stack, "low", "tests/cap/lowlevel.py", &env, &[]).await?;
    worker.process.wait_for_log("started", WAIT).await?;
    // It has no context to read and leaves no result; what it says is how it ended.
    eventually(WAIT, "a first job done", || async {
        let job = SubmitRequest::new("job.low");
        let job = client.submit_wait(&job, Duration::from_secs(5)).await;
        Ok(Seen::when(
            job.as_ref()
                .is_ok_and(|j| j.state.to_string() == "SUCCEEDED"),
            format!("{job:?}"),
        ))
    })
    .await?;
    let job = SubmitRequest::new("job.low").label("flaky", "yes");
    let job = client.submit_wait(&job, WAIT).await?;
    ensure!(job.state.to_string() == "SUCCEEDED", "{job:?}");
    ensure!(job.attempts == 2, "{job:?}");
    let runs = runs(&[&worker])?;
    ensure!(runs.get(&job.job_id) == Some(&2), "{runs:?}");
    Ok(())
}

#[tokio::test]
async fn two_thousand_jobs_over_two_agents() -> Result<()> {
    const JOBS: usize = 2000;
    let stack = stack().start().await?;
    let client = client(&stack)?;
    let mut agents = Vec::new();
    for name in ["py-a", "py-b"] {
        let env = [("WORKER_ID", name), ("MAX_PARALLEL", "16")];
        agents.push(Program::agent(&stack, name, &env).await?);
    }
    let ids = submit_many(&client, &echo("one of many")?, JOBS).await?;
    all_succeeded(&stack, JOBS, Duration::from_secs(240)).await?;
    let runs = runs(&agents.iter().collect::<Vec<_>>())?;
    ensure!(runs.len() == JOBS, "{} jobs ran", runs.len());
    ensure!(runs.keys().all(|id| ids.contains(id)), "a stranger ran");
    ensure!(runs.values().all(|n| *n == 1), "some ran twice");
    for agent in &agents {
        let name = agent.process.name();
        ensure!(!agent.ran()?.is_empty(), "{name} never had work");
    }
    // What workers leave in Redis without an end is given one.
    let id = ids.first().context("no job")?;
    let left = stack
        .redis()
        .command(&["PTTL", &format!("res:{id}")])
        .await?;
    let left: i64 = left.context("no answer")?.trim_start_matches(':').parse()?;
    ensure!(left > 0, "res:{id} has no expiry: {left}");
    Ok(())
}

#[tokio::test]
async fn the_examples_do_what_they_say() -> Result<()> {
    let stack = stack().start().await?;
    let client = client(&stack)?;
    let worker = "examples/python/worker.py";
    let _worker = Program::start(&stack, "example", worker, &[], &[]).await?;
    let count = SubmitRequest::new("job.text.count");
    let count = count.payload(&json!({"text": "one two three"}))?;
    let count = client.submit_wait(&count, WAIT).await?;
    ensure!(result(&count)? == json!({"words": 3, "longest": "three"}));
    let args = ["job.text.shout", r#"{"text": "hello"}"#];
    let submit = "examples/python/submit.py";
    let submit = Program::start(&stack, "submit", submit, &[], &args).await?;
    submit.process.wait(WAIT).await?;
    let id = submit.process.log().trim().to_owned();
    let shout = submits::ended(&stack, &id).await?;
    ensure!(result(&shout)? == json!({"text": "HELLO"}), "{shout:?}");
    Ok(())
}
