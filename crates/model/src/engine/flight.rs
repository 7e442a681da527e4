//! Who holds what: by worker, by tenant and by rule, so that a heartbeat reads only its own
//! worker's jobs and a limit is one look-up.
//!
//! What must stay true: a run is counted here exactly while its job is assigned.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::{Assignment, Engine, Job};
use crate::ids::{DispatchId, Incarnation, JobId, TenantId, WorkerId};
use crate::routing::Worker;

#[derive(Debug, Default)]
pub(super) struct InFlight {
    by_worker: BTreeMap<WorkerId, BTreeMap<DispatchId, JobId>>,
    by_tenant: HashMap<TenantId, u32>,
    by_rule: HashMap<(TenantId, Arc<str>), u32>,
}

impl InFlight {
    fn add(&mut self, tenant: &TenantId, job: &JobId, a: &Assignment) {
        let held = self.by_worker.entry(a.worker.clone()).or_default();
        held.insert(a.dispatch, job.clone());
        *self.by_tenant.entry(tenant.clone()).or_default() += 1;
        if let Some(rule) = &a.limits.rule {
            *self
                .by_rule
                .entry((tenant.clone(), rule.clone()))
                .or_default() += 1;
        }
    }

    fn remove(&mut self, tenant: &TenantId, a: &Assignment) {
        if let Some(held) = self.by_worker.get_mut(&a.worker) {
            held.remove(&a.dispatch);
            if held.is_empty() {
                self.by_worker.remove(&a.worker);
            }
        }
        decrement(&mut self.by_tenant, tenant);
        if let Some(rule) = &a.limits.rule {
            decrement(&mut self.by_rule, &(tenant.clone(), rule.clone()));
        }
    }

    pub fn of_tenant(&self, tenant: &TenantId) -> u32 {
        self.by_tenant.get(tenant).copied().unwrap_or(0)
    }

    pub fn of_rule(&self, tenant: &TenantId, rule: &str) -> u32 {
        if self.by_rule.is_empty() {
            return 0;
        }
        let key = (tenant.clone(), Arc::from(rule));
        self.by_rule.get(&key).copied().unwrap_or(0)
    }

    pub fn workers(&self) -> impl Iterator<Item = &WorkerId> {
        self.by_worker.keys()
    }

    /// The jobs of a worker, whatever its incarnation.
    pub fn of_worker(&self, worker: &WorkerId) -> impl Iterator<Item = (&DispatchId, &JobId)> {
        self.by_worker.get(worker).into_iter().flatten()
    }

    pub fn job(&self, worker: &WorkerId, dispatch: &DispatchId) -> Option<&JobId> {
        self.by_worker.get(worker)?.get(dispatch)
    }

    pub fn len(&self) -> usize {
        self.by_worker.values().map(BTreeMap::len).sum()
    }
}

fn decrement<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, u32>, key: &K) {
    if let Some(n) = counts.get_mut(key) {
        *n = n.saturating_sub(1);
        if *n == 0 {
            counts.remove(key);
        }
    }
}

impl Engine {
    /// A run begins to count.
    pub(super) fn take_slot(
        &mut self,
        tenant: &TenantId,
        job: &JobId,
        a: &Assignment,
        crash_suspect: bool,
    ) {
        self.in_flight.add(tenant, job, a);
        if let Some(w) = self.workers.get_mut(&a.worker)
            && w.incarnation == a.incarnation
        {
            w.in_flight += 1;
            w.health.crash_suspect += u32::from(crash_suspect);
        }
    }

    /// It counts no longer: somebody else may have the slot.
    pub(super) fn free_slot(&mut self, tenant: &TenantId, a: &Assignment, crash_suspect: bool) {
        self.in_flight.remove(tenant, a);
        self.ready.unpark(tenant);
        let heard = self.listening.stamp();
        if let Some(w) = self.workers.get_mut(&a.worker)
            && w.incarnation == a.incarnation
        {
            w.in_flight = w.in_flight.saturating_sub(1);
            w.health.crash_suspect = w
                .health
                .crash_suspect
                .saturating_sub(u32::from(crash_suspect));
            w.health.last_run_end = Some(heard);
            self.capacity_changed = true;
        }
    }

    /// What a worker holds under an incarnation, in number, and how many of them are crash
    /// suspects.
    pub(super) fn count_at_worker(
        &self,
        worker: &WorkerId,
        incarnation: &Incarnation,
    ) -> (u32, u32) {
        let mut counts = (0, 0);
        for (_, id) in self.in_flight.of_worker(worker) {
            if let Some(job) = self.jobs.get(id)
                && job.assignment().map(|a| &a.incarnation) == Some(incarnation)
            {
                counts.0 += 1;
                counts.1 += u32::from(job.crash_suspect);
            }
        }
        counts
    }

    /// The jobs of a worker that `which` selects, in the order of their ids.
    pub(super) fn jobs_at_worker(
        &self,
        worker: &WorkerId,
        which: impl Fn(&Assignment) -> bool,
    ) -> Vec<JobId> {
        let held = self.in_flight.of_worker(worker).map(|(_, id)| id);
        let mut ids: Vec<JobId> = held
            .filter(|id| {
                let job = self.jobs.get(*id).and_then(Job::assignment);
                job.is_some_and(&which)
            })
            .cloned()
            .collect();
        ids.sort_unstable();
        ids
    }

    /// Puts a worker into the registry, with the runs that are counted for it.
    pub(super) fn insert_worker(&mut self, mut worker: Worker) {
        let (held, crash_suspect) = self.count_at_worker(&worker.id, &worker.incarnation);
        worker.in_flight = held;
        worker.health.crash_suspect = crash_suspect;
        self.workers.insert(worker.id.clone(), worker);
        self.capacity_changed = true;
    }
}
