//! The kernel as a service: its parts put together, its health told.

use std::net::SocketAddr;
use std::sync::Arc;

use airlock_service::watch::watch_file;
use airlock_service::{Context, Service, Status};
use anyhow::Context as _;
use tokio::sync::mpsc;

use crate::config::Config;
use crate::grpc::Kernel;
use crate::judge::Judge;
use crate::keeper::{Keeper, Look};
use crate::metrics::KernelMetrics;
use crate::policies::Policies;
use crate::server::{GrpcServer, Serving};

/// The health component that tells about the policy file.
const COMPONENT: &str = "policy";

pub struct SafetyKernel;

impl Service for SafetyKernel {
    const NAME: &'static str = "safety-kernel";
    const ENV: &'static [(&'static str, &'static str)] = &[("SAFETY_POLICY_PATH", "policy.path")];
    type Config = Config;

    async fn run(config: Config, ctx: Context) -> anyhow::Result<()> {
        Prepared::new(&config, ctx).await?.serve().await
    }
}

/// A kernel that listens and has looked at its policy, but answers nobody yet.
pub struct Prepared {
    server: GrpcServer,
    keeper: Arc<Keeper>,
    changes: mpsc::Receiver<()>,
    ctx: Context,
}

impl Prepared {
    pub async fn new(config: &Config, ctx: Context) -> anyhow::Result<Self> {
        let metrics = KernelMetrics::new();
        ctx.metrics
            .with_registry(|registry| metrics.register(registry));
        let policies = Arc::new(Policies::default());
        let judge = Judge::new(policies.clone(), metrics.clone());
        let server = GrpcServer::bind(&config.grpc, Kernel::new(judge)).await?;
        let path = config.policy.path.clone();
        // Watched before it is read, so that no change falls between the two.
        let changes = watch_file(path.clone(), &ctx);
        let keeper = Arc::new(Keeper::new(path, policies, metrics));
        let prepared = Self {
            server,
            keeper,
            changes,
            ctx,
        };
        look(&prepared.keeper, &prepared.ctx, &prepared.server.serving()).await?;
        Ok(prepared)
    }

    /// Where gRPC listens.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Answers, and follows the file, until the context says stop.
    pub async fn serve(self) -> anyhow::Result<()> {
        let Self {
            server,
            keeper,
            changes,
            ctx,
        } = self;
        tracing::info!(address = %server.address(), "safety kernel answers over gRPC");
        // Without a policy the policy component is down, and so not ready after all.
        ctx.health.declare_ready();
        let stop = ctx.shutdown.clone().cancelled_owned();
        let follow = follow(keeper, changes, ctx.clone(), server.serving());
        let serve = async {
            let served = server.serve(stop).await.context("the gRPC server ended");
            // Also when serving failed by itself: the follower must not outlive it.
            ctx.shutdown.cancel();
            served
        };
        let (served, followed) = tokio::join!(serve, follow);
        served.and(followed)
    }
}

/// Looks at the file whenever it may have changed.
async fn follow(
    keeper: Arc<Keeper>,
    mut changes: mpsc::Receiver<()>,
    ctx: Context,
    serving: Serving,
) -> anyhow::Result<()> {
    loop {
        let change = tokio::select! {
            // In this order, because a shutdown also closes the channel.
            biased;
            () = ctx.shutdown.cancelled() => return Ok(()),
            change = changes.recv() => change,
        };
        if change.is_none() {
            // The answers stay right for the policy in force, but no new one will be
            // seen: that is worth saying, not worth stopping for.
            tracing::error!("the policy file is no longer watched");
            let text = "the policy file is no longer watched; restart to pick up changes";
            ctx.health.degraded(COMPONENT, text);
            ctx.shutdown.cancelled().await;
            return Ok(());
        }
        look(&keeper, &ctx, &serving).await?;
    }
}

/// Looks once and tells health what came of it.
async fn look(keeper: &Arc<Keeper>, ctx: &Context, serving: &Serving) -> anyhow::Result<()> {
    let keeper = keeper.clone();
    let policies = keeper.policies().clone();
    let look = tokio::task::spawn_blocking(move || keeper.look())
        .await
        .context("reading the policy file")?;
    let (status, answers) = match look {
        Look::InForce { changed: _ } => (Status::Ok, true),
        Look::KeptOld(error) => (
            Status::Degraded(format!("the old policy stays in force: {error}")),
            true,
        ),
        Look::NoPolicy(error) => (
            Status::Down(format!("no policy loaded, every job is denied: {error}")),
            false,
        ),
    };
    ctx.health.set(COMPONENT, status);
    if let Some(policy) = policies.current() {
        ctx.health
            .fact("policy_snapshot", policy.snapshot().to_string());
    }
    serving.set(answers).await;
    Ok(())
}
