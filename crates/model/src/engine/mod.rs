//! The engine: what to do about what happened. Pure; the shell runs the effects.
//!
//! One engine holds the open jobs and the workers of one shard while this process leads
//! it. Inputs come in batches and effects go out in batches: the shell commits all that
//! the ledger must know in one transaction, then publishes, then acknowledges. The
//! engine moves on as if its effects had happened; when the ledger says otherwise (a
//! compare-and-set missed), the shell reads the job again and says so with
//! [`Input::Reloaded`], which replaces whatever was believed.

mod jobs;
mod messages;
mod placing;
mod ready;
mod results;
mod timers;
mod workers;

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet, VecDeque};

use jobs::Job;
pub use jobs::{Assignment, KnownJob, Phase, ReloadedJob};
pub use messages::{Beat, Census, Effect, Input, Outcome, ResultReport, Settings};
use ready::Ready;
pub use workers::cap_incarnation;

use crate::ids::{Attempt, DispatchId, Incarnation, JobId, WorkerId};
use crate::routing::{PoolRouting, Worker};
use crate::time::Timestamp;

/// See the module's page.
#[derive(Debug)]
pub struct Engine {
    settings: Settings,
    routing: PoolRouting,
    jobs: HashMap<JobId, Job>,
    workers: BTreeMap<WorkerId, Worker>,
    ready: Ready,
    timers: BinaryHeap<Reverse<(Timestamp, JobId)>>,
    /// Assignments with a time that is not in the ledger yet.
    unmarked: VecDeque<(Timestamp, JobId, DispatchId)>,
    confirmed: Option<(String, Timestamp)>,
    bus_down_since: Option<Timestamp>,
    capacity_changed: bool,
    next_worker_sweep: Timestamp,
    taken: Remembered,
}

/// A bounded set that forgets the oldest.
#[derive(Debug, Default)]
struct Remembered {
    order: VecDeque<DispatchId>,
    set: HashSet<DispatchId>,
}

impl Remembered {
    fn put(&mut self, id: DispatchId, limit: usize) {
        if self.set.insert(id) {
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
    pub fn new(settings: Settings, routing: PoolRouting) -> Self {
        Self {
            settings,
            routing,
            jobs: HashMap::new(),
            workers: BTreeMap::new(),
            ready: Ready::default(),
            timers: BinaryHeap::new(),
            unmarked: VecDeque::new(),
            confirmed: None,
            bus_down_since: None,
            capacity_changed: false,
            next_worker_sweep: Timestamp(0),
            taken: Remembered::default(),
        }
    }

    /// What to do about `inputs` at `now`. Never blocks, never fails, same answer every
    /// time.
    pub fn handle(
        &mut self,
        now: Timestamp,
        random: Random<'_>,
        inputs: impl IntoIterator<Item = Input>,
    ) -> Vec<Effect> {
        let mut out = Vec::new();
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
            Input::Undecided { job, delay, reason } => self.sleep(*job, now + delay, reason),
            Input::Reloaded(job) => self.reloaded(now, *job, out),
            Input::Ended { job, state } => self.ended(&job, state, out),
            Input::Hello(worker) => self.hello(now, *worker, random, out),
            Input::Beat(beat) => self.beat(now, beat, random, out),
            Input::Goodbye {
                worker,
                incarnation,
            } => {
                self.goodbye(now, &worker, incarnation.as_ref(), random, out);
            }
            Input::Inventory {
                worker,
                incarnation,
                running,
                finished,
            } => self.inventory(now, &worker, &incarnation, &running, &finished, random, out),
            Input::Published { job, dispatch } => self.published(now, &job, dispatch),
            Input::PublishFailed { job, dispatch } => self.publish_failed(now, &job, dispatch),
            Input::Started {
                job,
                dispatch,
                worker,
                at,
            } => self.started(now, &job, &dispatch, &worker, at),
            Input::Result(report) => self.result(now, report, random, out),
            Input::Confirmed { snapshot } => {
                if self.confirmed.as_ref().is_none_or(|(s, _)| *s != snapshot) {
                    self.capacity_changed = true;
                }
                self.confirmed = Some((snapshot, now));
            }
            Input::BusDown => {
                self.bus_down_since.get_or_insert(now);
            }
            Input::BusUp => self.bus_up(now),
            Input::Tick => {}
        }
    }

    /// The time without the bus is nobody's silence.
    fn bus_up(&mut self, now: Timestamp) {
        let Some(since) = self.bus_down_since.take() else {
            return;
        };
        for worker in self.workers.values_mut() {
            worker.last_seen = now;
        }
        for a in self.jobs.values_mut().filter_map(Job::assignment_mut) {
            a.last_sign = a.last_sign + now.since(since.max(a.last_sign));
        }
    }

    /// When the next timer is due. In the past only before [`Engine::handle`] has run.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        let mark = self.unmarked.front().map(|(at, _, _)| *at);
        let sweeping =
            self.bus_down_since.is_none() && !(self.workers.is_empty() && self.jobs.is_empty());
        let sweep = sweeping.then_some(self.next_worker_sweep);
        [timer, mark, sweep].into_iter().flatten().min()
    }

    pub fn census(&self) -> Census {
        Census {
            jobs: self.jobs.len(),
            waiting: self.ready.len(),
            assigned: self.workers.values().map(|w| w.in_flight as usize).sum(),
            workers: self.workers.len(),
        }
    }

    /// Whether this job is in our hands; the replayer leaves such jobs alone.
    pub fn knows(&self, job: &JobId) -> bool {
        self.jobs.contains_key(job)
    }

    pub fn workers(&self) -> impl Iterator<Item = &Worker> {
        self.workers.values()
    }

    /// Ids of the workers that hold jobs, known or not.
    pub fn holders(&self) -> HashSet<WorkerId> {
        self.jobs
            .values()
            .filter_map(|j| j.assignment().map(|a| a.worker.clone()))
            .collect()
    }

    fn max_attempts(&self, job: &KnownJob) -> u32 {
        job.spec.max_attempts.unwrap_or(self.settings.max_attempts)
    }

    /// Takes a job off the books and frees its slot.
    fn forget(&mut self, id: &JobId) -> Option<Job> {
        let job = self.jobs.remove(id)?;
        if let Some(place) = job.place {
            self.ready.remove(&job.known, place);
        }
        if let Some(a) = job.assignment() {
            self.free_slot(&a.worker.clone(), &a.incarnation.clone());
        }
        Some(job)
    }

    fn free_slot(&mut self, worker: &WorkerId, incarnation: &Incarnation) {
        if let Some(w) = self.workers.get_mut(worker)
            && w.incarnation == *incarnation
        {
            w.in_flight = w.in_flight.saturating_sub(1);
            // Others' jobs do not end with ours; a CAP worker counts all of them as one.
            if !w.sdk {
                w.reported_active = w.reported_active.saturating_sub(1);
            }
            self.capacity_changed = true;
        }
    }

    fn attempts_left(&self, job: &KnownJob, attempt: Attempt) -> bool {
        attempt.0 < self.max_attempts(job)
    }
}
