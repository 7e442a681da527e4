//! What the tasks of one worker share, and the way of a result.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use airlock_bus::{Bus, subjects};
use bytes::Bytes;
use tokio::sync::{Notify, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::clock::Offsets;
use crate::config::Settings;
use crate::error::JobErrorKind;
use crate::handler::Handlers;
use crate::host::Host;
use crate::job::{self, Job};
use crate::metrics::Now;
use crate::outbox::Outbox;
use crate::packets::{Ending, Phase, Speaker};
use crate::stats::Stats;
use crate::table::Table;

/// Room in a NATS message for everything that is not the payload.
const PACKET_MARGIN: usize = 16 * 1024;

/// How many dispatches may wait for a slot.
const BACKLOG: usize = 1_024;

pub(crate) struct Core {
    pub settings: Settings,
    pub speaker: Speaker,
    pub bus: Bus,
    /// What jobs reach of this.
    pub host: Arc<Host>,
    pub handlers: Handlers,
    pub table: Table,
    /// How the scheduler's clock differs from ours.
    pub offsets: Offsets,
    outbox: Mutex<Outbox>,
    /// Something is queued in the outbox.
    pub unpublished: Notify,
    /// A receipt came.
    pub receipted: Notify,
    /// A place in the table or the outbox became free.
    pub room: Notify,
    pub slots: Semaphore,
    /// Cancelled when nothing new is begun any more.
    pub draining: CancellationToken,
    /// A heartbeat is wanted now.
    pub beat: Notify,
    /// A hello is wanted soon.
    pub announce: Notify,
    pub stats: Arc<Stats>,
    /// Whether NATS is connected.
    pub connected: watch::Receiver<bool>,
}

impl Core {
    pub fn new(
        settings: Settings,
        incarnation: String,
        bus: Bus,
        handlers: Handlers,
        host: Host,
        stats: Arc<Stats>,
    ) -> Self {
        Self {
            table: Table::new(&incarnation),
            offsets: Offsets::default(),
            speaker: Speaker {
                id: settings.id.clone(),
                incarnation,
                keys: settings.keys.clone(),
            },
            outbox: Mutex::new(Outbox::new(settings.outbox)),
            slots: Semaphore::new(settings.max_parallel),
            unpublished: Notify::new(),
            receipted: Notify::new(),
            room: Notify::new(),
            draining: CancellationToken::new(),
            beat: Notify::new(),
            announce: Notify::new(),
            connected: bus.connected(),
            bus,
            handlers,
            host: Arc::new(host),
            stats,
            settings,
        }
    }

    pub fn outbox(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether another batch of dispatches may be taken. The scheduler never sends more
    /// than `max_parallel`; should it, some of it may queue here.
    pub fn has_room(&self) -> bool {
        self.table.len() < self.settings.max_parallel + BACKLOG && !self.outbox().is_full()
    }

    /// The largest output that travels in the packet.
    pub fn inline_limit(&self) -> usize {
        self.settings.inline_limit.min(self.largest_inline())
    }

    /// The largest output that could.
    pub fn largest_inline(&self) -> usize {
        self.bus.max_payload().saturating_sub(PACKET_MARGIN)
    }

    /// Makes the job's result and sees it on its way. The result is in the outbox before
    /// the job leaves the table, so that an inventory finds it in one of them.
    pub fn complete(&self, job: &Job, ending: Ending, traceparent: Option<String>) {
        let counter = match &ending {
            Ending::Succeeded(_) => &self.stats.succeeded,
            Ending::Failed(_) => &self.stats.failed,
            Ending::Cancelled(_) => &self.stats.cancelled,
            Ending::TimedOut(_) => &self.stats.timed_out,
            Ending::NotStarted => &self.stats.handed_back,
        };
        let metrics = job.handler.as_ref().map(|h| &*h.metrics);
        let took = job.started().map(|s| s.at.elapsed()).unwrap_or_default();
        let metrics = metrics.unwrap_or_else(|| self.host.metrics.other());
        metrics.executed(&ending, took);
        log_end(job, &ending, took);
        let packet = self.speaker.result(job, ending, job::now());
        self.outbox().push(job.dispatch, packet, traceparent);
        self.unpublished.notify_one();
        Stats::add(counter, 1);
        self.table.remove(&job.dispatch);
        self.room.notify_one();
    }

    /// Has everything without a receipt published again.
    pub fn repeat_results(&self) {
        let count = self.outbox().repeat_all();
        if count > 0 {
            Stats::add(&self.stats.results_repeated, count);
            self.unpublished.notify_one();
        }
    }

    /// What `/metrics` shows.
    pub fn render_metrics(&self) -> String {
        self.host.metrics.render(Now {
            stats: self.stats.snapshot(),
            active: self.table.len(),
            capacity: self.settings.max_parallel,
            unconfirmed: self.outbox().len(),
            connected: *self.connected.borrow(),
            draining: self.draining.is_cancelled(),
        })
    }

    /// What to say of itself while it is up.
    pub fn phase(&self) -> Phase {
        if self.draining.is_cancelled() {
            Phase::Draining
        } else {
            Phase::Here
        }
    }

    pub async fn say_hello(&self, phase: Phase) {
        let heard = self.table.last_heard();
        let hello = self.speaker.hello(&self.settings, phase, heard, job::now());
        self.tell(subjects::HANDSHAKE, hello).await;
    }

    /// Core NATS: whoever missed it is told again by the next heartbeat or on asking.
    pub async fn tell(&self, subject: &str, packet: Bytes) {
        if let Err(error) = self.bus.send(subject, packet, None).await {
            tracing::debug!(subject, %error, "not sent");
        }
    }
}

/// What did not succeed names its job; the rest is for whoever looks closely. Whether it
/// is tried again is what the scheduler does by default: a topic may have rules of its own.
fn log_end(job: &Job, ending: &Ending, took: Duration) {
    let (attempt, topic) = (job.attempt(), job.request.topic.as_str());
    let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    let failed = |code: &str, error: &str, retryable: bool| {
        let most = u64::try_from(job.detail.max_attempts).unwrap_or(0);
        let will_retry = retryable && attempt < most;
        tracing::warn!(job_id = %job.id, attempt, topic, code, error, will_retry, took_ms, "the attempt failed");
    };
    let outcome = match ending {
        Ending::Failed(error) => {
            let retryable = error.kind() == JobErrorKind::Retryable;
            return failed(error.code(), error.message(), retryable);
        }
        Ending::TimedOut(words) => return failed("timeout", words, false),
        Ending::Succeeded(_) => "succeeded",
        Ending::Cancelled(_) => "cancelled",
        Ending::NotStarted => "not started",
    };
    tracing::debug!(job_id = %job.id, attempt, topic, outcome, took_ms, "the job has ended");
}
