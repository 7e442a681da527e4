//! Taking dispatches, from the stream and, when the scheduler has few to give, directly.
//!
//! What must stay true: a dispatch is acknowledged only after it was decided on, and all
//! of a batch together. Should the acknowledgement get lost, the dispatch comes again
//! and is known. What comes directly comes in the stream as well, and is known then too.

use std::sync::Arc;

use airlock_bus::{BoxError, BusError, Consumer, DeadLetters, DeadMessage, Delivery, Outcome};
use airlock_model::{JobId, Timestamp};
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::{cap, packet};
use async_trait::async_trait;
use uuid::Uuid;

use crate::clock;
use crate::core::Core;
use crate::gate::{Facts, Refusal, Way};
use crate::job::{Job, Parts};
use crate::run_job;
use crate::stats::Stats;

const BATCH: usize = 256;

/// Runs until the consumer is over for good.
pub(crate) async fn take_in(core: Arc<Core>, mut consumer: Consumer) -> BusError {
    loop {
        while !core.has_room() {
            core.room.notified().await;
        }
        let batch = match consumer.next_batch(BATCH).await {
            Ok(batch) => batch,
            Err(error) => return error,
        };
        let now = clock::steady();
        for delivery in &batch {
            take(&core, delivery, now);
        }
        // They begin before the stream hears of it.
        tokio::task::yield_now().await;
        let done = batch.into_iter().map(|d| (d, Outcome::Done)).collect();
        consumer.settle(done, &NoDeadLetters).await;
    }
}

fn take(core: &Arc<Core>, delivery: &Delivery, now: Timestamp) {
    let keys = &core.settings.keys;
    if !keys.trusts(&delivery.payload, "a dispatch", &core.stats) {
        return;
    }
    let taken = match packet::open(delivery.payload.clone()) {
        Ok((envelope, Payload::JobRequest(request))) => {
            let trace = delivery.traceparent.clone();
            admit(core, &envelope, request, trace, Way::Stream, now)
        }
        Ok(_) => Err("it is not a job request".to_owned()),
        Err(error) => Err(error.to_string()),
    };
    if let Err(reason) = taken {
        malformed(core, delivery.stream_seq, &reason);
    }
}

/// Takes a dispatch that came directly; its packet is known to be the scheduler's. Without
/// room it is left to the stream.
pub(crate) fn take_direct(
    core: &Arc<Core>,
    envelope: &cap::BusPacket,
    request: cap::JobRequest,
    traceparent: Option<String>,
) {
    if !core.has_room() {
        return;
    }
    let now = clock::steady();
    if let Err(reason) = admit(core, envelope, request, traceparent, Way::Direct, now) {
        malformed(core, 0, &reason);
    }
}

fn malformed(core: &Core, seq: u64, reason: &str) {
    Stats::add(&core.stats.dropped_malformed, 1);
    tracing::warn!(seq, reason, "dropped what is no dispatch");
}

/// Begins the job, unless there is a reason not to. An error when it is no dispatch.
fn admit(
    core: &Arc<Core>,
    envelope: &cap::BusPacket,
    request: cap::JobRequest,
    traceparent: Option<String>,
    way: Way,
    now: Timestamp,
) -> Result<(), String> {
    let Read {
        mut parts,
        incarnation,
        ledger,
        payload,
    } = read(core, envelope, request, traceparent)?;
    core.offsets
        .localize(&mut parts.detail, &ledger, way, now.as_millis());
    let dispatch = parts.dispatch;
    let facts = Facts {
        dispatch,
        incarnation: &incarnation,
        ledger: &ledger,
        epoch: parts.detail.epoch,
        accept_by_ms: parts.detail.accept_by_ms,
        way,
    };
    match core.table.admit(facts, now.as_millis(), || Job::new(parts)) {
        Ok(job) => {
            Stats::add(&core.stats.accepted, 1);
            tokio::spawn(run_job::run(Arc::clone(core), job, payload));
        }
        Err(refusal) => refuse(core, dispatch, refusal),
    }
    Ok(())
}

fn refuse(core: &Core, dispatch: Uuid, refusal: Refusal) {
    core.stats.refused(refusal);
    match refusal {
        // Whoever sends it again has not got its result.
        Refusal::Repeat => {
            core.outbox().repeat_one(&dispatch);
            core.unpublished.notify_one();
        }
        Refusal::OtherWay => return,
        // A leader of a ledger that was set back must hear what it has to go above.
        Refusal::StaleEpoch => core.announce.notify_one(),
        Refusal::OtherIncarnation | Refusal::Late => {}
    }
    tracing::debug!(%dispatch, ?refusal, "dropped a dispatch");
}

struct Read {
    parts: Parts,
    incarnation: String,
    ledger: String,
    payload: Option<bytes::Bytes>,
}

fn read(
    core: &Core,
    envelope: &cap::BusPacket,
    mut request: cap::JobRequest,
    traceparent: Option<String>,
) -> Result<Read, String> {
    let id = JobId::new(&request.job_id).map_err(|e| e.to_string())?;
    let Some(named) = &request.dispatch else {
        return Err("it has no dispatch id".to_owned());
    };
    let dispatch = Uuid::parse_str(&named.dispatch_id)
        .map_err(|e| format!("dispatch id {:?}: {e}", named.dispatch_id))?;
    let Some(mut detail) = request.airlock.take() else {
        return Err("it lacks what an SDK worker needs".to_owned());
    };
    let handler = core.handlers.get(&request.topic).cloned();
    Ok(Read {
        incarnation: std::mem::take(&mut detail.incarnation),
        ledger: std::mem::take(&mut detail.ledger_id),
        payload: detail.payload.take(),
        parts: Parts {
            id,
            dispatch,
            request,
            detail,
            trace_id: envelope.trace_id.clone(),
            traceparent,
            handler,
            host: Arc::clone(&core.host),
        },
    })
}

/// A worker calls nothing poison: what it does not take, the scheduler knows about.
struct NoDeadLetters;

#[async_trait]
impl DeadLetters for NoDeadLetters {
    async fn put(&self, _: Vec<DeadMessage>) -> Result<(), BoxError> {
        Err("a worker keeps no dead letters".into())
    }
}
