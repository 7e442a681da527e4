//! Jobs come in: from the bus, from their due time, from the replayer, from the engine
//! asking again. All are read from the ledger and put to the kernel in batches.
//!
//! A submission on the bus is a wake-up: what counts is the row. Only when there is no
//! row (a client of the agent protocol submits on the bus alone) is the packet itself
//! accepted, under the same rules as REST.

use std::collections::HashSet;
use std::sync::Arc;

use airlock_bus::{Consumer, Delivery, Outcome, Settler};
use airlock_ledger::LoadedJob;
use airlock_model::engine::{Input, KnownJob};
use airlock_model::{JobId, JobState};
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::{packet, trace};
use bytes::Bytes;
use tokio::sync::mpsc;

use crate::accept;
use crate::metrics::by_topic;
use crate::reader::{RETRY_STORE, each_batch, store_delay};
use crate::term::{Batch, Done, Term, random};

/// Reads submissions until the term is over.
pub async fn submissions(term: Arc<Term>, consumer: Consumer) -> anyhow::Result<()> {
    each_batch(term, consumer, |term, settler, deliveries| async move {
        take_submissions(&term, settler, deliveries).await;
    })
    .await
}

async fn take_submissions(term: &Term, settler: Settler, deliveries: Vec<Delivery>) {
    let mut good = Vec::with_capacity(deliveries.len());
    let mut bad = Vec::new();
    for delivery in deliveries {
        match packet::open(delivery.payload.clone()) {
            Ok((envelope, Payload::JobRequest(request))) => match JobId::new(&request.job_id) {
                Ok(id) => good.push((delivery, id, envelope, request)),
                Err(e) => bad.push((
                    delivery,
                    Outcome::Poison {
                        reason: e.to_string(),
                    },
                )),
            },
            Ok(_) => {
                let reason = "not a job request".to_owned();
                bad.push((delivery, Outcome::Poison { reason }));
            }
            Err(e) => bad.push((
                delivery,
                Outcome::Poison {
                    reason: e.to_string(),
                },
            )),
        }
    }
    if !bad.is_empty() {
        settler.settle(bad, &term.letters).await;
    }
    if good.is_empty() {
        return;
    }
    let keys: Vec<_> = good.iter().map(|(d, ..)| d.key()).collect();
    let ids: Vec<JobId> = good.iter().map(|(_, id, ..)| id.clone()).collect();
    // Both stores are asked at once: the guard only saves work, it decides nothing.
    let inline = term.config.scheduler.inline_bytes;
    let (seen, loaded) = tokio::join!(term.begin(&keys, &ids), term.ledger.load(&ids, inline));
    let mut loaded = match loaded {
        Ok(loaded) => loaded,
        Err(error) => {
            tracing::warn!(%error, jobs = ids.len(), "submissions wait for the ledger");
            term.locks.unlock(&ids).await;
            let again = good
                .into_iter()
                .map(|(d, ..)| (d, Outcome::Retry(RETRY_STORE)));
            settler.settle(again.collect(), &term.letters).await;
            return;
        }
    };
    let stored: HashSet<JobId> = loaded.iter().map(|job| job.job_id.clone()).collect();
    let mut fresh = Vec::with_capacity(good.len());
    let mut offers = Vec::new();
    for ((delivery, id, envelope, request), seen) in good.into_iter().zip(seen) {
        if seen || stored.contains(&id) {
            fresh.push(delivery);
            continue;
        }
        let raw = delivery.payload.clone();
        offers.push((
            delivery,
            accept::Offer {
                envelope,
                request,
                raw,
            },
        ));
    }
    if !offers.is_empty() {
        let asked: Vec<_> = offers.iter().map(|(_, offer)| offer).collect();
        let (outcomes, accepted) = accept::accept(term, &asked).await;
        loaded.extend(accepted);
        let mut not_done = Vec::new();
        for ((delivery, offer), outcome) in offers.into_iter().zip(outcomes) {
            match outcome {
                Ok(()) => fresh.push(delivery),
                Err(accept::Refused::Invalid(reason)) => {
                    not_done.push((delivery, Outcome::Poison { reason }));
                }
                Err(accept::Refused::Later(error)) => {
                    let job = &offer.request.job_id;
                    tracing::warn!(%error, job, "a submission waits for a store");
                    let again = Outcome::Retry(store_delay(delivery.deliveries));
                    not_done.push((delivery, again));
                }
            }
        }
        if !not_done.is_empty() {
            settler.settle(not_done, &term.letters).await;
        }
    }
    let done = Done {
        settler,
        // Only these are done: what comes again must not be taken for seen then.
        keys: fresh.iter().map(Delivery::key).collect(),
        deliveries: fresh,
        jobs: ids,
    };
    decide(term, loaded, Some(done)).await;
}

/// Puts what is PENDING and due to the kernel and hands the answers to the core.
pub async fn decide(term: &Term, loaded: Vec<LoadedJob>, done: Option<Done>) {
    let now = term.clock.now();
    let mut payloads: Vec<(JobId, Bytes)> = Vec::new();
    let mut jobs = Vec::with_capacity(loaded.len());
    for mut job in loaded {
        let due = job.due_at.is_none_or(|at| at <= now);
        if job.state != JobState::Pending || !due {
            continue;
        }
        by_topic(&term.metrics.jobs_received, job.spec.topic.as_str());
        if let Some(payload) = job.payload.take() {
            payloads.push((job.job_id.clone(), payload));
        }
        jobs.push(known(job));
    }
    let inputs = ask(term, jobs).await;
    let batch = Batch {
        inputs,
        payloads,
        done,
        ..Batch::default()
    };
    term.hand_in(batch).await;
}

async fn ask(term: &Term, mut jobs: Vec<KnownJob>) -> Vec<Input> {
    if !term.tracing {
        return term.kernel.decide(jobs, random()).await;
    }
    // Each job's span covers the decision; kernel and worker hang below it.
    let mut spans = Vec::with_capacity(jobs.len());
    for job in &mut jobs {
        let span =
            tracing::info_span!("scheduler.schedule", job_id = %job.id, topic = %job.spec.topic);
        trace::follow(&span, &job.traceparent);
        if let Some(traceparent) = trace::current(&span) {
            job.traceparent = traceparent;
        }
        spans.push(span);
    }
    let inputs = term.kernel.decide(jobs, random()).await;
    drop(spans);
    inputs
}

/// The engine's view of a row.
pub fn known(job: LoadedJob) -> KnownJob {
    KnownJob {
        id: job.job_id,
        tenant: job.tenant,
        spec: Arc::new(job.spec),
        trace_id: job.trace_id,
        traceparent: job.traceparent,
        created_at: job.created_at,
        deadline_at: job.deadline_at,
        // From its due time on it could run: what it waits after that is our doing.
        not_before: job.not_before.max(job.due_at),
        attempt: job.attempt,
        payload_len: job.payload_len,
        lost: job.reason_code.as_deref() == Some("worker_lost"),
    }
}

/// Asks the kernel about jobs the engine wants decided (again), in batches.
pub async fn rechecks(
    term: Arc<Term>,
    mut jobs: mpsc::UnboundedReceiver<Arc<KnownJob>>,
) -> anyhow::Result<()> {
    let mut batch = Vec::new();
    loop {
        tokio::select! {
            () = term.over.cancelled() => return Ok(()),
            n = jobs.recv_many(&mut batch, term.config.scheduler.batch) => {
                if n == 0 {
                    return Ok(());
                }
            }
        }
        let jobs = batch.drain(..).map(|job| (*job).clone()).collect();
        let inputs = ask(&term, jobs).await;
        if !term.hand_in(Batch::of(inputs)).await {
            return Ok(());
        }
    }
}

/// Takes jobs up by id: due ones and forgotten ones.
pub async fn take_up(term: &Term, ids: &[JobId]) -> Result<usize, airlock_ledger::LedgerError> {
    let inline = term.config.scheduler.inline_bytes;
    for chunk in ids.chunks(term.config.scheduler.batch) {
        let loaded = term.ledger.load(chunk, inline).await?;
        decide(term, loaded, None).await;
    }
    Ok(ids.len())
}
