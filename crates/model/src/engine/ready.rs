//! The ready queue: allowed jobs that wait for a worker.
//!
//! Jobs that can go to the same workers form a class, so that one that cannot be placed
//! holds up only its own kind. Classes that draw on the same pools form a group, and
//! within a group every job is given a turn when it arrives: the later the more its
//! tenant has waiting already at that priority, the sooner the more weight tenant and
//! priority have (self-clocked fair queueing). The earliest turn that can be served is
//! served.
//!
//! What must stay true: a job stands here once while it waits and not at all otherwise;
//! and a turn never moves, so whatever others submit later, only finitely many jobs go
//! before one that waits. Fixed patterns of priorities were rejected: two kinds of
//! workers that free slots in step could give every turn of BATCH to one of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::QueuedJob;
use crate::ids::{JobId, PoolName, TenantId};
use crate::job::Priority;
use crate::routing::WaitReason;

/// What one job costs at weight one. Divisible by every small weight.
const COST: u64 = 720_720;

/// Classes without jobs that are kept, so that a job that is placed at once makes none.
/// Their keys are made of what clients write, and must not pile up.
const IDLE_CLASSES: usize = 64;

/// Of ten turns, CRITICAL has six, INTERACTIVE three, BATCH one.
const fn priority_weight(p: Priority) -> u64 {
    match p {
        Priority::Critical => 6,
        Priority::Interactive => 3,
        Priority::Batch => 1,
    }
}

/// The number of a class.
pub(super) type ClassId = u64;

/// When a job is served: the earlier, the sooner. Tickets tell equal ones apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    tag: u64,
    ticket: u64,
}

/// Where a waiting job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub class: ClassId,
    turn: Turn,
}

impl Place {
    pub fn turn(self) -> Turn {
        self.turn
    }
}

/// The turn a job had in a group, to be kept when it leaves and comes back.
#[derive(Debug, Clone)]
pub(super) struct SavedTurn {
    group: Arc<str>,
    turn: Turn,
}

/// One tenant's jobs of one priority.
type Flow = (TenantId, Priority);

/// What a job is queued by.
pub(super) struct Entry<'a> {
    pub job: &'a QueuedJob,
    /// The pools it may go to, computed only when its class is new.
    pub pools: &'a dyn Fn() -> Vec<PoolName>,
    /// One more lost worker ends it, so it is placed more carefully.
    pub crash_suspect: bool,
    /// The rule that limits how many of its kind are in flight, and to how many.
    pub rule: Option<(&'a str, u32)>,
    pub weight: u32,
    pub saved_turn: Option<SavedTurn>,
}

#[derive(Debug)]
struct Class {
    key: String,
    group: Arc<str>,
    pools: Arc<[PoolName]>,
    flows: HashMap<Flow, BTreeMap<Turn, JobId>>,
    /// The first of each flow whose tenant may have more.
    heads: BTreeSet<(Turn, TenantId, Priority)>,
    /// Tenants at a limit.
    parked: BTreeSet<TenantId>,
    /// The turn under which it is offered.
    offered: Option<Turn>,
    /// It cannot be served until something changes.
    blocked: Option<WaitReason>,
    len: usize,
}

#[derive(Debug, Default)]
struct Group {
    /// The turn that was served last.
    clock: u64,
    /// The last turn given out and how many wait, of each flow that has jobs waiting.
    flows: HashMap<Flow, (u64, usize)>,
    awake: BTreeSet<(Turn, ClassId)>,
}

/// All classes that have jobs.
#[derive(Debug, Default)]
pub(super) struct Ready {
    by_key: HashMap<String, ClassId>,
    classes: BTreeMap<ClassId, Class>,
    groups: BTreeMap<Arc<str>, Group>,
    blocked: BTreeSet<ClassId>,
    parked: HashMap<TenantId, BTreeSet<ClassId>>,
    idle: BTreeSet<ClassId>,
    /// The group that was served last: groups take turns.
    served: Option<Arc<str>>,
    /// The last class or ticket that was given out.
    last: u64,
    len: usize,
}

impl Ready {
    pub fn push(&mut self, entry: Entry<'_>) -> Place {
        let class = self.find_or_create_class(&entry);
        self.last += 1;
        let ticket = self.last;
        let flow: Flow = (entry.job.tenant.clone(), entry.job.spec.priority);
        let Some(c) = self.classes.get_mut(&class) else {
            // It was made a moment ago.
            let turn = Turn { tag: 0, ticket };
            return Place { class, turn };
        };
        let group = self.groups.entry(c.group.clone()).or_default();
        let clock = group.clock;
        let (last, waiting) = group.flows.entry(flow.clone()).or_insert((clock, 0));
        let turn = match entry.saved_turn.filter(|saved| saved.group == c.group) {
            Some(saved) => saved.turn,
            None => {
                let weight = u64::from(entry.weight.max(1)) * priority_weight(flow.1);
                let tag = clock.max(*last).saturating_add((COST / weight).max(1));
                Turn { tag, ticket }
            }
        };
        *last = turn.tag.max(*last);
        *waiting += 1;
        let jobs = c.flows.entry(flow.clone()).or_default();
        let before = jobs.keys().next().copied();
        jobs.insert(turn, entry.job.id.clone());
        c.len += 1;
        self.len += 1;
        self.idle.remove(&class);
        if !c.parked.contains(&flow.0) && before.is_none_or(|first| turn < first) {
            if let Some(first) = before {
                c.heads.remove(&(first, flow.0.clone(), flow.1));
            }
            c.heads.insert((turn, flow.0, flow.1));
            self.update_offer(class);
        }
        Place { class, turn }
    }

    /// Takes out a job that no longer waits, wherever it stands.
    pub fn remove(&mut self, job: &QueuedJob, place: Place) -> Option<SavedTurn> {
        let c = self.classes.get_mut(&place.class)?;
        let flow: Flow = (job.tenant.clone(), job.spec.priority);
        let jobs = c.flows.get_mut(&flow)?;
        let was_first = jobs.keys().next() == Some(&place.turn);
        jobs.remove(&place.turn)?;
        let next = jobs.keys().next().copied();
        if next.is_none() {
            c.flows.remove(&flow);
        }
        c.len -= 1;
        self.len -= 1;
        let group_key = c.group.clone();
        if was_first && c.heads.remove(&(place.turn, flow.0.clone(), flow.1)) {
            if let Some(next) = next {
                c.heads.insert((next, flow.0.clone(), flow.1));
            }
            self.update_offer(place.class);
        }
        if let Some(group) = self.groups.get_mut(&group_key)
            && let Some((_, waiting)) = group.flows.get_mut(&flow)
        {
            *waiting -= 1;
            if *waiting == 0 {
                group.flows.remove(&flow);
            }
        }
        self.retire_empty_class(place.class);
        Some(SavedTurn {
            group: group_key,
            turn: place.turn,
        })
    }

    /// The same, for a job that is served: its group's clock goes on to its turn.
    pub fn serve(&mut self, job: &QueuedJob, place: Place) -> Option<SavedTurn> {
        let group = self.classes.get(&place.class)?.group.clone();
        if let Some(g) = self.groups.get_mut(&group) {
            g.clock = g.clock.max(place.turn.tag);
        }
        self.served = Some(group);
        self.remove(job, place)
    }

    fn find_or_create_class(&mut self, entry: &Entry<'_>) -> ClassId {
        let key = class_key(entry);
        if let Some(class) = self.by_key.get(&key) {
            return *class;
        }
        self.last += 1;
        let pools = (entry.pools)();
        let class = Class {
            key: key.clone(),
            group: group_key(&pools),
            pools: pools.into(),
            flows: HashMap::new(),
            heads: BTreeSet::new(),
            parked: BTreeSet::new(),
            offered: None,
            blocked: None,
            len: 0,
        };
        self.classes.insert(self.last, class);
        self.by_key.insert(key, self.last);
        self.last
    }

    /// Puts a class where its first turn belongs, or takes it from offer.
    fn update_offer(&mut self, class: ClassId) {
        let Some(c) = self.classes.get_mut(&class) else {
            return;
        };
        let turn = match c.blocked {
            Some(_) => None,
            None => c.heads.first().map(|(turn, ..)| *turn),
        };
        if c.offered == turn {
            return;
        }
        let group = self.groups.entry(c.group.clone()).or_default();
        if let Some(old) = c.offered {
            group.awake.remove(&(old, class));
        }
        if let Some(new) = turn {
            group.awake.insert((new, class));
        }
        c.offered = turn;
    }

    /// A class without jobs is soon forgotten.
    fn retire_empty_class(&mut self, class: ClassId) {
        if self.classes.get(&class).is_some_and(|c| c.len == 0) {
            self.unblock(class);
            self.unpark_class(class);
            self.idle.insert(class);
            while self.idle.len() > IDLE_CLASSES {
                let Some(oldest) = self.idle.pop_first() else {
                    break;
                };
                if let Some(gone) = self.classes.remove(&oldest) {
                    self.by_key.remove(&gone.key);
                }
            }
        }
    }

    /// The class to serve next: groups take turns, in each the earliest turn.
    pub fn next(&self) -> Option<ClassId> {
        let first = |(_, g): (&Arc<str>, &Group)| g.awake.first().map(|(_, class)| *class);
        let after = self.served.as_ref().and_then(|served| {
            let later = (
                std::ops::Bound::Excluded(served.clone()),
                std::ops::Bound::Unbounded,
            );
            self.groups.range::<Arc<str>, _>(later).find_map(first)
        });
        after.or_else(|| self.groups.iter().find_map(first))
    }

    /// The job whose turn it is in a class.
    pub fn peek(&self, class: ClassId) -> Option<(&JobId, &TenantId)> {
        let c = self.classes.get(&class)?;
        let (turn, tenant, priority) = c.heads.first()?;
        let flow = (tenant.clone(), *priority);
        Some((c.flows.get(&flow)?.get(turn)?, tenant))
    }

    /// It cannot be placed until something changes.
    pub fn block(&mut self, class: ClassId, reason: WaitReason) {
        if let Some(c) = self.classes.get_mut(&class) {
            c.blocked = Some(reason);
            self.blocked.insert(class);
            self.update_offer(class);
        }
    }

    pub fn unblock(&mut self, class: ClassId) {
        if self.blocked.remove(&class)
            && let Some(c) = self.classes.get_mut(&class)
        {
            c.blocked = None;
            self.update_offer(class);
        }
    }

    /// Something changed for everybody.
    pub fn unblock_all(&mut self) {
        while let Some(class) = self.blocked.first().copied() {
            self.unblock(class);
        }
    }

    /// The tenant has as much as it may, as far as this class goes.
    pub fn park(&mut self, class: ClassId, tenant: &TenantId) {
        if let Some(c) = self.classes.get_mut(&class) {
            c.parked.insert(tenant.clone());
            c.heads.retain(|(_, t, _)| t != tenant);
            self.parked.entry(tenant.clone()).or_default().insert(class);
            self.update_offer(class);
        }
    }

    /// Something of this tenant's ended.
    pub fn unpark(&mut self, tenant: &TenantId) {
        for class in self.parked.remove(tenant).unwrap_or_default() {
            if let Some(c) = self.classes.get_mut(&class) {
                c.parked.remove(tenant);
                for ((t, priority), jobs) in &c.flows {
                    if t == tenant
                        && let Some(first) = jobs.keys().next()
                    {
                        c.heads.insert((*first, t.clone(), *priority));
                    }
                }
                self.update_offer(class);
            }
        }
    }

    pub fn unpark_all(&mut self) {
        let tenants: Vec<TenantId> = self.parked.keys().cloned().collect();
        for tenant in tenants {
            self.unpark(&tenant);
        }
    }

    fn unpark_class(&mut self, class: ClassId) {
        let Some(c) = self.classes.get_mut(&class) else {
            return;
        };
        for tenant in std::mem::take(&mut c.parked) {
            if let Some(classes) = self.parked.get_mut(&tenant) {
                classes.remove(&class);
                if classes.is_empty() {
                    self.parked.remove(&tenant);
                }
            }
        }
    }

    /// Why this tenant's jobs of a class wait; `None` when nobody has tried since
    /// something changed.
    pub fn wait_reason(&self, class: ClassId, tenant: &TenantId) -> Option<WaitReason> {
        let c = self.classes.get(&class)?;
        if c.parked.contains(tenant) {
            return Some(WaitReason::TenantLimit);
        }
        c.blocked
    }

    pub fn pools(&self, class: ClassId) -> Option<&Arc<[PoolName]>> {
        self.classes.get(&class).map(|c| &c.pools)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// How many of this tenant wait for the same pools as this class.
    pub fn lane_len(&self, class: ClassId, tenant: &TenantId) -> usize {
        let group = self
            .classes
            .get(&class)
            .and_then(|c| self.groups.get(&c.group));
        let Some(group) = group else { return 0 };
        Priority::ALL
            .into_iter()
            .filter_map(|p| group.flows.get(&(tenant.clone(), p)))
            .map(|(_, waiting)| *waiting)
            .sum()
    }

    /// Each flow of each class: its group, tenant, length, first job and class.
    pub fn flows(&self) -> impl Iterator<Item = (&Arc<str>, &TenantId, usize, &JobId, ClassId)> {
        self.classes.iter().flat_map(|(id, c)| {
            c.flows.iter().filter_map(move |((tenant, _), jobs)| {
                let first = jobs.values().next()?;
                Some((&c.group, tenant, jobs.len(), first, *id))
            })
        })
    }

    #[cfg(test)]
    pub fn class_count(&self) -> usize {
        self.classes.len()
    }

    /// Whether all the books agree; for tests.
    #[cfg(test)]
    pub fn check_invariants(&self) {
        let mut len = 0;
        for (id, c) in &self.classes {
            let jobs: usize = c.flows.values().map(BTreeMap::len).sum();
            assert_eq!(jobs, c.len);
            len += jobs;
            for ((tenant, p), jobs) in &c.flows {
                let first = *jobs.keys().next().expect("no empty flows");
                let offered = c.heads.contains(&(first, tenant.clone(), *p));
                assert_ne!(offered, c.parked.contains(tenant), "parked or offered");
            }
            let open: Vec<_> = c
                .flows
                .keys()
                .filter(|f| !c.parked.contains(&f.0))
                .collect();
            assert_eq!(c.heads.len(), open.len());
            assert_eq!(c.blocked.is_some(), self.blocked.contains(id));
            let group = self.groups.get(&c.group);
            let stands = |t: Turn| group.is_some_and(|g| g.awake.contains(&(t, *id)));
            match c.offered {
                Some(turn) => assert!(stands(turn) && c.blocked.is_none()),
                None => assert!(c.blocked.is_some() || c.heads.is_empty()),
            }
            assert_eq!(c.len == 0, self.idle.contains(id));
        }
        assert_eq!(len, self.len);
        let awake: usize = self.groups.values().map(|g| g.awake.len()).sum();
        let offered = self.classes.values().filter(|c| c.offered.is_some());
        assert_eq!(awake, offered.count());
        let waiting: usize = self
            .groups
            .values()
            .flat_map(|g| g.flows.values().map(|(_, n)| *n))
            .sum();
        assert_eq!(waiting, len);
    }
}

fn group_key(pools: &[PoolName]) -> Arc<str> {
    if pools.is_empty() {
        return Arc::from("none");
    }
    let names: Vec<&str> = pools.iter().map(PoolName::as_str).collect();
    Arc::from(names.join(","))
}

/// What decides where a job can go, and under which limit.
fn class_key(entry: &Entry<'_>) -> String {
    let placement = entry.job.spec.placement();
    let mut key = String::with_capacity(64);
    key.push_str(placement.topic.as_str());
    for r in placement.requires {
        key.push('\u{1}');
        key.push_str(r);
    }
    for (k, v) in placement.labels() {
        key.push('\u{2}');
        key.push_str(k);
        key.push('\u{3}');
        key.push_str(v);
    }
    if entry.crash_suspect {
        key.push('\u{4}');
    }
    if let Some((rule, limit)) = entry.rule {
        key.push('\u{5}');
        key.push_str(rule);
        key.push('\u{5}');
        key.push_str(&limit.to_string());
    }
    key
}
