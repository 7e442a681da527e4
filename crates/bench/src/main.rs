//! `airlock-bench`: how fast Airlock is, beside what its own stores allow.
//!
//! It starts a whole stack of its own (Postgres with fsync, Redis, NATS, and our
//! services as separate processes), puts load on it through the REST API as clients
//! would, and then drives the same stores through a bare loop: the *floor*. The ratio
//! of the two is what the scheduler itself costs, and unlike a bare number of jobs a
//! second it can be compared between machines.
//!
//! What must stay true: a number is only printed for jobs that the ledger says have
//! succeeded, and the floor does the same writes, hops and guards as the stack.

mod args;
mod cpu;
mod floor;
mod http;
mod jobs;
mod latency;
mod machine;
mod policy;
mod progress;
mod report;
mod run;
mod stack;
mod throughput;
mod watch;
mod worker;

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::Context;
use args::{Args, Role};
use clap::Parser;

/// The services' allocator, so that the floor is not slower for want of it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Where the testkit looks for the services' programs.
const BIN_DIR: &str = "AIRLOCK_BIN_DIR";

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match args.role {
        Some(Role::Worker) => block_on_runtime(worker::run_worker()),
        None => reexec_with_binaries().and_then(|()| block_on_runtime(run::run_benchmark(&args))),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("airlock-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Two threads: the load generator must not take more of the machine than it needs.
fn block_on_runtime(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("starting the runtime")?
        .block_on(work)
}

/// The services run are those built beside this program. The testkit learns of them
/// through its environment, which a running process cannot safely change, so this
/// process is replaced by itself with the variable set.
fn reexec_with_binaries() -> anyhow::Result<()> {
    if std::env::var_os(BIN_DIR).is_some_and(|dir| !dir.is_empty()) {
        return Ok(());
    }
    let program = std::env::current_exe().context("finding this program")?;
    let folder = program.parent().context("finding this program's folder")?;
    let error = Command::new(&program)
        .args(std::env::args_os().skip(1))
        .env(BIN_DIR, folder)
        .exec();
    Err(error).context("starting over with the folder of the services")
}
