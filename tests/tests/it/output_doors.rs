//! Every door of the REST interface on the real binaries, with a secret that only the worker
//! makes: in its result, its errors, its progress, its partial results, its artifacts and a
//! retried attempt; while it runs, while its output is held, and when it has ended.

use std::sync::Arc;
use std::time::Duration;

use airlock_client::{Client, SubmitRequest};
use airlock_testkit::{Seen, Service, Stack, eventually};
use airlock_worker::{JobContext, JobError, Worker};
use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::output::{Listening, Mood};
use crate::support::client;

const WAIT: Duration = Duration::from_secs(60);
const REVIEWER: &str = "reviewer-key-of-rita";

/// What the worker leaks, and when it may end.
#[derive(Clone)]
struct Leak {
    secret: String,
    may_end: Arc<Semaphore>,
}

impl Leak {
    fn new() -> Self {
        Self {
            // Made here, so that no finished secret is in the repository.
            secret: format!("{}{}", "Zq8vT3xL", "w0RkP2"),
            may_end: Arc::new(Semaphore::new(0)),
        }
    }

    async fn run(self, ctx: JobContext, input: Value) -> Result<Value, JobError> {
        let url = format!("postgres://app:{}@db.internal.acme.io/main", self.secret);
        ctx.partial(40, &json!({ "database": url })).await?;
        ctx.artifact("notes.txt", "text/plain", url.clone().into_bytes())
            .await?;
        ctx.progress(50, format!("connecting to {url}"));
        let retries = input["end"] == "retry";
        if retries && ctx.attempt() == 1 {
            return Err(JobError::retryable(format!("{url} did not answer")));
        }
        if let Ok(permit) = self.may_end.acquire().await {
            permit.forget();
        }
        match input["end"].as_str() {
            Some("fail" | "retry") => Err(JobError::fatal(
                url.clone(),
                format!("connecting to {url} failed"),
            )),
            _ => Ok(json!({ "database": url, "say": input["end"] })),
        }
    }

    fn start(&self, stack: &Stack) -> DropGuard {
        let leak = self.clone();
        let worker = Worker::builder("leaky")
            .on("job.leaky", move |ctx: JobContext, input: Value| {
                leak.clone().run(ctx, input)
            })
            .ignore_environment()
            .nats_url(stack.nats().url())
            .redis_url(stack.redis().url());
        let stop = CancellationToken::new();
        tokio::spawn(worker.run_until(stop.clone()));
        stop.drop_guard()
    }
}

/// What every door says of a job to whoever may see it, and that the secret is nowhere.
struct Doors<'a> {
    stack: &'a Stack,
    http: reqwest::Client,
    secret: &'a str,
}

impl Doors<'_> {
    async fn get(&self, path: &str, key: &str) -> Result<Value> {
        let request = self.http.get(format!("{}{path}", self.stack.api_url()));
        let text = request
            .header("x-api-key", key)
            .send()
            .await?
            .text()
            .await?;
        ensure!(!text.contains(self.secret), "{path}: {text}");
        Ok(serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    async fn check(&self, job: &str, when: &str) -> Result<Value> {
        let key = self.stack.api_key();
        for path in [
            "/api/v1/jobs".to_owned(),
            format!("/api/v1/jobs/{job}?wait=1ms"),
            format!("/api/v1/jobs/{job}/explain"),
            format!("/tasks/{job}"),
            "/api/v1/policy/decisions?input=true".to_owned(),
            "/metrics".to_owned(),
        ] {
            self.get(&path, key).await?;
        }
        let letters = self.get("/api/v1/dlq", key).await?;
        for letter in letters["items"].as_array().into_iter().flatten() {
            self.get(&format!("/api/v1/dlq/{}", letter["id"]), key)
                .await?;
        }
        self.get("/api/v1/quarantine?status=all", REVIEWER).await?;
        self.get(&format!("/api/v1/quarantine/{job}"), REVIEWER)
            .await?;
        for node in [self.stack.gateway(), self.stack.scheduler(0)] {
            ensure!(!node.log().contains(self.secret), "in a log, {when}");
        }
        for sql in [
            "SELECT coalesce(string_agg(reason, ' '), '') FROM dead_letter",
            "SELECT coalesce(string_agg(error, ' '), '') FROM failed_tasks",
            "SELECT coalesce(string_agg(convert_from(detail, 'UTF8'), ' '), '') FROM audit_log",
            "SELECT coalesce(string_agg(reason, ' '), '') FROM job_attempt",
        ] {
            let rows = self.stack.postgres().query(sql).await?;
            ensure!(!format!("{rows:?}").contains(self.secret), "{sql}, {when}");
        }
        self.get(&format!("/api/v1/jobs/{job}"), key).await
    }

    /// Looks until the job is as wanted, through every door each time.
    async fn until(&self, job: &str, when: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        let mut last = Value::Null;
        let seen = &mut last;
        let deadline = tokio::time::Instant::now() + WAIT;
        loop {
            *seen = self.check(job, when).await?;
            if wanted(seen) {
                return Ok(last);
            }
            ensure!(
                tokio::time::Instant::now() < deadline,
                "it was never {when}: {seen}"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

async fn submit(client: &Client, end: &str) -> Result<String> {
    let mut request = SubmitRequest::new("job.leaky").payload(&json!({ "end": end }))?;
    request.max_attempts = Some(2);
    request.idempotency_key = Some(format!("key-{end}"));
    Ok(client.submit(&request).await?.job_id)
}

#[tokio::test]
async fn no_door_shows_a_secret_of_a_worker() -> Result<()> {
    let listening = Listening::closed().await?;
    let keys =
        format!("[{{name: rita, key: {REVIEWER}, tenant: default, roles: [output_reviewer]}}]");
    let stack = listening
        .stack()
        .env_for(Service::Gateway, "OUTPUT_POLICY_ENABLED", "true")
        .env_for(Service::Gateway, "AIRLOCK_AUTH__KEYS", &keys)
        .services(&[Service::SafetyKernel, Service::Scheduler, Service::Gateway])
        .start()
        .await?;
    let leak = Leak::new();
    let _worker = leak.start(&stack);
    let client = client(&stack)?;
    let doors = Doors {
        stack: &stack,
        http: reqwest::Client::new(),
        secret: &leak.secret,
    };

    // While it runs, and when its result is quarantined.
    let job = submit(&client, "say-quarantine").await?;
    let running = |shown: &Value| shown["progress"].is_object() && shown["partials"][0].is_object();
    doors.until(&job, "running", running).await?;
    leak.may_end.add_permits(1);
    let ended = doors
        .until(&job, "quarantined", |shown| {
            shown["state"] == "OUTPUT_QUARANTINED"
        })
        .await?;
    ensure!(ended["output"]["status"] == "quarantined", "{ended}");
    ensure!(ended["partials"][0]["withheld"] == true, "{ended}");
    ensure!(ended["artifacts"][0]["withheld"] == true, "{ended}");
    // The same submission again has the same answer.
    ensure!(submit(&client, "say-quarantine").await? == job);
    doors.check(&job, "submitted again").await?;

    // Only the reviewer gets the original, and everybody what was released.
    let reviewer = Client::new(&stack.api_url(), REVIEWER)?;
    let original = String::from_utf8(reviewer.evidence(&job).await?)?;
    ensure!(original.contains(&leak.secret), "{original}");
    ensure!(client.evidence(&job).await.is_err(), "their own job");
    reviewer.release_output(&job, "whole", "a drill").await?;
    let shown = client.get(&job).await?.result.map(|r| r.get().to_owned());
    ensure!(shown.as_deref() == Some(original.as_str()), "{shown:?}");

    // Held while the scanner does not answer.
    let held = submit(&client, "say-deny").await?;
    doors.until(&held, "running", running).await?;
    listening.scanner.set(Mood::Hangs);
    leak.may_end.add_permits(1);
    let shown = doors
        .until(&held, "held", |shown| shown["output"]["status"] == "held")
        .await?;
    ensure!(shown["state"] == "RUNNING", "{shown}");
    ensure!(shown["waiting_code"] == "output_held", "{shown}");
    listening.scanner.set(Mood::Answers);
    doors
        .until(&held, "quarantined", |shown| {
            shown["state"] == "OUTPUT_QUARANTINED"
        })
        .await?;

    // Errors, of a retried attempt too.
    for end in ["fail", "retry"] {
        let job = submit(&client, end).await?;
        leak.may_end.add_permits(1);
        let failed = doors
            .until(&job, "failed", |shown| shown["state"] == "FAILED")
            .await?;
        let reason = failed["failure_reason"].as_str().unwrap_or_default();
        ensure!(reason.contains("[REDACTED:"), "{failed}");
    }
    eventually(WAIT, "no key of the worker to be in Redis", || async {
        let script = "local found = {} for _, key in ipairs(redis.call('KEYS', '*')) do \
             if redis.call('TYPE', key).ok == 'string' and \
             string.find(redis.call('GET', key), ARGV[1], 1, true) then \
             table.insert(found, key) end end return table.concat(found, ' ')";
        let words = ["EVAL", script, "0", leak.secret.as_str()];
        let found = stack.redis().command(&words).await?.unwrap_or_default();
        Ok(Seen::when(found.is_empty(), found))
    })
    .await
}
