//! The rules of placement as their files have them, and what waits where.
//!
//! The files are followed by every replica, so that a standby that takes over leads by
//! the rules of the moment. What waits is counted by lane (pool and tenant): as many
//! series as there are lanes, however many jobs there are, and nothing of it is written
//! to the ledger.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use airlock_model::PoolName;
use airlock_model::engine::Input;
use airlock_model::explain::Lane;
use airlock_model::rules::Rules;
use airlock_service::{Context, Reloaded};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use crate::commit::handle::InputBatch;
use crate::config::SchedulerConfig;
use crate::rules::pools::Pools;
use crate::rules::pools_file::{FileError, Place};
use crate::rules::timeouts::Timeouts;
use crate::term::Term;

/// How often the lanes are counted.
const COUNT_EVERY: Duration = Duration::from_secs(1);

/// Lanes that are shown at most: tenants are the clients' to name.
const MAX_LANES: usize = 1000;

/// The files of placement, each with its last good content.
#[derive(Clone)]
pub struct Placement {
    pools: Arc<Reloaded<Pools>>,
    timeouts: Arc<Reloaded<Timeouts>>,
}

impl Placement {
    /// Loads both files now and follows them. A file that is absent and was not named
    /// means the defaults, until there is one.
    pub async fn load_and_watch(config: &SchedulerConfig, ctx: &Context) -> anyhow::Result<Self> {
        let default = PoolName::new(&config.default_pool)?;
        let place = Place::from_setting(config.pools_file.as_deref(), "pools.yaml");
        let path = place.path.clone();
        let load = load_unless_absent(place, Pools::load, move || {
            Pools::with_single_pool(default.clone())
        });
        let pools = Reloaded::load_and_watch("pools", path, load, ctx).await?;
        let place = Place::from_setting(config.timeouts_file.as_deref(), "timeouts.yaml");
        let path = place.path.clone();
        let load = load_unless_absent(place, Timeouts::load, Timeouts::default);
        let timeouts = Reloaded::load_and_watch("timeouts", path, load, ctx).await?;
        Ok(Self { pools, timeouts })
    }

    pub fn rules(&self) -> Arc<Rules> {
        let pools = self.pools.current();
        Arc::new(Rules {
            routing: pools.routing.clone(),
            topics: self.timeouts.current().0.clone(),
            tenants: pools.tenants.clone(),
        })
    }

    /// Tells the engine of every change, until the term is over.
    pub async fn follow_rule_changes(self, term: Arc<Term>) -> anyhow::Result<()> {
        let mut pools = self.pools.subscribe();
        let mut timeouts = self.timeouts.subscribe();
        loop {
            // Also at first: a file may have changed since the engine was made.
            let rules = self.rules();
            if !term
                .commit
                .enqueue(InputBatch::from_inputs(vec![Input::Rules(rules)]))
                .await
            {
                return Ok(());
            }
            tokio::select! {
                () = term.ctx.over.cancelled() => return Ok(()),
                changed = pools.changed() => changed?,
                changed = timeouts.changed() => changed?,
            }
        }
    }
}

/// What is wrong with the files, for a check of the whole configuration.
pub fn validate_rule_files(config: &SchedulerConfig) -> Vec<String> {
    let mut problems = Vec::new();
    let pools = Place::from_setting(config.pools_file.as_deref(), "pools.yaml");
    if !pools.is_absent()
        && let Err(error) = Pools::load(&pools.path)
    {
        problems.push(error.to_string());
    }
    let timeouts = Place::from_setting(config.timeouts_file.as_deref(), "timeouts.yaml");
    if !timeouts.is_absent()
        && let Err(error) = Timeouts::load(&timeouts.path)
    {
        problems.push(error.to_string());
    }
    problems
}

/// A file that was never there is the default; one that has gone is a mistake, and what
/// it said stays in force.
fn load_unless_absent<T>(
    place: Place,
    load: impl Fn(&Path) -> Result<T, FileError> + Send + Sync + 'static,
    default: impl Fn() -> T + Send + Sync + 'static,
) -> impl Fn(&Path) -> Result<T, FileError> + Send + Sync + 'static {
    let seen = AtomicBool::new(false);
    move |path| {
        if place.is_absent() && !seen.load(Ordering::Relaxed) {
            return Ok(default());
        }
        seen.store(true, Ordering::Relaxed);
        load(path)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ByLane {
    pub pool: String,
    pub tenant: String,
    pub reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ByPoolAndTenant {
    pub pool: String,
    pub tenant: String,
}

/// What waits, by lane.
#[derive(Debug, Clone, Default)]
pub struct LaneMetrics {
    depth: Family<ByLane, Gauge>,
    oldest: Family<ByPoolAndTenant, Gauge>,
}

impl LaneMetrics {
    pub fn new(registry: &airlock_service::Metrics) -> Self {
        let m = Self::default();
        registry.with_registry(|r| {
            r.register(
                "cordum_scheduler_ready_queue_depth",
                "Jobs that wait for a worker, by pool, tenant and reason",
                m.depth.clone(),
            );
            r.register(
                "cordum_scheduler_oldest_waiting_seconds",
                "How long the first of them has waited",
                m.oldest.clone(),
            );
        });
        m
    }

    fn set_lanes(&self, lanes: Vec<Lane>, now: airlock_model::Timestamp) {
        self.depth.clear();
        self.oldest.clear();
        for lane in lanes.into_iter().take(MAX_LANES) {
            let tenant = lane.tenant.to_string();
            let key = ByLane {
                pool: lane.pool.clone(),
                tenant: tenant.clone(),
                reason: lane.reason.code(),
            };
            let waiting = i64::try_from(lane.waiting).unwrap_or(i64::MAX);
            self.depth.get_or_create(&key).set(waiting);
            let key = ByPoolAndTenant {
                pool: lane.pool,
                tenant,
            };
            let age = now.since(lane.oldest).as_secs();
            self.oldest
                .get_or_create(&key)
                .set(i64::try_from(age).unwrap_or(i64::MAX));
        }
    }
}

/// Counts the lanes until the term is over.
pub async fn update_lane_metrics(term: Arc<Term>, metrics: LaneMetrics) -> anyhow::Result<()> {
    loop {
        let Some(lanes) = term.commit.list_lanes().await else {
            metrics.set_lanes(Vec::new(), term.ctx.clock.now());
            return Ok(());
        };
        metrics.set_lanes(lanes, term.ctx.clock.now());
        tokio::select! {
            () = term.ctx.over.cancelled() => {
                metrics.set_lanes(Vec::new(), term.ctx.clock.now());
                return Ok(());
            }
            () = tokio::time::sleep(COUNT_EVERY) => {}
        }
    }
}
