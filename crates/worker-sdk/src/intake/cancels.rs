//! Cancels: which of the jobs here they mean.

use std::sync::Arc;
use std::time::Instant;

use airlock_bus::Subscription;
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::{cap, packet};
use uuid::Uuid;

use crate::run::job::StopCause;
use crate::worker::shared::Shared;

pub(crate) async fn receive_cancels(shared: Arc<Shared>, mut subscription: Subscription) {
    while let Some(incoming) = subscription.recv().await {
        let keys = &shared.settings.keys;
        if !keys.is_signed_by_scheduler(&incoming.payload, "cancel", &shared.stats) {
            continue;
        }
        match packet::decode(incoming.payload) {
            Ok((_, Payload::JobCancel(cancel))) => cancel_job(&shared, cancel),
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "unreadable cancel dropped"),
        }
    }
}

fn cancel_job(shared: &Shared, cancel: cap::JobCancel) {
    let named = cancel.dispatch.filter(|d| !d.dispatch_id.is_empty());
    let dispatch = match &named {
        // Every worker receives every cancel.
        Some(run)
            if !run.assigned_worker_id.is_empty()
                && run.assigned_worker_id != shared.settings.id.as_str() =>
        {
            return;
        }
        Some(run) => match Uuid::parse_str(&run.dispatch_id) {
            Ok(dispatch) => Some(dispatch),
            Err(_) => return,
        },
        None => None,
    };
    let reason = match cancel.reason.as_str() {
        "" => format!("cancelled by {}", cancel.requested_by),
        reason => reason.to_owned(),
    };
    let grace = shared.settings.cancel_grace;
    for job in shared
        .table
        .find_or_remember_cancelled(&cancel.job_id, dispatch, &reason)
    {
        tracing::info!(job_id = %job.id, reason, "cancelling job");
        job.stop(StopCause::Cancelled(reason.clone()), Instant::now(), grace);
    }
}
