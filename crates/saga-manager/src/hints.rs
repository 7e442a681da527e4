//! Hints: what the bus says about sagas that may have something to do. A hint names a row of
//! the ledger, which decides; one that is lost costs a second, one that is forged a look.

use std::time::Duration;

use airlock_bus::{Bus, Subscription, subjects};
use airlock_ledger::SagaKey;
use airlock_model::{JobState, TenantId};
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::{own, packet};
use airlock_settings::Backoff;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Hints that wait at most; what comes beyond them is found by the sweep.
pub const PENDING: usize = 4_096;

/// The replicas share the hints.
const QUEUE: &str = "saga-manager";

/// Listens until the service stops.
pub async fn listen(
    bus: Bus,
    hints: mpsc::Sender<SagaKey>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let listening = async {
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
        loop {
            match forward(&bus, &hints).await {
                Ok(()) => backoff.reset(),
                Err(error) => tracing::debug!(%error, "hint subscription failed, retrying"),
            }
            tokio::time::sleep(backoff.pause()).await;
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => Ok(()),
        () = listening => Ok(()),
    }
}

async fn forward(bus: &Bus, hints: &mpsc::Sender<SagaKey>) -> Result<(), airlock_bus::BusError> {
    let mut events = bus.subscribe(subjects::JOB_EVENT, Some(QUEUE)).await?;
    let mut rollbacks = bus.subscribe(subjects::SAGA_ROLLBACK, Some(QUEUE)).await?;
    loop {
        let open = tokio::select! {
            open = forward_one(&mut events, may_move_saga, hints) => open,
            // Whoever speaks there means a rollback.
            open = forward_one(&mut rollbacks, |_| true, hints) => open,
        };
        if !open {
            return Ok(());
        }
    }
}

async fn forward_one(
    from: &mut Subscription,
    wanted: impl Fn(&own::JobEvent) -> bool,
    hints: &mpsc::Sender<SagaKey>,
) -> bool {
    let Some(message) = from.recv().await else {
        return false;
    };
    let Ok((_, Payload::JobEvents(list))) = packet::decode(message.payload) else {
        return true;
    };
    let events = list.events.iter().filter(|event| wanted(event));
    for key in events.filter_map(key_of) {
        // A full channel is no loss: the sweep looks at everything.
        let _ = hints.try_send(key);
    }
    true
}

/// Whether an event may move its saga: ends and holds of compensations, and failures of steps.
fn may_move_saga(event: &own::JobEvent) -> bool {
    event.job_id.starts_with("comp-") || event.state == JobState::Failed.as_str()
}

fn key_of(event: &own::JobEvent) -> Option<SagaKey> {
    if event.workflow_id.is_empty() {
        return None;
    }
    Some(SagaKey {
        tenant: TenantId::new(&event.tenant_id).ok()?,
        workflow_id: event.workflow_id.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_move_a_saga_is_a_hint() {
        let event = |job: &str, state: JobState, workflow: &str| own::JobEvent {
            job_id: job.to_owned(),
            tenant_id: "t".to_owned(),
            workflow_id: workflow.to_owned(),
            state: state.as_str().to_owned(),
            ..own::JobEvent::default()
        };
        let hint = |e: own::JobEvent| {
            let key = may_move_saga(&e).then(|| key_of(&e)).flatten();
            key.map(|k| k.workflow_id)
        };
        let some = Some("w".to_owned());
        assert_eq!(hint(event("comp-1", JobState::Succeeded, "w")), some);
        assert_eq!(hint(event("j", JobState::Failed, "w")), some);
        assert_eq!(hint(event("j", JobState::Succeeded, "w")), None);
        assert_eq!(hint(event("comp-1", JobState::Succeeded, "")), None);
        // As the gateway asks for a rollback: without a job.
        let asked = key_of(&event("", JobState::Running, "w"));
        assert_eq!(asked.map(|k| k.workflow_id), some);
    }
}
