//! The output policy as a service: builds its parts and watches its files.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use airlock_policy_source::Bundles;
use airlock_policy_source::sources::signature_path;
use airlock_service::watch::watch_file;
use airlock_service::{Context, OnFailure, Service};
use anyhow::Context as _;
use tokio::sync::mpsc;

use crate::active::ActivePolicies;
use crate::config::Config;
use crate::grpc::OutputService;
use crate::metrics::OutputMetrics;
use crate::pool::ScanPool;
use crate::refresh::{self, Refresher};
use crate::reloader::Reloader;
use crate::server::GrpcServer;

pub struct OutputPolicy;

impl Service for OutputPolicy {
    const NAME: &'static str = "output-policy";
    const ENV: &'static [(&'static str, &'static str)] = &[
        ("SAFETY_POLICY_PATH", "policy.path"),
        ("OUTPUT_SCANNERS_PATH", "scanners.path"),
        ("OUTPUT_POLICY_FAIL_MODE", "output.fail_mode"),
        ("OUTPUT_POLICY_TLS_REQUIRED", "grpc.tls_required"),
        ("OUTPUT_POLICY_INSECURE", "grpc.insecure"),
        ("DATABASE_URL", "database.url"),
    ];
    type Config = Config;

    async fn run(config: Config, ctx: Context) -> anyhow::Result<()> {
        Prepared::new(&config, ctx).await?.serve().await
    }
}

/// A service that listens and has loaded its rules, but serves nothing yet.
pub struct Prepared {
    server: GrpcServer,
    refresher: Refresher,
    hints: mpsc::Receiver<()>,
    poll: Duration,
    ctx: Context,
}

impl Prepared {
    pub async fn new(config: &Config, ctx: Context) -> anyhow::Result<Self> {
        let metrics = OutputMetrics::new();
        ctx.metrics
            .with_registry(|registry| metrics.register(registry));
        let policies = Arc::new(ActivePolicies::default());
        let bundles = Arc::new(Bundles::new(
            "output-policy",
            config.database.clone(),
            config.policy.bundle_copy_path(".output-bundles.json"),
        ));
        let files = config.policy.policy_files();
        let reloader = Arc::new(Reloader::new(
            files.clone(),
            config.scanners.path.clone(),
            config.policy.signature_rules()?,
            policies.clone(),
            metrics.clone(),
        ));
        let service = OutputService {
            policies,
            fail_mode: config.output.fail_mode,
            pool: ScanPool::new(config.scanners.threads),
            metrics,
        };
        let server = GrpcServer::bind(&config.grpc, service).await?;

        let (hint, hints) = mpsc::channel(1);
        // Watched before they are read, so that no change falls between the two.
        for file in &files {
            watch(file.clone(), hint.clone(), &ctx);
            watch(signature_path(file), hint.clone(), &ctx);
        }
        watch(config.scanners.path.clone(), hint, &ctx);
        let prepared = Self {
            refresher: Refresher {
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

    /// Serves, and follows the sources, until shutdown.
    pub async fn serve(self) -> anyhow::Result<()> {
        let Self {
            server,
            refresher,
            hints,
            poll,
            ctx,
        } = self;
        tracing::info!(address = %server.address(), "output policy listening");
        // Without rules the policy component is down, and so not ready after all.
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
fn watch(path: PathBuf, hint: mpsc::Sender<()>, ctx: &Context) {
    let mut changes = watch_file(path.clone(), ctx);
    let name = format!("watch {}", path.display());
    ctx.tasks.spawn(name, OnFailure::Log, async move {
        while changes.recv().await.is_some() {
            // A full channel means that a reload is due already.
            let _ = hint.try_send(());
        }
    });
}
