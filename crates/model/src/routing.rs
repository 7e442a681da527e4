//! Which worker gets a job: topic → pools → the least loaded worker that fits.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{Incarnation, PoolName, Topic, WorkerId};
use crate::job::JobSpec;
use crate::job::placement::{Placement, Selector};
pub use crate::rules::{Glob, Pool, PoolRouting, PoolStatus};
use crate::time::ListenTime;

/// Why a job could not be placed; the codes of the dead-letter queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WaitReason {
    NoPoolMapping,
    NoWorkers,
    /// A pool that could serve it takes nothing new at present (draining).
    PoolDraining,
    /// Every pool that could serve it is switched off (inactive).
    PoolInactive,
    PoolOverloaded,
    TenantLimit,
    DispatchFailed,
    /// The kernel could not be reached.
    SafetyUnavailable,
    /// The kernel wants to decide later.
    Throttled,
    /// A retry waits for its time.
    Backoff,
}

impl WaitReason {
    pub const fn code(self) -> &'static str {
        match self {
            Self::NoPoolMapping | Self::PoolInactive => "no_pool_mapping",
            Self::NoWorkers | Self::PoolDraining => "no_workers",
            Self::PoolOverloaded => "pool_overloaded",
            Self::TenantLimit => "tenant_limit",
            Self::DispatchFailed => "dispatch_failed",
            Self::SafetyUnavailable => "safety_unavailable",
            Self::Throttled => "throttled",
            Self::Backoff => "backoff",
        }
    }

    /// Whether a scheduled try that ends so counts towards giving up. A full pool, a
    /// tenant at its limit or an absent kernel cure themselves, and a pool that somebody
    /// closed is opened again or mapped away; `all` counts every try to place a job where
    /// nobody closed a pool, whatever it ended with.
    pub const fn counts_towards_giving_up(self, all: bool) -> bool {
        match self {
            Self::NoPoolMapping | Self::NoWorkers | Self::DispatchFailed => true,
            Self::PoolOverloaded | Self::TenantLimit => all,
            Self::PoolDraining
            | Self::PoolInactive
            | Self::SafetyUnavailable
            | Self::Throttled
            | Self::Backoff => false,
        }
    }
}

/// How a worker is given a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Addressing {
    /// `worker.<id>.jobs`.
    #[default]
    Direct,
    /// Several processes go by this id: through the topic's subject and queue group.
    Shared,
    /// Nobody registered; configuration says that someone listens on the topic's
    /// subject.
    Unregistered,
}

/// What we notice about a worker beside what it says.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WorkerHealth {
    /// Jobs on it that have lost a worker before and have no attempt after this one.
    pub crash_suspect: u32,
    /// Dispatches in a row that it did not accept in time.
    pub missed_accepts: u32,
    /// It sends but does not receive: nothing more for it until then.
    pub unresponsive_until: Option<ListenTime>,
    /// When its last heartbeat said that it has nothing to do.
    pub idle_at: Option<ListenTime>,
    /// A run of ours ended there just then.
    pub last_run_end: Option<ListenTime>,
    /// Topics that it turned out not to serve, when it never said which it does.
    pub declined_topics: BTreeSet<String>,
}

/// A worker as we know it.
#[derive(Debug, Clone, PartialEq)]
pub struct Worker {
    pub id: WorkerId,
    pub incarnation: Incarnation,
    /// Built on our SDK: knows dispatch ids, epochs and receipts.
    pub sdk: bool,
    /// Takes small payloads inside the packet.
    pub inline: bool,
    /// `None`: it named none, and serves the pools of its topics.
    pub pool: Option<PoolName>,
    /// Empty: any.
    pub topics: BTreeSet<String>,
    pub capabilities: BTreeSet<String>,
    pub labels: BTreeMap<String, String>,
    pub max_parallel: u32,
    /// Jobs it reports that are not ours to count.
    pub reported_active: u32,
    pub cpu_load: f32,
    pub gpu_utilization: f32,
    pub draining: bool,
    /// The engine fills it in.
    pub last_seen: ListenTime,
    /// What we have given it and not heard the end of.
    pub in_flight: u32,
    pub addressing: Addressing,
    pub health: WorkerHealth,
}

impl Worker {
    /// At least one: a worker that says 0 still takes one job at a time.
    pub fn slots(&self) -> u32 {
        self.max_parallel.max(1)
    }

    pub(crate) fn has_room(&self) -> bool {
        self.in_flight < self.slots()
    }

    /// By what it reports: 90 % of its slots, its processor or its accelerator.
    pub(crate) fn is_overloaded(&self) -> bool {
        f64::from(self.reported_active) / f64::from(self.slots()) >= 0.9
            || self.cpu_load >= 90.0
            || self.gpu_utilization >= 90.0
    }

    /// Whether it is given anything at all at present.
    pub(crate) fn is_available(&self) -> bool {
        !self.draining && self.health.unresponsive_until.is_none()
    }

    /// Whether it may be given a job.
    pub(crate) fn can_take_job(&self) -> bool {
        self.is_available() && self.has_room() && !self.is_overloaded()
    }

    /// Whether it is used only when nobody else can serve a job at all: it may not be
    /// there, or nobody knows which topics it serves.
    fn is_last_resort(&self) -> bool {
        self.addressing == Addressing::Unregistered || (!self.sdk && self.topics.is_empty())
    }

    pub(crate) fn load_score(&self) -> f64 {
        f64::from(self.reported_active)
            + f64::from(self.in_flight)
            + f64::from(self.cpu_load) / 100.0
            + f64::from(self.gpu_utilization) / 100.0
    }

    fn serves(&self, pool: &PoolName, topic: &Topic) -> bool {
        self.pool.as_ref().is_none_or(|p| p == pool)
            && if self.topics.is_empty() {
                !self.health.declined_topics.contains(topic.as_str())
            } else {
                self.topics.contains(topic.as_str())
            }
    }

    /// A worker that announces no capabilities has its pool's.
    fn meets_requirements(&self, pool: &Pool, job: Placement<'_>) -> bool {
        let can = |capability: &str| {
            if self.capabilities.is_empty() {
                pool.capabilities.contains(capability)
            } else {
                self.capabilities.contains(capability)
            }
        };
        job.requires.iter().all(|r| can(r))
            && job.selectors().all(|selector| match selector {
                Selector::Label(name, value) => {
                    self.labels.get(name).is_some_and(|own| own == value)
                }
                Selector::Capability(name) => can(name),
            })
    }
}

/// The pools a job may go to, in the order of the configuration; with those that take
/// nothing new when `draining`.
pub(crate) fn eligible_pools<'a>(
    routing: &'a PoolRouting,
    spec: &'a JobSpec,
    draining: bool,
) -> impl Iterator<Item = (&'a PoolName, &'a Pool)> + Clone {
    pools_with_status(routing, spec, move |status| match status {
        PoolStatus::Active => true,
        PoolStatus::Draining => draining,
        PoolStatus::Inactive => false,
    })
}

fn pools_with_status<'a>(
    routing: &'a PoolRouting,
    spec: &'a JobSpec,
    taking: impl Fn(PoolStatus) -> bool + Clone,
) -> impl Iterator<Item = (&'a PoolName, &'a Pool)> + Clone {
    let job = spec.placement();
    routing
        .pools_for(job.topic)
        .iter()
        .filter(move |p| job.preferred_pool().is_none_or(|want| want == p.as_str()))
        .filter_map(|name| Some((name, routing.pools.get(name)?)))
        .filter(move |(_, pool)| taking(pool.status) && pool.offers_capabilities(job.requires))
}

/// Chooses a worker for `spec`, or says why there is none. A `crash_suspect` job (one more lost
/// worker ends it) is not put beside another: one of the two may be what kills workers.
pub(crate) fn pick_worker<'a>(
    routing: &PoolRouting,
    spec: &JobSpec,
    crash_suspect: bool,
    workers: impl Iterator<Item = &'a Worker> + Clone,
) -> Result<&'a Worker, WaitReason> {
    let pools = eligible_pools(routing, spec, false);
    if pools.clone().next().is_none() {
        return Err(closed_pool_reason(routing, spec).unwrap_or(WaitReason::NoPoolMapping));
    }
    let job = spec.placement();
    let eligible = workers.filter(|w| {
        w.is_available()
            && pools
                .clone()
                .any(|(name, pool)| w.serves(name, job.topic) && w.meets_requirements(pool, job))
    });
    let open = |w: &Worker| w.can_take_job() && !(crash_suspect && w.health.crash_suspect > 0);
    if let Some(want) = job.preferred_worker()
        && let Some(worker) = eligible.clone().find(|w| w.id.as_str() == want && open(w))
    {
        return Ok(worker);
    }
    let mut any = false;
    let mut best: Option<&Worker> = None;
    let mut last_resort: Option<&Worker> = None;
    let mut any_last = false;
    for worker in eligible {
        let slot = if worker.is_last_resort() {
            any_last = true;
            &mut last_resort
        } else {
            any = true;
            &mut best
        };
        if open(worker) && slot.is_none_or(|b| worker.load_score() < b.load_score()) {
            *slot = Some(worker);
        }
    }
    match (best, last_resort) {
        (Some(worker), _) => Ok(worker),
        (None, _) if any => Err(WaitReason::PoolOverloaded),
        (None, Some(worker)) => Ok(worker),
        (None, None) if any_last => Err(WaitReason::PoolOverloaded),
        (None, None) => Err(match closed_pool_reason(routing, spec) {
            Some(WaitReason::PoolDraining) => WaitReason::PoolDraining,
            _ => WaitReason::NoWorkers,
        }),
    }
}

/// Whether a pool that could serve the job is closed by configuration: it is mapped, and
/// may be opened again.
fn closed_pool_reason(routing: &PoolRouting, spec: &JobSpec) -> Option<WaitReason> {
    let of = |status| {
        pools_with_status(routing, spec, move |s| s == status)
            .next()
            .is_some()
    };
    if of(PoolStatus::Draining) {
        Some(WaitReason::PoolDraining)
    } else if of(PoolStatus::Inactive) {
        Some(WaitReason::PoolInactive)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ids::Topic;

    pub(crate) fn worker(id: &str) -> Worker {
        Worker {
            id: WorkerId::new(id).unwrap(),
            incarnation: Incarnation::new("i").unwrap(),
            sdk: true,
            inline: true,
            pool: Some(PoolName::new("default").unwrap()),
            topics: BTreeSet::new(),
            capabilities: BTreeSet::new(),
            labels: BTreeMap::new(),
            max_parallel: 10,
            reported_active: 0,
            cpu_load: 0.0,
            gpu_utilization: 0.0,
            draining: false,
            last_seen: ListenTime::default(),
            in_flight: 0,
            addressing: Addressing::Direct,
            health: WorkerHealth::default(),
        }
    }

    fn routing() -> PoolRouting {
        PoolRouting::single_pool(PoolName::new("default").unwrap())
    }

    fn spec() -> JobSpec {
        JobSpec::new(Topic::new("job.a.b").unwrap())
    }

    fn pick_id(spec: &JobSpec, workers: &[Worker]) -> Result<String, WaitReason> {
        pick_worker(&routing(), spec, false, workers.iter()).map(|w| w.id.to_string())
    }

    #[test]
    fn the_lowest_score_wins_and_the_overloaded_are_skipped() {
        let mut a = worker("a");
        a.in_flight = 3;
        let mut b = worker("b");
        b.reported_active = 2;
        b.cpu_load = 50.0;
        let mut c = worker("c");
        c.cpu_load = 90.0;
        assert_eq!(
            pick_id(&spec(), &[a.clone(), b.clone(), c.clone()]),
            Ok("b".into())
        );
        b.gpu_utilization = 90.0;
        assert_eq!(
            pick_id(&spec(), &[a.clone(), b.clone(), c.clone()]),
            Ok("a".into())
        );
        a.reported_active = 9;
        assert_eq!(
            pick_id(&spec(), &[a, b, c]),
            Err(WaitReason::PoolOverloaded)
        );
        assert_eq!(pick_id(&spec(), &[]), Err(WaitReason::NoWorkers));
    }

    #[test]
    fn labels_and_requirements_narrow() {
        let mut gpu = worker("gpu");
        gpu.capabilities.insert("cuda".into());
        gpu.labels.insert("zone".into(), "eu".into());
        let plain = worker("plain");
        let all = [plain, gpu];
        let mut s = spec();
        s.requires = vec!["cuda".into()];
        assert_eq!(pick_id(&s, &all), Ok("gpu".into()));
        let mut s = spec();
        s.labels.insert("placement.zone".into(), "eu".into());
        assert_eq!(pick_id(&s, &all), Ok("gpu".into()));
        let mut s = spec();
        s.labels.insert("constraint.cuda".into(), "true".into());
        assert_eq!(pick_id(&s, &all), Ok("gpu".into()));
        let mut s = spec();
        s.labels.insert("node.zone".into(), "us".into());
        assert_eq!(pick_id(&s, &all), Err(WaitReason::NoWorkers));
        let mut s = spec();
        s.labels.insert("preferred_worker_id".into(), "gpu".into());
        assert_eq!(pick_id(&s, &all), Ok("gpu".into()));
        s.labels
            .insert("preferred_worker_id".into(), "nobody".into());
        assert!(pick_id(&s, &all).is_ok());
        s.labels.insert("preferred_pool".into(), "other".into());
        assert_eq!(pick_id(&s, &all), Err(WaitReason::NoPoolMapping));
    }

    #[test]
    fn zero_slots_count_as_one() {
        let mut w = worker("w");
        w.max_parallel = 0;
        assert_eq!(pick_id(&spec(), &[w.clone()]), Ok("w".into()));
        w.in_flight = 1;
        assert_eq!(pick_id(&spec(), &[w]), Err(WaitReason::PoolOverloaded));
    }

    proptest! {
        #[test]
        fn never_beyond_capacity_never_a_worse_score(
            loads in prop::collection::vec((0u32..12, 0u32..12, 0f32..100.0, any::<bool>()), 0..8)
        ) {
            let workers: Vec<Worker> = loads.iter().enumerate().map(|(i, (mine, theirs, cpu, draining))| {
                let mut w = worker(&format!("w{i}"));
                w.in_flight = *mine;
                w.reported_active = *theirs;
                w.cpu_load = *cpu;
                w.draining = *draining;
                w
            }).collect();
            let ok = |w: &&Worker| !w.draining && w.has_room() && !w.is_overloaded();
            match pick_worker(&routing(), &spec(), false, workers.iter()) {
                Ok(chosen) => {
                    prop_assert!(ok(&chosen));
                    for other in workers.iter().filter(ok) {
                        prop_assert!(chosen.load_score() <= other.load_score());
                    }
                }
                Err(_) => prop_assert_eq!(workers.iter().filter(ok).count(), 0),
            }
        }
    }
}
