//! Worker ids that two live processes go by: said loudly, since only one of them is given
//! work.

use airlock_bus::subjects;
use airlock_model::engine::Engine;
use airlock_model::{Incarnation, WorkerId};
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::own;

use crate::term::{Term, TermContext};

/// The component of health that shows them.
const COMPONENT: &str = "workers";

/// Ids named in health; the log has all of them.
const MAX_NAMED: usize = 10;

/// Shows in metrics and health which ids are duplicate now.
pub fn show_duplicates(ctx: &TermContext, engine: &Engine) {
    let count = engine.duplicate_worker_ids().count();
    let before = ctx.metrics.duplicate_ids.set(count as i64);
    if count > 0 {
        let ids: Vec<&str> = engine
            .duplicate_worker_ids()
            .take(MAX_NAMED)
            .map(WorkerId::as_str)
            .collect();
        let ids = ids.join(", ");
        let message = format!("worker ids used by more than one live process: {ids}");
        ctx.health.degraded(COMPONENT, message);
    } else if before > 0 {
        tracing::info!("duplicate worker ids gone");
        ctx.health.ok(COMPONENT);
    }
}

/// Whoever leads next finds them itself.
pub fn clear_duplicates(ctx: &TermContext) {
    ctx.metrics.duplicate_ids.set(0);
    ctx.health.remove(COMPONENT);
}

/// Logs and counts newly found ones, and tells the processes themselves.
pub async fn report_duplicates(term: &Term, found: Vec<(WorkerId, [Incarnation; 2])>) {
    for (worker, processes) in found {
        term.ctx.metrics.duplicates_found.inc();
        let [given_work, other] = &processes;
        tracing::error!(%worker, %given_work, %other, "duplicate worker id, only one process is given work");
        let control = own::WorkerControl {
            epoch: term.ctx.epoch.0,
            ledger_id: term.ctx.ledger_id.to_string(),
            same_id: processes.iter().map(ToString::to_string).collect(),
            ..own::WorkerControl::default()
        };
        let payload = term.sign_packet("control", Payload::WorkerControl(control));
        let subject = subjects::worker_control(&worker);
        if let Err(error) = term.stores.bus.send(&subject, payload, None).await {
            tracing::debug!(%worker, %error, "sending a duplicate id notice failed");
        }
    }
}
