//! What every Airlock service does around its own work.
//!
//! A service's `main.rs` is one line, `service::main::<Scheduler>()`; everything
//! between the process starting and [`Service::run`] lives here: arguments,
//! configuration layers, telemetry, the operations endpoints, supervised tasks,
//! signals and the exit code.
//!
//! The one thing that must stay true: [`Service::run`] sees no process globals.
//! It gets its configuration and a [`Context`], so that `airlock dev` can host
//! every service in one process and tests can host one without a process at all.
//!
//! Rejected: a framework of lifecycle hooks. One `async fn` that ends when it is
//! asked to is easier to read than six callbacks whose order one has to know.

mod context;
mod health;
mod link_metrics;
mod main_loop;
mod metrics;
mod server;
mod supervisor;

pub mod config;
pub mod ops;
pub mod reload;
pub mod telemetry;
pub mod watch;

pub use airlock_settings::{MASK, Secret, SecretUrl, mask_url};
pub use config::{HttpConfig, ServiceConfig, ShutdownConfig, TelemetryConfig};
pub use context::Context;
pub use health::{Health, HealthReport, Status};
pub use link_metrics::LinkMetrics;
pub use main_loop::{Exit, HostError, host_service, main, run_with_args};
pub use metrics::Metrics;
pub use reload::Reloaded;
pub use supervisor::{OnFailure, Supervisor, TaskOutput};

/// Every service allocates and frees small things on many threads; this allocator costs
/// measurably less there than the system's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The version every binary of this workspace reports.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// One of Airlock's services.
pub trait Service: Send + Sync + 'static {
    /// The service's name, as in `config/<name>.yaml` and `airlock-<name>`.
    const NAME: &'static str;

    /// Environment names that the documentation promises, and the configuration
    /// path each one sets: `("NATS_URL", "nats.url")`.
    const ENV: &'static [(&'static str, &'static str)] = &[];

    /// Whether `run` serves [`ops::router`] on its own listener. The gateway
    /// does, because its REST interface shares the port; for everyone else the
    /// operations server is started before `run`.
    const SERVES_HTTP: bool = false;

    /// The service's configuration.
    type Config: ServiceConfig;

    /// Runs until `ctx.shutdown` is cancelled, then drains and returns.
    /// Returning early with `Ok` is a clean stop, with an error a failure.
    fn run(config: Self::Config, ctx: Context) -> impl Future<Output = anyhow::Result<()>> + Send;
}
