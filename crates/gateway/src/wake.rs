//! Wake-ups: telling the schedulers that there is something new.
//!
//! A wake-up is a hint. The ledger has the job, and the scheduler's replayer finds what
//! no wake-up announced, so nothing here is repeated and no client waits for it: a
//! wake-up that is lost costs time and is counted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use airlock_bus::subjects::Subject;
use airlock_bus::{Bus, Outgoing, subjects};
use airlock_ledger::{Approval, NewJob};
use airlock_model::{Due, Timestamp};
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::cap::{AlertSeverity, JobCancel, JobRequest, SystemAlert};
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

    /// Announces that an approved job is PENDING again. The change log tells the leader
    /// too, a little later.
    pub fn approved(&self, approval: &Approval) {
        let Some(bus) = self.links.bus() else {
            self.lost(1);
            return;
        };
        let request = JobRequest {
            job_id: approval.job_id.as_str().to_owned(),
            topic: approval.spec.topic.as_str().to_owned(),
            priority: i32::from(approval.spec.priority.code()),
            tenant_id: approval.tenant.as_str().to_owned(),
            ..JobRequest::default()
        };
        let payload = Payload::JobRequest(request);
        let message = Outgoing {
            subject: subjects::JOB_SUBMIT.to_owned(),
            payload: packet::seal(SENDER, &approval.trace_id, now(), payload),
            msg_id: None,
            traceparent: Some(approval.traceparent.clone()),
        };
        let waker = self.clone();
        self.tasks.spawn("approved", OnFailure::Log, async move {
            if let Err(error) = bus.publish(message).await {
                tracing::debug!(%error, "the wake-up of an approved job is lost");
                waker.lost(1);
            }
        });
    }

    /// Tells whoever collects the audit trail; the ledger has it already.
    pub fn audit(&self, kind: &'static str, approval: &Approval) {
        let details = [
            ("kind", kind.to_owned()),
            ("job_id", approval.job_id.to_string()),
            ("tenant_id", approval.tenant.to_string()),
            ("rule_id", approval.rule_id.clone()),
            ("round", approval.round.to_string()),
            ("status", approval.status.as_str().to_owned()),
            (
                "reason",
                approval.decided_reason.clone().unwrap_or_default(),
            ),
        ];
        self.tell(kind, &approval.trace_id, details.map(own_key).into(), false);
    }

    /// Tells the kernels to look at the bundles again, and the audit trail of it.
    pub fn policy_changed(&self, kind: &'static str, name: &str, version: u64) {
        let details = [
            ("kind", kind.to_owned()),
            ("name", name.to_owned()),
            ("version", version.to_string()),
        ];
        self.tell(
            kind,
            &crate::trace::fresh_id(),
            details.map(own_key).into(),
            true,
        );
    }

    fn tell(
        &self,
        kind: &'static str,
        trace_id: &str,
        details: BTreeMap<String, String>,
        config: bool,
    ) {
        let Some(bus) = self.links.bus() else { return };
        let alert = SystemAlert {
            message: kind.to_owned(),
            severity: AlertSeverity::Info.into(),
            source_component: SENDER.to_owned(),
            trace_id: trace_id.to_owned(),
            details,
            ..SystemAlert::default()
        };
        let packet = packet::seal(SENDER, trace_id, now(), Payload::Alert(alert));
        self.tasks.spawn("audit", OnFailure::Log, async move {
            if config
                && let Err(error) = bus
                    .send(subjects::CONFIG_CHANGED, packet.clone(), None)
                    .await
            {
                // The kernels look by themselves every few seconds.
                tracing::debug!(%error, "a change of the policy was not announced");
            }
            let message = Outgoing {
                subject: Subject::Audit(kind.to_owned()).to_string(),
                payload: packet,
                msg_id: None,
                traceparent: None,
            };
            if let Err(error) = bus.publish(message).await {
                tracing::debug!(%error, kind, "the audit trail was not told; the ledger has it");
            }
        });
    }

    fn lost(&self, count: usize) {
        self.metrics
            .wakeups_lost
            .inc_by(u64::try_from(count).unwrap_or(u64::MAX));
    }
}

fn own_key((key, value): (&str, String)) -> (String, String) {
    (key.to_owned(), value)
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
