//! The `airlock` command.

mod approval;
mod args;
mod connect;
#[cfg(feature = "dev")]
mod dev;
mod dlq;
mod exit;
mod explain;
mod follow;
mod job;
mod leader;
mod output;
mod payload;
mod policy;
mod render;
mod run;
mod saga;
mod session;
mod terminal;
mod worker;

use std::process::ExitCode;

fn main() -> ExitCode {
    run::run_command_line(std::env::args_os()).into()
}
