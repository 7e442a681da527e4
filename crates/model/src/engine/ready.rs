//! The ready queue: allowed jobs that wait for a worker.
//!
//! Jobs that can go to the same workers form a class, so that one that cannot be placed
//! holds up only its own kind. Within a class, priorities share in a fixed pattern
//! (nobody starves) and tenants take turns.

use std::collections::{HashMap, VecDeque};

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

#[derive(Debug, Default)]
struct Lane {
    turns: VecDeque<TenantId>,
    jobs: HashMap<TenantId, VecDeque<JobId>>,
    len: usize,
}

impl Lane {
    fn push(&mut self, tenant: &TenantId, job: JobId) {
        let queue = self.jobs.entry(tenant.clone()).or_default();
        if queue.is_empty() {
            self.turns.push_back(tenant.clone());
        }
        queue.push_back(job);
        self.len += 1;
    }

    fn peek(&self) -> Option<&JobId> {
        self.jobs.get(self.turns.front()?)?.front()
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
}

#[derive(Debug, Default)]
struct Class {
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

/// All classes.
#[derive(Debug, Default)]
pub(super) struct Ready {
    by_key: HashMap<String, usize>,
    classes: Vec<Class>,
    awake: VecDeque<usize>,
}

impl Ready {
    pub fn push(&mut self, job: &KnownJob) {
        let class = self.class_of(job);
        let entry = &mut self.classes[class];
        entry.lanes[index(job.spec.priority)].push(&job.tenant, job.id.clone());
        // A class that is blocked stays so until capacity changes or a try is due.
        if entry.reason.is_none() {
            self.wake(class);
        }
    }

    pub fn class_of(&mut self, job: &KnownJob) -> usize {
        let key = class_key(job);
        if let Some(i) = self.by_key.get(&key) {
            return *i;
        }
        self.classes.push(Class::default());
        self.by_key.insert(key, self.classes.len() - 1);
        self.classes.len() - 1
    }

    pub fn wake(&mut self, class: usize) {
        let c = &mut self.classes[class];
        if !c.awake {
            c.awake = true;
            self.awake.push_back(class);
        }
    }

    pub fn wake_all(&mut self) {
        for class in 0..self.classes.len() {
            if self.classes[class].lane().is_some() {
                self.wake(class);
            } else {
                self.classes[class].reason = None;
            }
        }
    }

    /// The class to serve next; classes take turns, one job each.
    pub fn next_awake(&mut self) -> Option<usize> {
        let class = *self.awake.front()?;
        self.awake.rotate_left(1);
        Some(class)
    }

    pub fn peek(&self, class: usize) -> Option<&JobId> {
        let c = &self.classes[class];
        c.lanes[c.lane()?].peek()
    }

    pub fn pop(&mut self, class: usize) {
        let c = &mut self.classes[class];
        if let Some(lane) = c.lane() {
            c.lanes[lane].pop();
            c.turn += 1;
            c.reason = None;
        }
    }

    /// Nothing to do for it now; the next job that comes tries at once.
    pub fn block(&mut self, class: usize) {
        self.classes[class].awake = false;
        self.awake.retain(|c| *c != class);
    }

    /// It cannot be placed until something changes.
    pub fn block_because(&mut self, class: usize, reason: WaitReason) {
        self.classes[class].reason = Some(reason);
        self.block(class);
    }

    pub fn reason(&self, class: usize) -> Option<WaitReason> {
        self.classes[class].reason
    }

    pub fn len(&self) -> usize {
        self.classes
            .iter()
            .flat_map(|c| c.lanes.iter().map(|l| l.len))
            .sum()
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
