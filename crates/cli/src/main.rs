//! The `airlock` command.

mod args;
mod connect;
#[cfg(feature = "dev")]
mod dev;
mod exit;
mod explain;
mod follow;
mod job;
mod payload;
mod render;
mod run;
mod terminal;

use std::process::ExitCode;

fn main() -> ExitCode {
    run::run(std::env::args_os()).into()
}
