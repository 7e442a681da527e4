//! The saga manager's process.

use std::process::ExitCode;

fn main() -> ExitCode {
    airlock_service::main::<airlock_saga_manager::SagaManager>()
}
