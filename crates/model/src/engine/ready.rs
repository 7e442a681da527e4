//! The ready queue: allowed jobs that wait for a worker.
//!
//! Jobs that can go to the same workers form a class, so that one that cannot be placed
//! holds up only its own kind. Within a class, priorities share in a fixed pattern
//! (nobody starves) and tenants take turns.
//!
//! What must stay true: a job stands here once while it waits and not at all otherwise.
//! Entries that are left behind and skipped later were rejected: in a class without
//! workers nothing is ever skipped, so they would pile up. Each entry has a ticket by
//! which it is found and taken out.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::KnownJob;
use crate::ids::{JobId, TenantId};
use crate::job::Priority;
use crate::routing::WaitReason;

/// Of ten turns, CRITICAL has six, INTERACTIVE three, BATCH one; an empty one's turn
/// goes to the next most urgent.
const PATTERN: [Priority; 10] = [
    Priority::Critical,
    Priority::Critical,
    Priority::Interactive,
    Priority::Critical,
    Priority::Critical,
    Priority::Interactive,
    Priority::Critical,
    Priority::Critical,
    Priority::Interactive,
    Priority::Batch,
];

/// Where a waiting job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub class: u64,
    ticket: u64,
}

#[derive(Debug, Default)]
struct Lane {
    turns: VecDeque<TenantId>,
    /// In the order of their tickets.
    jobs: HashMap<TenantId, VecDeque<(u64, JobId)>>,
    len: usize,
}

impl Lane {
    fn push(&mut self, tenant: &TenantId, ticket: u64, job: JobId) {
        let queue = self.jobs.entry(tenant.clone()).or_default();
        if queue.is_empty() {
            self.turns.push_back(tenant.clone());
        }
        queue.push_back((ticket, job));
        self.len += 1;
    }

    fn peek(&self) -> Option<&JobId> {
        let (_, id) = self.jobs.get(self.turns.front()?)?.front()?;
        Some(id)
    }

    fn pop(&mut self) {
        let Some(tenant) = self.turns.pop_front() else {
            return;
        };
        if let Some(queue) = self.jobs.get_mut(&tenant) {
            if queue.pop_front().is_some() {
                self.len -= 1;
            }
            if queue.is_empty() {
                self.jobs.remove(&tenant);
            } else {
                self.turns.push_back(tenant);
            }
        }
    }

    fn remove(&mut self, tenant: &TenantId, ticket: u64) {
        let Some(queue) = self.jobs.get_mut(tenant) else {
            return;
        };
        if let Ok(at) = queue.binary_search_by_key(&ticket, |(t, _)| *t) {
            queue.remove(at);
            self.len -= 1;
        }
        if queue.is_empty() {
            self.jobs.remove(tenant);
            self.turns.retain(|t| t != tenant);
        }
    }
}

#[derive(Debug, Default)]
struct Class {
    key: String,
    lanes: [Lane; 3],
    turn: usize,
    awake: bool,
    reason: Option<WaitReason>,
}

impl Class {
    /// Whose turn it is.
    fn lane(&self) -> Option<usize> {
        let first = index(PATTERN[self.turn % PATTERN.len()]);
        std::iter::once(first)
            .chain(Priority::ALL.map(index))
            .find(|i| self.lanes[*i].len > 0)
    }
}

fn index(p: Priority) -> usize {
    match p {
        Priority::Critical => 0,
        Priority::Interactive => 1,
        Priority::Batch => 2,
    }
}

/// All classes that have jobs.
#[derive(Debug, Default)]
pub(super) struct Ready {
    by_key: HashMap<String, u64>,
    classes: BTreeMap<u64, Class>,
    awake: VecDeque<u64>,
    /// The last class or ticket that was given out.
    last: u64,
}

impl Ready {
    pub fn push(&mut self, job: &KnownJob) -> Place {
        let class = self.class_of(job);
        self.last += 1;
        let ticket = self.last;
        let entry = self.classes.entry(class).or_default();
        entry.lanes[index(job.spec.priority)].push(&job.tenant, ticket, job.id.clone());
        // A class that is blocked stays so until capacity changes or a try is due.
        if entry.reason.is_none() {
            self.wake(class);
        }
        Place { class, ticket }
    }

    /// Takes out a job that no longer waits, wherever it stands.
    pub fn remove(&mut self, job: &KnownJob, place: Place) {
        if let Some(class) = self.classes.get_mut(&place.class) {
            class.lanes[index(job.spec.priority)].remove(&job.tenant, place.ticket);
            if class.lane().is_none() {
                self.block(place.class);
            }
        }
    }

    fn class_of(&mut self, job: &KnownJob) -> u64 {
        let key = class_key(job);
        if let Some(class) = self.by_key.get(&key) {
            return *class;
        }
        self.last += 1;
        let class = Class {
            key: key.clone(),
            ..Class::default()
        };
        self.classes.insert(self.last, class);
        self.by_key.insert(key, self.last);
        self.last
    }

    pub fn wake(&mut self, class: u64) {
        if let Some(c) = self.classes.get_mut(&class)
            && !c.awake
        {
            c.awake = true;
            self.awake.push_back(class);
        }
    }

    pub fn wake_all(&mut self) {
        for (id, class) in &mut self.classes {
            if !class.awake {
                class.awake = true;
                self.awake.push_back(*id);
            }
        }
    }

    /// The class to serve next; classes take turns, one job each.
    pub fn next_awake(&mut self) -> Option<u64> {
        let class = *self.awake.front()?;
        self.awake.rotate_left(1);
        Some(class)
    }

    pub fn peek(&self, class: u64) -> Option<&JobId> {
        let c = self.classes.get(&class)?;
        c.lanes[c.lane()?].peek()
    }

    pub fn pop(&mut self, class: u64) {
        if let Some(c) = self.classes.get_mut(&class)
            && let Some(lane) = c.lane()
        {
            c.lanes[lane].pop();
            c.turn = (c.turn + 1) % PATTERN.len();
            c.reason = None;
        }
    }

    /// Nothing to do for it now; the next job that comes tries at once. A class without
    /// jobs is forgotten: its key is made of what clients write, and must not pile up.
    pub fn block(&mut self, class: u64) {
        self.awake.retain(|c| *c != class);
        if let Some(c) = self.classes.get_mut(&class) {
            c.awake = false;
            if c.lane().is_none()
                && let Some(gone) = self.classes.remove(&class)
            {
                self.by_key.remove(&gone.key);
            }
        }
    }

    /// It cannot be placed until something changes.
    pub fn block_because(&mut self, class: u64, reason: WaitReason) {
        if let Some(c) = self.classes.get_mut(&class) {
            c.reason = Some(reason);
        }
        self.block(class);
    }

    pub fn reason(&self, class: u64) -> Option<WaitReason> {
        self.classes.get(&class)?.reason
    }

    pub fn len(&self) -> usize {
        self.classes
            .values()
            .flat_map(|c| c.lanes.iter().map(|l| l.len))
            .sum()
    }

    #[cfg(test)]
    pub fn classes(&self) -> usize {
        self.classes.len()
    }
}

/// What decides where a job can go.
fn class_key(job: &KnownJob) -> String {
    let mut key = job.spec.topic.as_str().to_owned();
    for r in &job.spec.requires {
        key.push('\u{1}');
        key.push_str(r);
    }
    for (k, v) in &job.spec.labels {
        let placing = k.starts_with("placement.")
            || k.starts_with("constraint.")
            || k.starts_with("node.")
            || k == "preferred_pool"
            || k == "preferred_worker_id";
        if placing {
            key.push('\u{2}');
            key.push_str(k);
            key.push('\u{3}');
            key.push_str(v);
        }
    }
    key
}
