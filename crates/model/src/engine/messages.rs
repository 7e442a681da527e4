//! The inputs and the effects of the engine: data, so that a test can write and read it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::{Assignment, QueuedJob, RecoveredJob};
use crate::ids::{Attempt, DispatchId, Incarnation, JobId, PoolName, WorkerId};
use crate::job::{Allowed, Verdict};
use crate::output::CheckedOutput;
use crate::routing::{Addressing, WaitReason, Worker};
use crate::rules::Rules;
use crate::run_end::RunEnd;
use crate::state::JobState;
use crate::time::Timestamp;

/// How a run ended, as its worker reports it.
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

/// What a worker reports on the end of a run. The payload stays in the shell, under `key`.
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
    /// The report refers to a result whose content is gone.
    pub missing: bool,
    /// The shell has read the job's row, so what is not held now is no run of ours.
    pub looked_up: bool,
    /// What the output policy says of what the run put out; `None` without one.
    pub output: Option<CheckedOutput>,
}

/// A worker came or went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerChange {
    pub worker: WorkerId,
    pub incarnation: Incarnation,
    pub pool: Option<PoolName>,
    pub change: WorkerChangeKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerChangeKind {
    Joined,
    /// Under a name that was known before: back again, or as a new process.
    Rejoined,
    /// It deregistered.
    Left,
    Lost(&'static str),
}

/// What a heartbeat says.
#[derive(Debug, Clone)]
pub struct Heartbeat {
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
    /// For a worker first seen by this.
    pub addressing: Addressing,
}

/// Which run of a job, and whose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunId {
    pub worker: WorkerId,
    pub dispatch: DispatchId,
    pub attempt: Attempt,
}

/// What happened.
#[derive(Debug, Clone)]
pub enum Input {
    /// The kernel answered about a job that is PENDING in the ledger.
    Decided {
        job: Box<QueuedJob>,
        verdict: Verdict,
    },
    /// The kernel could not be reached, or wants us to wait.
    Undecided {
        job: Box<QueuedJob>,
        delay: Duration,
        reason: WaitReason,
        /// The same in words, for a person who wants to know what the job waits for.
        detail: Arc<str>,
    },
    /// The job as the ledger has it: on take-over, and after a miss.
    Recovered(Box<RecoveredJob>),
    /// The job is final or gone in the ledger, by someone else's hand.
    Ended {
        job: JobId,
        state: JobState,
    },
    /// The last run of a job that is final in the ledger without a result of this run:
    /// its worker may not have heard of it, for nobody else led when it ended.
    EndedRun {
        job: JobId,
        run: RunId,
        state: JobState,
    },
    /// The ledger does not have the job, or does not take its row: it is let go.
    Gone(JobId),
    Register(Box<Worker>),
    Heartbeat(Heartbeat),
    Deregister {
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
        run: RunId,
        /// When it went out.
        at: Timestamp,
    },
    PublishFailed {
        job: JobId,
        run: RunId,
        /// It never left: nobody can have it.
        sure: bool,
    },
    Started {
        job: JobId,
        dispatch: String,
        worker: WorkerId,
        at: Option<Timestamp>,
    },
    Result(ResultReport),
    /// The content of an output that was held is judged.
    OutputDecided {
        job: JobId,
        dispatch: DispatchId,
        /// Under which the shell has the output.
        key: u64,
        output: CheckedOutput,
    },
    /// The kernel's policy has this snapshot now.
    PolicyConfirmed {
        snapshot: String,
    },
    /// No sign of life can reach us while the bus is away, so nobody dies of that. An
    /// engine begins like this.
    BusDown,
    /// Workers can be heard: the subscriptions stand.
    BusUp,
    /// The configuration of pools, topics and tenants as it is from now on.
    Rules(Arc<Rules>),
}

/// What to do about it.
#[derive(Debug, Clone)]
pub enum Effect {
    /// Commit PENDING → SCHEDULED, then put it on the wire.
    Assign {
        job: Arc<QueuedJob>,
        assignment: Assignment,
        verdict: Allowed,
    },
    /// Commit PENDING → APPROVAL_REQUIRED.
    Hold {
        job: Arc<QueuedJob>,
        verdict: Verdict,
    },
    /// Commit the end of a job that is not in flight: DENIED, FAILED or TIMEOUT.
    Close {
        job: Arc<QueuedJob>,
        to: JobState,
        verdict: Option<Verdict>,
        code: &'static str,
        reason: String,
    },
    /// Commit the end of a job that was in flight.
    Finish {
        job: Arc<QueuedJob>,
        assignment: Assignment,
        end: RunEnd,
        to: JobState,
        /// The worker's own code where it gave one, so `end` is what decides.
        code: String,
        reason: String,
        /// The report it came with, if a worker's.
        report: Option<u64>,
        missing: bool,
    },
    /// Commit that a run has succeeded and that its job waits for the verdict on the output.
    HoldOutput {
        job: Arc<QueuedJob>,
        assignment: Assignment,
        report: u64,
        reason: Arc<str>,
    },
    /// Commit in flight → PENDING.
    Requeue {
        job: JobId,
        assignment: Assignment,
        end: RunEnd,
        not_before: Option<Timestamp>,
        reason: String,
    },
    /// Commit DISPATCHED or RUNNING.
    RecordTimes {
        job: JobId,
        assignment: Assignment,
    },
    /// A result of a run that is not held here: the row says whose it is. It comes back
    /// with `looked_up`, after the job if that is in flight as this run.
    LookUp(ResultReport),
    /// Record a result that changes nothing.
    UnmatchedResult {
        report: ResultReport,
        why: String,
    },
    /// Request a decision of the kernel (again).
    Recheck(Arc<QueuedJob>),
    /// Put the same dispatch on the wire again.
    Republish {
        job: Arc<QueuedJob>,
        assignment: Assignment,
    },
    /// Cancel the run at its worker.
    CancelAtWorker {
        job: JobId,
        run: RunId,
        reason: String,
    },
    /// Acknowledge to the worker that its result is in the ledger.
    Receipt {
        worker: WorkerId,
        dispatch: String,
    },
    RequestInventory {
        worker: WorkerId,
    },
    /// Two live processes go by one id: the one that is given work, and another.
    DuplicateWorker {
        worker: WorkerId,
        processes: [Incarnation; 2],
    },
    /// Request that an unknown worker registers.
    RequestRegister {
        worker: WorkerId,
    },
}

/// How many wait, and for what: for metrics and `explain`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EngineCounts {
    pub jobs: usize,
    pub waiting: usize,
    pub assigned: usize,
    pub workers: usize,
}
