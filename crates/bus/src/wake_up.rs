//! Wake-ups: telling the scheduler's leader that the ledger has new jobs. For every service
//! that submits jobs.
//!
//! A wake-up is a hint. The ledger has the job, and the scheduler's replayer finds what no
//! wake-up announced, so nobody waits for one. A wake-up that cannot be sent is retried in
//! the background ([`WakeUps::send_deferred`]); one that is given up costs time and is counted.

mod pending;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use airlock_model::Timestamp;
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::{ahead, own, packet};
use bytes::Bytes;
use tokio::sync::Semaphore;

use crate::{Bus, Outgoing, subjects};
use pending::PendingWakeUps;

type BusSource = Box<dyn Fn() -> Option<Bus> + Send + Sync>;
type OnLost = Box<dyn Fn(usize) + Send + Sync>;

/// Publishes wake-ups. Cheap to clone.
#[derive(Clone)]
pub struct WakeUps(Arc<Inner>);

struct Inner {
    sender: &'static str,
    bus: BusSource,
    /// Batches that may be on their way at once.
    permits: Semaphore,
    pending: PendingWakeUps,
    on_lost: OnLost,
}

impl WakeUps {
    /// `sender` is the service. `bus` is called for each batch, because a service accepts
    /// jobs before its bus is connected; `on_lost` is told how many jobs' wake-ups were
    /// given up. At most `publishers` batches are on their way at once.
    pub fn new(
        sender: &'static str,
        publishers: usize,
        bus: impl Fn() -> Option<Bus> + Send + Sync + 'static,
        on_lost: impl Fn(usize) + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(Inner {
            sender,
            bus: Box::new(bus),
            permits: Semaphore::new(publishers),
            pending: PendingWakeUps::default(),
            on_lost: Box::new(on_lost),
        }))
    }

    /// Announces jobs that are committed and due, together: a message costs the bus and
    /// every reader the same whether it names one job or hundreds. `speculation` is the id
    /// under which the leader was told of them before the commit. What cannot be sent is
    /// left to [`Self::send_deferred`].
    pub async fn publish(
        &self,
        job_ids: Vec<String>,
        speculation: Option<ahead::Id>,
        trace_id: &str,
    ) {
        let (Some(bus), Ok(_permit)) = ((self.0.bus)(), self.0.permits.try_acquire()) else {
            self.defer(job_ids);
            return;
        };
        let chunks = job_ids.chunks(packet::WAKE_JOBS);
        let messages = chunks
            .clone()
            .map(|ids| self.build_message(ids.to_vec(), speculation, trace_id))
            .collect();
        let results = bus.publish_all(messages).await;
        for (ids, result) in chunks.zip(results) {
            if let Err(error) = result {
                tracing::debug!(%error, jobs = ids.len(), "wake-up not sent, retrying");
                self.defer(ids.to_vec());
            }
        }
    }

    /// Leaves the wake-ups of these jobs to [`Self::send_deferred`].
    pub fn defer(&self, job_ids: Vec<String>) {
        self.report_lost(self.0.pending.push_all(job_ids.into_iter()));
    }

    /// Sends what could not be sent before, for ever. `trace_id` is called for each message,
    /// whose jobs come from many traces.
    pub async fn send_deferred(&self, trace_id: impl Fn() -> String) {
        self.0
            .pending
            .send_all(|ids| self.publish_wake_up(ids, trace_id()))
            .await;
    }

    /// Gives up what is still pending, and says so.
    pub fn abandon_pending(&self) {
        self.report_lost(self.0.pending.len());
    }

    /// Whether the stream has it.
    async fn publish_wake_up(&self, ids: Vec<String>, trace_id: String) -> bool {
        let (Some(bus), Ok(_permit)) = ((self.0.bus)(), self.0.permits.acquire().await) else {
            return false;
        };
        let message = self.build_message(ids, None, &trace_id);
        bus.publish(message).await.is_ok()
    }

    fn report_lost(&self, jobs: usize) {
        if jobs > 0 {
            (self.0.on_lost)(jobs);
        }
    }

    /// Only which jobs: the scheduler reads the rest from the ledger. A wake-up may come
    /// twice, so it needs no place in the stream's memory of ids.
    fn build_message(
        &self,
        job_ids: Vec<String>,
        speculation: Option<ahead::Id>,
        trace_id: &str,
    ) -> Outgoing {
        let ahead = speculation.map(|id| Bytes::copy_from_slice(&id));
        let wake = Payload::Wake(own::Wake {
            job_ids,
            ahead: ahead.unwrap_or_default(),
        });
        Outgoing {
            subject: subjects::JOB_SUBMIT.to_owned(),
            payload: packet::encode(self.0.sender, trace_id, wall_clock_now(), wake),
            msg_id: None,
            traceparent: None,
        }
    }
}

/// This machine's time, which only the packet carries.
fn wall_clock_now() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}
