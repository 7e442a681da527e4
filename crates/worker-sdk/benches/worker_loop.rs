//! How fast one worker process is on one core: no-op jobs a second through its own loop
//! of receiving, running and answering, and how soon a job starts when nothing else does.
//!
//! ```text
//! cargo bench -p airlock-worker --bench worker_loop -- [--jobs N] [--check]
//! ```
//!
//! The worker is a process of its own with an executor of one thread; this process plays
//! the scheduler against a real NATS. Two numbers are printed for the throughput: what
//! was reached, which is also what NATS and this process leave of the machine, and what
//! the worker could do with a core to itself, by the processor time it used. `--check`
//! fails below 20,000 jobs/s of the latter, or above 2 ms to the start of a lone job.

use std::collections::HashSet;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use airlock_bus::{
    BoxError, Bus, BusConfig, Consumer, DeadLetters, DeadMessage, Outcome, Outgoing, SecretUrl,
    StreamName, Subscription, subjects,
};
use airlock_model::ids::{Epoch, Shard};
use airlock_model::{Timestamp, WorkerId};
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::cap::{self, JobStatus};
use airlock_proto::{own, packet};
use airlock_testkit::Nats;
use airlock_worker::{JobContext, Worker};
use anyhow::{Context, bail, ensure};
use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use uuid::Uuid;

const WORKER: &str = "bench";
const TOPIC: &str = "job.noop";
/// How many dispatches may be under way, as the scheduler would bound them.
const PARALLEL: usize = 4_096;
const BATCH: usize = 512;
const LONE_JOBS: usize = 500;
const WARM_UP: usize = 5_000;
const BOUND: Duration = Duration::from_secs(60);

const ENOUGH_JOBS: f64 = 20_000.0;
const SOON: Duration = Duration::from_millis(2);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let outcome = runtime
        .context("starting the runtime")
        .and_then(|runtime| runtime.block_on(run(&arguments)));
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("worker_loop: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &[String]) -> anyhow::Result<bool> {
    let has = |name: &str| arguments.iter().any(|a| a == name);
    if has("--worker") {
        work().await?;
        return Ok(true);
    }
    let jobs = match arguments.iter().position(|a| a == "--jobs") {
        Some(at) => {
            let number = arguments.get(at + 1).context("--jobs needs a number")?;
            number.parse().with_context(|| format!("--jobs {number}"))?
        }
        None => 200_000,
    };
    let report = measure(jobs).await?;
    let (lone, p99) = (
        percentile(&report.starts, 50),
        percentile(&report.starts, 99),
    );
    println!("{jobs} no-op jobs through one worker process with one thread:");
    println!("  reached                  {:>8.0} jobs/s", report.reached);
    println!(
        "  by its processor time    {:>8.0} jobs/s on one core",
        report.per_core
    );
    println!("a lone job starts after its dispatch in:");
    println!("  p50 {lone:?}, p99 {p99:?}");
    let good = report.per_core >= ENOUGH_JOBS && lone <= SOON;
    if !good {
        println!("below the goal of {ENOUGH_JOBS} jobs/s on one core and {SOON:?} to a start");
    }
    Ok(good || !has("--check"))
}

/// The process that is measured.
async fn work() -> anyhow::Result<()> {
    Worker::builder(WORKER)
        .id(WORKER)
        .max_parallel(PARALLEL)
        .receipt_within(Duration::from_secs(60))
        .on(TOPIC, |_: JobContext, (): ()| async move { Ok(()) })
        .run()
        .await
        .context("the worker")
}

struct Report {
    reached: f64,
    per_core: f64,
    /// Sorted.
    starts: Vec<Duration>,
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let at = sorted.len() * percent / 100;
    sorted
        .get(at)
        .or(sorted.last())
        .copied()
        .unwrap_or_default()
}

async fn measure(jobs: usize) -> anyhow::Result<Report> {
    let nats = Nats::start().await?;
    let mut scheduler = Scheduler::connect(nats.url()).await?;
    let mut child = Child(
        Command::new(std::env::current_exe()?)
            .arg("--worker")
            .env("NATS_URL", nats.url())
            .env("RUST_LOG", "off")
            .stdin(Stdio::null())
            .spawn()
            .context("starting the worker")?,
    );
    scheduler.meet().await?;
    scheduler.flood(WARM_UP).await?;
    let mut starts = Vec::with_capacity(LONE_JOBS);
    for _ in 0..LONE_JOBS {
        starts.push(scheduler.lone_job().await?);
    }
    starts.sort_unstable();
    let before = child.processor_time()?;
    let took = scheduler.flood(jobs).await?;
    let used = child.processor_time()?.saturating_sub(before);
    child.end()?;
    Ok(Report {
        reached: jobs as f64 / took.as_secs_f64(),
        per_core: jobs as f64 / used.as_secs_f64(),
        starts,
    })
}

struct Child(std::process::Child);

impl Child {
    /// What it has used so far, in user and system time.
    fn processor_time(&self) -> anyhow::Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id()))?;
        let (_, after_name) = stat.rsplit_once(')').context("no name in it")?;
        let ticks: u64 = after_name
            .split_whitespace()
            .skip(11)
            .take(2)
            .filter_map(|word| word.parse::<u64>().ok())
            .sum();
        // Linux counts in hundredths of a second for everybody.
        Ok(Duration::from_millis(ticks * 10))
    }

    fn end(&mut self) -> anyhow::Result<()> {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may have been ended before.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The scheduler's part, as little of it as will do.
struct Scheduler {
    bus: Bus,
    results: Consumer,
    hellos: Subscription,
    incarnation: String,
}

impl Scheduler {
    async fn connect(url: String) -> anyhow::Result<Self> {
        let config = BusConfig {
            url: SecretUrl::new(url),
            ..BusConfig::default()
        };
        let bus = Bus::connect(&config, "bench-scheduler").await?;
        Ok(Self {
            results: bus
                .take_over_consumer(
                    StreamName::Sys,
                    subjects::JOB_RESULT,
                    "bench-results",
                    Shard(0),
                    Epoch(1),
                )
                .await?,
            hellos: bus.subscribe(subjects::HANDSHAKE, None).await?,
            incarnation: String::new(),
            bus,
        })
    }

    async fn meet(&mut self) -> anyhow::Result<()> {
        let hello = timeout(BOUND, self.hellos.recv())
            .await
            .context("no hello")?;
        let hello = hello.context("the bus is closed")?;
        let Payload::Handshake(hello) = packet::decode(hello.payload)?.1 else {
            bail!("not a handshake");
        };
        self.incarnation = hello.airlock.context("not an SDK worker")?.incarnation;
        Ok(())
    }

    fn dispatch(&self) -> anyhow::Result<Outgoing> {
        let (id, job) = (Uuid::new_v4(), Uuid::new_v4());
        let now = now_us();
        let request = cap::JobRequest {
            job_id: job.to_string(),
            topic: TOPIC.to_owned(),
            tenant_id: "default".to_owned(),
            dispatch: Some(cap::DispatchIdentity {
                dispatch_id: id.to_string(),
                attempt: 1,
                assigned_worker_id: WORKER.to_owned(),
            }),
            airlock: Some(own::Dispatch {
                epoch: 1,
                accept_by_ms: now / 1_000 + 600_000,
                incarnation: self.incarnation.clone(),
                payload: Some(Bytes::from_static(b"null")),
                max_attempts: 3,
                ..own::Dispatch::default()
            }),
            ..cap::JobRequest::default()
        };
        Ok(Outgoing {
            subject: subjects::worker_jobs(&WorkerId::new(WORKER)?),
            payload: packet::encode(
                "bench-scheduler",
                &id.to_string(),
                Timestamp(now),
                Payload::JobRequest(request),
            ),
            msg_id: Some(id.to_string()),
            traceparent: None,
        })
    }

    /// From the moment it is published to the moment its handler is called.
    async fn lone_job(&mut self) -> anyhow::Result<Duration> {
        let dispatch = self.dispatch()?;
        let sent = now_us();
        self.bus.publish(dispatch).await?;
        let results = self.next_results().await?;
        let [result] = &results[..] else {
            bail!("{} results of one job", results.len());
        };
        let started = result.airlock.as_ref().map_or(0, |d| d.started_at_us);
        self.confirm(&results).await?;
        Ok(Duration::from_micros(
            u64::try_from(started - sent).unwrap_or(0),
        ))
    }

    /// So many jobs, as fast as they are answered; how long that took.
    async fn flood(&mut self, jobs: usize) -> anyhow::Result<Duration> {
        let mut dispatches = Vec::with_capacity(jobs);
        for _ in 0..jobs {
            dispatches.push(self.dispatch()?);
        }
        let room = Arc::new(Semaphore::new(PARALLEL));
        let (bus, free) = (self.bus.clone(), Arc::clone(&room));
        let began = Instant::now();
        let sender = tokio::spawn(async move {
            let mut dispatches = dispatches.into_iter();
            while dispatches.len() > 0 {
                let batch = dispatches.len().min(BATCH);
                let permits = u32::try_from(batch).unwrap_or(u32::MAX);
                free.acquire_many(permits).await?.forget();
                for sent in bus
                    .publish_all(dispatches.by_ref().take(batch).collect())
                    .await
                {
                    sent?;
                }
            }
            anyhow::Ok(())
        });
        let mut seen = HashSet::with_capacity(jobs);
        while seen.len() < jobs {
            let results = self.next_results().await?;
            let before = seen.len();
            for result in &results {
                ensure!(
                    result.status == i32::from(JobStatus::Succeeded),
                    "{result:?}"
                );
                seen.insert(result.job_id.clone());
            }
            room.add_permits(seen.len() - before);
            self.confirm(&results).await?;
        }
        let took = began.elapsed();
        sender.await??;
        Ok(took)
    }

    async fn next_results(&mut self) -> anyhow::Result<Vec<cap::JobResult>> {
        let batch = timeout(BOUND, self.results.next_batch(BATCH)).await;
        let batch = batch.context("no result came")??;
        let mut results = Vec::with_capacity(batch.len());
        for delivery in &batch {
            if let Payload::JobResult(result) = packet::decode(delivery.payload.clone())?.1 {
                results.push(result);
            }
        }
        let done = batch.into_iter().map(|d| (d, Outcome::Done)).collect();
        self.results.settle(done, &NoDeadLetters).await;
        Ok(results)
    }

    async fn confirm(&self, results: &[cap::JobResult]) -> anyhow::Result<()> {
        let ids = results.iter().filter_map(|r| r.dispatch.as_ref());
        let control = own::WorkerControl {
            epoch: 1,
            receipts: ids.map(|d| d.dispatch_id.clone()).collect(),
            ..own::WorkerControl::default()
        };
        let subject = subjects::worker_control(&WorkerId::new(WORKER)?);
        let now = Timestamp(now_us());
        let packet = packet::encode(
            "bench-scheduler",
            "receipts",
            now,
            Payload::WorkerControl(control),
        );
        Ok(self.bus.send(subject, packet, None).await?)
    }
}

fn now_us() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

struct NoDeadLetters;

#[async_trait]
impl DeadLetters for NoDeadLetters {
    async fn put(&self, _: Vec<DeadMessage>) -> Result<(), BoxError> {
        Ok(())
    }
}
