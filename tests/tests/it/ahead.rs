//! Jobs that come alone are told of before they are committed, and given to their worker
//! straight. Nothing of that may count for more than the ledger.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use airlock_bus::{Bus, BusConfig, subjects};
use airlock_client::SubmitRequest;
use airlock_model::{Timestamp, WorkerId};
use airlock_proto::ahead::{Id, Key};
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::{own, packet};
use airlock_testkit::{Seen, Service, Stack, eventually};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use tokio::sync::Mutex;

use crate::load::{Interrupted, Load, stack};
use crate::support::{ask_scheduler, client, done, runs};

const WAIT: Duration = Duration::from_secs(60);
/// Well below the time in which a dispatch must be accepted.
const AT_ONCE: Duration = Duration::from_secs(8);

/// The value of a metric of the scheduler without labels.
async fn metric(stack: &Stack, name: &str) -> Result<u64> {
    let scrape = ask_scheduler(stack, 0, "/metrics").await?;
    let line = scrape
        .lines()
        .find(|l| l.split(' ').next() == Some(name))
        .with_context(|| format!("no {name}"))?;
    Ok(line.rsplit(' ').next().context("no value")?.parse()?)
}

#[tokio::test]
async fn a_lone_job_is_judged_while_it_is_committed() -> Result<()> {
    let stack = Stack::builder().start().await?;
    // The first one may find a worker or a connection that is not there yet.
    runs(&stack).await?;
    let before = metric(&stack, "cordum_scheduler_jobs_ahead_total").await?;
    eventually(WAIT, "a job judged ahead", || async {
        runs(&stack).await?;
        let now = metric(&stack, "cordum_scheduler_jobs_ahead_total").await?;
        Ok(Seen::when(now > before, now))
    })
    .await?;
    // The same key again: it is judged in vain, and there is no second job.
    let keyed = SubmitRequest::new("job.echo").idempotency_key("k");
    let first = client(&stack)?.submit_wait(&keyed, WAIT).await?;
    let again = client(&stack)?.submit_wait(&keyed, WAIT).await?;
    ensure!(again.job_id == first.job_id, "{first:?} {again:?}");
    Ok(())
}

#[tokio::test]
async fn without_speculation_jobs_wait_for_their_commit_and_dispatches_take_the_stream()
-> Result<()> {
    let off = ("AIRLOCK_SCHEDULER__SPECULATION", "false");
    let stack = Stack::builder()
        .env_for(Service::Scheduler, off.0, off.1)
        .start()
        .await?;
    let config = BusConfig {
        url: stack.nats().url().into(),
        ..BusConfig::default()
    };
    let bus = Bus::connect(&config, "test").await?;
    let control = subjects::worker_control(&WorkerId::new("worker-0")?);
    let mut control = bus.subscribe(&control, None).await?;
    bus.flush().await?;
    for _ in 0..20 {
        runs(&stack).await?;
    }
    for name in [
        "cordum_scheduler_jobs_ahead_total",
        "cordum_scheduler_jobs_ahead_in_vain_total",
    ] {
        let count = metric(&stack, name).await?;
        ensure!(count == 0, "{name} is {count}");
    }
    // All of them have run, so whatever was sent directly has passed the server.
    bus.flush().await?;
    while let Ok(Some(message)) = tokio::time::timeout(Duration::ZERO, control.recv()).await {
        let (_, payload) = packet::decode(message.payload)?;
        let direct = matches!(payload, Payload::JobRequest(_));
        ensure!(!direct, "a dispatch was sent directly");
    }
    Ok(())
}

const COUNTS_AND_LOOKS: &str = "version: 1
default_decision: allow
rules:
  - id: often
    match: {topics: [job.echo]}
    velocity: {max_requests: 2, window_seconds: 600, key: [tenant]}
    decision: deny
input_policy:
  content_rules:
    - id: secret
      match: {topics: [job.default]}
      keywords: [hunter2]
      decision: deny
";

/// What the request alone does not tell is not foreseen.
#[tokio::test]
async fn a_rule_that_counts_or_looks_inside_is_asked_after_the_commit() -> Result<()> {
    let stack = Stack::builder().policy(COUNTS_AND_LOOKS).start().await?;
    let client = client(&stack)?;
    let mut states = Vec::new();
    for topic in ["job.echo", "job.echo", "job.echo", "job.default"] {
        let request = SubmitRequest::new(topic).payload(&serde_json::json!("hunter2"))?;
        states.push(client.submit_wait(&request, WAIT).await?.state.to_string());
    }
    ensure!(
        states == ["SUCCEEDED", "SUCCEEDED", "DENIED", "DENIED"],
        "{states:?}"
    );
    let ahead = metric(&stack, "cordum_scheduler_jobs_ahead_total").await?;
    ensure!(ahead == 0, "{ahead} were judged ahead");
    Ok(())
}

/// Says that such a job is being committed.
async fn pretend(bus: &Bus, key: &Key, id: Id, job_id: &str, topic: &str) -> Result<()> {
    let job = own::AheadJob {
        job_id: job_id.to_owned(),
        tenant: "default".to_owned(),
        spec: Bytes::from(serde_json::json!({"topic": topic}).to_string()),
        trace_id: "0af7651916cd43dd8448eb211c80319c".to_owned(),
        traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned(),
        ..own::AheadJob::default()
    };
    let ahead = key.seal(id, vec![job]).context("too large")?;
    let packet = packet::encode("gateway", "trace", Timestamp(1), Payload::Ahead(ahead));
    bus.send(subjects::AHEAD, packet, None).await?;
    bus.flush().await?;
    Ok(())
}

#[tokio::test]
async fn what_is_told_ahead_needs_the_ledgers_key_and_its_row() -> Result<()> {
    let stack = Stack::builder().start().await?;
    runs(&stack).await?;
    let config = BusConfig {
        url: stack.nats().url().into(),
        ..BusConfig::default()
    };
    let bus = Bus::connect(&config, "test").await?;
    let ahead = || metric(&stack, "cordum_scheduler_jobs_ahead_total");
    let before = ahead().await?;
    let refused = "cordum_scheduler_signatures_refused_total";
    let refusals = metric(&stack, refused).await?;
    pretend(&bus, &Key::new("a guess"), [1; 16], "forged", "job.echo").await?;
    eventually(WAIT, "the forged one refused", || async {
        let now = metric(&stack, refused).await?;
        Ok(Seen::when(now == refusals + 1, now))
    })
    .await?;
    ensure!(ahead().await? == before, "it was taken in");

    // With the key it is taken in, and still there is no such job.
    let rows = stack
        .postgres()
        .query("SELECT value FROM setting WHERE name = 'bus_key'")
        .await?;
    let secret = rows.into_iter().flatten().flatten().next();
    let key = Key::new(&secret.context("no bus key")?);
    let vain = || metric(&stack, "cordum_scheduler_jobs_ahead_in_vain_total");
    let mut cancels = bus.subscribe(subjects::JOB_CANCEL, None).await?;
    // Whether there is a worker for it or not. A leader that is busy does not listen, so it
    // is told until it did.
    let ids = AtomicU64::new(2);
    let next = || u128::from(ids.fetch_add(1, Ordering::Relaxed)).to_be_bytes();
    for (job, topic) in [("nowhere", "job.echo"), ("never", "job.nobody")] {
        let before = vain().await?;
        eventually(WAIT, "one without a row taken in", || async {
            pretend(&bus, &key, next(), job, topic).await?;
            let now = vain().await?;
            Ok(Seen::when(now > before, now))
        })
        .await?;
        // It is let go of before it is counted; the next round shows it.
        runs(&stack).await?;
    }
    eventually(AT_ONCE, "all of them gone", || async {
        let assigned = metric(&stack, "cordum_scheduler_assigned").await?;
        let waiting = metric(&stack, "cordum_scheduler_waiting").await?;
        let seen = format!("{assigned} assigned, {waiting} waiting");
        Ok(Seen::when(assigned + waiting == 0, seen))
    })
    .await?;
    bus.flush().await?;
    let cancel = tokio::time::timeout(Duration::ZERO, cancels.recv()).await;
    ensure!(cancel.is_err(), "a worker was told of it: {cancel:?}");
    let strange = |id: &str| ["forged", "nowhere", "never"].contains(&id);
    let journal = stack.journal()?;
    ensure!(
        !journal.iter().any(|line| strange(&line.job_id)),
        "a worker ran what is in no ledger"
    );
    Ok(())
}

/// A job that nobody can run yet is in the ledger, so it is kept, and runs when somebody
/// can.
#[tokio::test]
async fn a_lone_job_without_a_worker_waits_for_one() -> Result<()> {
    let stack = Stack::builder().start().await?;
    runs(&stack).await?;
    stack.worker(0).term()?;
    let client = client(&stack)?;
    eventually(WAIT, "the worker gone", || async {
        let workers = metric(&stack, "cordum_scheduler_workers").await?;
        Ok(Seen::when(workers == 0, workers))
    })
    .await?;
    let ahead = || metric(&stack, "cordum_scheduler_jobs_ahead_total");
    let before = ahead().await?;
    let jobs = Mutex::new(Vec::new());
    // A leader that is busy leaves a job to the stream.
    eventually(WAIT, "one judged ahead", || async {
        let job = client.submit(&SubmitRequest::new("job.echo")).await?;
        jobs.lock().await.push(job.job_id);
        let now = ahead().await?;
        Ok(Seen::when(now > before, now))
    })
    .await?;
    let jobs = jobs.into_inner();
    eventually(WAIT, "all of them waiting", || async {
        let waiting = metric(&stack, "cordum_scheduler_waiting").await?;
        Ok(Seen::when(waiting == jobs.len() as u64, waiting))
    })
    .await?;
    stack.restart_worker(0).await?;
    for job in &jobs {
        let job = client.wait(job, WAIT).await?;
        ensure!(job.state.to_string() == "SUCCEEDED", "{job:?}");
        ensure!(job.attempts == 1, "{job:?}");
    }
    Ok(())
}

/// One job after the other, with a pause that makes them lone ones, until there are so many.
async fn submit_alone(stack: &Stack, enough: usize, ids: &mut BTreeSet<String>) -> Result<()> {
    let client = client(stack)?;
    let request = SubmitRequest::new("job.sleep").payload(&serde_json::json!({"ms": 5}))?;
    while ids.len() < enough {
        ids.insert(client.submit(&request).await?.job_id);
        tokio::time::sleep(Duration::from_millis(8)).await;
    }
    Ok(())
}

#[tokio::test]
async fn jobs_that_come_alone_survive_what_the_others_do() -> Result<()> {
    // What is submitted while NATS is away is found by the replayer.
    let stack = stack()
        .env_for(
            Service::Scheduler,
            "AIRLOCK_SCHEDULER__REPLAY_INTERVAL",
            "1s",
        )
        .env_for(Service::Scheduler, "AIRLOCK_SCHEDULER__PENDING_AGE", "3s")
        .start()
        .await?;
    let mut load = Load::without_short_jobs(&stack).await?;
    let long = load.succeeding.len();
    let enough = |short: usize| long + short;
    let ids = &mut load.succeeding;
    submit_alone(&stack, enough(50), ids).await?;
    done(&stack, 50).await?;
    load.long_jobs_run(&stack).await?;
    load.fault_next(&stack).await?;
    let ids = &mut load.succeeding;
    let (killed, submitted) = tokio::join!(
        async {
            stack.scheduler(0).kill9()?;
            stack.restart_scheduler(0).await
        },
        submit_alone(&stack, enough(150), ids)
    );
    killed.and(submitted)?;
    let (wiped, submitted) =
        tokio::join!(stack.nats().wipe(), submit_alone(&stack, enough(250), ids));
    wiped.and(submitted)?;
    let (flushed, submitted) = tokio::join!(
        stack.redis().flushall(),
        submit_alone(&stack, enough(300), ids)
    );
    flushed.and(submitted)?;
    let (killed, submitted) = tokio::join!(
        async {
            let killed = Interrupted::kill(stack.worker(0))?;
            stack.restart_worker(0).await?;
            anyhow::Ok(killed)
        },
        submit_alone(&stack, enough(400), ids)
    );
    submitted?;
    let killed = [killed?];
    load.fault_over(&stack, &killed).await?;
    load.all_final(&stack, WAIT).await?;
    load.check(&stack, &killed).await
}
