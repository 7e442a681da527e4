//! Jobs come in: from the bus, from their due time, from the replayer, from the engine
//! asking again. All are read from the ledger and evaluated by the kernel in batches.
//!
//! A submission on the bus is a wake-up: what counts is the row. The gateway's names all
//! jobs of one transaction. A client of the agent protocol submits on the bus alone: when
//! there is no row, the packet itself is accepted, under the same rules as REST.

use std::collections::HashSet;
use std::sync::Arc;

use airlock_bus::{Consumer, Delivery, Outcome, Settler};
use airlock_ledger::{LedgerError, LoadedJob};
use airlock_model::engine::{Input, QueuedJob};
use airlock_model::{JobId, JobState, RunEnd};
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::{packet, trace};
use bytes::Bytes;
use futures::StreamExt;
use tokio::sync::mpsc;

use crate::commit::handle::{InputBatch, PendingAck};
use crate::inbound::bus_submission;
use crate::inbound::reader::{PARALLEL, for_each_batch, store_retry_delay};
use crate::metrics::count_by_topic;
use crate::term::{Term, random_u64};

/// Reads submissions until the term is over.
pub async fn run(term: Arc<Term>, consumer: Consumer) -> anyhow::Result<()> {
    for_each_batch(
        "submissions",
        term,
        consumer,
        |term, settler, deliveries| async move {
            process_batch(&term, settler, deliveries).await;
        },
    )
    .await
}

/// A message on the submit subject.
enum SubmitMessage {
    /// These are in the ledger; maybe they were announced before.
    Wake(Vec<JobId>, Bytes),
    /// This job, which may be in the ledger or not.
    Offer(JobId, Box<bus_submission::Offer>),
}

impl SubmitMessage {
    fn from_delivery(delivery: &Delivery) -> Result<Self, String> {
        let raw = &delivery.payload;
        match packet::decode(raw.clone()).map_err(|e| e.to_string())? {
            (_, Payload::Wake(wake)) => {
                let ids = wake.job_ids.into_iter().map(JobId::new);
                let ids = ids.collect::<Result<_, _>>().map_err(|e| e.to_string())?;
                Ok(Self::Wake(ids, wake.ahead))
            }
            (envelope, Payload::JobRequest(request)) => {
                let id = JobId::new(&request.job_id).map_err(|e| e.to_string())?;
                let offer = bus_submission::Offer {
                    envelope,
                    request,
                    raw: raw.clone(),
                };
                Ok(Self::Offer(id, Box::new(offer)))
            }
            _ => Err("not a job request".to_owned()),
        }
    }

    fn job_ids(&self) -> &[JobId] {
        match self {
            Self::Wake(ids, _) => ids,
            Self::Offer(id, _) => std::slice::from_ref(id),
        }
    }
}

/// Messages that are processed together.
type Group = Vec<(Delivery, SubmitMessage)>;

async fn process_batch(term: &Term, settler: Settler, deliveries: Vec<Delivery>) {
    let mut bad = Vec::new();
    let mut good = Vec::with_capacity(deliveries.len());
    let mut finished = Vec::new();
    for delivery in deliveries {
        match SubmitMessage::from_delivery(&delivery) {
            Ok(SubmitMessage::Wake(_, ahead))
                if !ahead.is_empty() && term.speculation.take_finished(&ahead) =>
            {
                finished.push(delivery);
            }
            Ok(message) => good.push((delivery, message)),
            Err(reason) => bad.push((delivery, Outcome::Poison { reason })),
        }
    }
    term.acks.settle_deliveries(&settler, bad).await;
    if !finished.is_empty() {
        // Through the commit loop, behind the jobs themselves: it acknowledges while it leads.
        let done = PendingAck {
            settler: settler.clone(),
            keys: finished.iter().map(Delivery::key).collect(),
            deliveries: finished,
            jobs: Vec::new(),
        };
        let batch = InputBatch {
            done: Some(done),
            ..InputBatch::default()
        };
        term.commit.enqueue(batch).await;
    }
    let groups = group_by_weight(good, term.ctx.config.scheduler.batch, |(_, message)| {
        message.job_ids().len()
    });
    futures::stream::iter(groups)
        .for_each_concurrent(PARALLEL, |group| process_group(term, &settler, group))
        .await;
}

/// Neighbours together up to `limit` jobs; a message is never split.
fn group_by_weight<T>(items: Vec<T>, limit: usize, weight: fn(&T) -> usize) -> Vec<Vec<T>> {
    let mut groups: Vec<Vec<T>> = Vec::new();
    let mut room = 0;
    for item in items {
        let weight = weight(&item);
        match groups.last_mut() {
            Some(group) if weight <= room => {
                room -= weight;
                group.push(item);
            }
            _ => {
                room = limit.saturating_sub(weight);
                groups.push(vec![item]);
            }
        }
    }
    groups
}

async fn process_group(term: &Term, settler: &Settler, group: Group) {
    let keys: Vec<_> = group.iter().map(|(d, _)| d.key()).collect();
    let ids: Vec<JobId> = group
        .iter()
        .flat_map(|(_, message)| message.job_ids())
        .cloned()
        .collect();
    // Both stores are asked at once, and the kernel too: the guard only saves work, it
    // decides nothing, and the locks are for what is written.
    let (seen, evaluated) = tokio::join!(
        term.acks.check_duplicates_and_lock(&keys, &ids),
        load_and_evaluate(term, &ids)
    );
    let (stored, mut batch) = match evaluated {
        Ok(evaluated) => evaluated,
        Err(error) => {
            tracing::warn!(%error, jobs = ids.len(), "ledger unavailable, submissions retried later");
            term.acks.release_locks(&ids).await;
            let again = group.into_iter().map(|(d, _)| {
                (
                    d,
                    Outcome::Retry(term.ctx.config.scheduler.retry_delay_store),
                )
            });
            term.acks.settle_deliveries(settler, again.collect()).await;
            return;
        }
    };
    let mut fresh = Vec::with_capacity(group.len());
    let mut offers = Vec::new();
    for ((delivery, message), seen) in group.into_iter().zip(seen) {
        match message {
            SubmitMessage::Offer(id, offer) if !seen && !stored.contains(&id) => {
                offers.push((delivery, offer));
            }
            SubmitMessage::Offer(..) | SubmitMessage::Wake(..) => fresh.push(delivery),
        }
    }
    if !offers.is_empty() {
        let asked: Vec<_> = offers.iter().map(|(_, offer)| &**offer).collect();
        let (outcomes, accepted) = bus_submission::accept_bus_jobs(term, &asked).await;
        batch.merge_without_acks(evaluate_pending(term, accepted).await);
        let mut not_done = Vec::new();
        for ((delivery, offer), outcome) in offers.into_iter().zip(outcomes) {
            match outcome {
                Ok(()) => fresh.push(delivery),
                Err(bus_submission::Refused::Invalid(reason)) => {
                    not_done.push((delivery, Outcome::Poison { reason }));
                }
                Err(bus_submission::Refused::Later(error)) => {
                    let job = &offer.request.job_id;
                    tracing::warn!(%error, job, "store unavailable, submission retried later");
                    let base = term.ctx.config.scheduler.retry_delay_store;
                    let again = Outcome::Retry(store_retry_delay(base, delivery.deliveries));
                    not_done.push((delivery, again));
                }
            }
        }
        term.acks.settle_deliveries(settler, not_done).await;
    }
    batch.done = Some(PendingAck {
        settler: settler.clone(),
        // Only these are done: what comes again must not be taken for seen then.
        keys: fresh.iter().map(Delivery::key).collect(),
        deliveries: fresh,
        jobs: ids,
    });
    term.commit.enqueue(batch).await;
}

async fn load_and_evaluate(
    term: &Term,
    ids: &[JobId],
) -> Result<(HashSet<JobId>, InputBatch), LedgerError> {
    let inline = term.ctx.config.scheduler.inline_bytes;
    let loaded = term.stores.ledger.load_jobs(ids, inline).await?;
    let stored = loaded.iter().map(|job| job.job_id.clone()).collect();
    Ok((stored, evaluate_pending(term, loaded).await))
}

/// Asks the kernel about what is PENDING and enqueues the answers.
pub async fn evaluate_and_enqueue(term: &Term, loaded: Vec<LoadedJob>) {
    let batch = evaluate_pending(term, loaded).await;
    term.commit.enqueue(batch).await;
}

/// What the kernel says to those that are PENDING.
async fn evaluate_pending(term: &Term, loaded: Vec<LoadedJob>) -> InputBatch {
    let (jobs, payloads) = select_pending_jobs(loaded);
    for job in &jobs {
        count_by_topic(&term.ctx.metrics.jobs_received, job.spec.topic.as_str());
    }
    InputBatch {
        inputs: evaluate_jobs(term, jobs).await,
        payloads,
        ..InputBatch::default()
    }
}

/// What the kernel says to jobs that are about to be committed, if it can tell already.
pub async fn evaluate_before_commit(term: &Term, loaded: Vec<LoadedJob>) -> Option<InputBatch> {
    let (mut jobs, payloads) = select_pending_jobs(loaded);
    let spans = start_job_spans(term, &mut jobs);
    let inputs = term.kernel.decide_before_commit(jobs).await?;
    drop(spans);
    Some(InputBatch {
        inputs,
        payloads,
        ..InputBatch::default()
    })
}

/// Those that are PENDING, and their inputs. What waits in the ledger is claimed when its
/// time comes. Everything else is ours whatever our clock says of its due time, which the
/// engine waits for: nobody would bring it again.
fn select_pending_jobs(loaded: Vec<LoadedJob>) -> (Vec<QueuedJob>, Vec<(JobId, Bytes)>) {
    let mut payloads = Vec::new();
    let mut jobs = Vec::with_capacity(loaded.len());
    for mut job in loaded {
        if job.state != JobState::Pending || job.waits {
            continue;
        }
        if let Some(payload) = job.payload.take() {
            payloads.push((job.job_id.clone(), payload));
        }
        jobs.push(to_queued_job(job));
    }
    (jobs, payloads)
}

async fn evaluate_jobs(term: &Term, mut jobs: Vec<QueuedJob>) -> Vec<Input> {
    let spans = start_job_spans(term, &mut jobs);
    let inputs = term.kernel.decide_jobs(jobs, random_u64()).await;
    drop(spans);
    inputs
}

/// Each job's span covers the decision; kernel and worker hang below it.
fn start_job_spans(term: &Term, jobs: &mut [QueuedJob]) -> Vec<tracing::Span> {
    if !term.ctx.tracing {
        return Vec::new();
    }
    let mut spans = Vec::with_capacity(jobs.len());
    for job in jobs {
        let span =
            tracing::info_span!("scheduler.schedule", job_id = %job.id, topic = %job.spec.topic);
        trace::set_remote_parent(&span, &job.traceparent);
        if let Some(traceparent) = trace::traceparent_of_span(&span) {
            job.traceparent = traceparent;
        }
        spans.push(span);
    }
    spans
}

/// The engine's view of a row.
pub fn to_queued_job(job: LoadedJob) -> QueuedJob {
    QueuedJob {
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
        lost: job.run_end.is_some_and(RunEnd::is_lost),
        since: Some(job.since),
    }
}

/// Asks the kernel about jobs the engine wants decided (again), in batches.
pub async fn run_reevaluations(
    term: Arc<Term>,
    mut jobs: mpsc::UnboundedReceiver<Arc<QueuedJob>>,
) -> anyhow::Result<()> {
    let mut batch = Vec::new();
    loop {
        tokio::select! {
            () = term.ctx.over.cancelled() => return Ok(()),
            n = jobs.recv_many(&mut batch, term.ctx.config.scheduler.batch) => {
                if n == 0 {
                    return Ok(());
                }
            }
        }
        let jobs = batch.drain(..).map(|job| (*job).clone()).collect();
        let inputs = evaluate_jobs(&term, jobs).await;
        if !term.commit.enqueue(InputBatch::from_inputs(inputs)).await {
            return Ok(());
        }
    }
}

/// Loads jobs by id, due ones and forgotten ones, and has them evaluated.
pub async fn load_and_enqueue(term: &Term, ids: &[JobId]) -> Result<usize, LedgerError> {
    let inline = term.ctx.config.scheduler.inline_bytes;
    for chunk in ids.chunks(term.ctx.config.scheduler.batch) {
        let loaded = term.stores.ledger.load_jobs(chunk, inline).await?;
        evaluate_and_enqueue(term, loaded).await;
    }
    Ok(ids.len())
}

#[cfg(test)]
mod tests {
    use airlock_ledger::Accepted;
    use airlock_model::{JobSpec, TenantId, Timestamp, Topic};

    use super::*;

    /// A leader that takes over counts as lost what the one before it did.
    #[test]
    fn whatever_way_a_run_was_lost_its_job_is_known_to_have_lost_one() {
        let row = |run_end| {
            let topic = Topic::new("job.a").expect("a topic");
            let mut row = LoadedJob::from_accepted(Accepted {
                job_id: JobId::new("a").expect("an id"),
                tenant: TenantId::new("acme").expect("a tenant"),
                spec: JobSpec::new(topic),
                payload: None,
                payload_len: 0,
                trace_id: String::new(),
                traceparent: String::new(),
                at: Timestamp(0),
            });
            row.run_end = run_end;
            row
        };
        for end in RunEnd::ALL {
            assert_eq!(to_queued_job(row(Some(end))).lost, end.is_lost(), "{end}");
        }
        assert!(!to_queued_job(row(None)).lost);
    }

    #[test]
    fn groups_hold_neighbours_up_to_the_limit_and_split_nothing() {
        let groups = group_by_weight(vec![3, 4, 3, 1, 12, 10, 1], 10, |n| *n);
        assert_eq!(
            groups,
            [vec![3, 4, 3], vec![1], vec![12], vec![10], vec![1]]
        );
        assert!(group_by_weight(Vec::<usize>::new(), 10, |n| *n).is_empty());
    }
}
