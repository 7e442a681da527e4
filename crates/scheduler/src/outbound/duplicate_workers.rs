//! Worker ids that two live processes go by: said loudly, since only one of them is given
//! work.

use airlock_bus::subjects;
use airlock_model::engine::Engine;
use airlock_model::{Incarnation, WorkerId};
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::own;

use crate::term::Term;

/// The component of health that shows them.
const COMPONENT: &str = "workers";

/// Ids named in health; the log has all of them.
const MAX_NAMED: usize = 10;

/// Shows in metrics and health which ids are duplicate now.
pub fn show(term: &Term, engine: &Engine) {
    let count = engine.duplicate_worker_ids().count();
    let before = term.metrics.duplicate_ids.set(count as i64);
    if count > 0 {
        let ids: Vec<&str> = engine
            .duplicate_worker_ids()
            .take(MAX_NAMED)
            .map(WorkerId::as_str)
            .collect();
        let ids = ids.join(", ");
        let message = format!("worker ids used by more than one live process: {ids}");
        term.health.degraded(COMPONENT, message);
    } else if before > 0 {
        tracing::info!("no worker id is used by more than one process any more");
        term.health.ok(COMPONENT);
    }
}

/// Whoever leads next finds them itself.
pub fn forget(term: &Term) {
    term.metrics.duplicate_ids.set(0);
    term.health.remove(COMPONENT);
}

/// Logs and counts newly found ones, and tells the processes themselves.
pub async fn report(term: &Term, found: Vec<(WorkerId, [Incarnation; 2])>) {
    for (worker, processes) in found {
        term.metrics.duplicates_found.inc();
        let [given_work, other] = &processes;
        tracing::error!(%worker, %given_work, %other, "two live processes use one worker id; only one of them is given work");
        let control = own::WorkerControl {
            epoch: term.epoch.0,
            ledger_id: term.ledger_id.to_string(),
            same_id: processes.iter().map(ToString::to_string).collect(),
            ..own::WorkerControl::default()
        };
        let payload = term.seal("control", Payload::WorkerControl(control));
        let subject = subjects::worker_control(&worker);
        if let Err(error) = term.bus.send(&subject, payload, None).await {
            tracing::debug!(%worker, %error, "the workers were not told");
        }
    }
}
