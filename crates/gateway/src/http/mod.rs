//! The REST interface: the route table, the edge that every request passes, and one file
//! per resource.

mod approvals;
mod bundles;
pub(crate) mod cursor;
mod decisions;
pub(crate) mod decode;
mod dlq;
mod edge;
mod explain;
mod jobs;
mod leader;
mod output;
mod policy;
pub(crate) mod problem;
mod quarantine;
pub(crate) mod query;
mod rejections;
pub(crate) mod routes;
mod sagas;
mod submit;
mod tasks;

use std::sync::Arc;

use airlock_ledger::OpenJobs;
use airlock_scan::Scanner;
use airlock_service::{Context, Reloaded};
use axum::response::Response;
use tokio::sync::Semaphore;

use crate::auth::{self, Keys};
use crate::config::{GatewayConfig, LimitsConfig, OutputConfig, PolicyConfig};
use crate::connections::Links;
use crate::limits::admission::Admission;
use crate::limits::open_jobs;
use crate::metrics::GatewayMetrics;
use crate::policy::bundle_check::PublicKey;
use crate::policy::kernel::Kernel;
use crate::scanner;
use crate::submit::commit::{self, Submitter};
use crate::submit::wake_up::Waker;
use crate::tasks::TasksConfig;
use crate::trace::Tracing;
use crate::waiting::Waiting;

use problem::Problem;
use rejections::RejectionLog;

/// What the handlers share.
pub(crate) struct App {
    keys: Arc<Reloaded<Keys>>,
    limits: LimitsConfig,
    shards: u16,
    links: Links,
    submitter: Submitter,
    waker: Waker,
    pub(crate) waiting: Waiting,
    tracing: Tracing,
    metrics: GatewayMetrics,
    admission: Admission,
    open_jobs: Arc<OpenJobs>,
    rejections: RejectionLog,
    pub(crate) kernel: Kernel,
    policy: PolicyConfig,
    output: OutputConfig,
    scanner: Arc<Reloaded<Scanner>>,
    /// As many scans at once as there are processors.
    scans: Semaphore,
    /// Whose signatures on bundles count.
    bundle_keys: Vec<PublicKey>,
    tasks: TasksConfig,
    /// Tasks are accepted without an API key, from this machine.
    anonymous_tasks: bool,
    ctx: Context,
}

/// A handler's response, or the problem that the edge renders.
type HandlerResult = Result<Response, Problem>;

impl App {
    /// Starts the committers, the wake-ups and the count of open jobs. Everything waits for
    /// the links, which somebody else opens.
    pub(crate) async fn new(
        config: GatewayConfig,
        links: Links,
        ctx: &Context,
    ) -> anyhow::Result<Self> {
        let keys = auth::open_keys(&config, ctx).await?;
        let metrics = GatewayMetrics::new(&ctx.metrics);
        let waker = Waker::new(config.submit.publishers, &links, &metrics, ctx);
        let submitter =
            commit::start_committers(&config.submit, &links, waker.clone(), &metrics, ctx);
        let exported = config
            .telemetry
            .otlp_endpoint
            .is_some_and(|e| !e.is_empty());
        Ok(Self {
            keys,
            admission: Admission::new(&config.limits),
            open_jobs: open_jobs::start_counting_open_jobs(&config.limits, &links, ctx),
            rejections: RejectionLog::default(),
            waiting: Waiting::new(&config.limits, metrics.waiters.clone()),
            kernel: Kernel::new(&config.kernel).await?,
            limits: config.limits,
            shards: config.shards,
            links,
            submitter,
            waker,
            tracing: Tracing { exported },
            metrics,
            bundle_keys: config
                .policy
                .parse_public_keys()
                .map_err(anyhow::Error::msg)?,
            policy: config.policy,
            scanner: scanner::open(&config.output, ctx).await?,
            scans: Semaphore::new(
                std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            ),
            output: config.output,
            anonymous_tasks: config.auth.anonymous_tasks && auth::is_loopback(&config.http.listen),
            tasks: config.tasks,
            ctx: ctx.clone(),
        })
    }
}
