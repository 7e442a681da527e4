//! The stages of the bare loop, as tasks that overlap.
//!
//! ```text
//! accept ─▶ (JetStream) ─▶ guard ─▶ assign ─▶ dispatch ─▶ (JetStream) ─▶ work
//!                                                                          │
//!    release ◀─ finish ◀─ guard ◀──────────── (JetStream) ◀────────────────┘
//! ```
//!
//! While a stage waits for the disk or the network with one batch, the others have
//! theirs under way; with that, the loop is bound by the processor and not by waiting,
//! which is what makes it an upper bound. The number of batches on their way is
//! bounded, or the first stage would run far ahead and the rest would work alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use airlock_bus::{
    BoxError, Consumer, DeadLetters, DeadMessage, Delivery, MessageKey, Outcome, PublishError,
    Settler,
};
use airlock_ledger::{Commit, Finish, MoveKind, Submitted};
use airlock_model::JobId;
use airlock_proto::packet::WAKE_JOBS;
use anyhow::{Context, ensure};
use async_trait::async_trait;
use tokio::sync::{Mutex, Semaphore, mpsc};
use tokio::task::JoinSet;

use super::packets::{self, Placed};
use super::{Consumers, Line, SHARD};
use crate::progress::Progress;

/// As many accept at once as keep the ledger busy while one waits for the disk.
const ACCEPTORS: usize = 2;
/// Batches on their way between acceptance and the end.
const UNDER_WAY: usize = 16;
/// Batches that wait between two steps of the same stage.
const BETWEEN: usize = 2;
const SHOW_EVERY: Duration = Duration::from_millis(200);

/// Nothing here is ever poison.
struct NoDeadLetters;

#[async_trait]
impl DeadLetters for NoDeadLetters {
    async fn put(&self, messages: Vec<DeadMessage>) -> Result<(), BoxError> {
        Err(format!("{} dead letters in the bare loop", messages.len()).into())
    }
}

/// How much there is to do.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    pub total: usize,
    pub batch: usize,
}

impl Load {
    fn batches(self) -> usize {
        self.total / self.batch
    }
}

/// What a hop brings: so many batches of so many messages.
struct Messages {
    batches: usize,
    each: usize,
}

/// Messages of one batch, with what they lead to.
struct Batch<T> {
    deliveries: Vec<Delivery>,
    keys: Vec<MessageKey>,
    jobs: Vec<JobId>,
    items: Vec<T>,
}

/// Takes all jobs all the way.
pub async fn run_stages(
    line: &Arc<Line>,
    consumers: &Consumers,
    load: Load,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    let slots = Arc::new(Semaphore::new(UNDER_WAY));
    let next = Arc::new(AtomicUsize::new(0));
    let done = Arc::new(AtomicUsize::new(0));
    let (guarded, to_assign) = mpsc::channel(BETWEEN);
    let (assigned, to_dispatch) = mpsc::channel(BETWEEN);
    let (checked, to_finish) = mpsc::channel(BETWEEN);
    let (finished, to_tell) = mpsc::channel(BETWEEN);
    let submits = Arc::clone(&consumers.submits);
    let dispatches = Arc::clone(&consumers.dispatches);
    let results = Arc::clone(&consumers.results);
    let of_submits = submits.lock().await.settler();
    let of_results = results.lock().await.settler();

    let mut stages = JoinSet::new();
    for _ in 0..ACCEPTORS {
        let (slots, next) = (Arc::clone(&slots), Arc::clone(&next));
        stages.spawn(commit_pending_jobs(Arc::clone(line), slots, next, load));
    }
    stages.spawn(check_and_lock_batches(
        Arc::clone(line),
        submits,
        Messages {
            batches: load.batches(),
            each: load.batch.div_ceil(WAKE_JOBS),
        },
        packets::place_jobs_of_wake_up,
        |p: &Placed| &p.job_id,
        guarded,
    ));
    stages.spawn(commit_assignments(Arc::clone(line), to_assign, assigned));
    stages.spawn(publish_dispatches(
        Arc::clone(line),
        to_dispatch,
        of_submits,
    ));
    stages.spawn(answer_dispatches(Arc::clone(line), dispatches, load));
    stages.spawn(check_and_lock_batches(
        Arc::clone(line),
        results,
        Messages {
            batches: load.batches(),
            each: load.batch,
        },
        packets::parse_result,
        |f: &Finish| &f.job_id,
        checked,
    ));
    stages.spawn(commit_results(Arc::clone(line), to_finish, finished));
    stages.spawn(release_batches(
        Arc::clone(line),
        to_tell,
        of_results,
        slots,
        Arc::clone(&done),
    ));

    while !stages.is_empty() {
        match tokio::time::timeout(SHOW_EVERY, stages.join_next()).await {
            Err(_) => progress.set(done.load(Ordering::Relaxed)),
            Ok(ended) => ended
                .transpose()
                .context("a stage")?
                .transpose()?
                .unwrap_or(()),
        }
    }
    Ok(())
}

/// Commits batches as PENDING and announces them, as the gateway does.
async fn commit_pending_jobs(
    line: Arc<Line>,
    slots: Arc<Semaphore>,
    next: Arc<AtomicUsize>,
    load: Load,
) -> anyhow::Result<()> {
    loop {
        let from = next.fetch_add(load.batch, Ordering::Relaxed);
        if from >= load.total {
            return Ok(());
        }
        // Given back by the last stage.
        slots.acquire().await.context("a slot")?.forget();
        let jobs = packets::new_jobs(from, load.batch)?;
        let outcomes = line.ledger.submit(&jobs).await?;
        ensure!(
            outcomes
                .iter()
                .all(|o| matches!(o, Submitted::Accepted { .. })),
            "a job of the floor was not accepted"
        );
        let wakes = jobs
            .chunks(WAKE_JOBS)
            .map(packets::wake_up_message)
            .collect();
        ensure_all_sent(line.gateway.publish_all(wakes).await)?;
    }
}

/// Gathers a batch, reads it, asks whether it was seen before and locks its jobs.
async fn check_and_lock_batches<T: Send>(
    line: Arc<Line>,
    consumer: Arc<Mutex<Consumer>>,
    messages: Messages,
    read: fn(&Delivery) -> anyhow::Result<Vec<T>>,
    job: for<'a> fn(&'a T) -> &'a JobId,
    next: mpsc::Sender<Batch<T>>,
) -> anyhow::Result<()> {
    let mut consumer = consumer.lock().await;
    for _ in 0..messages.batches {
        let deliveries = gather_batch(&mut consumer, messages.each).await?;
        let mut items = Vec::new();
        for delivery in &deliveries {
            items.extend(read(delivery)?);
        }
        let keys: Vec<MessageKey> = deliveries.iter().map(Delivery::key).collect();
        let jobs: Vec<JobId> = items.iter().map(|item| job(item).clone()).collect();
        let (seen, locked) = line.locks.begin_batch(&keys, &jobs).await;
        ensure!(!seen.contains(&true), "a message of the floor came twice");
        ensure!(!locked.contains(&false), "a job of the floor was locked");
        let batch = Batch {
            deliveries,
            keys,
            jobs,
            items,
        };
        next.send(batch)
            .await
            .ok()
            .context("the next stage ended")?;
    }
    Ok(())
}

/// A full batch: a bare loop has no reason to go with less.
async fn gather_batch(consumer: &mut Consumer, batch: usize) -> anyhow::Result<Vec<Delivery>> {
    let mut gathered = Vec::with_capacity(batch);
    while gathered.len() < batch {
        gathered.extend(consumer.next_batch(batch - gathered.len()).await?);
    }
    Ok(gathered)
}

/// Commits SCHEDULED.
async fn commit_assignments(
    line: Arc<Line>,
    mut batches: mpsc::Receiver<Batch<Placed>>,
    next: mpsc::Sender<Batch<Placed>>,
) -> anyhow::Result<()> {
    let mut writer = line.ledger.leader_writer(SHARD, line.epoch).await?;
    while let Some(batch) = batches.recv().await {
        let jobs = batch.items.iter();
        let moves: Result<Vec<_>, _> = jobs.map(|job| packets::to_assign(&line, job)).collect();
        let commit = Commit::from_iter(moves?);
        let written = writer.commit(&commit).await?;
        let assigned = written.jobs_moved_by(MoveKind::Assign).count();
        ensure!(
            assigned == batch.items.len(),
            "{assigned} of {} jobs of the floor were assigned",
            batch.items.len()
        );
        next.send(batch)
            .await
            .ok()
            .context("the next stage ended")?;
    }
    Ok(())
}

/// Sends the dispatches, then lets go of the wake-ups and the locks.
async fn publish_dispatches(
    line: Arc<Line>,
    mut batches: mpsc::Receiver<Batch<Placed>>,
    settler: Settler,
) -> anyhow::Result<()> {
    while let Some(batch) = batches.recv().await {
        let messages = batch
            .items
            .iter()
            .map(|job| packets::dispatch_message(&line, job));
        ensure_all_sent(line.scheduler.publish_all(messages.collect()).await)?;
        release_batch(&line, batch, &settler).await?;
    }
    Ok(())
}

/// Answers dispatches with results, as a worker whose handlers do nothing.
async fn answer_dispatches(
    line: Arc<Line>,
    consumer: Arc<Mutex<Consumer>>,
    load: Load,
) -> anyhow::Result<()> {
    let mut consumer = consumer.lock().await;
    for _ in 0..load.batches() {
        let deliveries = gather_batch(&mut consumer, load.batch).await?;
        let results = deliveries.iter().map(|d| packets::result_message(&line, d));
        let results = results.collect::<Result<Vec<_>, _>>()?;
        acknowledge_deliveries(&consumer.settler(), deliveries).await?;
        ensure_all_sent(line.worker.publish_all(results).await)?;
    }
    Ok(())
}

/// Commits the final states and their change-log entry.
async fn commit_results(
    line: Arc<Line>,
    mut batches: mpsc::Receiver<Batch<Finish>>,
    next: mpsc::Sender<Batch<()>>,
) -> anyhow::Result<()> {
    let mut writer = line.ledger.leader_writer(SHARD, line.epoch).await?;
    while let Some(batch) = batches.recv().await {
        let commit = Commit::from_iter(batch.items);
        let written = writer.commit(&commit).await?;
        let finished = written.jobs_moved_by(MoveKind::Finish).count();
        ensure!(
            finished == batch.jobs.len() && written.position.is_some(),
            "{finished} of {} jobs of the floor were finished",
            batch.jobs.len()
        );
        let rest = Batch {
            deliveries: batch.deliveries,
            keys: batch.keys,
            jobs: batch.jobs,
            items: Vec::new(),
        };
        next.send(rest).await.ok().context("the next stage ended")?;
    }
    Ok(())
}

/// Releases the results and the locks, and makes room for another batch.
async fn release_batches(
    line: Arc<Line>,
    mut batches: mpsc::Receiver<Batch<()>>,
    settler: Settler,
    slots: Arc<Semaphore>,
    done: Arc<AtomicUsize>,
) -> anyhow::Result<()> {
    while let Some(batch) = batches.recv().await {
        let jobs = batch.jobs.len();
        release_batch(&line, batch, &settler).await?;
        done.fetch_add(jobs, Ordering::Relaxed);
        slots.add_permits(1);
    }
    Ok(())
}

/// Remembers the messages as processed, releases the locks, acknowledges.
async fn release_batch<T>(line: &Line, batch: Batch<T>, settler: &Settler) -> anyhow::Result<()> {
    line.locks.finish_batch(&batch.keys, &batch.jobs).await;
    acknowledge_deliveries(settler, batch.deliveries).await
}

async fn acknowledge_deliveries(
    settler: &Settler,
    deliveries: Vec<Delivery>,
) -> anyhow::Result<()> {
    let count = deliveries.len();
    let done = deliveries.into_iter().map(|d| (d, Outcome::Done)).collect();
    let settled = settler.settle(done, &NoDeadLetters).await;
    ensure!(
        settled.acknowledged == count,
        "{} of {count} messages were acknowledged",
        settled.acknowledged
    );
    Ok(())
}

fn ensure_all_sent(results: Vec<Result<(), PublishError>>) -> anyhow::Result<()> {
    results
        .into_iter()
        .collect::<Result<(), PublishError>>()
        .context("publishing")
}
