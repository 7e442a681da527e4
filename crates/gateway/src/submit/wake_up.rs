//! What the gateway announces on the bus once it is committed: jobs ([`WakeUps`]),
//! cancellations, and changes of the policy. All of it is a hint; the ledger has the truth.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use airlock_bus::{Bus, WakeUps, subjects};
use airlock_ledger::{Approval, NewJob};
use airlock_model::Timestamp;
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::cap::{AlertSeverity, JobCancel, SystemAlert};
use airlock_proto::{ahead, packet};
use airlock_service::{Context, OnFailure, Supervisor};
use bytes::Bytes;
use futures::FutureExt;

use crate::connections::Links;
use crate::metrics::GatewayMetrics;
use crate::submit::speculative::announce_jobs;

/// How the gateway signs its packets.
pub const SENDER: &str = "gateway";

/// How much later the stream has a wake-up of what the leader was told of ahead.
const STREAM_LAG: Duration = Duration::from_millis(5);

/// Announces what this gateway committed.
#[derive(Clone)]
pub struct Waker {
    links: Links,
    tasks: Supervisor,
    wake_ups: WakeUps,
}

impl Waker {
    /// At most `publishers` batches are on their way at once.
    pub fn new(publishers: usize, links: &Links, metrics: &GatewayMetrics, ctx: &Context) -> Self {
        let (source, counted) = (links.clone(), metrics.clone());
        let wake_ups = WakeUps::new(
            SENDER,
            publishers,
            move || source.bus(),
            move |jobs| counted.count_lost_wake_ups(jobs),
        );
        let (pending, shutdown) = (wake_ups.clone(), ctx.shutdown.clone());
        ctx.tasks
            .spawn("pending wake-ups", OnFailure::StopService, async move {
                tokio::select! {
                    () = shutdown.cancelled() => {}
                    () = pending.send_deferred(crate::trace::new_trace_id) => {}
                }
                pending.abandon_pending();
            });
        Self {
            links: links.clone(),
            tasks: ctx.tasks.clone(),
            wake_ups,
        }
    }

    /// Tells the leader of jobs whose commit begins, unless the bus would have us wait.
    pub fn announce_before_commit(&self, id: ahead::Id, jobs: &[NewJob]) -> bool {
        let (Some(bus), Some(key)) = (self.links.bus(), self.links.speculation_key()) else {
            return false;
        };
        announce_jobs(&bus, key, id, jobs).now_or_never() == Some(true)
    }

    /// Announces those of `jobs` that are `due`: accepted, and without a time at which the
    /// leader claims them by itself. The ledger decides that, never this machine's clock.
    /// It happens a little later when the leader was told of them before (`ahead`). Otherwise
    /// the bus has had its turn to send when this returns: what its caller does next does not
    /// hold them up.
    pub async fn wake_scheduler(
        &self,
        mut jobs: Vec<NewJob>,
        due: &[bool],
        ahead: Option<ahead::Id>,
    ) {
        let all = jobs.len();
        let mut due = due.iter();
        jobs.retain(|_| due.next() == Some(&true));
        // What was told of is committed as a whole, or read from the ledger.
        let ahead = ahead.filter(|_| jobs.len() == all);
        let Some(trace_id) = jobs.first().map(|job| job.trace_id.clone()) else {
            return;
        };
        let ids: Vec<String> = jobs.iter().map(|job| job.job_id.to_string()).collect();
        drop(jobs);
        let wake_ups = self.wake_ups.clone();
        let mut publishing = Box::pin(async move {
            if ahead.is_some() {
                // The leader has them. The stream is for what was missed, and would only be
                // in the way now.
                tokio::time::sleep(STREAM_LAG).await;
            }
            wake_ups.publish(ids, ahead, &trace_id).await;
        });
        // The first step hands them to the bus, if they are to go at once; the rest waits
        // for its acknowledgement.
        if futures::poll!(publishing.as_mut()).is_pending() {
            self.tasks.spawn("wake-up", OnFailure::Log, publishing);
            tokio::task::yield_now().await;
        }
    }

    /// Tells workers and schedulers of a cancellation that is committed.
    pub fn publish_cancel(&self, cancel: JobCancel, trace_id: &str) {
        let Some(bus) = self.links.bus() else { return };
        let job_id = cancel.job_id.clone();
        let packet = packet::encode(SENDER, trace_id, local_now(), Payload::JobCancel(cancel));
        self.tasks.spawn("cancel", OnFailure::Log, async move {
            send_cancel(&bus, &job_id, packet).await;
        });
    }

    /// Announces that an approved job is PENDING again. The change log tells the leader
    /// too, a little later.
    pub fn publish_approval(&self, approval: &Approval) {
        let (id, trace_id) = (approval.job_id.to_string(), approval.trace_id.clone());
        let wake_ups = self.wake_ups.clone();
        self.tasks.spawn("approved", OnFailure::Log, async move {
            wake_ups.publish(vec![id], None, &trace_id).await;
        });
    }

    /// Tells the kernels to look at the bundles again. The audit trail, which the
    /// transaction wrote, is told by the scheduler.
    pub fn publish_policy_change(&self, kind: &'static str, name: &str, version: u64) {
        let Some(bus) = self.links.bus() else { return };
        let trace_id = crate::trace::new_trace_id();
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
        let packet = packet::encode(SENDER, &trace_id, local_now(), Payload::Alert(alert));
        self.tasks.spawn("policy", OnFailure::Log, async move {
            if let Err(error) = bus.send(subjects::CONFIG_CHANGED, packet, None).await {
                // The kernels look by themselves every few seconds.
                tracing::debug!(%error, "policy change not announced");
            }
        });
    }
}

async fn send_cancel(bus: &Bus, job_id: &str, packet: Bytes) {
    if let Err(error) = bus.send(subjects::JOB_CANCEL, packet, None).await {
        // The change log tells the leader, who tells the worker.
        tracing::debug!(%error, job_id, "cancellation not announced");
    }
}

/// This machine's time; only for packets and for the expiry of API keys. The ledger's
/// clock decides when a job is due.
pub fn local_now() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}
