//! The saga manager: undoes what a workflow's run has done when a step of it fails for good.
//!
//! Any number of replicas run, and none of them leads. A saga is claimed by its row in the
//! ledger, what follows is decided by pure functions (`airlock_model::saga`), and the
//! compensations' jobs are committed together with the saga's move. What must stay true:
//! NATS and Redis only make it faster. Whatever they lose, a look at the ledger every second
//! finds again; whatever they make up, the ledger does not know.
//!
//! | module | what it holds |
//! |---|---|
//! | [`config`] | the settings |
//! | [`hints`] | what is heard on the bus about sagas that have something to do |
//! | [`manager`] | the loop: which sagas, one step of them, and what follows its commit |
//! | [`stack`] | the copy of the records in Redis |
//! | [`metrics`] | the numbers |

pub mod config;
mod hints;
mod manager;
mod metrics;
mod stack;

use std::time::Duration;

use airlock_bus::{Bus, WakeUps};
use airlock_guard::Guard;
use airlock_ledger::Ledger;
use airlock_proto::trace;
use airlock_service::{Context, LinkMetrics, OnFailure, Service};
use airlock_settings::Backoff;
use tokio::sync::mpsc;

pub use config::Config;
use manager::Manager;
use metrics::SagaMetrics;

pub struct SagaManager;

impl Service for SagaManager {
    const NAME: &'static str = "saga-manager";
    const ENV: &'static [(&'static str, &'static str)] = &[
        ("NATS_URL", "nats.url"),
        ("REDIS_URL", "redis.url"),
        ("DATABASE_URL", "database.url"),
    ];
    type Config = Config;

    async fn run(config: Config, ctx: Context) -> anyhow::Result<()> {
        let metrics = SagaMetrics::new();
        ctx.metrics
            .with_registry(|registry| metrics.register(registry));
        let Some((ledger, bus, guard)) = connect(&config, &ctx).await? else {
            return Ok(());
        };
        let shards = ledger.init_shard_count(config.shards).await?;
        anyhow::ensure!(
            shards == config.shards,
            "the ledger has {shards} shards, but shards is {}; all services must agree",
            config.shards
        );
        let (hint, hints) = mpsc::channel(hints::PENDING);
        let listening = hints::listen(bus.clone(), hint, ctx.shutdown.clone());
        ctx.tasks
            .spawn("listen for hints", OnFailure::StopService, listening);
        let wake_ups = wake_ups(&bus, &ctx);
        let manager = Manager {
            config,
            ledger,
            bus,
            guard,
            wake_ups,
            metrics,
        };
        ctx.health.ok("sagas");
        ctx.health.declare_ready();
        manager.run(hints, &ctx).await;
        Ok(())
    }
}

/// The wake-ups of compensations, and the task that repeats those that could not be sent.
fn wake_ups(bus: &Bus, ctx: &Context) -> WakeUps {
    let for_wake_ups = bus.clone();
    let wake_ups = WakeUps::new(
        SagaManager::NAME,
        4,
        move || Some(for_wake_ups.clone()),
        |lost| tracing::warn!(lost, "wake-ups of compensations given up"),
    );
    let (deferred, shutdown) = (wake_ups.clone(), ctx.shutdown.clone());
    ctx.tasks
        .spawn("send wake-ups again", OnFailure::Log, async move {
            let new_trace_id = || {
                let fresh = trace::new_traceparent();
                trace::trace_id(&fresh).unwrap_or_default().to_owned()
            };
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = deferred.send_deferred(new_trace_id) => {}
            }
        });
    wake_ups
}

/// Waits for the ledger and the bus: a service that starts before its stores is normal.
async fn connect(config: &Config, ctx: &Context) -> anyhow::Result<Option<(Ledger, Bus, Guard)>> {
    let on_bus = LinkMetrics::new(&ctx.metrics, Bus::METRICS);
    let on_redis = LinkMetrics::new(&ctx.metrics, Guard::METRICS);
    let ledger = retry_until_connected(ctx, "database", || async {
        let ledger = Ledger::connect(&config.database, SagaManager::NAME).await?;
        ledger.migrate().await?;
        Ok(ledger)
    });
    let Some(ledger) = ledger.await else {
        return Ok(None);
    };
    let bus = retry_until_connected(ctx, "nats", || async {
        Ok(Bus::connect(&config.nats, SagaManager::NAME).await?)
    });
    let Some(bus) = bus.await else {
        return Ok(None);
    };
    bus.set_ledger(&ledger.id().await?);
    let guard = Guard::connect(&config.redis).await?;
    on_bus.set_reader(bus.metrics_reader());
    on_redis.set_reader(guard.metrics_reader());
    Ok(Some((ledger, bus, guard)))
}

/// Tries until it works; `None` when the service is told to stop.
async fn retry_until_connected<T, F>(
    ctx: &Context,
    what: &'static str,
    mut go: impl FnMut() -> F,
) -> Option<T>
where
    F: Future<Output = anyhow::Result<T>>,
{
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
    loop {
        let connected = tokio::select! {
            () = ctx.shutdown.cancelled() => return None,
            connected = go() => connected,
        };
        match connected {
            Ok(connected) => {
                ctx.health.ok(what);
                return Some(connected);
            }
            Err(error) => ctx.health.down(what, format!("{error:#}")),
        }
        tokio::select! {
            () = ctx.shutdown.cancelled() => return None,
            () = tokio::time::sleep(backoff.pause()) => {}
        }
    }
}
