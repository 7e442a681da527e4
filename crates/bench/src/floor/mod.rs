//! The floor: what the stores allow when nothing is asked of anybody.
//!
//! A bare loop with no HTTP and no policy that does what every job costs the stores:
//! the same three writes to the ledger on the real schema (accepted, assigned,
//! finished with its change-log entry), the same three hops over JetStream (one
//! wake-up per transaction, one dispatch and one result per job), and the same guards in Redis around both of the leader's
//! commits. All in batches of 500.
//!
//! What must stay true: it is an honest upper bound. So its stages are tasks that
//! overlap ([`stages`]), each step of each has its own connection where the services
//! would have one, and every answer is checked: a write that changed nothing or a guard
//! that fell back to local mode fails the run.

mod packets;
mod stages;

use std::sync::Arc;
use std::time::Instant;

use airlock_bus::{Bus, BusConfig, Consumer, SecretUrl, StreamName, subjects};
use airlock_guard::{Guard, GuardConfig, JobLocks};
use airlock_ledger::{Ledger, LedgerConfig};
use airlock_model::{Epoch, Incarnation, Shard, WorkerId};
use airlock_testkit::{Nats, Postgres, Redis, TestDir};
use anyhow::{Context, ensure};
use stages::Load;
use tokio::sync::Mutex;

use crate::cpu::CpuTimes;
use crate::machine::Durability;
use crate::progress::Progress;
use crate::stack::SHARED_BUFFERS;
use crate::throughput::Throughput;
use crate::watch::Watch;

/// Its database is its own, so any shard is free.
const SHARD: Shard = Shard(0);

/// Servers of its own, of the same kind and settings as the stack's.
struct Servers {
    postgres: Postgres,
    redis: Redis,
    nats: Nats,
}

impl Servers {
    async fn start(dir: &TestDir) -> anyhow::Result<Self> {
        let postgres = Postgres::builder()
            .fsync(true)
            .setting(SHARED_BUFFERS.0, SHARED_BUFFERS.1)
            .dir(dir)
            .start();
        let (postgres, redis, nats) =
            tokio::try_join!(postgres, Redis::start_in(dir), Nats::start_in(dir))?;
        Ok(Self {
            postgres,
            redis,
            nats,
        })
    }

    fn read_cpu_times(&self) -> CpuTimes {
        let mut times = CpuTimes::default();
        times.add_processes("postgres", &self.postgres.pids());
        times.add_processes("redis", &self.redis.pids());
        times.add_processes("nats", &self.nats.pids());
        times.add_own_process("bare loop");
        times
    }

    async fn connect_bus(&self, name: &str) -> anyhow::Result<Bus> {
        let config = BusConfig {
            url: SecretUrl::new(self.nats.url()),
            ..BusConfig::default()
        };
        Bus::connect(&config, name).await.context("the bus")
    }
}

/// What the stages share: the connections that gateway, scheduler and worker have.
struct Line {
    ledger: Ledger,
    gateway: Bus,
    scheduler: Bus,
    worker: Bus,
    locks: JobLocks,
    epoch: Epoch,
    worker_id: WorkerId,
    incarnation: Incarnation,
}

/// The three hops' receiving ends.
struct Consumers {
    submits: Arc<Mutex<Consumer>>,
    dispatches: Arc<Mutex<Consumer>>,
    results: Arc<Mutex<Consumer>>,
}

/// Measures the floor with `total` jobs, a whole number of `batch`es.
pub async fn measure_floor(
    dir: &TestDir,
    total: usize,
    batch: usize,
) -> anyhow::Result<(Throughput, Durability)> {
    ensure!(
        total.is_multiple_of(batch),
        "{total} jobs are no whole batches"
    );
    let servers = Servers::start(dir).await.context("the floor's servers")?;
    let durability = Durability::read(&servers.postgres).await?;
    let guard = connect_guard(&servers).await?;
    let (line, consumers) = connect_line(&servers, &guard).await?;
    let line = Arc::new(line);

    let warm_up = (total / 10).div_ceil(batch) * batch;
    let mut progress = Progress::new("floor (warm-up)", warm_up);
    let load = Load {
        total: warm_up,
        batch,
    };
    stages::run_stages(&line, &consumers, load, &mut progress).await?;
    progress.finish("done");

    let mut progress = Progress::new("floor", total);
    let cpu = servers.read_cpu_times();
    let began = Instant::now();
    let load = Load { total, batch };
    stages::run_stages(&line, &consumers, load, &mut progress).await?;
    let took = began.elapsed();
    let cpu = servers.read_cpu_times().since(&cpu);

    Watch::new(&servers.postgres)
        .await?
        .expect_succeeded(0, warm_up + total)
        .await?;
    ensure!(
        !guard.mode().borrow().is_local(),
        "the guards lost Redis, so the floor would be too high"
    );
    let measured = Throughput {
        jobs: total,
        took,
        cpu,
    };
    progress.finish(&measured.summary());
    line.locks.close().await;
    Ok((measured, durability))
}

async fn connect_guard(servers: &Servers) -> anyhow::Result<Guard> {
    let config = GuardConfig {
        url: SecretUrl::new(servers.redis.url()),
        ..GuardConfig::default()
    };
    Guard::connect(&config).await.context("the guards")
}

async fn connect_line(servers: &Servers, guard: &Guard) -> anyhow::Result<(Line, Consumers)> {
    let ledger = Ledger::connect(&LedgerConfig::from_url(&servers.postgres.url()), "floor").await?;
    ledger.migrate().await?;
    let epoch = ledger.raise_epoch(SHARD, "floor").await?;

    let worker_id = WorkerId::new("bench-worker")?;
    let incarnation = Incarnation::new(uuid::Uuid::new_v4().to_string())?;
    let gateway = servers.connect_bus("floor-gateway").await?;
    let scheduler = servers.connect_bus("floor-scheduler").await?;
    let worker = servers.connect_bus("floor-worker").await?;
    let take = |subject: &'static str, base: &'static str| {
        scheduler.take_over_consumer(StreamName::Sys, subject, base, SHARD, epoch)
    };
    let dispatches = worker
        .open_worker_consumer(&worker_id, &incarnation)
        .await?;
    let shared = |consumer| Arc::new(Mutex::new(consumer));
    let consumers = Consumers {
        submits: shared(take(subjects::JOB_SUBMIT, "scheduler-submit").await?),
        dispatches: shared(dispatches),
        results: shared(take(subjects::JOB_RESULT, "scheduler-result").await?),
    };
    let line = Line {
        locks: guard.job_locks(epoch),
        ledger,
        gateway,
        scheduler,
        worker,
        epoch,
        worker_id,
        incarnation,
    };
    Ok((line, consumers))
}
