//! Control messages of the scheduler: receipts, requests for an inventory or a handshake,
//! warnings of a duplicate worker id, and at times a dispatch.

use std::sync::Arc;

use airlock_bus::Subscription;
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::{own, packet};
use uuid::Uuid;

use crate::intake::deliveries;
use crate::worker::clock;
use crate::worker::shared::Shared;

pub(crate) async fn receive_control_messages(shared: Arc<Shared>, mut subscription: Subscription) {
    while let Some(incoming) = subscription.recv().await {
        let keys = &shared.settings.keys;
        if !keys.is_signed_by_scheduler(&incoming.payload, "control", &shared.stats) {
            continue;
        }
        let control = match packet::decode(incoming.payload) {
            Ok((envelope, Payload::WorkerControl(control))) => {
                if let Some(sent) = packet::sent_at(&envelope) {
                    let (sent, now) = (sent.as_millis(), clock::steady_clock_now().as_millis());
                    let (ledger, epoch) = (&control.ledger_id, control.epoch);
                    shared.offsets.observe_sent_time(ledger, epoch, sent, now);
                }
                control
            }
            Ok((envelope, Payload::JobRequest(request))) => {
                deliveries::accept_direct_dispatch(
                    &shared,
                    &envelope,
                    request,
                    incoming.traceparent,
                );
                continue;
            }
            Ok(_) => continue,
            Err(error) => {
                tracing::warn!(%error, "unreadable control message dropped");
                continue;
            }
        };
        handle_control_message(&shared, &control, incoming.reply).await;
    }
}

async fn handle_control_message(
    shared: &Shared,
    control: &own::WorkerControl,
    reply: Option<String>,
) {
    if !shared.table.note_epoch(&control.ledger_id, control.epoch) {
        shared.handshake_wanted.notify_one();
    }
    apply_receipts(shared, control);
    if !control.same_id.is_empty() {
        warn_of_duplicate_worker_id(shared, &control.same_id);
    }
    if control.inventory {
        send_inventory(shared, reply).await;
    }
    if control.rehello {
        shared.send_handshake(shared.handshake_phase()).await;
        shared.heartbeat_now.notify_one();
    }
}

fn apply_receipts(shared: &Shared, control: &own::WorkerControl) {
    if control.receipts.is_empty() {
        return;
    }
    let mut outbox = shared.outbox();
    for id in &control.receipts {
        match Uuid::parse_str(id) {
            Ok(id) => outbox.remove_receipted(&id),
            Err(error) => tracing::warn!(id, %error, "receipt with an invalid dispatch id"),
        }
    }
    drop(outbox);
    shared.room.notify_one();
    shared.receipted.notify_one();
}

/// Another live process uses the id of this one: whoever deployed them must know.
fn warn_of_duplicate_worker_id(shared: &Shared, processes: &[String]) {
    let own = shared.packets.incarnation.as_str();
    let others: Vec<&str> = processes
        .iter()
        .map(String::as_str)
        .filter(|p| *p != own)
        .collect();
    tracing::error!(
        worker = %shared.settings.id,
        incarnation = own,
        others = others.join(" "),
        "another process runs under this worker id, and only one of them is given work; leave WORKER_ID unset or give each its own"
    );
}

async fn send_inventory(shared: &Shared, reply: Option<String>) {
    // In this order: a job that ends in between is then in both lists, not in neither.
    let running = shared.table.dispatch_ids();
    let finished = shared
        .outbox()
        .dispatch_ids()
        .map(Uuid::to_string)
        .collect();
    if let Some(reply) = reply {
        let latest = shared.table.latest_epoch();
        let packet = shared
            .packets
            .inventory(running, finished, latest, clock::wall_clock_now());
        shared.send_packet(&reply, packet).await;
    }
    shared.republish_results();
}
