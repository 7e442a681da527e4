//! What workers are built on.
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
//! - **A dispatch runs once.** One that was seen before, that a deposed leader sent, that
//!   was meant for an earlier process of this name, or that has waited past its accept-by
//!   is dropped.
//! - **A result is not lost.** It is published until the scheduler confirms it, through
//!   restarts of NATS and losses of its streams. Only the end of this process loses it,
//!   and the scheduler notices that.
//! - **A handler always has an end.** Panics are failures; cancelled and overdue handlers
//!   are asked to end and then ended.
//! - **Leaving is orderly.** On SIGTERM what runs is finished, what was not begun is
//!   handed back, and the scheduler hears a goodbye.
//!
//! A handler may still run again after its process was killed: what it does to the world
//! should be safe to repeat, for instance by keeping [`JobContext::job_id`] with it.
//!
//! Rejected: one subscription per topic with a queue group, as in other SDKs of the
//! protocol. Nobody could then tell which process has a job, and so neither cancel it
//! nor notice that it is lost.

#![deny(missing_docs)]

mod artifacts;
mod blocked;
mod builder;
mod cancels;
mod clock;
mod config;
mod constraints;
mod context;
mod core;
mod environment;
mod error;
mod gate;
mod gpu;
mod handler;
mod host;
mod identity;
mod intake;
mod job;
mod load;
mod metrics;
mod notes;
mod ops;
mod options;
mod outbox;
mod packets;
mod run_job;
mod signing;
mod state;
mod stats;
mod store;
mod table;
mod tasks;
pub mod testing;
mod text;
mod worker;

pub use airlock_bus::{BusConfig, Secret, SecretUrl};
pub use airlock_guard::GuardConfig;
pub use airlock_proto::cap::{
    BudgetConstraints, DiffConstraints, PolicyConstraints, SandboxProfile, ToolchainConstraints,
};
pub use artifacts::Artifact;
pub use builder::{Builder, Worker};
pub use bytes::Bytes;
pub use constraints::Policy;
pub use context::JobContext;
pub use error::{JobError, JobErrorKind, WorkerError};
pub use options::HandlerOptions;
pub use stats::{Stats, StatsSnapshot};
pub use tokio_util::sync::CancellationToken;
