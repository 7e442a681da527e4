//! What the policy says beyond yes and no, on the real services with a worker on the SDK:
//! constraints reach the worker and bound the job, and what is in an input can stop it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use airlock_client::{Client, Job, SubmitRequest};
use airlock_model::JobState;
use airlock_testkit::{Seen, Service, Stack, eventually};
use airlock_worker::{Builder, JobContext, JobError, Worker};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::support::client;

const WAIT: Duration = Duration::from_secs(60);

const POLICY: &str = r#"
version: 1
default_decision: deny
input_policy:
  content_rules:
    - id: private-keys
      match: {topics: ["job.in.*"]}
      patterns: ["-----BEGIN [A-Z ]*PRIVATE KEY-----"]
      decision: deny
      reason: no keys in jobs
    - id: confidential
      match: {topics: ["job.in.*"]}
      keywords: [confidential]
      decision: require_approval
      reason: somebody looks at it first
rules:
  - id: short
    match: {topics: [job.short]}
    decision: allow_with_constraints
    constraints: {budgets: {max_runtime_ms: 1500}}
  - id: once-more
    match: {topics: [job.fails]}
    decision: allow_with_constraints
    constraints: {budgets: {max_retries: 1}}
  - id: two-at-once
    match: {topics: [job.crowd]}
    decision: allow_with_constraints
    constraints: {budgets: {max_concurrent_jobs: 2}}
  - id: all-of-them
    match: {topics: [job.tell]}
    decision: allow_with_constraints
    constraints:
      budgets: {max_runtime_ms: 60000, max_retries: 1, max_artifact_bytes: 7, max_concurrent_jobs: 5}
      sandbox: {isolated: true, network_allowlist: [example.org], fs_read_only: [/usr], fs_read_write: [/tmp]}
      toolchain: {allowed_tools: [search], allowed_commands: [ls]}
      diff: {max_files: 3, max_lines: 9, deny_path_globs: ["/etc/*"]}
      redaction_level: strict
  - id: inputs
    match: {topics: ["job.in.*"]}
    decision: allow
"#;

struct Bed {
    stack: Stack,
    client: Client,
    _worker: DropGuard,
}

/// The services, each a process, and this worker.
async fn bed(worker: Builder) -> Result<Bed> {
    let stack = Stack::builder()
        .services(&[Service::SafetyKernel, Service::Scheduler, Service::Gateway])
        .policy(POLICY)
        // A retry's pause is not what is looked at here.
        .env_for(Service::Scheduler, "AIRLOCK_SCHEDULER__MAX_ATTEMPTS", "5")
        .start()
        .await?;
    let worker = worker
        .ignore_environment()
        .nats_url(stack.nats().url())
        .redis_url(stack.redis().url());
    let stop = CancellationToken::new();
    tokio::spawn(worker.run_until(stop.clone()));
    Ok(Bed {
        client: client(&stack)?,
        stack,
        _worker: stop.drop_guard(),
    })
}

impl Bed {
    async fn run(&self, topic: &str, payload: &Value) -> Result<Job> {
        let request = SubmitRequest::new(topic).payload(payload)?;
        Ok(self.client.submit_wait(&request, WAIT).await?)
    }
}

fn constrained_by(job: &Job, rule: &str) -> Result<()> {
    let decision = job.decision.as_ref().context("a decision")?;
    ensure!(
        decision.decision == "ALLOW_WITH_CONSTRAINTS",
        "{decision:?}"
    );
    ensure!(decision.rule_id.as_deref() == Some(rule), "{decision:?}");
    Ok(())
}

#[tokio::test]
async fn every_constraint_reaches_the_worker() -> Result<()> {
    let bed = bed(Worker::builder("teller").on(
        "job.tell",
        |ctx: JobContext, _: Value| async move {
            let c = ctx
                .constraints()
                .ok_or_else(|| JobError::fatal("none", "there are no constraints"))?;
            let (b, s) = (c.budgets.unwrap_or_default(), c.sandbox.clone());
            let (s, t) = (
                s.unwrap_or_default(),
                c.toolchain.clone().unwrap_or_default(),
            );
            let d = c.diff.clone().unwrap_or_default();
            Ok(json!({
                "budgets": [b.max_runtime_ms, i64::from(b.max_retries), b.max_artifact_bytes,
                            i64::from(b.max_concurrent_jobs)],
                "sandbox": [json!(s.isolated), json!(s.network_allowlist),
                            json!(s.fs_read_only), json!(s.fs_read_write)],
                "toolchain": [t.allowed_tools, t.allowed_commands],
                "diff": [json!(d.max_files), json!(d.max_lines), json!(d.deny_path_globs)],
                "redaction_level": c.redaction_level,
                "max_attempts": ctx.max_attempts(),
                "has_limit": ctx.time_left().is_some_and(|t| t <= Duration::from_secs(60)),
            }))
        },
    ))
    .await?;
    let job = bed.run("job.tell", &json!({})).await?;
    constrained_by(&job, "all-of-them")?;
    let told: Value = serde_json::from_str(job.result.as_ref().context("a result")?.get())?;
    assert_eq!(
        told,
        json!({
            "budgets": [60_000, 1, 7, 5],
            "sandbox": [true, ["example.org"], ["/usr"], ["/tmp"]],
            "toolchain": [["search"], ["ls"]],
            "diff": [3, 9, ["/etc/*"]],
            "redaction_level": "strict",
            "max_attempts": 2,
            "has_limit": true,
        })
    );
    Ok(())
}

#[tokio::test]
async fn a_runtime_is_a_deadline() -> Result<()> {
    let bed = bed(Worker::builder("sleeper").on(
        "job.short",
        |ctx: JobContext, _: Value| async move {
            let left = ctx.time_left().unwrap_or(Duration::MAX);
            if left > Duration::from_millis(1_500) {
                return Err(JobError::fatal("too_long", format!("{left:?} are left")));
            }
            // Far longer than it may, and deaf to being told.
            tokio::time::sleep(Duration::from_secs(600)).await;
            Ok(())
        },
    ))
    .await?;
    let began = Instant::now();
    let job = bed.run("job.short", &json!({})).await?;
    constrained_by(&job, "short")?;
    ensure!(job.state == JobState::Timeout, "{job:?}");
    ensure!(
        began.elapsed() >= Duration::from_millis(1_500),
        "it was given its time"
    );
    Ok(())
}

#[tokio::test]
async fn retries_are_attempts() -> Result<()> {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let bed = bed(
        Worker::builder("failing").on("job.fails", move |_: JobContext, _: Value| {
            counted.fetch_add(1, Ordering::SeqCst);
            async move { Err::<(), _>(JobError::retryable("not today")) }
        }),
    )
    .await?;
    let job = bed.run("job.fails", &json!({})).await?;
    constrained_by(&job, "once-more")?;
    ensure!(job.state == JobState::Failed, "{job:?}");
    assert_eq!(job.attempts, 2, "one run and one retry, not five");
    assert_eq!(runs.load(Ordering::SeqCst), 2);
    Ok(())
}

#[tokio::test]
async fn no_more_of_a_rules_jobs_run_at_once_than_it_allows() -> Result<()> {
    const JOBS: usize = 8;
    struct Crowd {
        now: AtomicUsize,
        most: AtomicUsize,
    }
    let crowd = Arc::new(Crowd {
        now: AtomicUsize::new(0),
        most: AtomicUsize::new(0),
    });
    let seen = Arc::clone(&crowd);
    let worker = Worker::builder("crowded").max_parallel(8).on(
        "job.crowd",
        move |_: JobContext, _: Value| {
            let seen = Arc::clone(&seen);
            async move {
                let now = seen.now.fetch_add(1, Ordering::SeqCst) + 1;
                seen.most.fetch_max(now, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(500)).await;
                seen.now.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            }
        },
    );
    let bed = bed(worker).await?;
    let request = SubmitRequest::new("job.crowd").payload(&json!({}))?;
    let mut ids = Vec::new();
    for outcome in bed.client.submit_batch(&vec![request; JOBS]).await? {
        ids.push(outcome.map_err(|p| anyhow::anyhow!("{p:?}"))?.job_id);
    }
    for id in &ids {
        let job = bed.client.wait(id, WAIT).await?;
        ensure!(job.state == JobState::Succeeded, "{job:?}");
        constrained_by(&job, "two-at-once")?;
    }
    assert_eq!(crowd.most.load(Ordering::SeqCst), 2);
    Ok(())
}

/// The first question goes without the input, and a second one with it where a rule asks.
/// Small inputs travel with their jobs, large ones by pointer; both are looked at.
#[tokio::test]
async fn what_is_in_an_input_stops_a_job() -> Result<()> {
    let ran = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&ran);
    let bed = bed(Worker::builder("reader").on(
        "job.in.read",
        move |_: JobContext, input: Value| {
            counted.fetch_add(1, Ordering::SeqCst);
            async move { Ok(input["text"].as_str().map_or(0, str::len)) }
        },
    ))
    .await?;
    // Past what travels in a packet.
    let padding = "x".repeat(400_000);
    for pad in ["", padding.as_str()] {
        let fine = json!({"text": format!("{pad} nothing to see")});
        let job = bed.run("job.in.read", &fine).await?;
        ensure!(job.state == JobState::Succeeded, "{:?}", job.state);
        let before = ran.load(Ordering::SeqCst);

        let key = json!({"text": format!("{pad} -----BEGIN RSA PRIVATE KEY-----")});
        let job = bed.run("job.in.read", &key).await?;
        ensure!(job.state == JobState::Denied, "{:?}", job.state);
        let decision = job.decision.context("a decision")?;
        ensure!(
            decision.rule_id.as_deref() == Some("private-keys"),
            "{decision:?}"
        );
        let reason = decision.reason.unwrap_or_default();
        ensure!(reason.contains("no keys in jobs"), "{reason}");
        ensure!(!reason.contains("BEGIN RSA"), "it shows what it found");

        let secret = json!({"text": format!("{pad} CONFIDENTIAL")});
        let request = SubmitRequest::new("job.in.read").payload(&secret)?;
        let id = bed.client.submit(&request).await?.job_id;
        eventually(WAIT, "the job to be held", || async {
            let state = bed.client.get(&id).await?.state;
            Ok(Seen::when(state == JobState::ApprovalRequired, state))
        })
        .await?;
        assert_eq!(ran.load(Ordering::SeqCst), before, "neither ran");
    }
    let asked = ask_scheduler_metric(&bed.stack).await?;
    ensure!(asked > 0, "the kernel was never asked");
    Ok(())
}

async fn ask_scheduler_metric(stack: &Stack) -> Result<u64> {
    let scrape = crate::support::ask_scheduler(stack, 0, "/metrics").await?;
    let line = scrape
        .lines()
        .find_map(|l| l.strip_prefix("cordum_scheduler_safety_checks_total "));
    Ok(line.context("a count")?.parse::<f64>()? as u64)
}
