//! The SDK that workers are built on.
//!
//! A worker is a process that handles jobs of some topics. It is a few lines:
//!
//! ```no_run
//! use airlock_worker::{JobContext, Worker};
//! use serde_json::Value;
//!
//! #[tokio::main]
//! async fn main() -> Result<(), airlock_worker::WorkerError> {
//!     Worker::builder("demo")
//!         .pool("default")
//!         .max_parallel(16)
//!         .on("job.echo", |_: JobContext, input: Value| async move { Ok(input) })
//!         .run()
//!         .await
//! }
//! ```
//!
//! What the SDK sees to, so that handlers need not:
//!
//! - **A dispatch runs once.** The worker drops a dispatch that it has seen before, that a
//!   deposed leader sent, that was meant for an earlier process of this name, or that has
//!   waited past its accept-by.
//! - **A result is not lost.** The worker publishes it until the scheduler confirms it,
//!   through restarts of NATS and losses of its streams. Only the end of this process loses
//!   it, and the scheduler notices that.
//! - **A handler always ends.** Panics are failures; cancelled and overdue handlers are
//!   asked to end and then stopped.
//! - **Shutdown is orderly.** On SIGTERM the worker finishes what runs, hands back what has
//!   not begun, and deregisters.
//!
//! A handler may still run again after its process was killed: what it does to the world
//! should be safe to repeat, for instance by storing [`JobContext::job_id`] with it.
//!
//! Rejected: one subscription per topic with a queue group, as in other SDKs of the
//! protocol. Nobody could then tell which process has a job, and so neither cancel it
//! nor notice that it is lost.

#![deny(missing_docs)]

mod constraints;
mod error;
mod intake;
mod metrics;
mod outbound;
mod run;
pub mod testing;
mod text;
mod worker;

pub use airlock_bus::{BusConfig, Secret, SecretUrl};
pub use airlock_guard::GuardConfig;
pub use airlock_proto::cap::{
    BudgetConstraints, DiffConstraints, PolicyConstraints, SandboxProfile, ToolchainConstraints,
};
pub use bytes::Bytes;
pub use constraints::Policy;
pub use error::{JobError, JobErrorKind, WorkerError};
pub use metrics::stats::{Stats, StatsSnapshot};
pub use run::artifacts::Artifact;
pub use run::context::JobContext;
pub use run::options::HandlerOptions;
pub use tokio_util::sync::CancellationToken;
pub use worker::builder::{Builder, Worker};
