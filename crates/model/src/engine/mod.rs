//! The engine: what to do about what happened. Pure; the shell runs the effects.
//!
//! One engine holds the open jobs and the workers of one shard while this process leads
//! it. Inputs come in batches and effects go out in batches: the shell commits all that
//! the ledger must know in one transaction, then publishes, then acknowledges. The
//! engine moves on as if its effects had happened; when the ledger says otherwise (a
//! compare-and-set missed), the shell reads the job again and says so with
//! [`Input::Recovered`], which replaces whatever was believed.
//!
//! There are two clocks: the ledger's for what is due and for deadlines, and one that runs
//! only while workers can be heard for everything that is counted from a sign of life. How
//! that one is kept is in `listening.rs`.

mod cancels;
mod duplicate_workers;
mod flight;
mod introspect;
mod inventory;
mod jobs;
mod listening;
mod messages;
mod placing;
mod ready;
mod results;
mod settings;
mod timers;
mod workers;

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use cancels::Cancels;
use duplicate_workers::DuplicateProcesses;
use flight::InFlight;
use jobs::Job;
pub use jobs::{Assignment, Phase, QueuedJob, RecoveredJob, RunLimits, RunLiveness};
use listening::Listening;
pub use messages::{
    Effect, EngineCounts, Heartbeat, Input, Outcome, ResultReport, RunId, WorkerChange,
    WorkerChangeKind,
};
use ready::Ready;
pub use settings::Settings;

use crate::ids::{DispatchId, JobId, WorkerId};
use crate::routing::Worker;
use crate::rules::Rules;
use crate::time::Timestamp;

/// See the module's page.
#[derive(Debug)]
pub struct Engine {
    settings: Settings,
    rules: Arc<Rules>,
    jobs: HashMap<JobId, Job>,
    workers: BTreeMap<WorkerId, Worker>,
    /// Processes that go by the id of a registered one.
    duplicates: DuplicateProcesses,
    in_flight: InFlight,
    cancels: Cancels,
    ready: Ready,
    /// Allowed in this round, and neither placed nor queued yet.
    fresh: Vec<JobId>,
    timers: BinaryHeap<Reverse<(Timestamp, JobId)>>,
    /// Assignments with a time that is not in the ledger yet.
    unflushed_times: VecDeque<(Timestamp, JobId, DispatchId)>,
    confirmed: Option<(String, Timestamp)>,
    listening: Listening,
    capacity_changed: bool,
    next_worker_sweep: Timestamp,
    taken: RecentIds<DispatchId>,
    /// Workers that were lost or left, to tell when they are back.
    departed: RecentIds<WorkerId>,
    changes: Vec<WorkerChange>,
    /// The last time it was asked what to do.
    now: Timestamp,
    /// More was due at that time than is done at once.
    behind: bool,
}

/// A bounded set that forgets the oldest.
#[derive(Debug)]
struct RecentIds<T> {
    order: VecDeque<T>,
    set: HashSet<T>,
}

impl<T> Default for RecentIds<T> {
    fn default() -> Self {
        Self {
            order: VecDeque::new(),
            set: HashSet::new(),
        }
    }
}

impl<T: Clone + Eq + Hash> RecentIds<T> {
    fn insert(&mut self, id: T, limit: usize) {
        if self.set.insert(id.clone()) {
            self.order.push_back(id);
            if self.order.len() > limit
                && let Some(old) = self.order.pop_front()
            {
                self.set.remove(&old);
            }
        }
    }
}

/// Random words from the operating system, handed in by the shell.
pub type Random<'a> = &'a mut dyn FnMut() -> u64;

impl Engine {
    pub fn new(settings: Settings, rules: Arc<Rules>) -> Self {
        Self {
            settings,
            rules,
            jobs: HashMap::new(),
            workers: BTreeMap::new(),
            duplicates: DuplicateProcesses::default(),
            in_flight: InFlight::default(),
            cancels: Cancels::default(),
            ready: Ready::default(),
            fresh: Vec::new(),
            timers: BinaryHeap::new(),
            unflushed_times: VecDeque::new(),
            confirmed: None,
            listening: Listening::default(),
            capacity_changed: false,
            next_worker_sweep: Timestamp(0),
            taken: RecentIds::default(),
            departed: RecentIds::default(),
            changes: Vec::new(),
            now: Timestamp(0),
            behind: false,
        }
    }

    /// What to do about `inputs` at `now` by the ledger's clock and at `uptime` by a
    /// monotonic one. Never blocks, never fails, same answer every time.
    pub fn handle(
        &mut self,
        now: Timestamp,
        uptime: Duration,
        random: Random<'_>,
        inputs: impl IntoIterator<Item = Input>,
    ) -> Vec<Effect> {
        let mut out = Vec::new();
        self.now = now;
        self.listening.advance(uptime, self.settings.max_gap);
        self.behind = false;
        for input in inputs {
            self.one(now, random, input, &mut out);
        }
        self.run_timers(now, random, &mut out);
        self.place_ready(now, random, &mut out);
        out
    }

    fn one(&mut self, now: Timestamp, random: Random<'_>, input: Input, out: &mut Vec<Effect>) {
        match input {
            Input::Decided { job, verdict } => self.decided(now, *job, verdict, out),
            Input::Undecided {
                job,
                delay,
                reason,
                detail,
            } => self.sleep_with_detail(now, *job, now + delay, reason, Some(detail)),
            Input::Recovered(job) => self.recover(now, *job, out),
            Input::Ended { job, state } => self.ended(&job, state, out),
            Input::EndedRun { job, run, state } => self.ended_run(job, run, state, out),
            Input::Gone(job) => self.gone(&job, out),
            Input::Register(worker) => self.register_worker(now, *worker, random, out),
            Input::Heartbeat(beat) => self.beat(now, beat, random, out),
            Input::Deregister {
                worker,
                incarnation,
            } => {
                self.deregister_worker(now, &worker, incarnation.as_ref(), random, out);
            }
            Input::Inventory {
                worker,
                incarnation,
                running,
                finished,
            } => self.inventory(now, &worker, &incarnation, &running, &finished, random, out),
            Input::Published { job, run, at } => self.published(now, job, run, at, out),
            Input::PublishFailed { job, run, sure } => {
                self.publish_failed(now, job, run, sure, random, out);
            }
            Input::Started {
                job,
                dispatch,
                worker,
                at,
            } => self.started(now, &job, &dispatch, &worker, at),
            Input::Result(report) => self.result(now, report, random, out),
            Input::PolicyConfirmed { snapshot } => {
                if self.confirmed.as_ref().is_none_or(|(s, _)| *s != snapshot) {
                    self.capacity_changed = true;
                    self.ready.unpark_all();
                }
                self.confirmed = Some((snapshot, now));
            }
            Input::BusDown => self.listening.end(),
            Input::BusUp => self.bus_up(),
            Input::Rules(rules) => self.reconfigure(now, rules, out),
        }
    }

    /// Workers can be heard (again).
    fn bus_up(&mut self) {
        if self.listening.begin() {
            self.capacity_changed = true;
            self.duplicates.bus_up(self.listening.now());
        }
    }

    /// When the next timer is due. In the past only before [`Engine::handle`] has run.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        let mark = self.unflushed_times.front().map(|(at, _, _)| *at);
        let sweeping = self.listening.is_on() && !(self.workers.is_empty() && self.jobs.is_empty());
        let sweep = sweeping.then_some(self.next_worker_sweep);
        let soon = self.now + Duration::from_millis(1);
        let rest = self.behind.then_some(soon);
        let next = [timer, mark, sweep, rest].into_iter().flatten().min()?;
        // What is overdue is being worked off.
        Some(if self.behind { next.max(soon) } else { next })
    }

    pub fn counts(&self) -> EngineCounts {
        EngineCounts {
            jobs: self.jobs.len(),
            waiting: self.ready.len(),
            assigned: self.in_flight.len(),
            workers: self.workers.len(),
        }
    }

    /// Whether the engine tracks this job and will move it on. It does not move a job that
    /// is held for a human: when the ledger has that one as PENDING, it was approved and
    /// must be loaded again.
    pub fn is_tracking(&self, job: &JobId) -> bool {
        self.jobs.get(job).is_some_and(|j| match j.phase {
            Phase::Held => false,
            Phase::Checking
            | Phase::Waiting { .. }
            | Phase::Sleeping { .. }
            | Phase::Assigned(_) => true,
        })
    }

    pub fn workers(&self) -> impl Iterator<Item = &Worker> {
        self.workers.values()
    }

    /// Which workers came and went since this was last asked, for the log.
    pub fn take_worker_changes(&mut self) -> Vec<WorkerChange> {
        std::mem::take(&mut self.changes)
    }

    /// Ids of the workers that hold jobs, known or not.
    pub fn assigned_workers(&self) -> HashSet<WorkerId> {
        self.in_flight.workers().cloned().collect()
    }

    /// New rules: every waiting job is queued anew by them, in the order of its turn.
    fn reconfigure(&mut self, now: Timestamp, rules: Arc<Rules>, out: &mut Vec<Effect>) {
        if *self.rules == *rules {
            return;
        }
        self.rules = rules;
        self.ready = Ready::default();
        self.capacity_changed = true;
        let mut waiting: Vec<_> = self
            .jobs
            .values()
            .filter_map(|job| Some((job.place?.turn(), job.queued.id.clone())))
            .collect();
        waiting.sort_unstable();
        for (_, id) in waiting {
            let Some(job) = self.jobs.get_mut(&id) else {
                continue;
            };
            job.place = None;
            job.kept = None;
            let phase = std::mem::replace(&mut job.phase, Phase::Checking);
            let known = job.queued.clone();
            match phase {
                Phase::Waiting { verdict, .. } => self.make_ready(now, known, verdict, out),
                other @ (Phase::Checking
                | Phase::Sleeping { .. }
                | Phase::Held
                | Phase::Assigned(_)) => job.phase = other,
            }
        }
    }

    /// Takes a job off the books and frees its slot.
    fn forget(&mut self, id: &JobId) -> Option<Job> {
        let job = self.jobs.remove(id)?;
        if let Some(place) = job.place {
            self.ready.remove(&job.queued, place);
        }
        if let Some(a) = job.assignment() {
            self.free_slot(&job.queued.tenant, a, job.crash_suspect);
        }
        Some(job)
    }
}
