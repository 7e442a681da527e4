//! The scheduler: one leader decides, places, dispatches and finishes; the others stand
//! by.
//!
//! The way of a job through here: [`submissions`] reads it from the ledger and asks the
//! kernel ([`kernel`]); the [`committer`] puts the answer to the pure engine, commits what it
//! says and follows up on the bus ([`dispatch`]); [`results`] brings the worker's result
//! back to the committer. [`background`] does what no message asks for.

mod background;
mod breaker;
mod commit;
mod config;
#[cfg(test)]
mod defaults;
mod inbound;
mod kernel;
mod metrics;
mod outbound;
mod output;
mod rules;
mod term;

pub use background::reconciler::ReconcilerConfig;
pub use background::retention::RetentionConfig;
pub use config::{Config, SchedulerConfig};
pub use kernel::{BreakerConfig, FailMode, KernelConfig};
pub use output::OutputConfig;

use output::checker::OutputChecker;
use rules::placement;
use term::{epoch_claims, leader};

use std::sync::Arc;

use airlock_bus::Bus;
use airlock_election::Elector;
use airlock_guard::Guard;
use airlock_kernel_client::OutputClient;
use airlock_ledger::Ledger;
use airlock_model::{LedgerId, Shard};
use airlock_service::{Context, LinkMetrics, OnFailure, Service};
use airlock_settings::Backoff;
use axum::Json;
use axum::routing::get;
use serde_json::json;

/// The service.
pub struct Scheduler;

impl Service for Scheduler {
    const NAME: &'static str = "scheduler";
    const ENV: &'static [(&'static str, &'static str)] = &[
        ("NATS_URL", "nats.url"),
        ("REDIS_URL", "redis.url"),
        ("DATABASE_URL", "database.url"),
        ("SCHED_LEADER_LOCK_KEY", "election.lock_key"),
        ("SAFETY_KERNEL_TLS_CA", "kernel.tls_ca"),
        ("SAFETY_KERNEL_TLS_REQUIRED", "kernel.tls_required"),
        ("SAFETY_KERNEL_INSECURE", "kernel.insecure"),
        ("POLICY_CHECK_FAIL_MODE", "kernel.fail_mode"),
        ("OUTPUT_POLICY_ENABLED", "output.enabled"),
        ("OUTPUT_POLICY_FAIL_MODE", "output.fail_mode"),
        ("OUTPUT_POLICY_TLS_CA", "output.tls_ca"),
        ("OUTPUT_POLICY_TLS_REQUIRED", "output.tls_required"),
        ("OUTPUT_POLICY_INSECURE", "output.insecure"),
    ];
    type Config = Config;

    async fn run(config: Config, ctx: Context) -> anyhow::Result<()> {
        let placement = placement::Placement::load_and_watch(&config.scheduler, &ctx).await?;
        let metrics = metrics::Metrics::new(&ctx.metrics);
        let lanes = placement::LaneMetrics::new(&ctx.metrics);
        let Some(stores) = connect_stores(&config, &ctx).await? else {
            return Ok(());
        };
        let shards = stores
            .ledger
            .init_shard_count(config.scheduler.shards)
            .await?;
        anyhow::ensure!(
            shards == config.scheduler.shards,
            "the ledger has {shards} shards, but scheduler.shards is {}; all replicas must agree",
            config.scheduler.shards
        );
        let instance = new_instance_name();
        let shard = Shard(0);
        mount_leader_endpoint(&ctx, &stores.ledger, &instance, shard);
        spawn_task_gauge(&ctx, &metrics);
        ctx.tasks.spawn(
            "watch-kernel",
            OnFailure::Log,
            kernel::watch_kernel_health(
                config.kernel.clone(),
                stores.guard.clone(),
                metrics.clone(),
                ctx.clone(),
            ),
        );
        ctx.health.ok("standby");
        ctx.health.declare_ready();
        let elector = Elector::new(
            stores.ledger.clone(),
            config.election.clone(),
            instance.clone(),
            shard,
        );
        // Wired whether or not the policy is on: the switch is another setting.
        let connection = config.output.to_connection_config();
        let output_checker = Arc::new(OutputClient::new(&connection).await?);
        let replica = Replica {
            config,
            service: ctx,
            stores,
            metrics,
            instance,
            placement,
            lanes,
            output_checker,
        };
        lead_when_elected(&replica, elector).await
    }
}

/// Leads whenever this replica is elected, until the service stops.
async fn lead_when_elected(replica: &Replica, mut elector: Elector) -> anyhow::Result<()> {
    let service = &replica.service;
    loop {
        let Some(leadership) = elector.acquire_leadership(&service.shutdown).await? else {
            return Ok(());
        };
        let (shard, epoch) = (leadership.shard(), leadership.epoch());
        service.health.set_fact("leader", replica.instance.clone());
        service.health.set_fact("epoch", epoch.0);
        replica.metrics.leader.set(1);
        let seen =
            epoch_claims::find_later_epoch_on_bus(service, &replica.stores.bus, &leadership).await;
        let led = match seen {
            Ok(None) if service.shutdown.is_cancelled() => Ok(()),
            Ok(None) => leader::lead_term(replica, &leadership).await,
            Ok(Some(overtaken)) => Err(overtaken.into()),
            Err(error) => Err(error),
        };
        replica.metrics.leader.set(0);
        leadership.release().await;
        let Err(error) = led else {
            return Ok(());
        };
        let overtaken: epoch_claims::Overtaken = error.downcast()?;
        epoch_claims::ensure_not_replaced(&replica.stores.ledger, shard, epoch).await?;
        tracing::warn!(%overtaken, "ledger was set back, leading again");
        elector.continue_above(overtaken.by);
    }
}

/// What a replica brings to each of its terms.
pub(crate) struct Replica {
    pub config: Config,
    pub service: Context,
    pub stores: Connections,
    pub metrics: metrics::Metrics,
    pub instance: String,
    pub placement: placement::Placement,
    pub lanes: placement::LaneMetrics,
    pub output_checker: Arc<dyn OutputChecker>,
}

/// What a leader and a standby both hold.
pub(crate) struct Connections {
    pub ledger: Ledger,
    pub ledger_id: LedgerId,
    pub bus: Bus,
    pub guard: Guard,
}

/// Waits for the ledger and the bus: a service that starts before its stores is normal.
async fn connect_stores(config: &Config, ctx: &Context) -> anyhow::Result<Option<Connections>> {
    // Before anything answers, so that the names are there from the beginning.
    let on_bus = LinkMetrics::new(&ctx.metrics, Bus::METRICS);
    let on_redis = LinkMetrics::new(&ctx.metrics, Guard::METRICS);
    let ledger = retry_until_connected(ctx, "ledger", || async {
        let ledger = Ledger::connect(&config.database, "scheduler").await?;
        ledger.migrate().await?;
        let id = ledger.id().await?;
        Ok((ledger, id))
    });
    let Some((ledger, ledger_id)) = ledger.await else {
        return Ok(None);
    };
    let bus = retry_until_connected(ctx, "bus", || async {
        Ok(Bus::connect(&config.nats, "scheduler").await?)
    });
    let Some(bus) = bus.await else {
        return Ok(None);
    };
    bus.set_ledger(&ledger_id);
    let guard = Guard::connect(&config.redis).await?;
    on_bus.set_reader(bus.metrics_reader());
    on_redis.set_reader(guard.metrics_reader());
    Ok(Some(Connections {
        ledger,
        ledger_id,
        bus,
        guard,
    }))
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
    let mut backoff = Backoff::from_millis(100, 2_000);
    loop {
        match go().await {
            Ok(done) => {
                ctx.health.ok(what);
                return Some(done);
            }
            Err(error) => {
                ctx.health.down(what, error.to_string());
                tracing::warn!(%error, dependency = what, "dependency unavailable, retrying");
            }
        }
        tokio::select! {
            () = ctx.shutdown.cancelled() => return None,
            () = tokio::time::sleep(backoff.pause()) => {}
        }
    }
}

/// Unique per process, and readable: where it runs and which of them it is.
fn new_instance_name() -> String {
    let host = std::fs::read_to_string("/etc/hostname").unwrap_or_default();
    let host: String = host
        .trim()
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || *c == '-')
        .take(40)
        .collect();
    let host = if host.is_empty() { "scheduler" } else { &host };
    format!(
        "{host}-{}-{:08x}",
        std::process::id(),
        term::random_u64() as u32
    )
}

/// `/health/leader`: who leads, since when, in which term.
fn mount_leader_endpoint(ctx: &Context, ledger: &Ledger, instance: &str, shard: Shard) {
    let (ledger, instance) = (ledger.clone(), instance.to_owned());
    ctx.mount(
        "/health/leader",
        get(move || {
            let (ledger, instance) = (ledger.clone(), instance.clone());
            async move {
                match ledger.leader(shard).await {
                    Ok(Some(info)) => Json(json!({
                        "shard": shard.0,
                        "leader": info.leader,
                        "epoch": info.epoch.0,
                        "since": info.since.to_rfc3339(),
                        "renewed_at": info.renewed_at.map(|t| t.to_rfc3339()),
                        "this_instance": instance,
                        "leading": info.leader == instance,
                    })),
                    Ok(None) => Json(json!({"shard": shard.0, "leader": null})),
                    Err(error) => Json(json!({"shard": shard.0, "error": error.to_string()})),
                }
            }
        }),
    );
}

fn spawn_task_gauge(ctx: &Context, metrics: &metrics::Metrics) {
    let (ctx_, gauge) = (ctx.clone(), metrics.active_goroutines.clone());
    ctx.tasks.spawn("count-tasks", OnFailure::Log, async move {
        loop {
            let alive = tokio::runtime::Handle::current()
                .metrics()
                .num_alive_tasks();
            gauge.set(i64::try_from(alive).unwrap_or(i64::MAX));
            tokio::select! {
                () = ctx_.shutdown.cancelled() => return,
                () = tokio::time::sleep(std::time::Duration::from_secs(5)) => {}
            }
        }
    });
}
