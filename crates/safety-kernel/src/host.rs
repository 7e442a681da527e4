//! The kernel as a service: builds its parts and the watches of the policy's sources.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use airlock_bus::{Bus, BusConfig, subjects};
use airlock_guard::{Guard, Mode, Velocity};
use airlock_service::watch::watch_file;
use airlock_service::{Context, LinkMetrics, OnFailure, Service, Status};
use airlock_settings::Backoff;
use anyhow::Context as _;
use tokio::sync::mpsc;

use crate::config::Config;
use crate::evaluator::Evaluator;
use crate::grpc::Kernel;
use crate::metrics::KernelMetrics;
use crate::policies::Policies;
use crate::refresh::{self, Refresher};
use crate::reloader::Reloader;
use crate::report::Reporter;
use crate::server::GrpcServer;
use crate::velocity::VelocityCounters;
use airlock_policy_source::Bundles;
use airlock_policy_source::sources::signature_path;

pub struct SafetyKernel;

impl Service for SafetyKernel {
    const NAME: &'static str = "safety-kernel";
    const ENV: &'static [(&'static str, &'static str)] = &[
        ("SAFETY_POLICY_PATH", "policy.path"),
        ("SAFETY_KERNEL_TLS_REQUIRED", "grpc.tls_required"),
        ("SAFETY_KERNEL_INSECURE", "grpc.insecure"),
        ("REDIS_URL", "redis.url"),
        ("NATS_URL", "nats.url"),
        ("DATABASE_URL", "database.url"),
    ];
    type Config = Config;

    async fn run(config: Config, ctx: Context) -> anyhow::Result<()> {
        Prepared::new(&config, ctx).await?.serve().await
    }
}

/// A kernel that listens and has loaded its policy, but serves nothing yet.
pub struct Prepared {
    server: GrpcServer,
    refresher: Refresher,
    hints: mpsc::Receiver<()>,
    poll: Duration,
    ctx: Context,
}

impl Prepared {
    pub async fn new(config: &Config, ctx: Context) -> anyhow::Result<Self> {
        let metrics = KernelMetrics::new();
        ctx.metrics
            .with_registry(|registry| metrics.register(registry));
        let policies = Arc::new(Policies::default());
        let guard = match &config.redis {
            Some(redis) => Some(Guard::connect(redis).await?),
            None => None,
        };
        let bus_metrics = LinkMetrics::new(&ctx.metrics, Bus::METRICS);
        let redis_metrics = LinkMetrics::new(&ctx.metrics, Guard::METRICS);
        if let Some(guard) = &guard {
            report_redis_health(guard, &ctx);
            redis_metrics.set_reader(guard.metrics_reader());
        }
        let bundles = Arc::new(Bundles::new(
            "safety-kernel",
            config.database.clone(),
            config.policy.bundle_copy_path(".bundles.json"),
        ));
        let counters = VelocityCounters::new(
            Velocity::new(guard.clone()),
            config.database.is_some().then(|| bundles.clone()),
        );
        let evaluator = Evaluator::new(policies.clone(), Arc::new(counters), metrics.clone());
        let files = config.policy.policy_files();
        let reloader = Arc::new(Reloader::new(
            files.clone(),
            config.policy.signature_rules()?,
            config.database.is_some(),
            policies.clone(),
            metrics,
        ));
        let server =
            GrpcServer::bind(&config.grpc, Kernel::new(evaluator, reloader.clone())).await?;

        let (hint, hints) = mpsc::channel(1);
        // Watched before they are read, so that no change falls between the two.
        for file in &files {
            watch_policy_file(file.clone(), hint.clone(), &ctx);
            watch_policy_file(signature_path(file), hint.clone(), &ctx);
        }
        if let Some(nats) = &config.nats {
            watch_config_changes(nats.clone(), hint, bus_metrics, &ctx);
        }
        let prepared = Self {
            refresher: Refresher {
                reporter: Reporter::new(server.address(), &files, policies, bundles.clone(), guard),
                reloader,
                bundles,
                serving: server.serving(),
                ctx: ctx.clone(),
            },
            server,
            hints,
            poll: config.policy.bundle_poll,
            ctx,
        };
        prepared.refresher.refresh_all().await?;
        Ok(prepared)
    }

    /// Where gRPC listens.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Serves, and follows the policy's sources, until shutdown.
    pub async fn serve(self) -> anyhow::Result<()> {
        let Self {
            server,
            refresher,
            hints,
            poll,
            ctx,
        } = self;
        tracing::info!(address = %server.address(), "safety kernel listening");
        // Without a policy the policy component is down, and so not ready after all.
        ctx.health.declare_ready();
        let stop = ctx.shutdown.clone().cancelled_owned();
        let refresh = refresh::run_refresh_loop(refresher, hints, poll, ctx.clone());
        let serve = async {
            let served = server.serve(stop).await.context("the gRPC server ended");
            // Also when serving failed: the refresh loop must not outlive the server.
            ctx.shutdown.cancel();
            served
        };
        let (served, refreshed) = tokio::join!(serve, refresh);
        served.and(refreshed)
    }
}

/// Each change of a file is a hint to reload.
fn watch_policy_file(path: std::path::PathBuf, hint: mpsc::Sender<()>, ctx: &Context) {
    let mut changes = watch_file(path.clone(), ctx);
    ctx.tasks.spawn(
        format!("watch {}", path.display()),
        OnFailure::Log,
        async move {
            while changes.recv().await.is_some() {
                // A full channel means that a reload is due already.
                let _ = hint.try_send(());
            }
        },
    );
}

/// Each `sys.config.changed` is a hint to reload. Without NATS the ledger is still polled.
fn watch_config_changes(
    config: BusConfig,
    hint: mpsc::Sender<()>,
    metrics: LinkMetrics,
    ctx: &Context,
) {
    let shutdown = ctx.shutdown.clone();
    ctx.tasks
        .spawn("watch sys.config.changed", OnFailure::Log, async move {
            let listen = async {
                let mut backoff = Backoff::from_millis(200, 5_000);
                loop {
                    match forward_config_changes(&config, &hint, &metrics).await {
                        Ok(()) => backoff.reset(),
                        Err(error) => {
                            tracing::debug!(%error, "configuration change subscription failed, retrying")
                        }
                    }
                    tokio::time::sleep(backoff.pause()).await;
                }
            };
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = listen => {}
            }
        });
}

async fn forward_config_changes(
    config: &BusConfig,
    hint: &mpsc::Sender<()>,
    metrics: &LinkMetrics,
) -> anyhow::Result<()> {
    let bus = Bus::connect(config, "safety-kernel").await?;
    metrics.set_reader(bus.metrics_reader());
    let mut changes = bus.subscribe(subjects::CONFIG_CHANGED, None).await?;
    let mut connected = bus.connected();
    // Messages from before the subscription, or from while NATS was away, are lost: reload.
    let _ = hint.try_send(());
    loop {
        tokio::select! {
            change = changes.recv() => match change {
                Some(_) => { let _ = hint.try_send(()); }
                None => anyhow::bail!("the subscription ended"),
            },
            changed = connected.changed() => {
                changed?;
                let _ = hint.try_send(());
            }
        }
    }
}

/// Shows in health whether velocity is counted together with the other kernels.
fn report_redis_health(guard: &Guard, ctx: &Context) {
    let mut mode = guard.mode();
    let (health, shutdown) = (ctx.health.clone(), ctx.shutdown.clone());
    ctx.tasks.spawn("watch redis", OnFailure::Log, async move {
        loop {
            let status = match &*mode.borrow_and_update() {
                Mode::Shared => Status::Ok,
                Mode::Local { reason, .. } => Status::Degraded(format!(
                    "velocity is counted by this kernel alone: {reason}"
                )),
            };
            health.set("redis", status);
            tokio::select! {
                () = shutdown.cancelled() => return,
                changed = mode.changed() => if changed.is_err() { return },
            }
        }
    });
}
