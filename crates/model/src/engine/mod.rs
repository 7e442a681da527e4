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
//! that one runs is in `listening.rs`.

mod cancels;
mod duplicate_workers;
mod flight;
mod introspect;
mod inventory;
mod jobs;
mod listening;
mod messages;
mod output;
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
    /// Workers that were lost or left, to notice when they are back.
    departed: RecentIds<WorkerId>,
    changes: Vec<WorkerChange>,
    /// The time of the last call of [`Engine::handle`].
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

/// Random numbers from the operating system, handed in by the shell.
pub type Random<'a> = &'a mut dyn FnMut() -> u64;

/// One call of [`Engine::handle`]: when it is, and what is to be done so far.
struct Step<'a> {
    /// By the ledger's clock.
    now: Timestamp,
    random: Random<'a>,
    effects: Vec<Effect>,
}

impl Step<'_> {
    fn random(&mut self) -> u64 {
        (self.random)()
    }
}

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
        let mut step = Step {
            now,
            random,
            effects: Vec::new(),
        };
        self.now = now;
        self.listening.advance(uptime, self.settings.max_gap);
        self.behind = false;
        for input in inputs {
            self.apply_input(&mut step, input);
        }
        self.run_timers(&mut step);
        self.place_ready(&mut step);
        step.effects
    }

    fn apply_input(&mut self, step: &mut Step<'_>, input: Input) {
        match input {
            Input::Decided { job, verdict } => self.handle_verdict(step, *job, verdict),
            Input::Undecided {
                job,
                delay,
                reason,
                detail,
            } => self.sleep_job_with_detail(step.now, *job, step.now + delay, reason, Some(detail)),
            Input::Recovered(job) => self.recover_job(step, *job),
            Input::Ended { job, state } => self.handle_job_ended(step, &job, state),
            Input::EndedRun { job, run, state } => self.cancel_ended_run(step, job, run, state),
            Input::Gone(job) => self.handle_job_gone(step, &job),
            Input::Register(worker) => self.register_worker(step, *worker),
            Input::Heartbeat(heartbeat) => self.handle_heartbeat(step, &heartbeat),
            Input::Deregister {
                worker,
                incarnation,
            } => {
                self.deregister_worker(step, &worker, incarnation.as_ref());
            }
            Input::Inventory {
                worker,
                incarnation,
                running,
                finished,
            } => self.handle_inventory(step, &worker, &incarnation, &running, &finished),
            Input::Published { job, run, at } => self.handle_published(step, job, run, at),
            Input::PublishFailed { job, run, sure } => {
                self.handle_publish_failed(step, job, run, sure);
            }
            Input::Started {
                job,
                dispatch,
                worker,
                at,
            } => self.handle_started(step.now, &job, &dispatch, &worker, at),
            Input::Result(report) => self.handle_result(step, report),
            Input::OutputDecided {
                job,
                dispatch,
                key,
                output,
            } => self.handle_output_decided(step, &job, dispatch, key, &output),
            Input::PolicyConfirmed { snapshot } => {
                if self.confirmed.as_ref().is_none_or(|(s, _)| *s != snapshot) {
                    self.capacity_changed = true;
                    self.ready.unpark_all();
                }
                self.confirmed = Some((snapshot, step.now));
            }
            Input::BusDown => self.listening.end(),
            Input::BusUp => self.handle_bus_up(),
            Input::Rules(rules) => self.replace_rules(step, rules),
        }
    }

    /// Workers can be heard (again).
    fn handle_bus_up(&mut self) {
        if self.listening.begin() {
            self.capacity_changed = true;
            self.duplicates.restart_silence(self.listening.now());
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
            | Phase::Assigned(_)
            | Phase::OutputHeld { .. } => true,
        })
    }

    pub fn workers(&self) -> impl Iterator<Item = &Worker> {
        self.workers.values()
    }

    /// Which workers came and went since the last call, for the log.
    pub fn take_worker_changes(&mut self) -> Vec<WorkerChange> {
        std::mem::take(&mut self.changes)
    }

    /// Ids of the workers that hold jobs, known or not.
    pub fn assigned_workers(&self) -> HashSet<WorkerId> {
        self.in_flight.workers().cloned().collect()
    }

    /// New rules: every waiting job is queued anew by them, in the order of its turn.
    fn replace_rules(&mut self, step: &mut Step<'_>, rules: Arc<Rules>) {
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
            job.saved_turn = None;
            let phase = std::mem::replace(&mut job.phase, Phase::Checking);
            let queued = job.queued.clone();
            match phase {
                Phase::Waiting { verdict, .. } => self.make_ready(step, queued, verdict),
                other @ (Phase::Checking
                | Phase::Sleeping { .. }
                | Phase::Held
                | Phase::Assigned(_)
                | Phase::OutputHeld { .. }) => job.phase = other,
            }
        }
    }

    /// Takes a job off the books and frees its slot.
    fn remove_job(&mut self, id: &JobId) -> Option<Job> {
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
