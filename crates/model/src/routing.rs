//! Which worker gets a job: topic → pools → the least loaded worker that fits.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{Incarnation, PoolName, Topic, WorkerId};
use crate::job::JobSpec;
use crate::time::Timestamp;

/// Why a job could not be placed; the codes of the dead-letter queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WaitReason {
    NoPoolMapping,
    NoWorkers,
    PoolOverloaded,
    TenantLimit,
    DispatchFailed,
    /// The kernel could not be asked.
    SafetyUnavailable,
    /// The kernel asked us to come back later.
    Throttled,
    /// A retry waits for its time.
    Backoff,
}

impl WaitReason {
    pub const fn code(self) -> &'static str {
        match self {
            Self::NoPoolMapping => "no_pool_mapping",
            Self::NoWorkers => "no_workers",
            Self::PoolOverloaded => "pool_overloaded",
            Self::TenantLimit => "tenant_limit",
            Self::DispatchFailed => "dispatch_failed",
            Self::SafetyUnavailable => "safety_unavailable",
            Self::Throttled => "throttled",
            Self::Backoff => "backoff",
        }
    }

    /// Whether a scheduled try that ends so counts towards giving up. A full pool, a
    /// tenant at its limit or an absent kernel cure themselves.
    pub const fn counts(self) -> bool {
        match self {
            Self::NoPoolMapping | Self::NoWorkers | Self::DispatchFailed => true,
            Self::PoolOverloaded
            | Self::TenantLimit
            | Self::SafetyUnavailable
            | Self::Throttled
            | Self::Backoff => false,
        }
    }
}

/// A pattern in which `*` matches any characters, dots included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob(String);

impl Glob {
    pub fn new(pattern: impl Into<String>) -> Self {
        Self(pattern.into())
    }

    pub fn matches(&self, text: &str) -> bool {
        let mut parts = self.0.split('*');
        let first = parts.next().unwrap_or("");
        let Some(mut rest) = text.strip_prefix(first) else {
            return false;
        };
        let mut parts: Vec<&str> = parts.collect();
        let Some(last) = parts.pop() else {
            return rest.is_empty();
        };
        for part in parts {
            let Some(at) = rest.find(part) else {
                return false;
            };
            rest = &rest[at + part.len()..];
        }
        rest.ends_with(last)
    }
}

/// What a pool is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pool {
    pub capabilities: BTreeSet<String>,
}

/// Which topics go to which pools. The first matching line wins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolRouting {
    pub topics: Vec<(Glob, Vec<PoolName>)>,
    pub pools: BTreeMap<PoolName, Pool>,
}

impl PoolRouting {
    /// What is shipped: every job goes to one pool.
    pub fn single(pool: PoolName) -> Self {
        Self {
            topics: vec![(Glob::new("job.*"), vec![pool.clone()])],
            pools: BTreeMap::from([(pool, Pool::default())]),
        }
    }

    pub fn pools_for(&self, topic: &Topic) -> &[PoolName] {
        self.topics
            .iter()
            .find(|(glob, _)| glob.matches(topic.as_str()))
            .map_or(&[], |(_, pools)| pools)
    }
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
    pub last_seen: Timestamp,
    /// What we have given it and not heard the end of.
    pub in_flight: u32,
}

impl Worker {
    /// At least one: a worker that says 0 still takes one job at a time.
    pub fn slots(&self) -> u32 {
        self.max_parallel.max(1)
    }

    pub fn has_room(&self) -> bool {
        self.in_flight < self.slots()
    }

    /// By what it reports: 90 % of its slots, its processor or its accelerator.
    pub fn is_overloaded(&self) -> bool {
        f64::from(self.reported_active) / f64::from(self.slots()) >= 0.9
            || self.cpu_load >= 90.0
            || self.gpu_utilization >= 90.0
    }

    /// Whether it may be given a job.
    pub fn is_open(&self) -> bool {
        !self.draining && self.has_room() && !self.is_overloaded()
    }

    pub fn score(&self) -> f64 {
        f64::from(self.reported_active)
            + f64::from(self.in_flight)
            + f64::from(self.cpu_load) / 100.0
            + f64::from(self.gpu_utilization) / 100.0
    }

    fn serves(&self, pool: &PoolName, spec: &JobSpec) -> bool {
        self.pool.as_ref().is_none_or(|p| p == pool)
            && (self.topics.is_empty() || self.topics.contains(spec.topic.as_str()))
    }

    /// A worker that announces no capabilities has its pool's.
    fn fits(&self, pool: Option<&Pool>, spec: &JobSpec) -> bool {
        let can = |capability: &str| {
            if self.capabilities.is_empty() {
                pool.is_some_and(|p| p.capabilities.contains(capability))
            } else {
                self.capabilities.contains(capability)
            }
        };
        spec.requires.iter().all(|r| can(r))
            && spec.labels.iter().all(|(key, value)| {
                if let Some(name) = key.strip_prefix("placement.") {
                    self.labels.get(name) == Some(value)
                } else if let Some(name) = key.strip_prefix("node.") {
                    self.labels.get(name) == Some(value)
                } else if let Some(name) = key.strip_prefix("constraint.") {
                    can(if value == "true" { name } else { value })
                } else {
                    true
                }
            })
    }
}

/// Chooses a worker for `spec`, or says why there is none.
pub fn pick<'a>(
    routing: &PoolRouting,
    spec: &JobSpec,
    workers: impl Iterator<Item = &'a Worker> + Clone,
) -> Result<&'a Worker, WaitReason> {
    let preferred_pool = spec.labels.get("preferred_pool");
    let mut pools = routing
        .pools_for(&spec.topic)
        .iter()
        .filter(|p| preferred_pool.is_none_or(|want| want == p.as_str()))
        .peekable();
    if pools.peek().is_none() {
        return Err(WaitReason::NoPoolMapping);
    }
    let eligible = workers.filter(|w| {
        !w.draining
            && pools
                .clone()
                .any(|name| w.serves(name, spec) && w.fits(routing.pools.get(name), spec))
    });
    if let Some(want) = spec.labels.get("preferred_worker_id")
        && let Some(worker) = eligible
            .clone()
            .find(|w| w.id.as_str() == want && w.has_room() && !w.is_overloaded())
    {
        return Ok(worker);
    }
    let mut any = false;
    let mut best: Option<&Worker> = None;
    for worker in eligible {
        any = true;
        if worker.is_overloaded() || !worker.has_room() {
            continue;
        }
        if best.is_none_or(|b| worker.score() < b.score()) {
            best = Some(worker);
        }
    }
    match best {
        Some(worker) => Ok(worker),
        None if any => Err(WaitReason::PoolOverloaded),
        None => Err(WaitReason::NoWorkers),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
            last_seen: Timestamp(0),
            in_flight: 0,
        }
    }

    fn routing() -> PoolRouting {
        PoolRouting::single(PoolName::new("default").unwrap())
    }

    fn spec() -> JobSpec {
        JobSpec::new(Topic::new("job.a.b").unwrap())
    }

    fn pick_id(spec: &JobSpec, workers: &[Worker]) -> Result<String, WaitReason> {
        pick(&routing(), spec, workers.iter()).map(|w| w.id.to_string())
    }

    #[test]
    fn globs_cross_dots() {
        for (p, t, want) in [
            ("job.*", "job.a.b", true),
            ("job.*.b", "job.a.b", true),
            ("job.*.c", "job.a.b", false),
            ("job.a.b", "job.a.b", true),
            ("job.a", "job.a.b", false),
            ("*", "job.a", true),
            ("job.a*a", "job.a", false),
            ("*a*b*", "xaxbx", true),
        ] {
            assert_eq!(Glob::new(p).matches(t), want, "{p} on {t}");
        }
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
            match pick(&routing(), &spec(), workers.iter()) {
                Ok(chosen) => {
                    prop_assert!(ok(&chosen));
                    for other in workers.iter().filter(ok) {
                        prop_assert!(chosen.score() <= other.score());
                    }
                }
                Err(_) => prop_assert_eq!(workers.iter().filter(ok).count(), 0),
            }
        }
    }
}
