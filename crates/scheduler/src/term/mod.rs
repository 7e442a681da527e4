//! One term of leadership: what all its parts share.

pub(crate) mod clock;
pub(crate) mod epoch_claims;
pub(crate) mod leader;
pub(crate) mod round_health;
pub(crate) mod store_ownership;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use airlock_bus::{Bus, Delivery, MessageKey, Outcome, Settler};
use airlock_guard::{Guard, JobLocks};
use airlock_ledger::{ChangePosition, LeaderLedger, LoadedJob, OpenJobs};
use airlock_model::engine::{Input, QueuedJob};
use airlock_model::explain::{Lane, WaitStatus};
use airlock_model::{Epoch, JobId, LedgerId, Shard, Topic};
use airlock_proto::ahead::Id;
use airlock_proto::cap::bus_packet::Payload;
use airlock_service::Health;
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::Config;
use crate::inbound::bad_messages::Letters;
use crate::inbound::reports::Reports;
use crate::inbound::signatures::Signatures;
use crate::inbound::speculation::Ahead;
use crate::kernel::Kernel;
use crate::metrics::Metrics;
use crate::term::clock::Clock;
use crate::term::epoch_claims::Claims;
use crate::term::round_health::Rounds;

/// What a worker left as the result of a run.
#[derive(Debug, Clone, Default)]
pub struct Content {
    pub bytes: Option<Bytes>,
}

/// Messages whose effects are part of a batch; told so when it is all done.
pub struct Done {
    pub settler: Settler,
    pub deliveries: Vec<Delivery>,
    pub keys: Vec<MessageKey>,
    pub jobs: Vec<JobId>,
}

/// Inputs that came together, and go through one transaction together.
#[derive(Default)]
pub struct Batch {
    pub inputs: Vec<Input>,
    /// Results' payloads, by the report's key.
    pub contents: Vec<(u64, Content)>,
    /// Jobs' payloads, to go along with a dispatch.
    pub payloads: Vec<(JobId, Bytes)>,
    pub done: Option<Done>,
    /// Jobs that are being committed by a gateway: theirs comes first.
    pub told: Option<Box<Told>>,
}

/// A transaction that we were told of ahead.
pub struct Told {
    pub id: Id,
    /// Those of which nothing shows yet that they are in the ledger.
    pub jobs: Vec<JobId>,
    /// Of all of them.
    pub topics: Vec<Topic>,
}

impl Batch {
    /// Takes in what another has, but for its messages.
    pub fn join(&mut self, other: Self) {
        self.inputs.extend(other.inputs);
        self.contents.extend(other.contents);
        self.payloads.extend(other.payloads);
    }

    pub fn of(inputs: Vec<Input>) -> Self {
        Self {
            inputs,
            ..Self::default()
        }
    }
}

/// What the core is told.
pub enum ToCore {
    Batch(Batch),
    /// Which of these are in nobody's hands?
    Loose {
        ids: Vec<JobId>,
        answer: oneshot::Sender<Vec<JobId>>,
    },
    /// Jobs that should have moved on: those in nobody's hands are taken in, as after a
    /// take-over.
    Adopt(Vec<LoadedJob>),
    /// Write the workers down for whoever leads next.
    Snapshot,
    /// Where does this job stand?
    Explain {
        job: JobId,
        answer: oneshot::Sender<WaitStatus>,
    },
    /// What waits, by pool and tenant?
    Lanes(oneshot::Sender<Vec<Lane>>),
}

/// See the module's page.
pub struct Term {
    pub config: Config,
    pub instance: String,
    pub shard: Shard,
    pub epoch: Epoch,
    /// What the epoch counts in.
    pub ledger_id: LedgerId,
    /// What workers have seen of it.
    pub claims: Claims,
    /// Its writes are this term's.
    pub ledger: LeaderLedger,
    pub bus: Bus,
    pub guard: Guard,
    pub locks: JobLocks,
    pub kernel: Kernel,
    pub clock: Clock,
    pub metrics: Metrics,
    pub health: Health,
    pub letters: Letters,
    /// What workers said of their runs and is not written yet.
    pub reports: Reports,
    /// How many jobs are open, for what comes over the bus.
    pub open_jobs: OpenJobs,
    pub signatures: Signatures,
    pub ahead: Ahead,
    /// When the last good one was.
    pub rounds: Rounds,
    /// The sender of our packets to workers.
    pub sender: String,
    /// Spans are made only when something collects them.
    pub tracing: bool,
    pub to_core: mpsc::Sender<ToCore>,
    /// Results stand in a line of their own, so that starting need not wait for them.
    pub to_finish: mpsc::Sender<Batch>,
    pub to_decide: mpsc::UnboundedSender<Arc<QueuedJob>>,
    /// Change-log entries that this leader has told the bus of itself.
    pub told: Mutex<HashSet<ChangePosition>>,
    /// Ends with the term.
    pub over: CancellationToken,
    pub tasks: TaskTracker,
}

impl Term {
    /// Makes a packet for workers, signed when we have a key.
    pub fn seal(&self, trace_id: &str, payload: Payload) -> Bytes {
        let now = self.clock.now();
        self.signatures.seal(&self.sender, trace_id, now, payload)
    }

    /// Hands a batch to the core; `false` when the term is over.
    pub async fn hand_in(&self, batch: Batch) -> bool {
        self.to_core.send(ToCore::Batch(batch)).await.is_ok()
    }

    /// Those that the engine does not hold; none when the term is over.
    pub async fn loose(&self, ids: Vec<JobId>) -> Vec<JobId> {
        let (answer, loose) = oneshot::channel();
        if self
            .to_core
            .send(ToCore::Loose { ids, answer })
            .await
            .is_err()
        {
            return Vec::new();
        }
        loose.await.unwrap_or_default()
    }

    pub fn tell(&self, position: ChangePosition) {
        self.told
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(position);
    }

    pub fn was_told(&self, position: ChangePosition) -> bool {
        self.told
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&position)
    }

    /// Before anything is done about messages: which were processed already, and the
    /// locks of their jobs. A lock that stays busy delays and decides nothing.
    pub async fn begin(&self, keys: &[MessageKey], jobs: &[JobId]) -> Vec<bool> {
        let since = Instant::now();
        let (seen, locked) = self.locks.begin_batch(keys, jobs).await;
        if locked.contains(&false) {
            let most = self.config.scheduler.retry_delay_busy;
            let busy = self.locks.wait_for_busy(jobs, &locked, most).await;
            if busy > 0 {
                tracing::info!(jobs = busy, "job locks stay busy; the ledger decides");
            }
        }
        if !jobs.is_empty() {
            self.metrics.waited_for_locks(since.elapsed());
        }
        seen
    }

    /// After commit and publish: remember, release, acknowledge.
    pub async fn settle(&self, done: Done) {
        self.locks.finish_batch(&done.keys, &done.jobs).await;
        let outcomes = done
            .deliveries
            .into_iter()
            .map(|d| (d, Outcome::Done))
            .collect();
        done.settler.settle(outcomes, &self.letters).await;
    }
}

/// Random words from the operating system.
pub fn random() -> u64 {
    let mut bytes = [0u8; 8];
    match getrandom::fill(&mut bytes) {
        Ok(()) => u64::from_ne_bytes(bytes),
        // Without the operating system's generator the time must do: jitter and ids
        // need to differ, not to be secret.
        Err(_) => std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |d| d.as_nanos() as u64),
    }
}
