//! What single workers hear: receipts, requests for a registration or an inventory, cancels.
//!
//! All of these may be lost: what matters is sent again.

use airlock_bus::subjects;
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::{cap, own};

use crate::commit::plan::Plan;
use crate::outbound::duplicate_workers;
use crate::term::Term;

/// Sends what a plan has for workers.
pub async fn send_control_messages(term: &Term, plan: Plan, inbox: &str) {
    let message =
        |control: own::WorkerControl| term.sign_packet("control", Payload::WorkerControl(control));
    for (worker, receipts) in plan.receipts {
        let payload = message(own::WorkerControl {
            epoch: term.ctx.epoch.0,
            ledger_id: term.ctx.ledger_id.to_string(),
            receipts,
            ..own::WorkerControl::default()
        });
        log_send_error(
            term.stores
                .bus
                .send(&subjects::worker_control(&worker), payload, None)
                .await,
        );
    }
    for worker in plan.hello {
        let payload = message(own::WorkerControl {
            epoch: term.ctx.epoch.0,
            ledger_id: term.ctx.ledger_id.to_string(),
            rehello: true,
            ..own::WorkerControl::default()
        });
        log_send_error(
            term.stores
                .bus
                .send(&subjects::worker_control(&worker), payload, None)
                .await,
        );
    }
    duplicate_workers::report_duplicates(term, plan.duplicates).await;
    for worker in plan.inventory {
        request_inventory(term, &worker, inbox).await;
    }
    for (job, run, reason) in plan.cancel {
        let cancel = cap::JobCancel {
            job_id: job.to_string(),
            reason,
            requested_by: term.ctx.instance.clone(),
            dispatch: Some(cap::DispatchIdentity {
                dispatch_id: run.dispatch.to_string(),
                attempt: u64::from(run.attempt.0),
                assigned_worker_id: run.worker.to_string(),
            }),
            ..cap::JobCancel::default()
        };
        let trace = run.dispatch.to_string();
        let payload = term.sign_packet(&trace, Payload::JobCancel(cancel));
        log_send_error(
            term.stores
                .bus
                .send(subjects::JOB_CANCEL, payload, None)
                .await,
        );
    }
}

/// Answers a worker that introduced itself. The packet's time tells it our clock.
pub async fn reply_to_handshake(term: &Term, worker: &airlock_model::WorkerId) {
    let control = own::WorkerControl {
        epoch: term.ctx.epoch.0,
        ledger_id: term.ctx.ledger_id.to_string(),
        ..own::WorkerControl::default()
    };
    let payload = term.sign_packet("control", Payload::WorkerControl(control));
    log_send_error(
        term.stores
            .bus
            .send(&subjects::worker_control(worker), payload, None)
            .await,
    );
}

/// Asks a worker what it is running and has finished.
pub async fn request_inventory(term: &Term, worker: &airlock_model::WorkerId, inbox: &str) {
    let control = own::WorkerControl {
        epoch: term.ctx.epoch.0,
        ledger_id: term.ctx.ledger_id.to_string(),
        inventory: true,
        ..own::WorkerControl::default()
    };
    let payload = term.sign_packet("control", Payload::WorkerControl(control));
    let subject = subjects::worker_control(worker);
    log_send_error(
        term.stores
            .bus
            .send_with_reply(&subject, inbox, payload)
            .await,
    );
}

/// These may be lost: what matters is asked or told again.
fn log_send_error<E: std::fmt::Display>(sent: Result<(), E>) {
    if let Err(error) = sent {
        tracing::debug!(%error, "a worker was not told");
    }
}
