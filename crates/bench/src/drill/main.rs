//! Breaks the leader under load, in every way it can break, and measures what that costs.
//!
//! Two schedulers, a steady load, and each fault so many times. A gap is the longest time
//! between two assignments in the ledger around the fault, by the ledger's clock, so that it
//! contains everything: noticing, electing, reading the open jobs, dispatching. At the end
//! every accepted job must have succeeded, and no dispatch may have run twice.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use airlock_client::{Client, SubmitRequest};
use airlock_testkit::{Direction, Etcd, Seen, Service, Stack, eventually, http_get};
use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand, ValueEnum};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

const WAIT: Duration = Duration::from_secs(90);
/// One batch of jobs, so many times a second.
const BATCHES_PER_SECOND: u32 = 50;

/// Practises what may happen to an installation.
#[derive(Debug, Parser)]
#[command(name = "airlock-drill", version)]
struct Args {
    #[command(subcommand)]
    drill: Drill,
}

#[derive(Debug, Subcommand)]
enum Drill {
    /// Break the leader under load, and measure the gap in dispatching
    Failover(Failover),
}

#[derive(Debug, Parser)]
struct Failover {
    /// What elects the leader
    #[arg(long, value_enum, default_value = "postgres")]
    backend: Backend,
    /// How often each fault happens
    #[arg(long, value_name = "N", default_value = "10")]
    rounds: usize,
    /// Only these faults, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "FAULTS")]
    only: Vec<Fault>,
    /// Jobs a second
    #[arg(long, value_name = "N", default_value = "500")]
    rate: u32,
    /// How long a stopped leader stays stopped, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "30")]
    stop_for: u64,
    /// Also write the numbers to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Backend {
    Postgres,
    Etcd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Fault {
    Kill,
    Term,
    Stop,
    CutPostgres,
    CutToPostgres,
    CutFromPostgres,
    CutNats,
    StepDown,
}

impl Fault {
    const fn text(self) -> &'static str {
        match self {
            Self::Kill => "kill -9",
            Self::Term => "SIGTERM",
            Self::Stop => "SIGSTOP",
            Self::CutPostgres => "cut off from Postgres, no FIN",
            Self::CutToPostgres => "one-way cut, to Postgres",
            Self::CutFromPostgres => "one-way cut, from Postgres",
            Self::CutNats => "cut off from NATS",
            Self::StepDown => "airlock leader step-down",
        }
    }
}

#[derive(Debug, Serialize)]
struct Outcome {
    fault: Fault,
    rounds: usize,
    gap_p50_ms: f64,
    gap_max_ms: f64,
    gaps_ms: Vec<u64>,
    jobs: u64,
    jobs_lost: u64,
    dispatches_run_twice: usize,
    stale_writes_refused: usize,
}

#[derive(Debug, Serialize)]
struct Report {
    backend: Backend,
    jobs_per_second: u32,
    faults: Vec<Outcome>,
}

fn main() -> ExitCode {
    let Drill::Failover(args) = Args::parse().drill;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let done = runtime
        .context("starting the runtime")
        .and_then(|runtime| runtime.block_on(run_failover(&args)));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("airlock-drill: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run_failover(args: &Failover) -> Result<()> {
    let faults = match args.only.is_empty() {
        true => Fault::value_variants(),
        false => &args.only,
    };
    let mut report = Report {
        backend: args.backend,
        jobs_per_second: args.rate,
        faults: Vec::new(),
    };
    for fault in faults {
        eprintln!("{} × {}", args.rounds, fault.text());
        let outcome = drill_fault(args, *fault).await;
        let outcome = outcome.with_context(|| fault.text().to_owned())?;
        // A long drill that is ended early has said this much.
        eprintln!("  gaps of {:?} ms", outcome.gaps_ms);
        report.faults.push(outcome);
    }
    println!("{}", render_report(&report));
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&report)?;
        std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    let wrong = report
        .faults
        .iter()
        .any(|f| f.jobs_lost > 0 || f.dispatches_run_twice > 0);
    ensure!(!wrong, "jobs were lost, or dispatches ran twice");
    Ok(())
}

fn render_report(report: &Report) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header([
        "fault",
        "rounds",
        "gap p50, ms",
        "gap max, ms",
        "jobs lost",
        "run twice",
        "stale leaders refused",
    ]);
    for f in &report.faults {
        table.add_row([
            f.fault.text().to_owned(),
            f.rounds.to_string(),
            format!("{:.0}", f.gap_p50_ms),
            format!("{:.0}", f.gap_max_ms),
            f.jobs_lost.to_string(),
            f.dispatches_run_twice.to_string(),
            f.stale_writes_refused.to_string(),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

/// A stack of its own for every fault, so that none has another's traces.
async fn drill_fault(args: &Failover, fault: Fault) -> Result<Outcome> {
    let etcd = match args.backend {
        Backend::Etcd => Some(Etcd::start().await?),
        Backend::Postgres => None,
    };
    let mut builder = Stack::builder()
        .schedulers(2)
        .workers(2)
        .proxies(true)
        .env_for(Service::Worker, "DEMO_MAX_PARALLEL", "500");
    if let Some(etcd) = &etcd {
        let endpoints = format!("[\"{}\"]", etcd.url());
        builder = builder
            .env_for(Service::Scheduler, "AIRLOCK_ELECTION__BACKEND", "etcd")
            .env_for(
                Service::Scheduler,
                "AIRLOCK_ELECTION__ETCD__ENDPOINTS",
                &endpoints,
            );
    }
    let stack = builder.start().await?;
    let load = Load::start(&stack, args.rate)?;
    leader(&stack).await?;
    load.wait_for_jobs(u64::from(args.rate)).await?;
    let mut gaps = Vec::new();
    let mut refused = 0;
    for _ in 0..args.rounds {
        let before = cell(&stack, "SELECT clock_timestamp()::text").await?;
        let old = leader(&stack).await?;
        refused += break_leader(&stack, fault, old, Duration::from_secs(args.stop_for)).await?;
        // Until work flows again for a while.
        let at = load.accepted();
        load.wait_for_jobs(at + u64::from(args.rate)).await?;
        gaps.push(longest_gap(&stack, &before).await?);
    }
    let jobs = load.stop().await?;
    let ended = "SELECT count(*)::text FROM job_state WHERE open";
    eventually(WAIT, "all jobs to end", || async {
        let open = cell(&stack, ended).await?;
        Ok(Seen::when(open == "0", open))
    })
    .await?;
    let succeeded = "SELECT count(*)::text FROM job_state WHERE state = 10";
    let succeeded: u64 = cell(&stack, succeeded).await?.parse()?;
    let mut runs: HashMap<String, usize> = HashMap::new();
    for run in stack.journal()? {
        *runs.entry(run.dispatch_id).or_default() += 1;
    }
    gaps.sort_by(f64::total_cmp);
    Ok(Outcome {
        fault,
        rounds: args.rounds,
        gap_p50_ms: gaps.get(gaps.len() / 2).copied().unwrap_or_default(),
        gap_max_ms: gaps.last().copied().unwrap_or_default(),
        gaps_ms: gaps.iter().map(|gap| *gap as u64).collect(),
        jobs,
        jobs_lost: jobs.saturating_sub(succeeded),
        dispatches_run_twice: runs.values().filter(|n| **n > 1).count(),
        stale_writes_refused: refused,
    })
}

/// Does it, waits until another leads, and mends what was broken. How many leaders found
/// their term refused.
async fn break_leader(
    stack: &Stack,
    fault: Fault,
    old: usize,
    stop_for: Duration,
) -> Result<usize> {
    let epoch: u64 = cell(stack, EPOCH).await?.parse()?;
    let node = stack.scheduler(old);
    let refused_before = count_refusals(&node.log());
    let mut ends = true;
    match fault {
        Fault::Kill => node.kill9()?,
        Fault::Term => node.term()?,
        Fault::Stop => {
            let stopped = Instant::now();
            node.stop()?;
            next_term(stack, epoch).await?;
            tokio::time::sleep(stop_for.saturating_sub(stopped.elapsed())).await;
            node.cont()?;
        }
        Fault::CutPostgres => node.to_postgres()?.cut(),
        Fault::CutToPostgres => node.to_postgres()?.cut_one_way(Direction::ToServer),
        Fault::CutFromPostgres => node.to_postgres()?.cut_one_way(Direction::ToClient),
        Fault::CutNats => {
            node.to_nats()?.cut();
            ends = false;
        }
        Fault::StepDown => {
            client(stack)?.step_down().await?;
            ends = false;
        }
    }
    next_term(stack, epoch).await?;
    if !ends {
        node.to_nats()?.heal().await?;
        return Ok(0);
    }
    node.wait(WAIT).await?;
    node.to_postgres()?.heal().await?;
    let refused = count_refusals(&node.log()) > refused_before;
    stack.restart_scheduler(old).await?;
    Ok(usize::from(refused))
}

/// How often a leader found that it was replaced, by its log.
fn count_refusals(log: &str) -> usize {
    const SIGNS: [&str; 3] = [
        "a later one leads",
        "is led in a later term",
        "another term has begun",
    ];
    let tells = |line: &&str| SIGNS.iter().any(|sign| line.contains(sign));
    log.lines().filter(tells).count()
}

const EPOCH: &str = "SELECT epoch::text FROM leadership";

async fn next_term(stack: &Stack, epoch: u64) -> Result<()> {
    eventually(WAIT, "the next term", || async {
        let now: u64 = cell(stack, EPOCH).await?.parse()?;
        Ok(Seen::when(now > epoch, now.to_string()))
    })
    .await
}

/// The longest time without an assignment since `from`, in milliseconds.
async fn longest_gap(stack: &Stack, from: &str) -> Result<f64> {
    let sql = format!(
        "SELECT coalesce(max(extract(epoch FROM gap)), 0)::text FROM (
            SELECT scheduled_at - lag(scheduled_at) OVER (ORDER BY scheduled_at) AS gap
            FROM job_state WHERE scheduled_at > '{from}'::timestamptz - interval '1 second') t"
    );
    let seconds: f64 = cell(stack, &sql).await?.parse()?;
    Ok(seconds * 1_000.0)
}

async fn cell(stack: &Stack, sql: &str) -> Result<String> {
    let rows = stack.postgres().query(sql).await?;
    let cell = rows.first().and_then(|row| row.first()).cloned().flatten();
    cell.with_context(|| format!("no answer to {sql}"))
}

/// Which of the two leads.
async fn leader(stack: &Stack) -> Result<usize> {
    eventually(WAIT, "a leader", || async {
        for replica in 0..2 {
            let Some(addr) = stack.scheduler(replica).http_addr() else {
                continue;
            };
            if let Ok(reply) = http_get(addr, "/health/leader").await
                && reply.body.contains("\"leading\":true")
            {
                return Ok(Seen::Done(replica));
            }
        }
        Ok(Seen::NotYet("nobody leads".to_owned()))
    })
    .await
}

fn client(stack: &Stack) -> Result<Client> {
    Ok(Client::new(&stack.api_url(), stack.api_key())?)
}

/// Jobs at a steady rate, each accepted once.
struct Load {
    accepted: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<Result<()>>,
}

impl Load {
    fn start(stack: &Stack, rate: u32) -> Result<Self> {
        let client = client(stack)?;
        let accepted = Arc::new(AtomicU64::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let each = (rate / BATCHES_PER_SECOND).max(1) as usize;
        let (counter, stopped) = (accepted.clone(), stop.clone());
        let task = tokio::spawn(async move {
            let batch = vec![SubmitRequest::new("job.echo"); each];
            let mut turns = tokio::time::interval(Duration::from_secs(1) / BATCHES_PER_SECOND);
            turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
            while !stopped.load(Ordering::Relaxed) {
                turns.tick().await;
                let items = client.submit_batch(&batch).await?;
                let taken = items.iter().filter(|item| item.is_ok()).count();
                counter.fetch_add(taken as u64, Ordering::Relaxed);
            }
            Ok(())
        });
        Ok(Self {
            accepted,
            stop,
            task,
        })
    }

    fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    async fn wait_for_jobs(&self, wanted: u64) -> Result<()> {
        eventually(WAIT, "jobs to be accepted", || async {
            ensure!(!self.task.is_finished(), "the load has ended");
            let now = self.accepted();
            Ok(Seen::when(now >= wanted, now.to_string()))
        })
        .await
    }

    /// Ends the load; how many jobs were accepted in all.
    async fn stop(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await??;
        Ok(self.accepted.load(Ordering::Relaxed))
    }
}
