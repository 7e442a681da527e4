//! The gateway's process.

use std::process::ExitCode;

fn main() -> ExitCode {
    airlock_service::main::<airlock_gateway::Gateway>()
}
