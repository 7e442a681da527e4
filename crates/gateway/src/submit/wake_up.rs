//! Wake-ups: telling the schedulers that there is something new.
//!
//! A wake-up is a hint. The ledger has the job, and the scheduler's replayer finds what
//! no wake-up announced, so no client waits for it. One that could not go out is tried
//! again behind ([`late`](crate::submit::pending)); one that is lost costs time and is counted.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use airlock_bus::{Bus, Outgoing, subjects};
use airlock_ledger::{Approval, NewJob};
use airlock_model::Timestamp;
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::cap::{AlertSeverity, JobCancel, SystemAlert};
use airlock_proto::{ahead, own, packet};
use airlock_service::{Context, OnFailure, Supervisor};
use bytes::Bytes;
use futures::FutureExt;
use tokio::sync::Semaphore;

use crate::connections::Links;
use crate::metrics::GatewayMetrics;
use crate::submit::pending::Late;
use crate::submit::speculative::tell;

/// How the gateway signs its packets.
pub const SENDER: &str = "gateway";

/// How much later the stream has a wake-up of what the leader was told of ahead.
const STREAM_LAG: Duration = Duration::from_millis(5);

#[derive(Clone)]
pub struct Waker {
    links: Links,
    tasks: Supervisor,
    permits: Arc<Semaphore>,
    late: Arc<Late>,
    metrics: GatewayMetrics,
}

impl Waker {
    /// At most `publishers` batches are on their way at once.
    pub fn new(publishers: usize, links: &Links, metrics: &GatewayMetrics, ctx: &Context) -> Self {
        let waker = Self {
            links: links.clone(),
            tasks: ctx.tasks.clone(),
            permits: Arc::new(Semaphore::new(publishers)),
            late: Arc::default(),
            metrics: metrics.clone(),
        };
        let (again, shutdown) = (waker.clone(), ctx.shutdown.clone());
        ctx.tasks
            .spawn("late wake-ups", OnFailure::StopService, async move {
                let send = |ids| {
                    let waker = again.clone();
                    async move { waker.announce_late(ids).await }
                };
                tokio::select! {
                    () = shutdown.cancelled() => {}
                    () = again.late.run(send) => {}
                }
                again.lost(again.late.waiting());
            });
        waker
    }

    /// Tells the leader of jobs whose commit begins, unless the bus would have us wait.
    pub fn ahead(&self, id: ahead::Id, jobs: &[NewJob]) -> bool {
        let (Some(bus), Some(key)) = (self.links.bus(), self.links.ahead_key()) else {
            return false;
        };
        tell(&bus, key, id, jobs).now_or_never() == Some(true)
    }

    /// Announces those of `jobs` that are `due`: accepted, and without a time at which the
    /// leader claims them by itself. That is the ledger's word, never this machine's clock.
    /// A little later when the leader was told of them (`ahead`). Otherwise the bus has had its turn to send when it
    /// returns: what its caller does next does not hold them up.
    pub async fn wake(&self, mut jobs: Vec<NewJob>, due: &[bool], ahead: Option<ahead::Id>) {
        let now = now();
        let told = jobs.len();
        let mut due = due.iter();
        jobs.retain(|_| due.next() == Some(&true));
        // What was told of is committed as a whole, or read from the ledger.
        let ahead = ahead.filter(|_| jobs.len() == told);
        if jobs.is_empty() {
            return;
        }
        let Some(bus) = self.links.bus() else {
            self.later(&jobs);
            return;
        };
        let waker = self.clone();
        let mut announcing = Box::pin(async move {
            waker.announce(&bus, &jobs, ahead, now).await;
        });
        // The first step hands them to the bus, if they are to go at once; the rest waits
        // for its word.
        if futures::poll!(announcing.as_mut()).is_pending() {
            self.tasks.spawn("wake", OnFailure::Log, announcing);
            tokio::task::yield_now().await;
        }
    }

    /// What was committed together is announced together: a message costs the bus and
    /// every reader the same whether it names one job or hundreds.
    async fn announce(&self, bus: &Bus, jobs: &[NewJob], ahead: Option<ahead::Id>, now: Timestamp) {
        if ahead.is_some() {
            // The leader has them. The stream is for what was missed, and would only be in
            // the way now.
            tokio::time::sleep(STREAM_LAG).await;
        }
        let chunks = jobs.chunks(packet::WAKE_JOBS);
        let messages = chunks.clone().map(|jobs| {
            let ids = jobs.iter().map(|job| job.job_id.to_string()).collect();
            wake_message(ids, ahead, &jobs[0].trace_id, now)
        });
        let messages: Vec<Outgoing> = messages.collect();
        let Ok(_permit) = self.permits.try_acquire() else {
            self.later(jobs);
            return;
        };
        let results = bus.publish_all(messages).await;
        for (jobs, result) in chunks.zip(results) {
            if let Err(error) = result {
                tracing::debug!(%error, jobs = jobs.len(), "a wake-up is late");
                self.later(jobs);
            }
        }
    }

    fn later(&self, jobs: &[NewJob]) {
        let lost = self.late.put(jobs.iter().map(|job| job.job_id.to_string()));
        self.lost(lost);
    }

    /// Whether the stream has it.
    async fn announce_late(&self, ids: Vec<String>) -> bool {
        let (Some(bus), Ok(_permit)) = (self.links.bus(), self.permits.acquire().await) else {
            return false;
        };
        let message = wake_message(ids, None, &crate::trace::fresh_id(), now());
        bus.publish(message).await.is_ok()
    }

    /// Tells workers and schedulers of a cancellation that is committed.
    pub fn cancelled(&self, cancel: JobCancel, trace_id: &str) {
        let Some(bus) = self.links.bus() else { return };
        let job_id = cancel.job_id.clone();
        let packet = packet::seal(SENDER, trace_id, now(), Payload::JobCancel(cancel));
        self.tasks.spawn("cancel", OnFailure::Log, async move {
            send_cancel(&bus, &job_id, packet).await;
        });
    }

    /// Announces that an approved job is PENDING again. The change log tells the leader
    /// too, a little later.
    pub fn approved(&self, approval: &Approval) {
        let Some(bus) = self.links.bus() else {
            self.lost(1);
            return;
        };
        let id = approval.job_id.to_string();
        let message = wake_message(vec![id], None, &approval.trace_id, now());
        let waker = self.clone();
        self.tasks.spawn("approved", OnFailure::Log, async move {
            if let Err(error) = bus.publish(message).await {
                tracing::debug!(%error, "the wake-up of an approved job is lost");
                waker.lost(1);
            }
        });
    }

    /// Tells the kernels to look at the bundles again. The audit trail, which the
    /// transaction wrote, is told by the scheduler.
    pub fn policy_changed(&self, kind: &'static str, name: &str, version: u64) {
        let Some(bus) = self.links.bus() else { return };
        let trace_id = crate::trace::fresh_id();
        let details = [
            ("kind", kind.to_owned()),
            ("name", name.to_owned()),
            ("version", version.to_string()),
        ];
        let alert = SystemAlert {
            message: kind.to_owned(),
            severity: AlertSeverity::Info.into(),
            source_component: SENDER.to_owned(),
            trace_id: trace_id.clone(),
            details: details.map(|(k, v)| (k.to_owned(), v)).into(),
            ..SystemAlert::default()
        };
        let packet = packet::seal(SENDER, &trace_id, now(), Payload::Alert(alert));
        self.tasks.spawn("policy", OnFailure::Log, async move {
            if let Err(error) = bus.send(subjects::CONFIG_CHANGED, packet, None).await {
                // The kernels look by themselves every few seconds.
                tracing::debug!(%error, "a change of the policy was not announced");
            }
        });
    }

    fn lost(&self, count: usize) {
        self.metrics
            .wakeups_lost
            .inc_by(u64::try_from(count).unwrap_or(u64::MAX));
    }
}

async fn send_cancel(bus: &Bus, job_id: &str, packet: Bytes) {
    if let Err(error) = bus.send(subjects::JOB_CANCEL, packet, None).await {
        // The change log tells the leader, who tells the worker.
        tracing::debug!(%error, job_id, "a cancellation was not announced");
    }
}

/// Only which jobs: the scheduler reads the rest from the ledger. A wake-up may come
/// twice, so it needs no place in the stream's memory of ids.
fn wake_message(
    job_ids: Vec<String>,
    ahead: Option<ahead::Id>,
    trace_id: &str,
    now: Timestamp,
) -> Outgoing {
    let ahead = ahead.map(|id| Bytes::copy_from_slice(&id));
    let wake = Payload::Wake(own::Wake {
        job_ids,
        ahead: ahead.unwrap_or_default(),
    });
    Outgoing {
        subject: subjects::JOB_SUBMIT.to_owned(),
        payload: packet::seal(SENDER, trace_id, now, wake),
        msg_id: None,
        traceparent: None,
    }
}

/// This machine's time; only for packets. The ledger's clock decides when a job is due.
pub fn now() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}
