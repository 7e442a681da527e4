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

pub use airlock_election::{Backend, OnLoss};
pub use background::reconciler::ReconcilerConfig;
pub use background::retention::RetentionConfig;
pub use config::{Config, SchedulerConfig};
pub use kernel::{BreakerConfig, FailMode, KernelConfig};
pub use output::OutputConfig;

use output::checker::OutputChecker;
use rules::placement;
use term::leader::TermEnd;
use term::{epoch_claims, leader, leader_status};

use std::sync::Arc;

use airlock_bus::Bus;
use airlock_election::Elector;
use airlock_guard::Guard;
use airlock_kernel_client::OutputClient;
use airlock_ledger::Ledger;
use airlock_model::{LedgerId, Shard};
use airlock_service::{Context, LinkMetrics, OnFailure, Service};
use airlock_settings::Backoff;

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
        let instance = new_instance_name();
        let Some(stores) = connect_stores(&config, &ctx, &instance).await? else {
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
        let shard = Shard(0);
        leader_status::mount_leader_endpoint(&ctx, &stores.ledger, &instance, shard);
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
        leader_status::spawn_candidate_notes(&ctx, &stores, &instance, shard);
        leader_status::spawn_elector_health(&ctx, &elector);
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
        replica.metrics.epoch.set(epoch.0 as i64);
        leader_status::count_change(replica, &leadership);
        let seen =
            epoch_claims::find_later_epoch_on_bus(service, &replica.stores.bus, &leadership).await;
        let led = match seen {
            Ok(None) if service.shutdown.is_cancelled() => Ok(TermEnd::Shutdown),
            Ok(None) => leader::lead_term(replica, &leadership).await,
            Ok(Some(overtaken)) => Err(overtaken.into()),
            Err(error) => Err(error),
        };
        replica.metrics.leader.set(0);
        leadership.release_because(name_end(&led)).await;
        let error = match led {
            Ok(TermEnd::Shutdown) => return Ok(()),
            Ok(TermEnd::StepDown | TermEnd::BusAway) => {
                show_standby(service);
                leader_status::wait_for_successor(replica, shard, epoch).await;
                continue;
            }
            Err(error) => error,
        };
        match error.downcast::<epoch_claims::Overtaken>() {
            Ok(overtaken) => {
                epoch_claims::ensure_not_replaced(&replica.stores.ledger, shard, epoch).await?;
                tracing::warn!(%overtaken, "ledger was set back, leading again");
                elector.continue_above(overtaken.by);
            }
            Err(error) if replica.config.election.on_loss == OnLoss::StandBy => {
                tracing::error!(
                    error = format!("{error:#}"),
                    "term ended, standing by again"
                );
                show_standby(service);
            }
            Err(error) => return Err(error),
        }
    }
}

/// What the history of terms says of this end.
fn name_end(led: &anyhow::Result<TermEnd>) -> &'static str {
    match led {
        Ok(TermEnd::Shutdown) => "shutdown",
        Ok(TermEnd::StepDown) => "step-down",
        Ok(TermEnd::BusAway) => "bus",
        Err(_) => "failed",
    }
}

fn show_standby(service: &Context) {
    service.health.remove("leader");
    service.health.ok("standby");
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
async fn connect_stores(
    config: &Config,
    ctx: &Context,
    instance: &str,
) -> anyhow::Result<Option<Connections>> {
    // Before anything answers, so that the names are there from the beginning.
    let on_bus = LinkMetrics::new(&ctx.metrics, Bus::METRICS);
    let on_redis = LinkMetrics::new(&ctx.metrics, Guard::METRICS);
    let ledger = retry_until_connected(ctx, "ledger", || async {
        // Every session carries the instance: a standby that finds it hanging ends them all.
        let ledger = Ledger::connect(&config.database, &format!("scheduler-{instance}")).await?;
        // Before anything else, because nothing else works without sessions of our own.
        if ledger.shares_sessions().await? {
            return Ok(None);
        }
        ledger.migrate().await?;
        let id = ledger.id().await?;
        Ok(Some((ledger, id)))
    });
    let Some(ledger) = ledger.await else {
        return Ok(None);
    };
    let Some((ledger, ledger_id)) = ledger else {
        anyhow::bail!(
            "database.url leads to a pooler that gives our session to others between two \
             transactions (PgBouncer with pool_mode = transaction): the leader's lock and its \
             time limits belong to a session. Connect to Postgres directly, or through a \
             pooler with pool_mode = session"
        );
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
        .collect();
    // The end, where names of pods differ, and so much that Postgres shows the whole name.
    let host = &host[host.len().saturating_sub(24)..];
    let host = if host.is_empty() { "scheduler" } else { host };
    format!(
        "{host}-{}-{:08x}",
        std::process::id(),
        term::random_u64() as u32
    )
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
