//! Clients that wait for a job's end.
//!
//! The schedulers' events wake them; since events are hints that may be lost, one query
//! for all waiting jobs looks at the ledger twice a second as well. What must stay true:
//! nobody is told anything from an event. It only makes the waiter read the ledger.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use airlock_bus::{Bus, Incoming, subjects};
use airlock_ledger::Ledger;
use airlock_model::{JobId, JobState};
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::packet;
use airlock_service::Context;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::watch;

use crate::config::LimitsConfig;
use crate::connections::Links;
use crate::http::problem::Problem;
use crate::limits::quota::{Capacity, Permit, QuotaOwner, QuotaPool};

const POLL_EVERY: Duration = Duration::from_millis(500);
const POLL_CHUNK: usize = 1_000;
/// Event messages taken at once.
const EVENTS: usize = 256;

/// The waiters, by job. Clones share them.
#[derive(Clone)]
pub struct Waiting {
    slots: Arc<Mutex<HashMap<JobId, Slot>>>,
    places: QuotaPool,
    gauge: Gauge,
}

struct Slot {
    woken: watch::Sender<()>,
    waiters: usize,
}

/// One client's place. Dropping it gives it up.
pub struct Waiter {
    waiting: Waiting,
    job_id: JobId,
    woken: watch::Receiver<()>,
    _place: Permit,
}

/// A place of a client that polls by itself. Dropping it gives it up.
pub struct WaitPlace {
    gauge: Gauge,
    _place: Permit,
}

impl Drop for WaitPlace {
    fn drop(&mut self) {
        self.gauge.dec();
    }
}

fn too_many_waiters() -> Problem {
    Problem::overloaded("too many clients wait for results; poll instead")
}

impl Waiting {
    pub fn new(limits: &LimitsConfig, gauge: Gauge) -> Self {
        let all = Capacity {
            places: limits.max_waiters,
            bytes: 0,
        };
        Self {
            slots: Arc::default(),
            places: QuotaPool::new(all, limits.admin_reserve_percent),
            gauge,
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<JobId, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place. Whoever does so before looking at the job misses nothing.
    pub fn register(&self, job_id: &JobId, who: QuotaOwner<'_>) -> Result<Waiter, Problem> {
        let place = self.places.acquire(who).ok_or_else(too_many_waiters)?;
        let mut slots = self.lock();
        self.gauge.inc();
        let slot = slots.entry(job_id.clone()).or_insert_with(|| Slot {
            woken: watch::Sender::new(()),
            waiters: 0,
        });
        slot.waiters += 1;
        Ok(Waiter {
            waiting: self.clone(),
            job_id: job_id.clone(),
            woken: slot.woken.subscribe(),
            _place: place,
        })
    }

    /// Takes a place to wait for something else than a job.
    pub fn acquire_place(&self, who: QuotaOwner<'_>) -> Result<WaitPlace, Problem> {
        let place = self.places.acquire(who).ok_or_else(too_many_waiters)?;
        self.gauge.inc();
        Ok(WaitPlace {
            gauge: self.gauge.clone(),
            _place: place,
        })
    }

    fn wake_waiters(&self, job_id: &str) {
        if let Some(slot) = self.lock().get(job_id) {
            slot.woken.send_replace(());
        }
    }

    fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn job_ids(&self) -> Vec<JobId> {
        self.lock().keys().cloned().collect()
    }

    /// Listens and polls until the service stops.
    pub fn start_listening(&self, links: &Links, ctx: &Context) {
        let (waiting, links, shutdown) = (self.clone(), links.clone(), ctx.shutdown.clone());
        ctx.tasks.spawn_restarting("results", move || {
            let (waiting, links, shutdown) = (waiting.clone(), links.clone(), shutdown.clone());
            async move {
                tokio::select! {
                    () = shutdown.cancelled() => Ok(()),
                    ended = waiting.follow_job_events(&links) => ended,
                }
            }
        });
    }

    async fn follow_job_events(&self, links: &Links) -> anyhow::Result<()> {
        let mut events = None;
        let mut poll = tokio::time::interval(POLL_EVERY);
        let mut heard = Vec::new();
        loop {
            if events.is_none()
                && let Some(bus) = links.bus()
            {
                events = subscribe_to_job_events(&bus).await;
            }
            let listen = async {
                match events.as_mut() {
                    Some(events) => events.recv_many(&mut heard, EVENTS).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                count = listen => {
                    if count == 0 {
                        events = None;
                    }
                    self.handle_events(heard.drain(..));
                }
                _ = poll.tick() => {
                    if let Some(ledger) = links.ledger() {
                        self.poll_ledger(&ledger).await;
                    }
                }
            }
        }
    }

    fn handle_events(&self, heard: impl Iterator<Item = Incoming>) {
        // Most of the time nobody waits, and reading the packets would be for nothing.
        if self.is_empty() {
            return;
        }
        for message in heard {
            let Ok((_, Payload::JobEvents(events))) = packet::decode(message.payload) else {
                continue;
            };
            for event in &events.events {
                if event
                    .state
                    .parse::<JobState>()
                    .is_ok_and(JobState::is_final)
                {
                    self.wake_waiters(&event.job_id);
                }
            }
        }
    }

    async fn poll_ledger(&self, ledger: &Ledger) {
        for ids in self.job_ids().chunks(POLL_CHUNK) {
            match ledger.job_states(ids).await {
                Ok(states) => {
                    for (id, _) in states.iter().filter(|(_, state)| state.is_final()) {
                        self.wake_waiters(id.as_str());
                    }
                }
                Err(error) => tracing::debug!(%error, "polling for finished jobs failed"),
            }
        }
    }
}

async fn subscribe_to_job_events(bus: &Bus) -> Option<airlock_bus::Subscription> {
    match bus.subscribe(subjects::JOB_EVENT, None).await {
        Ok(subscription) => Some(subscription),
        Err(error) => {
            tracing::debug!(%error, "subscribing to job events failed, polling meanwhile");
            None
        }
    }
}

impl Waiter {
    pub fn job_id(&self) -> &JobId {
        &self.job_id
    }

    /// Until the job may have ended.
    pub async fn wait_until_woken(&mut self) {
        if self.woken.changed().await.is_err() {
            // The slot outlives its waiters, so this cannot happen; waiting for the
            // caller's own bound is right if it did.
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut slots = self.waiting.lock();
        self.waiting.gauge.dec();
        if let Entry::Occupied(mut slot) = slots.entry(self.job_id.clone()) {
            slot.get_mut().waiters -= 1;
            if slot.get().waiters == 0 {
                slot.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(max_waiters: usize) -> Waiting {
        let limits = LimitsConfig {
            max_waiters,
            ..LimitsConfig::default()
        };
        Waiting::new(&limits, Gauge::default())
    }

    #[tokio::test]
    async fn places_are_bounded_and_given_back() {
        let waiting = waiting(3);
        let id = JobId::new("j").unwrap();
        let enter = |key: &str| waiting.register(&id, QuotaOwner::new_user(key));
        let mut first = enter("eve").unwrap_or_else(|_| panic!("a place"));
        assert!(enter("eve").is_err());
        let second = enter("bob").unwrap_or_else(|_| panic!("a place"));
        assert!(enter("carol").is_err());
        let admin = QuotaOwner {
            key: "admin",
            admin: true,
        };
        assert!(waiting.register(&id, admin).is_ok());
        drop(second);
        assert_eq!(waiting.job_ids().len(), 1);
        waiting.wake_waiters("j");
        first.wait_until_woken().await;
        drop(first);
        assert!(waiting.is_empty());
    }

    #[tokio::test]
    async fn an_event_of_an_end_wakes_and_another_does_not() {
        use airlock_model::Timestamp;
        use airlock_proto::own::{JobEvent, JobEvents};

        let waiting = waiting(9);
        let id = JobId::new("j").unwrap();
        let mut waiter = waiting
            .register(&id, QuotaOwner::new_user("k"))
            .unwrap_or_else(|_| panic!("a place"));
        let event = |job_id: &str, state: &str| {
            let events = JobEvents {
                events: vec![JobEvent {
                    job_id: job_id.to_owned(),
                    state: state.to_owned(),
                    ..JobEvent::default()
                }],
            };
            let payload = Payload::JobEvents(events);
            Incoming {
                subject: subjects::JOB_EVENT.to_owned(),
                payload: packet::encode("scheduler", "t", Timestamp(1), payload),
                reply: None,
                traceparent: None,
            }
        };
        waiting.handle_events([event("j", "RUNNING"), event("other", "FAILED")].into_iter());
        assert!(!waiter.woken.has_changed().unwrap());
        waiting.handle_events([event("j", "SUCCEEDED")].into_iter());
        waiter.wait_until_woken().await;
    }

    #[tokio::test]
    async fn a_wake_before_the_wait_is_not_lost() {
        let waiting = waiting(1);
        let mut waiter = waiting
            .register(&JobId::new("j").unwrap(), QuotaOwner::new_user("k"))
            .unwrap_or_else(|_| panic!("a place"));
        waiting.wake_waiters("j");
        waiter.wait_until_woken().await;
    }
}
