//! The output policy's process.

use std::process::ExitCode;

fn main() -> ExitCode {
    airlock_service::main::<airlock_output_policy::OutputPolicy>()
}
