//! A worker to try things with, and the one that fault tests run.
//!
//! | topic | input | what it does |
//! |---|---|---|
//! | `job.echo`, `job.default` | anything | returns its input |
//! | `job.noop` | anything | returns nothing |
//! | `job.sleep` | `{"ms": 2000}` or `{"until_file": "/path"}` | sleeps so long, or until the file is there, unless it is cancelled |
//! | `job.fail` | `{"kind": "retryable", "times": 2}` | fails on its first attempts |
//!
//! `kind` is `retryable`, `fatal`, `plain`, `panic` or `abort` (the whole process); without `times` it always fails.
//! `DEMO_MAX_PARALLEL` sets how many run at once, `DEMO_HEARTBEAT_MS` how often it says
//! that it lives. With `DEMO_JOURNAL=file` each run appends a line when it begins,
//! `start job_id attempt dispatch_id unix_micros`, and one when its handler is done,
//! `end dispatch_id unix_micros outcome` (`done`, `failed` or `cancelled`): afterwards they
//! show what really ran, and when.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use airlock_service::config::{LogFormat, TelemetryConfig};
use airlock_service::telemetry;
use airlock_worker::{JobContext, JobError, Worker};
use anyhow::Context;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Sleep {
    #[serde(default = "two_seconds")]
    ms: u64,
    /// Instead of a time: a test says when the run may end.
    until_file: Option<PathBuf>,
}

fn two_seconds() -> u64 {
    2_000
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Retryable,
    Fatal,
    Plain,
    Panic,
    Abort,
}

#[derive(Deserialize)]
struct Fail {
    kind: Kind,
    /// How many attempts fail; all of them when absent.
    times: Option<u32>,
}

/// What really ran. A line is written at once and unbuffered, so that it is whole in the
/// file before the handler does anything, even if the process is killed right after.
#[derive(Clone)]
struct Journal(Option<Arc<File>>);

impl Journal {
    fn open() -> anyhow::Result<Self> {
        let Some(path) = std::env::var_os("DEMO_JOURNAL").filter(|path| !path.is_empty()) else {
            return Ok(Self(None));
        };
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .with_context(|| format!("opening the journal {}", path.display()))?;
        Ok(Self(Some(Arc::new(file))))
    }

    fn write(&self, line: &str) -> std::io::Result<()> {
        match &self.0 {
            Some(file) => (&**file).write_all(line.as_bytes()),
            None => Ok(()),
        }
    }

    /// Runs a handler between its two lines.
    async fn run<T>(
        &self,
        ctx: &JobContext,
        handler: impl Future<Output = Result<T, JobError>>,
    ) -> Result<T, JobError> {
        let (job, attempt, dispatch) = (ctx.job_id(), ctx.attempt(), ctx.dispatch_id());
        let now = unix_micros();
        self.write(&format!("start {job} {attempt} {dispatch} {now}\n"))?;
        let mut end = RunEnd {
            journal: self,
            ctx,
            outcome: "failed",
        };
        let result = handler.await;
        if result.is_ok() {
            end.outcome = "done";
        }
        result
    }
}

/// Writes the second line when the handler is done, or was dropped before.
struct RunEnd<'a> {
    journal: &'a Journal,
    ctx: &'a JobContext,
    outcome: &'static str,
}

impl Drop for RunEnd<'_> {
    fn drop(&mut self) {
        let outcome = if self.outcome != "done" && self.ctx.is_cancelled() {
            "cancelled"
        } else {
            self.outcome
        };
        let dispatch = self.ctx.dispatch_id();
        let line = format!("end {dispatch} {} {outcome}\n", unix_micros());
        if let Err(error) = self.journal.write(&line) {
            tracing::error!(%error, "journal not written");
        }
    }
}

fn unix_micros() -> u128 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |age| age.as_micros())
}

async fn sleep(ctx: &JobContext, input: Sleep) -> Result<Value, JobError> {
    let over = async {
        match &input.until_file {
            None => tokio::time::sleep(Duration::from_millis(input.ms)).await,
            Some(file) => {
                while !file.exists() {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    };
    tokio::select! {
        () = over => Ok(json!({"slept_ms": input.ms})),
        () = ctx.cancelled() => Err(JobError::failed("woken up early")),
    }
}

async fn fail(ctx: &JobContext, input: Fail) -> Result<Value, JobError> {
    if input.times.is_some_and(|times| ctx.attempt() > times) {
        return Ok(json!({"attempts": ctx.attempt()}));
    }
    let words = format!("attempt {} fails as asked", ctx.attempt());
    match input.kind {
        Kind::Retryable => Err(JobError::retryable(words)),
        Kind::Fatal => Err(JobError::fatal("demo_fatal", words)),
        Kind::Plain => Err(JobError::failed(words)),
        Kind::Panic => panic!("{words}"),
        Kind::Abort => std::process::abort(),
    }
}

async fn run_worker() -> anyhow::Result<()> {
    let parallel = match std::env::var("DEMO_MAX_PARALLEL") {
        Ok(text) => text.parse().context("DEMO_MAX_PARALLEL must be a number")?,
        Err(_) => 64,
    };
    let journal = Journal::open()?;
    let mut worker = Worker::builder("demo").max_parallel(parallel);
    if let Ok(text) = std::env::var("DEMO_HEARTBEAT_MS") {
        let ms = text.parse().context("DEMO_HEARTBEAT_MS must be a number")?;
        worker = worker.heartbeat_every(Duration::from_millis(ms));
    }
    for topic in ["job.echo", "job.default"] {
        let journal = journal.clone();
        worker = worker.on(topic, move |ctx: JobContext, input: Value| {
            let journal = journal.clone();
            async move { journal.run(&ctx, async { Ok(input) }).await }
        });
    }
    let (for_noop, for_sleep, for_fail) = (journal.clone(), journal.clone(), journal);
    worker
        .on("job.noop", move |ctx: JobContext, _: Value| {
            let journal = for_noop.clone();
            async move { journal.run(&ctx, async { Ok(()) }).await }
        })
        .on("job.sleep", move |ctx: JobContext, input: Sleep| {
            let journal = for_sleep.clone();
            async move { journal.run(&ctx, sleep(&ctx, input)).await }
        })
        .on("job.fail", move |ctx: JobContext, input: Fail| {
            let journal = for_fail.clone();
            async move { journal.run(&ctx, fail(&ctx, input)).await }
        })
        .run()
        .await?;
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    let config = TelemetryConfig {
        log_format: LogFormat::Human,
        otlp_endpoint: std::env::var("OTEL_EXPORTER_OTLP_ENDPOINT").ok(),
        ..TelemetryConfig::default()
    };
    let telemetry = match telemetry::init("demo-worker", &config) {
        Ok(telemetry) => telemetry,
        Err(error) => {
            eprintln!("demo-worker: {error}");
            return ExitCode::FAILURE;
        }
    };
    let worked = run_worker().await;
    if let Err(error) = &worked {
        tracing::error!("{error:#}");
    }
    telemetry.flush().await;
    if worked.is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
