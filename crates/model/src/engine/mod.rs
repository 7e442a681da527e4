//! The engine: what to do about what happened. Pure; the shell runs the effects.
//!
//! One engine holds the open jobs and the workers of one shard while this process leads
//! it. Inputs come in batches and effects go out in batches: the shell commits all that
//! the ledger must know in one transaction, then publishes, then acknowledges. The
//! engine moves on as if its effects had happened; when the ledger says otherwise (a
//! compare-and-set missed), the shell reads the job again and says so with
//! [`Input::Reloaded`], which replaces whatever was believed.

mod jobs;
mod ready;
mod results;
mod timers;
mod workers;

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jobs::Job;
pub use jobs::{Assignment, KnownJob, Phase, ReloadedJob};
use ready::Ready;
pub use workers::cap_incarnation;

use crate::backoff::Backoff;
use crate::ids::{Attempt, DispatchId, Incarnation, JobId, PoolName, WorkerId};
use crate::job::{Decision, Verdict};
use crate::routing::{PoolRouting, WaitReason, Worker};
use crate::state::JobState;
use crate::time::Timestamp;

/// The constants, with the documented defaults.
#[derive(Debug, Clone)]
pub struct Settings {
    /// A worker is gone after this long without a sign of life.
    pub worker_ttl: Duration,
    /// A dispatch must be accepted within this time.
    pub accept_within: Duration,
    pub dispatch_timeout: Duration,
    pub running_timeout: Duration,
    pub max_attempts: u32,
    pub max_scheduling_retries: u32,
    pub backoff: Backoff,
    pub retry_delay_no_workers: Duration,
    pub retry_delay_publish: Duration,
    pub throttle_delay: Duration,
    /// A verdict may be used while its snapshot was confirmed this recently.
    pub confirm_within: Duration,
    /// DISPATCHED and RUNNING are written this long after they happened, unless the end
    /// comes first.
    pub flush_after: Duration,
    /// How many results that were taken are remembered, to tell repeats apart.
    pub remember_results: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            worker_ttl: Duration::from_secs(30),
            accept_within: Duration::from_secs(10),
            dispatch_timeout: Duration::from_secs(300),
            running_timeout: Duration::from_secs(900),
            max_attempts: 3,
            max_scheduling_retries: 50,
            backoff: Backoff::SCHEDULING,
            retry_delay_no_workers: Duration::from_secs(2),
            retry_delay_publish: Duration::from_secs(2),
            throttle_delay: Duration::from_secs(5),
            confirm_within: Duration::from_secs(1),
            flush_after: Duration::from_millis(100),
            remember_results: 100_000,
        }
    }
}

/// How a worker says a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Succeeded,
    Failed,
    FailedRetryable,
    FailedFatal,
    Cancelled,
    TimedOut,
    /// Handed back by a draining worker; it never ran.
    NotStarted,
}

impl Outcome {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "SUCCEEDED",
            Self::Failed => "FAILED",
            Self::FailedRetryable => "FAILED_RETRYABLE",
            Self::FailedFatal => "FAILED_FATAL",
            Self::Cancelled => "CANCELLED",
            Self::TimedOut => "TIMEOUT",
            Self::NotStarted => "NOT_STARTED",
        }
    }
}

/// A worker's word on the end of a run. The payload stays in the shell, under `key`.
#[derive(Debug, Clone)]
pub struct ResultReport {
    /// Lets the shell find the payload when the effect comes back.
    pub key: u64,
    pub job: JobId,
    pub worker: WorkerId,
    /// As text, because a stray one may be anything.
    pub dispatch: String,
    pub outcome: Outcome,
    pub error_code: String,
    pub error_message: String,
    pub started_at: Option<Timestamp>,
    /// The result was promised but its content is gone.
    pub missing: bool,
}

/// What a heartbeat says.
#[derive(Debug, Clone)]
pub struct Beat {
    pub worker: WorkerId,
    /// `None` from workers that know only CAP.
    pub incarnation: Option<Incarnation>,
    pub active_jobs: u32,
    pub cpu_load: f32,
    pub gpu_utilization: f32,
    pub max_parallel: u32,
    pub draining: bool,
    pub active: Vec<DispatchId>,
    pub pool: Option<PoolName>,
}

/// What happened.
#[derive(Debug, Clone)]
pub enum Input {
    /// The kernel answered about a job that is PENDING in the ledger.
    Decided {
        job: Box<KnownJob>,
        verdict: Verdict,
    },
    /// The kernel could not be asked, or asked us to wait.
    Undecided {
        job: Box<KnownJob>,
        delay: Duration,
        reason: WaitReason,
    },
    /// The job as the ledger has it: on take-over, and after a miss.
    Reloaded(Box<ReloadedJob>),
    /// The job is final or gone in the ledger, by someone else's hand.
    Ended {
        job: JobId,
        state: JobState,
    },
    Hello(Box<Worker>),
    Beat(Beat),
    Goodbye {
        worker: WorkerId,
        incarnation: Option<Incarnation>,
    },
    Inventory {
        worker: WorkerId,
        incarnation: Incarnation,
        running: HashSet<DispatchId>,
        finished: HashSet<DispatchId>,
    },
    Published {
        job: JobId,
        dispatch: DispatchId,
    },
    PublishFailed {
        job: JobId,
        dispatch: DispatchId,
    },
    Started {
        job: JobId,
        dispatch: String,
        worker: WorkerId,
        at: Option<Timestamp>,
    },
    Result(ResultReport),
    /// The kernel's policy has this snapshot now.
    Confirmed {
        snapshot: String,
    },
    /// No sign of life can reach us while the bus is away, so nobody dies of that.
    BusDown,
    BusUp,
    Tick,
}

/// What to do about it.
#[derive(Debug, Clone)]
pub enum Effect {
    /// Commit PENDING → SCHEDULED, then put it on the wire.
    Assign {
        job: Arc<KnownJob>,
        assignment: Assignment,
        verdict: Verdict,
    },
    /// Commit PENDING → DENIED, APPROVAL_REQUIRED, FAILED or TIMEOUT.
    Refuse {
        job: Arc<KnownJob>,
        to: JobState,
        verdict: Option<Verdict>,
        code: &'static str,
        reason: String,
    },
    /// Commit the end of a job that was in flight.
    Finish {
        job: Arc<KnownJob>,
        assignment: Assignment,
        to: JobState,
        code: String,
        reason: String,
        /// The report it came with, if a worker's.
        report: Option<u64>,
        missing: bool,
    },
    /// Commit in flight → PENDING.
    Requeue {
        job: JobId,
        assignment: Assignment,
        ran: bool,
        not_before: Option<Timestamp>,
        outcome: &'static str,
        reason: String,
    },
    /// Commit DISPATCHED or RUNNING.
    Mark {
        job: JobId,
        assignment: Assignment,
    },
    /// Record a result that changes nothing.
    Stray {
        report: ResultReport,
        why: String,
    },
    /// Ask the kernel (again).
    Recheck(Arc<KnownJob>),
    /// Put the same dispatch on the wire again.
    Republish {
        job: Arc<KnownJob>,
        assignment: Assignment,
    },
    /// Tell the worker to stop.
    CancelAtWorker {
        job: JobId,
        assignment: Assignment,
        reason: String,
    },
    /// Tell the worker that its result is in the ledger.
    Receipt {
        worker: WorkerId,
        dispatch: String,
    },
    AskInventory {
        worker: WorkerId,
    },
    /// Ask an unknown worker to introduce itself.
    AskHello {
        worker: WorkerId,
    },
}

/// How many wait, and for what: for metrics and `explain`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Census {
    pub jobs: usize,
    pub waiting: usize,
    pub assigned: usize,
    pub workers: usize,
}

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
        let sweeping = self.bus_down_since.is_none()
            && !(self.workers.is_empty() && self.jobs.is_empty());
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

    /// Whether a verdict may still be acted on.
    fn usable(&self, verdict: &Verdict, now: Timestamp) -> bool {
        let age = now.since(verdict.decided_at);
        match verdict.decision {
            Decision::Allow | Decision::AllowWithConstraints => {
                let replaced = self.confirmed.as_ref().is_some_and(|(snapshot, at)| {
                    *snapshot != verdict.snapshot && *at > verdict.decided_at
                });
                if replaced {
                    return false;
                }
                age <= self.settings.confirm_within
                    || self.confirmed.as_ref().is_some_and(|(snapshot, at)| {
                        *snapshot == verdict.snapshot
                            && now.since(*at) <= self.settings.confirm_within
                    })
            }
            Decision::FailOpen => age <= self.settings.confirm_within,
            Decision::Deny | Decision::RequireApproval | Decision::Throttle => false,
        }
    }

    fn max_attempts(&self, job: &KnownJob) -> u32 {
        job.spec.max_attempts.unwrap_or(self.settings.max_attempts)
    }

    /// Sees to it that this job is looked at by `at`, or by its deadline if that comes
    /// first. A job has one timer that counts, so that one that is put off again and
    /// again does not leave a timer for each time.
    fn arm(&mut self, at: Option<Timestamp>, id: &JobId) {
        let Some(job) = self.jobs.get_mut(id) else {
            return;
        };
        let Some(at) = [at, job.known.deadline_at].into_iter().flatten().min() else {
            return;
        };
        if job.armed.is_none_or(|armed| at < armed) {
            job.armed = Some(at);
            self.timers.push(Reverse((at, id.clone())));
        }
    }

    /// Gives waiting jobs to workers until either runs out.
    fn place_ready(&mut self, now: Timestamp, random: Random<'_>, out: &mut Vec<Effect>) {
        if self.capacity_changed {
            self.capacity_changed = false;
            self.ready.wake_all();
        }
        // What has to be asked again holds no slot while it is asked, so bound it.
        let mut rechecks: u32 = self
            .workers
            .values()
            .map(|w| w.slots().saturating_sub(w.in_flight))
            .sum();
        while let Some(class) = self.ready.next_awake() {
            let Some(id) = self.ready.peek(class).cloned() else {
                self.ready.block(class);
                continue;
            };
            let Some(job) = self.jobs.get(&id) else {
                self.ready.pop(class);
                continue;
            };
            let Phase::Waiting { verdict, .. } = &job.phase else {
                self.ready.pop(class);
                continue;
            };
            match crate::routing::pick(&self.routing, &job.known.spec, self.workers.values()) {
                Ok(worker) => {
                    if self.usable(verdict, now) {
                        let (worker, verdict) = (worker.id.clone(), verdict.clone());
                        self.ready.pop(class);
                        self.assign(now, random, &id, &worker, verdict, out);
                    } else if rechecks > 0 {
                        rechecks -= 1;
                        self.ready.pop(class);
                        self.recheck(&id, out);
                    } else {
                        self.ready.block(class);
                    }
                }
                Err(reason) => {
                    self.ready.block_because(class, reason);
                }
            }
        }
    }

    fn recheck(&mut self, id: &JobId, out: &mut Vec<Effect>) {
        if let Some(job) = self.jobs.get_mut(id) {
            job.phase = Phase::Checking;
            job.place = None;
            out.push(Effect::Recheck(job.known.clone()));
        }
    }

    fn assign(
        &mut self,
        now: Timestamp,
        random: Random<'_>,
        id: &JobId,
        worker: &WorkerId,
        verdict: Verdict,
        out: &mut Vec<Effect>,
    ) {
        let (Some(job), Some(w)) = (self.jobs.get_mut(id), self.workers.get_mut(worker)) else {
            return;
        };
        let mut bytes = [0u8; 16];
        bytes[..8].copy_from_slice(&random().to_be_bytes());
        bytes[8..].copy_from_slice(&random().to_be_bytes());
        let dispatch = DispatchId(uuid::Builder::from_random_bytes(bytes).into_uuid());
        w.in_flight += 1;
        let assignment = Assignment {
            worker: w.id.clone(),
            incarnation: w.incarnation.clone(),
            sdk: w.sdk,
            inline: w.inline,
            dispatch,
            attempt: job.known.attempt.next(),
            scheduled_at: now,
            dispatched_at: None,
            started_at: None,
            last_sign: now,
            accepted: false,
            recovered: false,
            accept_by: now + self.settings.accept_within,
        };
        job.phase = Phase::Assigned(assignment.clone());
        job.place = None;
        let (known, accept_by) = (job.known.clone(), assignment.accept_by);
        out.push(Effect::Assign {
            job: known,
            assignment,
            verdict,
        });
        self.arm(Some(accept_by), id);
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
