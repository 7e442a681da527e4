//! The scheduler as a process of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    airlock_service::main::<airlock_scheduler::Scheduler>()
}
