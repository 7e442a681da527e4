//! The phases, one after the other.
//!
//! The floor comes last and on servers of its own, after the stack has ended, so that
//! neither takes anything from the other.

use airlock_testkit::TestDir;
use anyhow::Context;

use crate::args::{Args, Phase, Sizes};
use crate::machine::{Durability, Machine};
use crate::progress::print_note;
use crate::report::Report;
use crate::stack::BenchStack;
use crate::throughput::SubmitMode;
use crate::{floor, latency, throughput};

/// Submitted and forgotten before a throughput is measured.
const WARM_UP: usize = 2_000;

pub async fn run_benchmark(args: &Args) -> anyhow::Result<()> {
    if cfg!(debug_assertions) {
        print_note("this is a debug build: the numbers say nothing; use ./dev bench");
    }
    let dir = TestDir::new()?;
    if args.keep_logs {
        dir.keep();
    }
    let mut report = Report::new(Machine::detect(), args.quick);
    let done = run_phases(args, &dir, &mut report).await;
    if done.is_err() {
        dir.keep();
    }
    done?;
    println!("{}", report.to_markdown());
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&report.to_json()).context("writing JSON")?;
        std::fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

async fn run_phases(args: &Args, dir: &TestDir, report: &mut Report) -> anyhow::Result<()> {
    let sizes = args.sizes();
    if args.wants_stack() {
        print_note("starting Postgres, Redis, NATS, the services and a worker");
        let stack = BenchStack::start(dir).await?;
        report.durability = Some(Durability::read(stack.postgres()).await?);
        let done = run_stack_phases(args, &sizes, &stack, report).await;
        if done.is_err() {
            // Before the error, so that the error is what one reads last.
            print_note(&stack.log_tails());
        }
        done?;
    }
    if args.wants(Phase::Floor) {
        print_note("starting Postgres, Redis and NATS for the floor");
        let (measured, durability) = floor::measure_floor(dir, sizes.floor, sizes.batch).await?;
        report.floor = Some(measured);
        report.durability.get_or_insert(durability);
    }
    Ok(())
}

async fn run_stack_phases(
    args: &Args,
    sizes: &Sizes,
    stack: &BenchStack,
    report: &mut Report,
) -> anyhow::Result<()> {
    let single = SubmitMode::Single {
        clients: sizes.clients,
    };
    let bulk = SubmitMode::Bulk {
        senders: sizes.senders,
        batch: sizes.batch,
    };
    throughput::measure_throughput(stack, "warm-up", bulk, WARM_UP).await?;
    let before = stack.read_decisions().await?;
    if args.wants(Phase::Single) {
        throughput::measure_throughput(stack, "single (warm-up)", single, WARM_UP).await?;
        report.single =
            Some(throughput::measure_throughput(stack, "single", single, sizes.single).await?);
    }
    if args.wants(Phase::Bulk) {
        throughput::measure_throughput(stack, "bulk (warm-up)", bulk, WARM_UP).await?;
        report.bulk = Some(throughput::measure_throughput(stack, "bulk", bulk, sizes.bulk).await?);
    }
    if args.wants(Phase::Latency) {
        report.latency = Some(latency::measure_latency(stack, sizes.rate, sizes.latency).await?);
    }
    report.decisions = Some(stack.read_decisions().await?.since(before));
    Ok(())
}
