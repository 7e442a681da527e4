//! The scheduler's side of the output policy on the real binaries, branch by branch, before
//! a scanner that this test plays: it answers, hangs, answers garbage and goes away.
//!
//! The workers echo their input, so a test says in the input what the scanner is to say.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use airlock_client::{Client, SubmitRequest};
use airlock_model::JobState;
use airlock_proto::own::output_batch_server::{OutputBatch, OutputBatchServer};
use airlock_proto::{cap, own};
use airlock_testkit::{
    PortLease, Process, Seen, Service, Stack, StackBuilder, TestDir, eventually,
};
use airlock_worker::{JobContext, JobError, Worker};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::locked::holding;
use crate::support::{ask_scheduler, cell, client, until};

const WAIT: Duration = Duration::from_secs(60);
/// More than goes along with the check before the commit.
const LARGE: usize = 300_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Mood {
    Answers = 0,
    Hangs = 1,
    Garbage = 2,
    /// What it allowed before, it quarantines now.
    Strict = 3,
}

/// What the scanner was asked, and how it answers.
#[derive(Clone, Default)]
pub(crate) struct Scanner {
    mood: Arc<AtomicU8>,
    asked: Arc<Mutex<Vec<cap::OutputCheckRequest>>>,
    calls: Arc<AtomicUsize>,
    closed_rules: String,
}

impl Scanner {
    pub(crate) fn set(&self, mood: Mood) {
        self.mood.store(mood as u8, Ordering::SeqCst);
    }

    async fn pause(&self) {
        while self.mood.load(Ordering::SeqCst) == Mood::Hangs as u8 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn is_garbage(&self) -> bool {
        self.mood.load(Ordering::SeqCst) == Mood::Garbage as u8
    }

    fn answer(&self, request: &cap::OutputCheckRequest) -> cap::OutputCheckResponse {
        use cap::OutputDecision as D;
        let content = String::from_utf8_lossy(&request.output_content).into_owned();
        let size = usize::try_from(request.output_size_bytes).unwrap_or(0);
        if request.output_content.len() < size {
            return cap::OutputCheckResponse {
                content_needed: true,
                policy_snapshot: "snapshot-1".to_owned(),
                ..Default::default()
            };
        }
        let says = |word: &str| content.contains(word);
        let (decision, deny) = match () {
            () if says("say-deny") => (D::Quarantine, true),
            () if says("say-quarantine") => (D::Quarantine, false),
            () if says("say-redact") => (D::Redact, false),
            () if self.mood.load(Ordering::SeqCst) == Mood::Strict as u8 => (D::Quarantine, false),
            () => (D::Allow, false),
        };
        let masked = says("say-redact-copy").then(|| Bytes::from_static(b"\"[REDACTED:custom]\""));
        cap::OutputCheckResponse {
            decision: if self.is_garbage() {
                99
            } else {
                decision as i32
            },
            deny,
            rule_id: "the-rule".to_owned(),
            reason: "because of the rule".to_owned(),
            severity: "high".to_owned(),
            policy_snapshot: "snapshot-1".to_owned(),
            redacted_content: masked,
            ..Default::default()
        }
    }
}

#[tonic::async_trait]
impl OutputBatch for Scanner {
    async fn check_batch(
        &self,
        request: Request<own::CheckOutputBatchRequest>,
    ) -> Result<Response<own::CheckOutputBatchResponse>, Status> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.pause().await;
        let requests = request.into_inner().requests;
        let responses = requests.iter().map(|r| self.answer(r)).collect();
        let mut asked = self.asked.lock().expect("nobody panicked");
        asked.extend(requests);
        Ok(Response::new(own::CheckOutputBatchResponse {
            responses,
            snapshot: "snapshot-1".to_owned(),
        }))
    }

    async fn confirm(
        &self,
        _: Request<own::ConfirmOutputRequest>,
    ) -> Result<Response<own::ConfirmOutputResponse>, Status> {
        self.pause().await;
        Ok(Response::new(own::ConfirmOutputResponse {
            snapshot: "snapshot-1".to_owned(),
            fail_mode: i32::from(own::FailMode::Open),
            refused: String::new(),
            closed_rules: self.closed_rules.clone(),
        }))
    }
}

/// A scanner that listens, until it is killed.
pub(crate) struct Listening {
    pub(crate) scanner: Scanner,
    addr: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

impl Listening {
    async fn open() -> Result<Self> {
        Self::with_rules("").await
    }

    /// Every output meets a rule that fails closed.
    pub(crate) async fn closed() -> Result<Self> {
        Self::with_rules(r#"[{"id":"all"}]"#).await
    }

    async fn with_rules(rules: &str) -> Result<Self> {
        let scanner = Scanner {
            closed_rules: rules.to_owned(),
            ..Scanner::default()
        };
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let addr = listener.local_addr()?;
        let service = OutputBatchServer::new(scanner.clone())
            .max_decoding_message_size(64 << 20)
            .max_encoding_message_size(64 << 20);
        let serve = tonic::transport::Server::builder()
            .add_service(service)
            .serve_with_incoming(TcpListenerStream::new(listener));
        let task = tokio::spawn(async move {
            let _ = serve.await;
        });
        Ok(Self {
            scanner,
            addr,
            task,
        })
    }

    fn kill(&self) {
        self.task.abort();
    }

    pub(crate) fn stack(&self) -> StackBuilder {
        stack_at(self.addr)
    }
}

/// A stack whose scheduler asks the scanner at this address.
fn stack_at(scanner: SocketAddr) -> StackBuilder {
    let url = format!("http://{scanner}");
    let settings = [
        ("OUTPUT_POLICY_ENABLED", "true"),
        ("OUTPUT_POLICY_INSECURE", "true"),
        ("AIRLOCK_OUTPUT__URL", url.as_str()),
        ("AIRLOCK_OUTPUT__TIMEOUT", "500ms"),
        ("AIRLOCK_OUTPUT__SCAN_TIMEOUT", "2s"),
        ("AIRLOCK_OUTPUT__BREAKER__OPEN_FOR", "500ms"),
        ("AIRLOCK_OUTPUT__BREAKER__OPEN_DELAY", "200ms"),
    ];
    let builder = Stack::builder();
    settings.iter().fold(builder, |b, (name, value)| {
        b.env_for(Service::Scheduler, name, value)
    })
}

fn echo(say: &str, pad: usize) -> Result<SubmitRequest> {
    let payload = json!({ "say": say, "pad": "x".repeat(pad) });
    Ok(SubmitRequest::new("job.echo").payload(&payload)?)
}

/// A column of a job's row or of the record of its output.
async fn row(stack: &Stack, job: &str, column: &str) -> Result<String> {
    let sql = format!(
        "SELECT ({column})::text FROM job_state s LEFT JOIN job_output o USING (job_id)
         WHERE s.job_id = '{job}'"
    );
    cell(stack, &sql).await
}

async fn until_row(stack: &Stack, job: &str, column: &str, wanted: &str) -> Result<()> {
    let sql = format!(
        "SELECT ({column})::text FROM job_state s LEFT JOIN job_output o USING (job_id)
         WHERE s.job_id = '{job}'"
    );
    until(stack, &sql, wanted).await
}

async fn letters(stack: &Stack, job: &str) -> Result<String> {
    let sql = format!(
        "SELECT string_agg(reason_code || ' ' || last_state, ',') FROM dead_letter
         WHERE job_id = '{job}'"
    );
    cell(stack, &sql).await
}

async fn audited(stack: &Stack, job: &str) -> Result<String> {
    let sql =
        format!("SELECT string_agg(kind, ',' ORDER BY id) FROM audit_log WHERE job_id = '{job}'");
    cell(stack, &sql).await
}

/// No key of the job's results is in Redis.
async fn until_erased(stack: &Stack, job: &str) -> Result<()> {
    let script = "return table.concat(redis.call('KEYS', ARGV[1]), ' ')";
    let pattern = format!("res:{job}*");
    eventually(WAIT, "its copies to be removed from Redis", || async {
        let words = ["EVAL", script, "0", pattern.as_str()];
        let found = stack.redis().command(&words).await?.unwrap_or_default();
        Ok(Seen::when(found.is_empty(), found))
    })
    .await
}

async fn finished(client: &Client, say: &str, pad: usize) -> Result<(String, JobState)> {
    let job = client.submit_wait(&echo(say, pad)?, WAIT).await?;
    Ok((job.job_id.to_string(), job.state))
}

#[tokio::test]
async fn before_the_commit_each_verdict_leads_where_the_document_says() -> Result<()> {
    let listening = Listening::open().await?;
    let stack = listening.stack().start().await?;
    let client = client(&stack)?;
    let (job, state) = finished(&client, "say-allow", 0).await?;
    ensure!(state == JobState::Succeeded, "{state}");
    ensure!(row(&stack, &job, "o.status").await? == "1");
    ensure!(row(&stack, &job, "o.policy_snapshot").await? == "snapshot-1");
    ensure!(row(&stack, &job, "s.result IS NOT NULL").await? == "true");
    ensure!(row(&stack, &job, "o.original IS NULL").await? == "true");
    for say in ["say-quarantine", "say-deny", "say-redact-none"] {
        let (job, state) = finished(&client, say, 0).await?;
        ensure!(state == JobState::OutputQuarantined, "{say}: {state}");
        ensure!(
            row(&stack, &job, "s.result IS NULL").await? == "true",
            "{say}"
        );
        ensure!(row(&stack, &job, "o.status").await? == "4", "{say}");
        ensure!(row(&stack, &job, "sha256(o.original) = o.sha256").await? == "true");
        ensure!(row(&stack, &job, "o.evidence_until > now()").await? == "true");
        ensure!(row(&stack, &job, "s.reason").await? == "because of the rule");
        let letters = letters(&stack, &job).await?;
        ensure!(letters == "output_quarantined RUNNING", "{say}: {letters}");
        ensure!(
            audited(&stack, &job).await? == "output.quarantined",
            "{say}"
        );
    }
    ensure!(
        cell(
            &stack,
            "SELECT count(*)::text FROM job_output WHERE decision = 3"
        )
        .await?
            == "1",
        "a denial is recorded as one"
    );
    let redacted = client
        .submit_wait(&echo("say-redact-copy", 0)?, WAIT)
        .await?;
    ensure!(redacted.state == JobState::Succeeded, "{redacted:?}");
    let shown = redacted.result.context("the masked copy")?;
    ensure!(shown.get() == "\"[REDACTED:custom]\"", "{shown}");
    let job = redacted.job_id.to_string();
    ensure!(row(&stack, &job, "o.status").await? == "3");
    ensure!(row(&stack, &job, "sha256(o.original) = o.sha256").await? == "true");
    // Metadata and content went in one call each.
    let asked = listening
        .scanner
        .asked
        .lock()
        .expect("nobody panicked")
        .clone();
    ensure!(asked.len() == 5, "{} requests", asked.len());
    let first = asked.first().context("a request")?;
    ensure!(
        first.topic == "job.echo" && first.tenant == "default",
        "{first:?}"
    );
    ensure!(!first.output_content.is_empty() && first.content_hash.len() == 64);
    let scrape = ask_scheduler(&stack, 0, "/metrics").await?;
    for (name, n) in [("checked", 5), ("quarantined", 3)] {
        let line = format!("cordum_scheduler_output_policy_{name}_total{{topic=\"job.echo\"}} {n}");
        ensure!(scrape.contains(&line), "{line} is not in {scrape}");
    }
    let latency =
        "cordum_scheduler_output_check_latency_seconds_count{topic=\"job.echo\",phase=\"sync\"} 5";
    ensure!(scrape.contains(latency), "{scrape}");
    Ok(())
}

#[tokio::test]
async fn after_the_commit_a_scan_downgrades_redacts_or_changes_nothing() -> Result<()> {
    let listening = Listening::open().await?;
    let stack = listening.stack().start().await?;
    let client = client(&stack)?;
    let (job, state) = finished(&client, "say-quarantine", LARGE).await?;
    let seen = [JobState::Succeeded, JobState::OutputQuarantined];
    ensure!(seen.contains(&state), "{state}");
    until_row(&stack, &job, "s.state", "15").await?;
    ensure!(row(&stack, &job, "s.result IS NULL").await? == "true");
    ensure!(row(&stack, &job, "o.phase").await? == "2");
    ensure!(letters(&stack, &job).await? == "output_quarantined SUCCEEDED");
    ensure!(audited(&stack, &job).await? == "output.quarantined");
    until_erased(&stack, &job).await?;
    let (job, _) = finished(&client, "say-redact-copy", LARGE).await?;
    until_row(&stack, &job, "o.status", "3").await?;
    ensure!(row(&stack, &job, "s.state").await? == "10");
    ensure!(row(&stack, &job, "s.result = o.redacted").await? == "true");
    let (job, _) = finished(&client, "say-redact-none", LARGE).await?;
    until_row(&stack, &job, "s.state", "15").await?;
    let (job, _) = finished(&client, "say-allow", LARGE).await?;
    until_row(&stack, &job, "o.phase", "2").await?;
    ensure!(row(&stack, &job, "s.state").await? == "10");
    ensure!(row(&stack, &job, "s.result IS NOT NULL").await? == "true");
    until(&stack, "SELECT count(*)::text FROM output_scan", "0").await?;
    Ok(())
}

#[tokio::test]
async fn an_absent_scanner_lets_pass_what_fails_open_and_says_so() -> Result<()> {
    let listening = Listening::open().await?;
    let stack = listening.stack().start().await?;
    let client = client(&stack)?;
    until(&stack, "SELECT snapshot FROM output_policy", "snapshot-1").await?;
    for mood in [Mood::Garbage, Mood::Hangs] {
        listening.scanner.set(mood);
        let (job, state) = finished(&client, "say-quarantine", 0).await?;
        ensure!(state == JobState::Succeeded, "{mood:?}: {state}");
        ensure!(row(&stack, &job, "s.result IS NOT NULL").await? == "true");
        let reason = row(&stack, &job, "o.reason").await?;
        ensure!(reason.starts_with("output policy fail-open"), "{reason}");
    }
    listening.kill();
    let (job, state) = finished(&client, "say-quarantine", 0).await?;
    ensure!(state == JobState::Succeeded, "{state}");
    ensure!(row(&stack, &job, "o.status").await? == "1");
    eventually(WAIT, "health to name the scanner", || async {
        let health = ask_scheduler(&stack, 0, "/health/ready").await?;
        let named = health.contains("output-policy") && health.contains("cannot be asked");
        Ok(Seen::when(named, health))
    })
    .await?;
    let scrape = ask_scheduler(&stack, 0, "/metrics").await?;
    ensure!(scrape.contains("cordum_scheduler_output_policy_skipped_total{topic=\"job.echo\"}"));
    Ok(())
}

#[tokio::test]
async fn what_fails_closed_is_held_through_every_trouble_until_its_verdict() -> Result<()> {
    let listening = Listening::closed().await?;
    let stack = listening.stack().start().await?;
    let client = client(&stack)?;
    until(&stack, "SELECT snapshot FROM output_policy", "snapshot-1").await?;
    listening.scanner.set(Mood::Garbage);
    let quarantined = client
        .submit(&echo("say-quarantine", 0)?)
        .await?
        .job_id
        .to_string();
    let allowed = client
        .submit(&echo("say-allow", 0)?)
        .await?
        .job_id
        .to_string();
    let cancelled = client.submit(&echo("say-allow", 0)?).await?.job_id;
    let cancelled_id = cancelled.to_string();
    for job in [&quarantined, &allowed, &cancelled_id] {
        until_row(&stack, job, "o.status", "2").await?;
        ensure!(
            row(&stack, job, "s.state").await? == "4",
            "it stays RUNNING"
        );
        ensure!(row(&stack, job, "s.result IS NULL").await? == "true");
        ensure!(row(&stack, job, "s.reason_code").await? == "output_held");
    }
    let events = "SELECT count(*)::text FROM dead_letter";
    ensure!(cell(&stack, events).await? == "0");
    // The worker is free: a job of it runs on, and is held too.
    listening.scanner.set(Mood::Hangs);
    client.cancel(&cancelled, Some("no longer wanted")).await?;
    until_row(&stack, &cancelled_id, "s.state", "13").await?;
    // Neither a new leader nor an absent Redis ends the others.
    stack.scheduler(0).kill9()?;
    stack.redis().kill()?;
    stack.restart_scheduler(0).await?;
    for job in [&quarantined, &allowed] {
        ensure!(row(&stack, job, "s.state").await? == "4");
        ensure!(row(&stack, job, "o.status").await? == "2");
    }
    listening.scanner.set(Mood::Answers);
    until_row(&stack, &allowed, "s.state", "10").await?;
    ensure!(row(&stack, &allowed, "s.result IS NOT NULL").await? == "true");
    ensure!(row(&stack, &allowed, "o.original IS NULL").await? == "true");
    until_row(&stack, &quarantined, "s.state", "15").await?;
    ensure!(row(&stack, &quarantined, "s.result IS NULL").await? == "true");
    ensure!(letters(&stack, &quarantined).await? == "output_quarantined RUNNING");
    until(&stack, "SELECT count(*)::text FROM output_scan", "0").await?;
    ensure!(row(&stack, &cancelled_id, "s.state").await? == "13");
    ensure!(row(&stack, &cancelled_id, "s.result IS NULL").await? == "true");
    stack.redis().restart().await?;
    Ok(())
}

/// A partial result under a rule that fails closed is owed its verdict like the result.
#[tokio::test]
async fn a_partial_result_under_a_closed_rule_waits_for_its_verdict() -> Result<()> {
    let listening = Listening::closed().await?;
    let stack = listening
        .stack()
        .services(&[Service::SafetyKernel, Service::Scheduler, Service::Gateway])
        .start()
        .await?;
    let client = client(&stack)?;
    until(&stack, "SELECT snapshot FROM output_policy", "snapshot-1").await?;
    let worker = Worker::builder("showing")
        .on("job.showing", async |ctx: JobContext, input: Value| {
            ctx.partial(40, &input).await?;
            Ok::<_, JobError>(Value::Null)
        })
        .ignore_environment()
        .nats_url(stack.nats().url())
        .redis_url(stack.redis().url());
    let stop = CancellationToken::new();
    tokio::spawn(worker.run_until(stop.clone()));
    let _worker = stop.drop_guard();
    listening.scanner.set(Mood::Garbage);
    let mut jobs = Vec::new();
    for say in ["say-allow", "say-deny"] {
        let request = SubmitRequest::new("job.showing").payload(&json!({ "say": say }))?;
        let job = client.submit(&request).await?.job_id.to_string();
        let sql = format!("SELECT output::text FROM job_partial WHERE job_id = '{job}'");
        until(&stack, &sql, "3").await?;
        jobs.push(sql);
    }
    listening.scanner.set(Mood::Answers);
    until(&stack, &jobs[0], "1").await?;
    until(&stack, &jobs[1], "2").await?;
    Ok(())
}

#[tokio::test]
async fn before_any_scanner_was_heard_everything_is_held() -> Result<()> {
    let listening = Listening::open().await?;
    listening.scanner.set(Mood::Hangs);
    let stack = listening.stack().start().await?;
    let client = client(&stack)?;
    let job = client
        .submit(&echo("say-allow", 0)?)
        .await?
        .job_id
        .to_string();
    until_row(&stack, &job, "o.status", "2").await?;
    ensure!(row(&stack, &job, "s.state").await? == "4");
    listening.scanner.set(Mood::Answers);
    until_row(&stack, &job, "s.state", "10").await?;
    Ok(())
}

#[tokio::test]
async fn a_rescan_judges_stored_results_by_today_s_policy() -> Result<()> {
    let listening = Listening::open().await?;
    let stack = listening.stack().start().await?;
    let client = client(&stack)?;
    let (job, _) = finished(&client, "say-allow", 0).await?;
    let (redacted, _) = finished(&client, "say-redact-copy", 0).await?;
    listening.scanner.set(Mood::Strict);
    for (n, dry_run, state) in [(1, true, "10"), (2, false, "15")] {
        let insert = format!(
            "INSERT INTO output_rescan (rescan_id, since, up_to, dry_run, requested_by, created_at)
             VALUES ('00000000-0000-0000-0000-00000000000{n}', now() - interval '1 h', now(),
                     {dry_run}, 'ann', now())"
        );
        stack.postgres().query(&insert).await?;
        let done = format!(
            "SELECT state || ' ' || scanned || ' ' || quarantined FROM output_rescan
             WHERE dry_run = {dry_run}"
        );
        until(&stack, &done, "done 2 2").await?;
        for job in [&job, &redacted] {
            ensure!(
                row(&stack, job, "s.state").await? == state,
                "dry run: {dry_run}"
            );
        }
    }
    ensure!(letters(&stack, &job).await? == "output_quarantined SUCCEEDED");
    let original = "sha256(o.original) = o.sha256";
    ensure!(
        row(&stack, &redacted, original).await? == "true",
        "not the masked copy"
    );
    Ok(())
}

/// The verdict is there and the leader dies before it is committed: the result comes again,
/// and so does the verdict.
#[tokio::test]
async fn a_leader_that_dies_between_verdict_and_commit_loses_nothing_and_shows_nothing()
-> Result<()> {
    let listening = Listening::closed().await?;
    let stack = listening.stack().start().await?;
    let client = client(&stack)?;
    until(&stack, "SELECT snapshot FROM output_policy", "snapshot-1").await?;
    finished(&client, "say-allow", 0).await?;
    // The row cannot be written, so the verdict waits for its commit.
    stack.worker(0).stop()?;
    let job = client
        .submit(&echo("say-quarantine", 0)?)
        .await?
        .job_id
        .to_string();
    until_row(&stack, &job, "s.state", "3").await?;
    let lock = format!("SELECT 1 FROM job_state WHERE job_id = '{job}' FOR UPDATE");
    let before = listening.scanner.calls.load(Ordering::SeqCst);
    holding(&stack, &lock, async {
        stack.worker(0).cont()?;
        eventually(WAIT, "the scanner to be asked", || async {
            let calls = listening.scanner.calls.load(Ordering::SeqCst);
            Ok(Seen::when(calls > before, calls.to_string()))
        })
        .await?;
        stack.scheduler(0).kill9()?;
        Ok(())
    })
    .await?;
    ensure!(row(&stack, &job, "s.result IS NULL").await? == "true");
    stack.restart_scheduler(0).await?;
    until_row(&stack, &job, "s.state", "15").await?;
    ensure!(letters(&stack, &job).await? == "output_quarantined RUNNING");
    Ok(())
}

/// A secret that only the worker makes: in its words, its partial result, its artifact.
async fn leaky(ctx: JobContext, secret: String) -> Result<Value, JobError> {
    let url = format!("postgres://app:{secret}@db.internal.acme.io/main");
    ctx.partial(40, &json!({ "database": url })).await?;
    ctx.artifact("notes.txt", "text/plain", url.clone().into_bytes())
        .await?;
    ctx.progress(50, format!("connecting to {url}"));
    Err(JobError::fatal(
        "not a code",
        format!("connecting to {url} failed"),
    ))
}

#[tokio::test]
async fn what_a_worker_says_beside_its_result_is_masked_or_withheld() -> Result<()> {
    let listening = Listening::open().await?;
    let stack = listening
        .stack()
        .services(&[Service::SafetyKernel, Service::Scheduler, Service::Gateway])
        .start()
        .await?;
    let client = client(&stack)?;
    // Made here, so that no finished secret is in the repository.
    let secret = format!("{}{}", "Zq8vT3xL", "w0RkP2");
    let leaks = secret.clone();
    let worker = Worker::builder("leaky")
        .on("job.leaky", move |ctx: JobContext, _: Value| {
            leaky(ctx, leaks.clone())
        })
        .ignore_environment()
        .nats_url(stack.nats().url())
        .redis_url(stack.redis().url());
    let stop = CancellationToken::new();
    tokio::spawn(worker.run_until(stop.clone()));
    let _worker = stop.drop_guard();
    let request = SubmitRequest::new("job.leaky").payload(&json!({}))?;
    let job = client.submit_wait(&request, WAIT).await?;
    ensure!(job.state == JobState::Failed, "{job:?}");
    let shown = serde_json::to_string(&job)?;
    ensure!(!shown.contains(&secret), "{shown}");
    let id = job.job_id.to_string();
    let reason = row(&stack, &id, "s.reason").await?;
    ensure!(reason.contains("[REDACTED:secret_leak]"), "{reason}");
    ensure!(row(&stack, &id, "s.reason_code").await? == "failed");
    let letter = format!("SELECT reason FROM dead_letter WHERE job_id = '{id}'");
    ensure!(!cell(&stack, &letter).await?.contains(&secret));
    // What was said just before the end may be heard just after it.
    let message = format!(
        "SELECT (message LIKE '%[REDACTED:secret_leak]%')::text FROM job_report
         WHERE job_id = '{id}'"
    );
    until(&stack, &message, "true").await?;
    for piece in ["job_partial", "job_artifact"] {
        let output = format!("SELECT output::text FROM {piece} WHERE job_id = '{id}'");
        ensure!(cell(&stack, &output).await? == "2", "{piece}");
    }
    let content = format!("SELECT (content IS NULL)::text FROM job_partial WHERE job_id = '{id}'");
    ensure!(cell(&stack, &content).await? == "true");
    ensure!(!stack.scheduler(0).log().contains(&secret), "in the log");
    until_erased(&stack, &id).await?;
    let script = "return table.concat(redis.call('KEYS', 'art:*'), ' ')";
    eventually(WAIT, "its artifact to be removed from Redis", || async {
        let left = stack.redis().command(&["EVAL", script, "0"]).await?;
        let left = left.unwrap_or_default();
        Ok(Seen::when(left.is_empty(), left))
    })
    .await?;
    let bus = crate::support::bus(&stack).await?;
    eventually(WAIT, "raw results to leave the stream", || async {
        let filter = Bytes::from_static(br#"{"subjects_filter":"sys.job.result"}"#);
        let info = bus.request("$JS.API.STREAM.INFO.CORDUM_SYS", filter, WAIT);
        let info: Value = serde_json::from_slice(&info.await?)?;
        let left = info["state"]["subjects"]["sys.job.result"].clone();
        Ok(Seen::when(left.is_null() || left == 0, left.to_string()))
    })
    .await?;
    Ok(())
}

const RULES: &str = r#"
version: 1
default_decision: allow
rules: []
output_rules:
  - id: personal
    match: {topics: ["job.*"], detectors: [pii]}
    decision: redact
    reason: personal data is masked
  - id: secrets
    severity: critical
    match: {topics: ["job.*"], detectors: [secret_leak]}
    decision: quarantine
    reason: no secrets in outputs
    fail_mode: closed
"#;

/// The real service: its verdicts, and a kill and a restart of it in between.
#[tokio::test]
async fn the_output_policy_service_judges_and_is_missed_when_it_is_gone() -> Result<()> {
    let dir = TestDir::new()?;
    let policy = dir.path().join("safety.yaml");
    std::fs::write(&policy, RULES)?;
    let (grpc, http) = (PortLease::new()?, PortLease::new()?);
    let service = Process::builder("airlock-output-policy")
        .env("AIRLOCK_GRPC__LISTEN", grpc.addr().to_string())
        .env("AIRLOCK_HTTP__LISTEN", http.addr().to_string())
        .env("OUTPUT_POLICY_INSECURE", "true")
        .env("SAFETY_POLICY_PATH", &policy)
        .dir(&dir)
        .spawn()
        .await?;
    let stack = stack_at(grpc.addr()).start().await?;
    let client = client(&stack)?;
    until(&stack, "SELECT count(*)::text FROM output_policy", "1").await?;
    // Made here, so that no finished secret is in the repository.
    let secret = format!(
        "postgres://app:{}{}@db.internal.acme.io/main",
        "Zq8vT3xL", "w0RkP2"
    );
    let (job, state) = finished(&client, "nothing to see", 0).await?;
    ensure!(state == JobState::Succeeded, "{state}");
    ensure!(row(&stack, &job, "o.status").await? == "1");
    for pad in [0, LARGE] {
        let job = submitted(&client, &secret, pad).await?;
        until_row(&stack, &job, "s.state", "15").await?;
        ensure!(row(&stack, &job, "o.rule_id").await? == "secrets");
        ensure!(row(&stack, &job, "o.findings IS NOT NULL").await? == "true");
        ensure!(row(&stack, &job, "s.result IS NULL").await? == "true");
    }
    service.kill9()?;
    let job = submitted(&client, &secret, 0).await?;
    until_row(&stack, &job, "o.status", "2").await?;
    ensure!(row(&stack, &job, "s.state").await? == "4");
    service.respawn()?;
    until_row(&stack, &job, "s.state", "15").await?;
    Ok(())
}

/// A job that is not waited for: it may be held.
async fn submitted(client: &Client, say: &str, pad: usize) -> Result<String> {
    let job = client.submit(&echo(say, pad)?).await?;
    Ok(job.job_id.to_string())
}

#[tokio::test]
async fn without_the_switch_nothing_is_asked_or_written() -> Result<()> {
    let listening = Listening::closed().await?;
    let stack = listening
        .stack()
        .env_for(Service::Scheduler, "OUTPUT_POLICY_ENABLED", "false")
        .start()
        .await?;
    let client = client(&stack)?;
    let (job, state) = finished(&client, "say-quarantine", 0).await?;
    ensure!(state == JobState::Succeeded, "{state}");
    let result = client.get(&job).await?.result.context("a result")?;
    let result: Value = serde_json::from_str(result.get())?;
    ensure!(result["say"] == "say-quarantine");
    ensure!(cell(&stack, "SELECT count(*)::text FROM job_output").await? == "0");
    ensure!(listening.scanner.calls.load(Ordering::SeqCst) == 0);
    let scrape = ask_scheduler(&stack, 0, "/metrics").await?;
    let skipped = "cordum_scheduler_output_policy_skipped_total{topic=\"job.echo\"} 1";
    ensure!(scrape.contains(skipped), "{scrape}");
    Ok(())
}
