//! Wake-ups: telling the schedulers that there is something new.
//!
//! A wake-up is a hint. The ledger has the job, and the scheduler's replayer finds what
//! no wake-up announced, so nothing here is repeated and no client waits for it: a
//! wake-up that is lost costs time and is counted.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use airlock_bus::{Bus, Outgoing, subjects};
use airlock_ledger::NewJob;
use airlock_model::{Due, Timestamp};
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::cap::{JobCancel, JobRequest};
use airlock_proto::packet;
use airlock_service::{Context, OnFailure, Supervisor};
use bytes::Bytes;
use tokio::sync::Semaphore;

use crate::links::Links;
use crate::metrics::GatewayMetrics;

/// How the gateway signs its packets.
const SENDER: &str = "gateway";

#[derive(Clone)]
pub struct Waker {
    links: Links,
    tasks: Supervisor,
    permits: Arc<Semaphore>,
    metrics: GatewayMetrics,
}

impl Waker {
    /// At most `publishers` batches are on their way at once.
    pub fn new(publishers: usize, links: &Links, metrics: &GatewayMetrics, ctx: &Context) -> Self {
        Self {
            links: links.clone(),
            tasks: ctx.tasks.clone(),
            permits: Arc::new(Semaphore::new(publishers)),
            metrics: metrics.clone(),
        }
    }

    /// Announces those of `jobs` that were accepted and are due.
    pub fn wake(&self, mut jobs: Vec<NewJob>, accepted: &[bool]) {
        let now = now();
        let mut accepted = accepted.iter();
        jobs.retain(|job| accepted.next() == Some(&true) && is_due(job, now));
        if jobs.is_empty() {
            return;
        }
        let permit = Arc::clone(&self.permits).try_acquire_owned();
        let (Some(bus), Ok(permit)) = (self.links.bus(), permit) else {
            self.lost(jobs.len());
            return;
        };
        let waker = self.clone();
        self.tasks.spawn("wake", OnFailure::Log, async move {
            let messages = jobs.iter().map(|job| submit_message(job, now)).collect();
            let results = bus.publish_all(messages).await;
            let lost = results.iter().filter(|r| r.is_err()).count();
            if let Some(Err(error)) = results.iter().find(|r| r.is_err()) {
                tracing::debug!(%error, lost, "wake-ups lost");
            }
            waker.lost(lost);
            drop(permit);
        });
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

/// A job with a time of its own is claimed by the leader when that comes.
fn is_due(job: &NewJob, now: Timestamp) -> bool {
    match job.spec.due {
        None => true,
        Some(Due::At(at)) => at <= now,
        Some(Due::After(ms)) => ms == 0,
    }
}

/// Only what identifies the job: the scheduler reads the rest from the ledger.
fn submit_message(job: &NewJob, now: Timestamp) -> Outgoing {
    let request = JobRequest {
        job_id: job.job_id.as_str().to_owned(),
        topic: job.spec.topic.as_str().to_owned(),
        priority: i32::from(job.spec.priority.code()),
        tenant_id: job.tenant.as_str().to_owned(),
        principal_id: job.spec.principal_id.clone().unwrap_or_default(),
        workflow_id: job.spec.workflow_id.clone().unwrap_or_default(),
        ..JobRequest::default()
    };
    Outgoing {
        subject: subjects::JOB_SUBMIT.to_owned(),
        payload: packet::seal(SENDER, &job.trace_id, now, Payload::JobRequest(request)),
        // A wake-up may come twice, so it needs no place in the stream's memory of ids.
        msg_id: None,
        traceparent: Some(job.traceparent.clone()),
    }
}

/// This machine's time; only for packets and to tell whether a job is due. The
/// ledger's clock decides when it runs.
pub fn now() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}
