//! Runs that outlive a fault and every time limit that it touches. Nobody who could not be
//! heard is lost by that: each job runs once.

use std::collections::BTreeMap;
use std::time::Duration;

use airlock_bus::{Outgoing, subjects};
use airlock_client::SubmitRequest;
use airlock_model::Timestamp;
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::{cap, packet};
use airlock_testkit::{Seen, Service, Stack, eventually};
use anyhow::{Context, Result, ensure};

use crate::support::{ask_scheduler, bus, client, leader, until};

const WAIT: Duration = Duration::from_secs(60);

/// Jobs that sleep, the first of which may run only once, when all of them run.
async fn sleepers(stack: &Stack, jobs: usize, ms: u64) -> Result<Vec<String>> {
    let client = client(stack)?;
    let mut request = SubmitRequest::new("job.sleep").payload(&serde_json::json!({"ms": ms}))?;
    request.max_attempts = Some(1);
    let mut ids = vec![client.submit(&request).await?.job_id];
    request.max_attempts = None;
    for _ in 1..jobs {
        ids.push(client.submit(&request).await?.job_id);
    }
    let running = "SELECT count(*)::text FROM job_state WHERE state = 4";
    eventually(WAIT, "all jobs running", || async {
        let rows = stack.postgres().query(running).await?;
        let wanted = jobs.to_string();
        Ok(Seen::when(
            rows[0][0].as_deref() == Some(&wanted),
            format!("{rows:?}"),
        ))
    })
    .await?;
    Ok(ids)
}

/// All of them succeeded in their only run.
async fn ran_once(stack: &Stack, ids: &[String]) -> Result<()> {
    let client = client(stack)?;
    for id in ids {
        let job = client.wait(id, Duration::from_secs(120)).await?;
        ensure!(
            job.state.to_string() == "SUCCEEDED" && job.attempts == 1,
            "{job:?}"
        );
    }
    let mut runs: BTreeMap<String, usize> = BTreeMap::new();
    for line in stack.journal()? {
        *runs.entry(line.job_id).or_default() += 1;
    }
    for id in ids {
        let n = runs.get(id).copied().unwrap_or(0);
        ensure!(n == 1, "job {id} ran {n} times");
    }
    Ok(())
}

/// The standby leads at once, and hears nobody for three times the workers' TTL.
#[tokio::test]
async fn a_leader_dies_together_with_nats_and_no_run_is_lost() -> Result<()> {
    let stack = Stack::builder()
        .schedulers(2)
        .env_for(Service::Scheduler, "AIRLOCK_SCHEDULER__WORKER_TTL", "4s")
        .env_for(Service::Worker, "DEMO_HEARTBEAT_MS", "500")
        .start()
        .await?;
    let ids = sleepers(&stack, 6, 22_000).await?;
    let dead = leader(&stack, 2).await?;
    stack.nats().kill()?;
    stack.scheduler(dead).kill9()?;
    tokio::time::sleep(Duration::from_secs(12)).await;
    stack.nats().restart().await?;
    ran_once(&stack, &ids).await
}

/// In the default settings: the TTL is 30 s, and the outage longer.
#[tokio::test]
async fn nats_is_away_for_45_s_and_no_run_is_lost() -> Result<()> {
    let stack = Stack::start().await?;
    let ids = sleepers(&stack, 4, 60_000).await?;
    stack.nats().kill()?;
    tokio::time::sleep(Duration::from_secs(45)).await;
    stack.nats().restart().await?;
    ran_once(&stack, &ids).await
}

/// The cancel is in the ledger and reaches nobody; held for long enough that the leader
/// has seen it and tried.
async fn cancelled_while_nats_is_away(leader_dies: bool) -> Result<()> {
    let stack = Stack::builder()
        .env_for(Service::Worker, "DEMO_HEARTBEAT_MS", "500")
        .start()
        .await?;
    let ids = sleepers(&stack, 4, 600_000).await?;
    stack.nats().kill()?;
    let client = client(&stack)?;
    for id in &ids {
        let job = client.cancel(id, None).await?;
        ensure!(job.state.to_string() == "CANCELLED", "{job:?}");
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    if leader_dies {
        stack.scheduler(0).kill9()?;
    }
    stack.nats().restart().await?;
    if leader_dies {
        stack.restart_scheduler(0).await?;
    }
    eventually(WAIT, "the end of every cancelled run", || async {
        let runs = stack.journal()?;
        let ended = runs.iter().filter(|run| run.ended.is_some()).count();
        Ok(Seen::when(ended == ids.len(), format!("{runs:?}")))
    })
    .await
}

#[tokio::test]
async fn a_cancel_that_nats_did_not_carry_is_sent_again() -> Result<()> {
    cancelled_while_nats_is_away(false).await
}

#[tokio::test]
async fn a_cancel_that_nats_did_not_carry_is_sent_by_the_next_leader() -> Result<()> {
    cancelled_while_nats_is_away(true).await
}

pub async fn say_result(stack: &Stack, result: cap::JobResult) -> Result<()> {
    let bus = bus(stack).await?;
    let worker = result.worker_id.clone();
    let message = Outgoing {
        subject: subjects::JOB_RESULT.to_owned(),
        payload: packet::encode(&worker, "trace", Timestamp(1), Payload::JobResult(result)),
        msg_id: None,
        traceparent: None,
    };
    bus.publish(message).await?;
    Ok(())
}

pub fn result(job_id: &str, dispatch_id: &str, worker: &str) -> cap::JobResult {
    cap::JobResult {
        job_id: job_id.to_owned(),
        worker_id: worker.to_owned(),
        status: cap::JobStatus::Succeeded.into(),
        dispatch: Some(cap::DispatchIdentity {
            dispatch_id: dispatch_id.to_owned(),
            attempt: 1,
            assigned_worker_id: worker.to_owned(),
        }),
        ..cap::JobResult::default()
    }
}

/// Leader and ledger disagree on a run; the ledger is right.
#[tokio::test]
async fn a_result_that_only_the_ledger_expects_is_taken() -> Result<()> {
    const DISPATCH: &str = "8c5cb8c0-94a8-4e1c-a48f-1a53f7f8a001";
    let stack = Stack::start().await?;
    let client = client(&stack)?;
    let id = client
        .submit(&SubmitRequest::new("job.nobody"))
        .await?
        .job_id;
    // The leader holds it as one that waits for a worker.
    eventually(WAIT, "it waits", || async {
        let why = client.explain(&id).await?;
        Ok(Seen::when(
            format!("{why:?}").contains("no_workers"),
            format!("{why:?}"),
        ))
    })
    .await?;
    let in_flight = format!(
        "UPDATE job_state SET state = 4, attempt = 1, dispatch_id = '{DISPATCH}', worker_id = 'w', \
         incarnation = 'one', scheduled_at = now(), dispatched_at = now(), running_at = now() \
         WHERE job_id = '{id}'"
    );
    stack.postgres().query(&in_flight).await?;
    // Another worker's changes nothing.
    say_result(&stack, result(&id, DISPATCH, "forger")).await?;
    eventually(WAIT, "the other one's is recorded", || async {
        let sql = "SELECT worker_id FROM job_stray_result";
        let rows = stack.postgres().query(sql).await?;
        Ok(Seen::when(rows.len() == 1, format!("{rows:?}")))
    })
    .await?;
    say_result(&stack, result(&id, DISPATCH, "w")).await?;
    let job = client.wait(&id, WAIT).await?;
    ensure!(
        job.state.to_string() == "SUCCEEDED" && job.attempts == 1,
        "{job:?}"
    );
    Ok(())
}

/// What runs is taken over by the next leader, whatever its due time says by the ledger's
/// clock: that was for its beginning.
#[tokio::test]
async fn a_run_whose_due_time_is_still_to_come_is_taken_over() -> Result<()> {
    let stack = Stack::start().await?;
    let client = client(&stack)?;
    let gate = stack.dir().path().join("gate");
    let input = serde_json::json!({"until_file": &gate});
    let mut request = SubmitRequest::new("job.sleep").payload(&input)?;
    request.delay_ms = Some(1);
    let id = client.submit(&request).await?.job_id;
    let state = format!("SELECT state::text FROM job_state WHERE job_id = '{id}'");
    until(&stack, &state, "4").await?;
    stack.scheduler(0).kill9()?;
    // The clock was set back since.
    let later = "UPDATE job_state SET due_at = clock_timestamp() + interval '1 hour'";
    stack.postgres().query(later).await?;
    stack.restart_scheduler(0).await?;
    leader(&stack, 1).await?;
    eventually(WAIT, "the run in the hands of the new leader", || async {
        let metrics = ask_scheduler(&stack, 0, "/metrics").await?;
        let held = metrics.lines().any(|l| l == "cordum_scheduler_assigned 1");
        Ok(Seen::when(held, "it is not"))
    })
    .await?;
    std::fs::write(&gate, "")?;
    ran_once(&stack, &[id]).await
}

/// Bytes that the ledger does not take cost the field they are in.
#[tokio::test]
async fn bad_bytes_in_a_result_cost_a_field_and_make_one_letter() -> Result<()> {
    let stack = Stack::start().await?;
    let ids = sleepers(&stack, 1, 30_000).await?;
    let id = ids.first().context("a job")?;
    let sql = format!("SELECT dispatch_id::text, worker_id FROM job_state WHERE job_id = '{id}'");
    let rows = stack.postgres().query(&sql).await?;
    let cell = |i: usize| rows[0][i].clone().unwrap_or_default();
    let bad = cap::JobResult {
        status: cap::JobStatus::FailedFatal.into(),
        error_code: format!("bad\0code{}", "x".repeat(10_000)),
        error_message: "bad\0words".to_owned(),
        ..result(id, &cell(0), &cell(1))
    };
    say_result(&stack, bad).await?;
    let job = client(&stack)?.wait(id, WAIT).await?;
    ensure!(job.state.to_string() == "FAILED", "{job:?}");
    let sql = "SELECT left(reason_code, 8), reason FROM dead_letter";
    let letters = stack.postgres().query(sql).await?;
    let wanted = ["bad\u{fffd}code", "bad\u{fffd}words"].map(|s| Some(s.to_owned()));
    ensure!(letters == [wanted], "{letters:?}");
    Ok(())
}
