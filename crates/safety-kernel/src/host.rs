//! The kernel as a service: its parts put together, its health told.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use airlock_bus::{Bus, BusConfig, subjects};
use airlock_guard::{Guard, Mode, Velocity};
use airlock_policy::signature::PublicKey;
use airlock_service::watch::watch_file;
use airlock_service::{Context, LinkMetrics, OnFailure, Service, Status};
use airlock_settings::Backoff;
use anyhow::Context as _;
use tokio::sync::mpsc;

use crate::bundles::Bundles;
use crate::config::Config;
use crate::counting::Counting;
use crate::grpc::Kernel;
use crate::judge::Judge;
use crate::keeper::{Keeper, Look};
use crate::metrics::KernelMetrics;
use crate::policies::Policies;
use crate::report::{self, Reporter};
use crate::server::{GrpcServer, Serving};
use crate::sources::{Trust, signature_path};

/// The health component that tells about the policy.
const COMPONENT: &str = "policy";
/// The one that tells about its bundles.
const BUNDLES: &str = "policy_bundles";

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

/// A kernel that listens and has looked at its policy, but answers nobody yet.
pub struct Prepared {
    server: GrpcServer,
    look: Looker,
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
        let on_bus = LinkMetrics::new(&ctx.metrics, Bus::METRICS);
        let on_redis = LinkMetrics::new(&ctx.metrics, Guard::METRICS);
        if let Some(guard) = &guard {
            tell_of_redis(guard, &ctx);
            on_redis.follow(guard.metrics_reader());
        }
        let bundles = Arc::new(Bundles::new(
            config.database.clone(),
            config.policy.last_good(),
        ));
        let counting = Counting::new(
            Velocity::new(guard.clone()),
            config.database.is_some().then(|| bundles.clone()),
        );
        let judge = Judge::new(policies.clone(), Arc::new(counting), metrics.clone());
        let files = config.policy.files();
        let keeper = Arc::new(Keeper::new(
            files.clone(),
            trust(config)?,
            config.database.is_some(),
            policies.clone(),
            metrics,
        ));
        let server = GrpcServer::bind(&config.grpc, Kernel::new(judge, keeper.clone())).await?;

        let (hint, hints) = mpsc::channel(1);
        // Watched before they are read, so that no change falls between the two.
        for file in &files {
            follow_file(file.clone(), hint.clone(), &ctx);
            follow_file(signature_path(file), hint.clone(), &ctx);
        }
        if let Some(nats) = &config.nats {
            follow_bus(nats.clone(), hint, on_bus, &ctx);
        }
        let prepared = Self {
            look: Looker {
                reporter: Reporter::new(server.address(), &files, policies, bundles.clone(), guard),
                keeper,
                bundles,
                serving: server.serving(),
                ctx: ctx.clone(),
            },
            server,
            hints,
            poll: config.policy.bundle_poll,
            ctx,
        };
        prepared.look.everything().await?;
        Ok(prepared)
    }

    /// Where gRPC listens.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Answers, and follows the policy's sources, until the context says stop.
    pub async fn serve(self) -> anyhow::Result<()> {
        let Self {
            server,
            look,
            hints,
            poll,
            ctx,
        } = self;
        tracing::info!(address = %server.address(), "safety kernel answers over gRPC");
        // Without a policy the policy component is down, and so not ready after all.
        ctx.health.declare_ready();
        let stop = ctx.shutdown.clone().cancelled_owned();
        let follow = follow(look, hints, poll, ctx.clone());
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

/// Whose signatures count.
fn trust(config: &Config) -> anyhow::Result<Trust> {
    let keys = config.policy.public_keys.iter();
    Ok(Trust {
        keys: keys
            .map(|key| PublicKey::parse(key))
            .collect::<Result<_, _>>()
            .context("policy.public_keys")?,
        required: config.policy.require_signature,
    })
}

/// Looks again whenever something may have changed, and asks for bundles in between.
async fn follow(
    look: Looker,
    mut hints: mpsc::Receiver<()>,
    poll: Duration,
    ctx: Context,
) -> anyhow::Result<()> {
    let mut open = true;
    let every = |period: Duration| {
        let mut ticks = tokio::time::interval(period);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        ticks
    };
    let (mut poll, mut tell) = (every(poll), every(report::EVERY));
    loop {
        tokio::select! {
            // In this order, because a shutdown also closes the channel.
            biased;
            () = ctx.shutdown.cancelled() => {
                look.reporter.gone().await;
                return Ok(());
            }
            hint = hints.recv(), if open => match hint {
                Some(()) => look.everything().await?,
                None => {
                    // The answers stay right for the policy in force, but no new one
                    // will be seen: that is worth saying, not worth stopping for.
                    open = false;
                    tracing::error!("the policy file is no longer watched");
                    let text = "the policy file is no longer watched; restart to pick up changes";
                    ctx.health.degraded(COMPONENT, text);
                }
            },
            _ = tell.tick(), if look.bundles.any() => look.reporter.again().await,
            _ = poll.tick(), if look.bundles.any() => look.at_bundles().await?,
        }
    }
}

/// Each change of a file is a hint to look.
fn follow_file(path: std::path::PathBuf, hint: mpsc::Sender<()>, ctx: &Context) {
    let mut changes = watch_file(path.clone(), ctx);
    ctx.tasks.spawn(
        format!("follow {}", path.display()),
        OnFailure::Log,
        async move {
            while changes.recv().await.is_some() {
                // Full means that a look is due already.
                let _ = hint.try_send(());
            }
        },
    );
}

/// Each `sys.config.changed` is a hint to look. Without NATS the ledger is still asked
/// now and then.
fn follow_bus(config: BusConfig, hint: mpsc::Sender<()>, counts: LinkMetrics, ctx: &Context) {
    let shutdown = ctx.shutdown.clone();
    ctx.tasks
        .spawn("follow the configuration", OnFailure::Log, async move {
            let listen = async {
                let mut backoff = Backoff::millis(200, 5_000);
                loop {
                    match listen(&config, &hint, &counts).await {
                        Ok(()) => backoff.reset(),
                        Err(error) => {
                            tracing::debug!(%error, "changes of the configuration are not heard")
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

async fn listen(
    config: &BusConfig,
    hint: &mpsc::Sender<()>,
    counts: &LinkMetrics,
) -> anyhow::Result<()> {
    let bus = Bus::connect(config, "safety-kernel").await?;
    counts.follow(bus.metrics_reader());
    let mut changes = bus.subscribe(subjects::CONFIG_CHANGED, None).await?;
    let mut connected = bus.connected();
    // What was said before we listened, or while NATS was away, is lost: look.
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

/// Whether velocity is counted together with the other kernels.
fn tell_of_redis(guard: &Guard, ctx: &Context) {
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

/// Looks at the sources and tells health what came of it.
struct Looker {
    keeper: Arc<Keeper>,
    bundles: Arc<Bundles>,
    reporter: Reporter,
    serving: Serving,
    ctx: Context,
}

impl Looker {
    /// At files and bundles.
    async fn everything(&self) -> anyhow::Result<()> {
        self.ask_for_bundles().await;
        self.put_in_force().await?;
        self.reporter.if_changed().await;
        Ok(())
    }

    /// At bundles alone.
    async fn at_bundles(&self) -> anyhow::Result<()> {
        if self.ask_for_bundles().await {
            self.put_in_force().await?;
        }
        self.reporter.if_changed().await;
        Ok(())
    }

    /// True when they may have changed.
    async fn ask_for_bundles(&self) -> bool {
        let health = &self.ctx.health;
        match self.bundles.refresh().await {
            Ok(changed) => {
                if self.bundles.any() {
                    health.ok(BUNDLES);
                }
                changed
            }
            Err(error) => {
                let before = self.bundles.known().is_some();
                if let Err(copy) = self.bundles.fall_back() {
                    tracing::warn!(%error, %copy, "policy bundles are not known; jobs are put off");
                }
                let known = self.bundles.known().is_some();
                health.degraded(BUNDLES, format!("the ledger cannot be asked: {error:#}"));
                known && !before
            }
        }
    }

    async fn put_in_force(&self) -> anyhow::Result<()> {
        let policies = self.keeper.policies().clone();
        let Some(pieces) = self.bundles.known() else {
            policies.wait(true);
            let text = "policy bundles are not known yet, every job is put off";
            self.ctx
                .health
                .set(COMPONENT, Status::Down(text.to_owned()));
            self.serving.set(false).await;
            return Ok(());
        };
        let (keeper, bundles) = (self.keeper.clone(), self.bundles.clone());
        let look = tokio::task::spawn_blocking(move || {
            let look = keeper.look(&pieces);
            if let Look::InForce { .. } = look
                && let Err(error) = bundles.keep()
            {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "no copy of the policy bundles"
                );
            }
            look
        })
        .await
        .context("reading the policy file")?;
        policies.wait(false);
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
        self.ctx.health.set(COMPONENT, status);
        if let Some(policy) = policies.current() {
            self.ctx
                .health
                .fact("policy_snapshot", policy.snapshot().to_string());
        }
        self.serving.set(answers).await;
        Ok(())
    }
}
