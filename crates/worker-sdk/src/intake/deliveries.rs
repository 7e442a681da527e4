//! Receiving dispatches, from the stream and, when the scheduler has few to send, directly.
//!
//! What must stay true: a dispatch is acknowledged only after it was accepted or dropped,
//! and all of a batch together. Should the acknowledgement get lost, the dispatch comes
//! again and is dropped as a repeat. A dispatch that comes directly also comes in the
//! stream, and is dropped then too.

use std::sync::Arc;

use airlock_bus::{BoxError, BusError, Consumer, DeadLetters, DeadMessage, Delivery, Outcome};
use airlock_model::{JobId, Timestamp};
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::{cap, packet};
use async_trait::async_trait;
use bytes::Bytes;
use uuid::Uuid;

use crate::intake::gate::{DispatchHeader, DropReason, Route};
use crate::metrics::stats::Stats;
use crate::run::job::{Job, JobParts};
use crate::run::run_job;
use crate::worker::clock;
use crate::worker::shared::Shared;

const BATCH: usize = 256;

/// Runs until the consumer has ended for good.
pub(crate) async fn receive_deliveries(shared: Arc<Shared>, mut consumer: Consumer) -> BusError {
    loop {
        while !shared.has_room_for_dispatches() {
            shared.room.notified().await;
        }
        let batch = match consumer.next_batch(BATCH).await {
            Ok(batch) => batch,
            Err(error) => return error,
        };
        let now = clock::steady_clock_now();
        for delivery in &batch {
            accept_delivery(&shared, delivery, now);
        }
        // The jobs begin before the stream gets its acknowledgements.
        tokio::task::yield_now().await;
        let done = batch.into_iter().map(|d| (d, Outcome::Done)).collect();
        consumer.settle(done, &NoDeadLetters).await;
    }
}

fn accept_delivery(shared: &Arc<Shared>, delivery: &Delivery, now: Timestamp) {
    let keys = &shared.settings.keys;
    if !keys.is_signed_by_scheduler(&delivery.payload, "dispatch", &shared.stats) {
        return;
    }
    let accepted = match packet::decode(delivery.payload.clone()) {
        Ok((envelope, Payload::JobRequest(request))) => {
            parse_dispatch(shared, &envelope, request, delivery.traceparent.clone())
                .map(|dispatch| accept_dispatch(shared, dispatch, Route::Stream, now))
        }
        Ok(_) => Err("it is not a job request".to_owned()),
        Err(error) => Err(error.to_string()),
    };
    if let Err(reason) = accepted {
        drop_malformed(shared, delivery.stream_seq, &reason);
    }
}

/// Accepts a dispatch that came directly; the caller has verified its signature. Without
/// room it is left to the stream.
pub(super) fn accept_direct_dispatch(
    shared: &Arc<Shared>,
    envelope: &cap::BusPacket,
    request: cap::JobRequest,
    traceparent: Option<String>,
) {
    if !shared.has_room_for_dispatches() {
        return;
    }
    match parse_dispatch(shared, envelope, request, traceparent) {
        Ok(dispatch) => accept_dispatch(shared, dispatch, Route::Direct, clock::steady_clock_now()),
        Err(reason) => drop_malformed(shared, 0, &reason),
    }
}

fn drop_malformed(shared: &Shared, seq: u64, reason: &str) {
    Stats::add_to_counter(&shared.stats.dropped_malformed, 1);
    tracing::warn!(seq, reason, "malformed dispatch dropped");
}

/// Begins the job, unless there is a reason to drop the dispatch.
fn accept_dispatch(shared: &Arc<Shared>, dispatch: ParsedDispatch, route: Route, now: Timestamp) {
    let ParsedDispatch {
        mut parts,
        incarnation,
        ledger,
        payload,
    } = dispatch;
    shared
        .offsets
        .localize_dispatch_times(&mut parts.detail, &ledger, route, now.as_millis());
    let dispatch = parts.dispatch;
    let header = DispatchHeader {
        dispatch,
        incarnation: &incarnation,
        ledger: &ledger,
        epoch: parts.detail.epoch,
        accept_by_ms: parts.detail.accept_by_ms,
        route,
    };
    let accepted = shared
        .table
        .accept(header, now.as_millis(), || Job::new(parts));
    match accepted {
        Ok(job) => {
            Stats::add_to_counter(&shared.stats.accepted, 1);
            tokio::spawn(run_job(Arc::clone(shared), job, payload));
        }
        Err(reason) => drop_dispatch(shared, dispatch, reason),
    }
}

fn drop_dispatch(shared: &Shared, dispatch: Uuid, reason: DropReason) {
    shared.stats.count_dropped_dispatch(reason);
    match reason {
        // Whoever sends it again has not received its result.
        DropReason::Repeat => {
            shared.outbox().republish_one(&dispatch);
            shared.unpublished.notify_one();
        }
        DropReason::OtherRoute => return,
        // A leader whose ledger was restored must learn which epoch it has to go above.
        DropReason::StaleEpoch => shared.handshake_wanted.notify_one(),
        DropReason::OtherIncarnation | DropReason::Late => {}
    }
    tracing::debug!(%dispatch, ?reason, "dispatch dropped");
}

struct ParsedDispatch {
    parts: JobParts,
    incarnation: String,
    ledger: String,
    payload: Option<Bytes>,
}

fn parse_dispatch(
    shared: &Shared,
    envelope: &cap::BusPacket,
    mut request: cap::JobRequest,
    traceparent: Option<String>,
) -> Result<ParsedDispatch, String> {
    let id = JobId::new(&request.job_id).map_err(|e| e.to_string())?;
    let Some(named) = &request.dispatch else {
        return Err("it has no dispatch id".to_owned());
    };
    let dispatch = Uuid::parse_str(&named.dispatch_id)
        .map_err(|e| format!("dispatch id {:?}: {e}", named.dispatch_id))?;
    let Some(mut detail) = request.airlock.take() else {
        return Err("it lacks what an SDK worker needs".to_owned());
    };
    let handler = shared.handlers.get(&request.topic).cloned();
    Ok(ParsedDispatch {
        incarnation: std::mem::take(&mut detail.incarnation),
        ledger: std::mem::take(&mut detail.ledger_id),
        payload: detail.payload.take(),
        parts: JobParts {
            id,
            dispatch,
            request,
            detail,
            trace_id: envelope.trace_id.clone(),
            traceparent,
            handler,
            services: Arc::clone(&shared.services),
        },
    })
}

/// A worker dead-letters nothing: the scheduler knows about every dispatch that it drops.
struct NoDeadLetters;

#[async_trait]
impl DeadLetters for NoDeadLetters {
    async fn put(&self, _: Vec<DeadMessage>) -> Result<(), BoxError> {
        Err("a worker has no dead-letter queue".into())
    }
}
