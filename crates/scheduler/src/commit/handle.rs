//! How the other parts reach the commit loop: batches of inputs, and questions about what
//! the engine holds.

use std::sync::Arc;

use airlock_bus::{Delivery, MessageKey, Settler};
use airlock_ledger::{LoadedJob, NewOutput};
use airlock_model::engine::{Input, QueuedJob};
use airlock_model::explain::{Lane, WaitStatus};
use airlock_model::{JobId, Released, Topic};
use airlock_proto::ahead::Id;
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

/// Batches that wait for the commit loop; beyond it the readers wait.
const REQUEST_QUEUE: usize = 64;

/// The same for results: what does not fit stays in the stream.
const RESULT_QUEUE: usize = 1;

/// What a worker left as the result of a run, as far as everybody may read it, and what the
/// output policy says of it.
#[derive(Debug, Clone, Default)]
pub struct ResultContent {
    pub result: Option<Released<Bytes>>,
    /// `None` without an output policy.
    pub output: Option<Box<NewOutput>>,
}

/// Messages whose effects are part of a batch: acknowledged when all of it is committed and
/// published.
pub struct PendingAck {
    pub settler: Settler,
    pub deliveries: Vec<Delivery>,
    pub keys: Vec<MessageKey>,
    pub jobs: Vec<JobId>,
}

/// Inputs that came together, and go through one transaction together.
#[derive(Default)]
pub struct InputBatch {
    pub inputs: Vec<Input>,
    /// Results' payloads, by the report's key.
    pub contents: Vec<(u64, ResultContent)>,
    /// Jobs' payloads, to go along with a dispatch.
    pub payloads: Vec<(JobId, Bytes)>,
    pub done: Option<PendingAck>,
    /// Jobs that a gateway is committing now: its transaction comes first.
    pub speculative: Option<Box<SpeculativeSubmit>>,
}

/// A gateway's transaction that was announced before its commit.
pub struct SpeculativeSubmit {
    pub id: Id,
    /// Those of which nothing shows yet that they are in the ledger.
    pub jobs: Vec<JobId>,
    /// Of all of them.
    pub topics: Vec<Topic>,
}

impl InputBatch {
    /// Adds another batch, but for its messages.
    pub fn merge_without_acks(&mut self, other: Self) {
        self.inputs.extend(other.inputs);
        self.contents.extend(other.contents);
        self.payloads.extend(other.payloads);
    }

    pub fn from_inputs(inputs: Vec<Input>) -> Self {
        Self {
            inputs,
            ..Self::default()
        }
    }
}

/// What the commit loop is asked to do.
pub enum CommitRequest {
    Enqueue(InputBatch),
    /// Which of these does nobody track?
    Untracked {
        ids: Vec<JobId>,
        answer: oneshot::Sender<Vec<JobId>>,
    },
    /// Jobs that should have moved on: those that nobody tracks are taken in, as after a
    /// take-over.
    Recover(Vec<LoadedJob>),
    /// Write the workers down for the next leader.
    WriteSnapshot,
    /// What does this job wait for?
    Explain {
        job: JobId,
        answer: oneshot::Sender<WaitStatus>,
    },
    /// What waits, by pool and tenant?
    Lanes(oneshot::Sender<Vec<Lane>>),
}

/// The commit loop's ends of the queues.
pub struct CommitQueues {
    pub requests: mpsc::Receiver<CommitRequest>,
    pub results: mpsc::Receiver<InputBatch>,
    /// Jobs that the kernel must be asked about (again); read by the submissions' side.
    pub undecided: mpsc::UnboundedReceiver<Arc<QueuedJob>>,
}

/// Everybody else's end. Every answer says whether the commit loop still runs.
#[derive(Clone)]
pub struct CommitHandle {
    requests: mpsc::Sender<CommitRequest>,
    /// Results have a queue of their own, so that starting jobs need not wait for them.
    results: mpsc::Sender<InputBatch>,
    undecided: mpsc::UnboundedSender<Arc<QueuedJob>>,
}

impl CommitHandle {
    pub fn new() -> (Self, CommitQueues) {
        let (to_requests, requests) = mpsc::channel(REQUEST_QUEUE);
        let (to_results, results) = mpsc::channel(RESULT_QUEUE);
        let (to_undecided, undecided) = mpsc::unbounded_channel();
        let handle = Self {
            requests: to_requests,
            results: to_results,
            undecided: to_undecided,
        };
        let queues = CommitQueues {
            requests,
            results,
            undecided,
        };
        (handle, queues)
    }

    async fn send_request(&self, request: CommitRequest) -> bool {
        self.requests.send(request).await.is_ok()
    }

    /// `false` when the term is over.
    pub async fn enqueue(&self, batch: InputBatch) -> bool {
        self.send_request(CommitRequest::Enqueue(batch)).await
    }

    /// The same for results. `false` when the term is over.
    pub async fn enqueue_results(&self, batch: InputBatch) -> bool {
        self.results.send(batch).await.is_ok()
    }

    /// Has the kernel asked about a job, which then comes back as an input.
    pub fn request_reevaluation(&self, job: Arc<QueuedJob>) {
        // It fails only when the term is over, and then nobody waits for it.
        let _ = self.undecided.send(job);
    }

    /// Those that the engine does not track; none when the term is over.
    pub async fn filter_untracked(&self, ids: Vec<JobId>) -> Vec<JobId> {
        let (answer, untracked) = oneshot::channel();
        if !self
            .send_request(CommitRequest::Untracked { ids, answer })
            .await
        {
            return Vec::new();
        }
        untracked.await.unwrap_or_default()
    }

    /// `false` when the term is over.
    pub async fn recover_jobs(&self, jobs: Vec<LoadedJob>) -> bool {
        self.send_request(CommitRequest::Recover(jobs)).await
    }

    /// `false` when the term is over.
    pub async fn write_snapshot(&self) -> bool {
        self.send_request(CommitRequest::WriteSnapshot).await
    }

    /// `None` when the term is over.
    pub async fn explain_wait(&self, job: JobId) -> Option<WaitStatus> {
        let (answer, status) = oneshot::channel();
        self.send_request(CommitRequest::Explain { job, answer })
            .await;
        status.await.ok()
    }

    /// `None` when the term is over.
    pub async fn list_lanes(&self) -> Option<Vec<Lane>> {
        let (answer, lanes) = oneshot::channel();
        self.send_request(CommitRequest::Lanes(answer)).await;
        lanes.await.ok()
    }
}
