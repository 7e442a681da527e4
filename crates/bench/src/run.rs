//! The phases, one after the other.
//!
//! The floor comes last and on servers of its own, after the stack has ended, so that
//! neither takes anything from the other.

use airlock_testkit::TestDir;
use anyhow::Context;

use crate::args::{Args, Phase, Sizes};
use crate::machine::{Durability, Machine};
use crate::progress::note;
use crate::report::Report;
use crate::stack::BenchStack;
use crate::throughput::SubmitMode;
use crate::{floor, latency, throughput};

/// Submitted and forgotten before a throughput is measured.
const WARM_UP: usize = 2_000;

pub async fn run(args: &Args) -> anyhow::Result<()> {
    if cfg!(debug_assertions) {
        note("this is a debug build: the numbers say nothing; use ./dev bench");
    }
    let dir = TestDir::new()?;
    if args.keep_logs {
        dir.keep();
    }
    let mut report = Report::new(Machine::detect(), args.quick);
    let done = phases(args, &dir, &mut report).await;
    if done.is_err() {
        dir.keep();
    }
    done?;
    println!("{}", report.table());
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&report.json()).context("writing JSON")?;
        std::fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

async fn phases(args: &Args, dir: &TestDir, report: &mut Report) -> anyhow::Result<()> {
    let sizes = args.sizes();
    if args.wants_stack() {
        note("starting Postgres, Redis, NATS, the services and a worker");
        let stack = BenchStack::start(dir).await?;
        report.durability = Some(Durability::read(stack.postgres()).await?);
        let done = on_stack(args, &sizes, &stack, report).await;
        if done.is_err() {
            // Before the error, so that the error is what one reads last.
            note(&stack.log_tails());
        }
        done?;
    }
    if args.wants(Phase::Floor) {
        note("starting Postgres, Redis and NATS for the floor");
        let (measured, durability) = floor::measure(dir, sizes.floor, sizes.batch).await?;
        report.floor = Some(measured);
        report.durability.get_or_insert(durability);
    }
    Ok(())
}

async fn on_stack(
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
    throughput::measure(stack, "warm-up", bulk, WARM_UP).await?;
    let before = stack.decisions().await?;
    if args.wants(Phase::Single) {
        throughput::measure(stack, "single (warm-up)", single, WARM_UP).await?;
        report.single = Some(throughput::measure(stack, "single", single, sizes.single).await?);
    }
    if args.wants(Phase::Bulk) {
        throughput::measure(stack, "bulk (warm-up)", bulk, WARM_UP).await?;
        report.bulk = Some(throughput::measure(stack, "bulk", bulk, sizes.bulk).await?);
    }
    if args.wants(Phase::Latency) {
        report.latency = Some(latency::measure(stack, sizes.rate, sizes.latency).await?);
    }
    report.decisions = Some(stack.decisions().await?.since(before));
    Ok(())
}
