//! Messages of workers and clients that no stream stores: handshake, heartbeat, progress,
//! cancel, inventory.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use airlock_bus::{Incoming, Subscription, subjects};
use airlock_model::engine::{Heartbeat, Input};
use airlock_model::routing::{Addressing, Worker, WorkerHealth};
use airlock_model::{
    DispatchId, Incarnation, JobId, JobState, ListenTime, PoolName, Timestamp, WorkerId,
};
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::{cap, packet};

use crate::commit::handle::InputBatch;
use crate::inbound::reports;
use crate::inbound::shared_ids::SharedIds;
use crate::outbound::control;
use crate::term::Term;

/// How often the server is asked whether it is there, and how long it may take to answer.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// Topics a worker may announce; beyond it they are cut off.
const MAX_TOPICS: usize = 1000;

/// Subjects to listen on; inventories come to an inbox of our own.
pub async fn listen_to_workers(term: Arc<Term>, inbox: String) -> anyhow::Result<()> {
    let subjects = [
        subjects::HANDSHAKE,
        subjects::HEARTBEAT,
        subjects::JOB_PROGRESS,
        subjects::JOB_CANCEL,
        inbox.as_str(),
    ];
    let shared = Arc::new(SharedWorkers::new(&term));
    let silent = unregistered_workers(&term);
    if !silent.is_empty() && !term.commit.enqueue(InputBatch::from_inputs(silent)).await {
        return Ok(());
    }
    let mut readers = Vec::new();
    for subject in subjects {
        let subscription = term.stores.bus.subscribe(subject, None).await?;
        readers.push(read_worker_messages(
            term.clone(),
            shared.clone(),
            subscription,
        ));
    }
    futures::try_join!(
        futures::future::try_join_all(readers),
        report_bus_health(&term)
    )?;
    Ok(())
}

/// Tells the engine whether heartbeats can arrive: the subscriptions above stand, and the
/// server answers. A connection that only seems to stand carries no heartbeat either, so
/// each answer is handed on with the time of its question: silence counts up to there.
async fn report_bus_health(term: &Term) -> anyhow::Result<()> {
    let mut connected = term.stores.bus.connected();
    let mut up = false;
    loop {
        let asked = term.ctx.clock.uptime();
        let reachable = *connected.borrow_and_update()
            && tokio::select! {
                answers = term.stores.bus.is_responsive(PROBE_TIMEOUT) => answers,
                gone = connected.wait_for(|up| !up) => {
                    gone?;
                    false
                }
            };
        let mut inputs = Vec::new();
        if reachable != up {
            up = reachable;
            inputs.push(if up { Input::BusUp } else { Input::BusDown });
            tracing::info!(listening = up, "heartbeat subscriptions");
        }
        if up {
            inputs.push(Input::BusAnswered { asked });
        }
        if !inputs.is_empty() && !term.commit.enqueue(InputBatch::from_inputs(inputs)).await {
            return Ok(());
        }
        tokio::select! {
            () = term.ctx.over.cancelled() => return Ok(()),
            changed = connected.changed() => changed?,
            () = tokio::time::sleep(PROBE_INTERVAL) => {}
        }
    }
}

/// The ids that several worker processes go by, and what was received from them.
struct SharedWorkers {
    ids: BTreeSet<String>,
    signs: Mutex<SharedIds>,
}

impl SharedWorkers {
    fn new(term: &Term) -> Self {
        let ids = &term.ctx.config.scheduler.shared_worker_ids;
        Self {
            ids: ids.iter().cloned().collect(),
            signs: Mutex::default(),
        }
    }

    fn contains(&self, id: &WorkerId) -> bool {
        self.ids.contains(id.as_str())
    }

    fn with_shared_ids<R>(&self, f: impl FnOnce(&mut SharedIds) -> R) -> R {
        f(&mut self.signs.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

async fn read_worker_messages(
    term: Arc<Term>,
    shared: Arc<SharedWorkers>,
    mut subscription: Subscription,
) -> anyhow::Result<()> {
    let mut incoming: Vec<Incoming> = Vec::new();
    loop {
        incoming.clear();
        let n = tokio::select! {
            () = term.ctx.over.cancelled() => return Ok(()),
            n = subscription.recv_many(&mut incoming, 500) => n,
        };
        if n == 0 {
            anyhow::bail!("a subscription of worker messages ended");
        }
        let mut inputs = Vec::with_capacity(n);
        let mut cancelled = Vec::new();
        let mut greet = Vec::new();
        for message in incoming.drain(..) {
            match packet::decode(message.payload.clone()) {
                Ok((envelope, payload)) => {
                    if envelope.sender_id == term.ctx.sender {
                        continue;
                    }
                    if let Payload::JobCancel(c) = payload {
                        // The row decides, whoever sent this.
                        cancelled.extend(JobId::new(c.job_id).ok());
                        continue;
                    }
                    // A bad signature was counted and logged.
                    let raw = &message.payload;
                    if term
                        .signatures
                        .check_signature(&envelope.sender_id, raw)
                        .is_ok()
                    {
                        match &payload {
                            Payload::JobProgress(p) => {
                                reports::buffer_progress(&term, &envelope, p)
                            }
                            Payload::Handshake(h) => {
                                greet.extend(registering_worker(h));
                                inputs.extend(replaced_process(h));
                            }
                            _ => {}
                        }
                        term.epoch_claims.observe_packet(&payload);
                        inputs.extend(to_input(&shared, &envelope, payload, term.ctx.clock.now()));
                    }
                }
                // Nobody waits for an answer here.
                Err(error) => {
                    tracing::debug!(subject = %message.subject, %error, "unreadable message ignored")
                }
            }
        }
        for worker in greet {
            control::reply_to_handshake(&term, &worker).await;
        }
        if !cancelled.is_empty() {
            inputs.extend(load_ended_jobs(&term, cancelled).await);
        }
        if !inputs.is_empty() && !term.commit.enqueue(InputBatch::from_inputs(inputs)).await {
            return Ok(());
        }
    }
}

fn to_input(
    shared: &SharedWorkers,
    envelope: &cap::BusPacket,
    payload: Payload,
    now: Timestamp,
) -> Option<Input> {
    match payload {
        Payload::Handshake(h) => handshake_to_input(shared, h, now),
        Payload::Heartbeat(h) => heartbeat_to_input(shared, h, now),
        Payload::JobProgress(p) => progress_to_input(envelope, p),
        Payload::WorkerInventory(i) => Some(Input::Inventory {
            worker: WorkerId::new(i.worker_id).ok()?,
            incarnation: Incarnation::new(i.incarnation).ok()?,
            running: parse_dispatch_ids(i.running_dispatch_ids).collect(),
            finished: parse_dispatch_ids(i.finished_dispatch_ids).collect(),
        }),
        Payload::JobRequest(_)
        | Payload::JobResult(_)
        | Payload::JobCancel(_)
        | Payload::Alert(_)
        | Payload::WorkerHandshakeChallengeRequest(_)
        | Payload::WorkerHandshakeChallenge(_)
        | Payload::WorkerHandshakeAuthenticate(_)
        | Payload::WorkerHandshakeResult(_)
        | Payload::JobEvents(_)
        | Payload::WorkerControl(_)
        | Payload::DeadLetter(_)
        | Payload::Wake(_)
        | Payload::Ahead(_) => None,
    }
}

/// A worker of our SDK that introduces itself: it is answered, and learns our clock by that.
fn registering_worker(h: &cap::Handshake) -> Option<WorkerId> {
    let own = h.airlock.as_ref()?;
    (!own.goodbye).then(|| WorkerId::new(&h.component_id).ok())?
}

/// The process that a worker of our SDK knows to have ended before it took its id.
fn replaced_process(h: &cap::Handshake) -> Option<Input> {
    let own = h.airlock.as_ref()?;
    let ended = Incarnation::new(&own.replaces).ok()?;
    (ended.as_str() != own.incarnation).then_some(())?;
    Some(Input::Deregister {
        worker: WorkerId::new(&h.component_id).ok()?,
        incarnation: Some(ended),
    })
}

/// Workers that never introduce themselves, by configuration: one for each topic.
fn unregistered_workers(term: &Term) -> Vec<Input> {
    let s = &term.ctx.config.scheduler;
    s.unregistered_topics
        .iter()
        .filter_map(|topic| {
            let id = WorkerId::new(format!("topic/{topic}")).ok()?;
            let mut worker = new_cap_worker(id, Incarnation::topic_listener());
            worker.topics = BTreeSet::from([topic.clone()]);
            worker.max_parallel = s.unregistered_slots;
            worker.addressing = Addressing::Unregistered;
            Some(Input::Register(Box::new(worker)))
        })
        .collect()
}

/// What is known of a worker that knows only the agent protocol, at first.
fn new_cap_worker(id: WorkerId, incarnation: Incarnation) -> Worker {
    Worker {
        id,
        incarnation,
        sdk: false,
        inline: false,
        pool: None,
        topics: BTreeSet::new(),
        capabilities: BTreeSet::new(),
        labels: BTreeMap::new(),
        max_parallel: 1,
        reported_active: 0,
        cpu_load: 0.0,
        gpu_utilization: 0.0,
        draining: false,
        last_seen: ListenTime::default(),
        in_flight: 0,
        addressing: Addressing::Direct,
        health: WorkerHealth::default(),
    }
}

/// A cancel on the bus is a hint: the row says whether the job has ended.
async fn load_ended_jobs(term: &Term, ids: Vec<JobId>) -> Vec<Input> {
    match term.stores.ledger.job_states(&ids).await {
        Ok(states) => states
            .into_iter()
            .filter(|(_, state)| state.is_final())
            .map(|(job, state): (JobId, JobState)| Input::Ended { job, state })
            .collect(),
        // The change log brings it again.
        Err(error) => {
            tracing::debug!(%error, "reading cancelled jobs failed");
            Vec::new()
        }
    }
}

fn parse_dispatch_ids(ids: Vec<String>) -> impl Iterator<Item = DispatchId> {
    ids.into_iter().filter_map(|id| id.parse().ok())
}

fn handshake_to_input(shared: &SharedWorkers, h: cap::Handshake, now: Timestamp) -> Option<Input> {
    if h.role != cap::ComponentRole::Worker as i32 {
        return None;
    }
    let id = WorkerId::new(&h.component_id).ok()?;
    let topics: BTreeSet<String> = h.ready_topics.into_iter().take(MAX_TOPICS).collect();
    let Some(own) = h.airlock else {
        let is_shared = shared.contains(&id);
        if !is_shared && !subjects::is_addressable(&id) {
            tracing::warn!(worker = %id, "worker id is not a valid subject, worker ignored");
            return None;
        }
        let mut worker = if is_shared {
            let all = shared.with_shared_ids(|ids| ids.record_handshake(&id, now));
            let mut worker = new_cap_worker(id, Incarnation::shared());
            worker.max_parallel = all.slots;
            worker.addressing = Addressing::Shared;
            worker
        } else {
            new_cap_worker(id, Incarnation::agent_protocol(now))
        };
        worker.topics = topics;
        return Some(Input::Register(Box::new(worker)));
    };
    let incarnation = Incarnation::new(own.incarnation).ok()?;
    if own.goodbye {
        return Some(Input::Deregister {
            worker: id,
            incarnation: Some(incarnation),
        });
    }
    Some(Input::Register(Box::new(Worker {
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
        last_seen: ListenTime::default(),
        in_flight: 0,
        addressing: Addressing::Direct,
        health: WorkerHealth::default(),
    })))
}

fn heartbeat_to_input(shared: &SharedWorkers, h: cap::Heartbeat, now: Timestamp) -> Option<Input> {
    let own = h.airlock;
    let worker = WorkerId::new(&h.worker_id).ok()?;
    let mut active_jobs = u32::try_from(h.active_jobs).unwrap_or(0);
    let mut max_parallel = u32::try_from(h.max_parallel_jobs).unwrap_or(0);
    let mut addressing = Addressing::Direct;
    if own.is_none() && shared.contains(&worker) {
        let all = shared
            .with_shared_ids(|ids| ids.record_heartbeat(&worker, now, max_parallel, active_jobs));
        (max_parallel, active_jobs, addressing) = (all.slots, all.active, Addressing::Shared);
    }
    Some(Input::Heartbeat(Heartbeat {
        worker,
        incarnation: own
            .as_ref()
            .and_then(|o| Incarnation::new(&o.incarnation).ok()),
        active_jobs,
        cpu_load: h.cpu_load,
        gpu_utilization: h.gpu_utilization,
        max_parallel,
        draining: own.as_ref().is_some_and(|o| o.draining),
        active: own.map_or_else(Vec::new, |o| {
            parse_dispatch_ids(o.active_dispatch_ids).collect()
        }),
        pool: PoolName::new(h.pool).ok(),
        addressing,
    }))
}

/// A worker that knows only the agent protocol may say whose run it is by the trace id of
/// the packet the run came with.
fn progress_to_input(envelope: &cap::BusPacket, p: cap::JobProgress) -> Option<Input> {
    let dispatch = reports::run_id_of_progress(envelope, &p).to_owned();
    Some(Input::Started {
        job: JobId::new(p.job_id).ok()?,
        worker: WorkerId::new(&envelope.sender_id).ok()?,
        dispatch,
        at: p
            .airlock
            .map(|d| Timestamp(d.started_at_us))
            .filter(|t| t.0 > 0),
    })
}
