//! What workers and clients say without wanting it stored: hello, heartbeat, progress,
//! cancel, inventory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use airlock_bus::{Incoming, Subscription, subjects};
use airlock_model::engine::{Beat, Input, cap_incarnation};
use airlock_model::routing::Worker;
use airlock_model::{DispatchId, Incarnation, JobId, JobState, PoolName, Timestamp, WorkerId};
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::{cap, packet};

use crate::term::{Batch, Term};

/// Subjects to listen on; inventories come to an inbox of our own.
pub async fn listen(term: Arc<Term>, inbox: String) -> anyhow::Result<()> {
    let subjects = [
        subjects::HANDSHAKE,
        subjects::HEARTBEAT,
        subjects::JOB_PROGRESS,
        subjects::JOB_CANCEL,
        inbox.as_str(),
    ];
    let mut readers = Vec::new();
    for subject in subjects {
        let subscription = term.bus.subscribe(subject, None).await?;
        readers.push(read(term.clone(), subscription));
    }
    futures::future::try_join_all(readers).await?;
    Ok(())
}

async fn read(term: Arc<Term>, mut subscription: Subscription) -> anyhow::Result<()> {
    let mut incoming: Vec<Incoming> = Vec::new();
    loop {
        incoming.clear();
        let n = tokio::select! {
            () = term.over.cancelled() => return Ok(()),
            n = subscription.recv_many(&mut incoming, 500) => n,
        };
        if n == 0 {
            anyhow::bail!("a subscription ended");
        }
        let mut inputs = Vec::with_capacity(n);
        let mut cancelled = Vec::new();
        for message in incoming.drain(..) {
            match packet::open(message.payload) {
                Ok((envelope, payload)) => {
                    if envelope.sender_id != term.instance {
                        understand(&term, payload, &mut inputs, &mut cancelled);
                    }
                }
                // Nobody waits for an answer here; a bad one is only counted out loud.
                Err(error) => tracing::debug!(subject = %message.subject, %error, "ignored"),
            }
        }
        if !cancelled.is_empty() {
            inputs.extend(ended(&term, cancelled).await);
        }
        if !inputs.is_empty() && !term.hand_in(Batch::of(inputs)).await {
            return Ok(());
        }
    }
}

fn understand(term: &Term, payload: Payload, inputs: &mut Vec<Input>, cancelled: &mut Vec<JobId>) {
    match payload {
        Payload::Handshake(h) => inputs.extend(handshake(h, term.clock.now())),
        Payload::Heartbeat(h) => inputs.extend(heartbeat(h)),
        Payload::JobProgress(p) => inputs.extend(progress(p)),
        Payload::JobCancel(c) => cancelled.extend(JobId::new(c.job_id).ok()),
        Payload::WorkerInventory(i) => {
            if let (Ok(worker), Ok(incarnation)) =
                (WorkerId::new(i.worker_id), Incarnation::new(i.incarnation))
            {
                inputs.push(Input::Inventory {
                    worker,
                    incarnation,
                    running: dispatches(i.running_dispatch_ids).collect(),
                    finished: dispatches(i.finished_dispatch_ids).collect(),
                });
            }
        }
        Payload::JobRequest(_)
        | Payload::JobResult(_)
        | Payload::Alert(_)
        | Payload::WorkerHandshakeChallengeRequest(_)
        | Payload::WorkerHandshakeChallenge(_)
        | Payload::WorkerHandshakeAuthenticate(_)
        | Payload::WorkerHandshakeResult(_)
        | Payload::JobEvents(_)
        | Payload::WorkerControl(_)
        | Payload::DeadLetter(_) => {}
    }
}

/// A cancel on the bus is a hint: the row says whether the job has ended.
async fn ended(term: &Term, ids: Vec<JobId>) -> Vec<Input> {
    match term.ledger.states(&ids).await {
        Ok(states) => states
            .into_iter()
            .filter(|(_, state)| state.is_final())
            .map(|(job, state): (JobId, JobState)| Input::Ended { job, state })
            .collect(),
        // The change log tells it again.
        Err(error) => {
            tracing::debug!(%error, "looking up cancelled jobs");
            Vec::new()
        }
    }
}

fn dispatches(ids: Vec<String>) -> impl Iterator<Item = DispatchId> {
    ids.into_iter().filter_map(|id| id.parse().ok())
}

fn handshake(h: cap::Handshake, now: Timestamp) -> Option<Input> {
    if h.role != cap::ComponentRole::Worker as i32 {
        return None;
    }
    let id = WorkerId::new(&h.component_id).ok()?;
    let topics: BTreeSet<String> = h.ready_topics.into_iter().collect();
    let Some(own) = h.airlock else {
        return Some(Input::Hello(Box::new(Worker {
            id,
            incarnation: cap_incarnation(now),
            sdk: false,
            inline: false,
            pool: None,
            topics,
            capabilities: BTreeSet::new(),
            labels: BTreeMap::new(),
            max_parallel: 1,
            reported_active: 0,
            cpu_load: 0.0,
            gpu_utilization: 0.0,
            draining: false,
            last_seen: now,
            in_flight: 0,
        })));
    };
    let incarnation = Incarnation::new(own.incarnation).ok()?;
    if own.goodbye {
        return Some(Input::Goodbye {
            worker: id,
            incarnation: Some(incarnation),
        });
    }
    Some(Input::Hello(Box::new(Worker {
        id,
        incarnation,
        sdk: true,
        inline: own.inline_payloads,
        pool: PoolName::new(own.pool).ok(),
        topics,
        capabilities: own.capabilities.into_iter().collect(),
        labels: own.labels,
        max_parallel: u32::try_from(own.max_parallel_jobs).unwrap_or(0),
        reported_active: 0,
        cpu_load: 0.0,
        gpu_utilization: 0.0,
        draining: own.draining,
        last_seen: now,
        in_flight: 0,
    })))
}

fn heartbeat(h: cap::Heartbeat) -> Option<Input> {
    let own = h.airlock;
    Some(Input::Beat(Beat {
        worker: WorkerId::new(&h.worker_id).ok()?,
        incarnation: own
            .as_ref()
            .and_then(|o| Incarnation::new(&o.incarnation).ok()),
        active_jobs: u32::try_from(h.active_jobs).unwrap_or(0),
        cpu_load: h.cpu_load,
        gpu_utilization: h.gpu_utilization,
        max_parallel: u32::try_from(h.max_parallel_jobs).unwrap_or(0),
        draining: own.as_ref().is_some_and(|o| o.draining),
        active: own.map_or_else(Vec::new, |o| dispatches(o.active_dispatch_ids).collect()),
        pool: PoolName::new(h.pool).ok(),
    }))
}

fn progress(p: cap::JobProgress) -> Option<Input> {
    let dispatch = p.dispatch?;
    Some(Input::Started {
        job: JobId::new(p.job_id).ok()?,
        worker: WorkerId::new(dispatch.assigned_worker_id).ok()?,
        dispatch: dispatch.dispatch_id,
        at: p
            .airlock
            .map(|d| Timestamp(d.started_at_us))
            .filter(|t| t.0 > 0),
    })
}
