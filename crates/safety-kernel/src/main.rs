//! The safety kernel's process.

use std::process::ExitCode;

fn main() -> ExitCode {
    airlock_service::main::<airlock_safety_kernel::SafetyKernel>()
}
