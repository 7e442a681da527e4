//! What the leader does without a message: due jobs, the change log, the clock, the
//! workers' snapshot. Forgotten, stale and old jobs have modules of their own.
//!
//! None of these takes input: each reads the ledger and does what is missing, so a
//! restart is the normal path.

use std::sync::Arc;
use std::time::Duration;

use airlock_ledger::{Change, EVENTS, LoadedJob, Page, Tail};
use airlock_model::JobState;
use airlock_model::engine::{Input, RunId};
use tokio::sync::Semaphore;

use crate::commit::handle::InputBatch;
use crate::inbound::submissions;
use crate::outbound::announce::{self, Announcement};
use crate::term::Term;

/// Without anything due, the next due time is read this often.
const DUE_POLL: Duration = Duration::from_millis(500);
const CHANGES_POLL: Duration = Duration::from_millis(500);
const CLOCK_POLL: Duration = Duration::from_secs(10);
const DUE_BATCH: u32 = 500;
/// When what is due is in somebody else's hands.
const DUE_BUSY: Duration = Duration::from_millis(20);
/// So many in one claim make it worth gathering the next ones, for so long.
const DUE_MANY: usize = 50;
/// The longest wait for our own clock to reach the due time of what was claimed.
const DUE_EARLY: Duration = Duration::from_millis(20);
const DUE_GATHER: Duration = Duration::from_millis(20);
/// Batches of due jobs that are being decided at once.
const DUE_AT_ONCE: usize = 4;
const CHANGES_BATCH: u32 = 200;

/// Claims delayed jobs when their time comes, never before. While a batch is decided,
/// the next is claimed.
pub async fn claim_due_jobs(term: Arc<Term>) -> anyhow::Result<()> {
    let slots = Arc::new(Semaphore::new(DUE_AT_ONCE));
    let inline = term.ctx.config.scheduler.inline_bytes;
    loop {
        let wait = match term.stores.ledger.next_due_time(term.ctx.shard).await {
            Ok((Some(at), now)) if at <= now => {
                let slot = tokio::select! {
                    () = term.ctx.over.cancelled() => return Ok(()),
                    slot = slots.clone().acquire_owned() => slot?,
                };
                match term.stores.ledger.claim_due_jobs(DUE_BATCH, inline).await {
                    // Somebody else has them in hand.
                    Ok(jobs) if jobs.is_empty() => DUE_BUSY,
                    Ok(jobs) => {
                        let wait = next_claim_delay(jobs.len());
                        let claimer = term.clone();
                        term.ctx.tasks.spawn("due jobs", async move {
                            evaluate_claimed_jobs(&claimer, jobs).await;
                            drop(slot);
                        });
                        wait
                    }
                    Err(error) => {
                        tracing::warn!(%error, "claiming due jobs failed, retrying");
                        DUE_POLL
                    }
                }
            }
            // Rounded up to the next millisecond: waking early would find nothing.
            Ok((Some(at), now)) => (at.since(now) + Duration::from_millis(1)).min(DUE_POLL),
            Ok((None, _)) => DUE_POLL,
            Err(error) => {
                tracing::warn!(%error, "reading the next due time failed, retrying");
                DUE_POLL
            }
        };
        if !term.ctx.sleep_unless_over(wait).await {
            return Ok(());
        }
    }
}

/// How long to wait after a claim of so many. Where many come, more follow: a little
/// patience makes batches of them. A full batch leaves others behind, which are late.
fn next_claim_delay(claimed: usize) -> Duration {
    if (DUE_MANY..DUE_BATCH as usize).contains(&claimed) {
        DUE_GATHER
    } else {
        Duration::ZERO
    }
}

/// Has claimed jobs evaluated. They are in no list any more: if the term ends before, the next
/// one reads them with all open jobs.
async fn evaluate_claimed_jobs(term: &Term, jobs: Vec<LoadedJob>) {
    // Due by the database's clock; ours follows it at a small distance. A short wait spares
    // the engine a timer and the kernel a second question; for more the engine waits.
    let latest = jobs.iter().filter_map(|j| j.due_at).max();
    let early = latest.map_or(Duration::ZERO, |at| at.since(term.ctx.clock.now()));
    if !early.is_zero() && !term.ctx.sleep_unless_over(early.min(DUE_EARLY)).await {
        return;
    }
    submissions::evaluate_and_enqueue(term, jobs).await;
}

/// Reads the change log behind its writers: publishes what its writer did not, and tells
/// the engine what others did to its jobs.
pub async fn follow_change_log(term: Arc<Term>) -> anyhow::Result<()> {
    let mut tail = term.stores.ledger.leader_tail(EVENTS);
    loop {
        let more = match publish_change_page(&term, &mut tail).await {
            Ok(more) => more,
            Err(error) => {
                tracing::warn!(%error, "publishing the change log failed, retrying");
                false
            }
        };
        match tail.lag().await {
            Ok(lag) => term.ctx.metrics.set_log_lag("changes", lag),
            Err(error) => tracing::warn!(%error, "reading the change log lag failed, retrying"),
        }
        if term.ctx.over.is_cancelled()
            || (!more && !term.ctx.sleep_unless_over(CHANGES_POLL).await)
        {
            return Ok(());
        }
    }
}

/// Publishes a page of changes; whether there is more.
async fn publish_change_page(term: &Term, tail: &mut Tail<Change>) -> anyhow::Result<bool> {
    let Page::Entries(changes) = tail.next(CHANGES_BATCH).await? else {
        // Entries wait for this reader; there is nothing that it has missed.
        tail.finish_rescan().await?;
        return Ok(true);
    };
    let more = changes.len() == CHANGES_BATCH as usize;
    let mut reached = None;
    let mut published = Ok(());
    for (position, change) in changes {
        if !term.published.remove(position) {
            published = publish_job_changes(term, &change.job_ids).await;
            if published.is_err() {
                break;
            }
        }
        reached = Some(position);
    }
    if let Some(reached) = reached {
        tail.advance(reached).await?;
    }
    published.map(|()| more)
}

async fn publish_job_changes(term: &Term, ids: &[airlock_model::JobId]) -> anyhow::Result<()> {
    let jobs = term.stores.ledger.load_jobs(ids, 0).await?;
    let mut inputs = Vec::new();
    for job in jobs.iter().filter(|j| j.state.is_final()) {
        inputs.push(Input::Ended {
            job: job.job_id.clone(),
            state: job.state,
        });
        inputs.extend(to_run_ended_input(job));
    }
    term.commit.enqueue(InputBatch::from_inputs(inputs)).await;
    // Approved meanwhile: it enters anew, also when its wake-up was lost.
    let pending: Vec<_> = jobs
        .iter()
        .filter(|j| j.state == JobState::Pending)
        .map(|j| j.job_id.clone())
        .collect();
    submissions::load_and_enqueue(term, &pending).await?;
    let list: Vec<_> = jobs.iter().map(Announcement::from_job).collect();
    announce::publish_announcements(term, &list).await
}

/// The run that a job's end left behind at its worker.
fn to_run_ended_input(job: &LoadedJob) -> Option<Input> {
    if !job.state.aftermath(None).cancel_run {
        return None;
    }
    Some(Input::EndedRun {
        job: job.job_id.clone(),
        run: RunId {
            worker: job.worker.clone()?,
            dispatch: job.dispatch_id?,
            attempt: job.attempt,
        },
        state: job.state,
    })
}

pub async fn sync_clock(term: Arc<Term>) -> anyhow::Result<()> {
    while term.ctx.sleep_unless_over(CLOCK_POLL).await {
        if let Err(error) = term.ctx.clock.sync_with_ledger(&term.stores.ledger).await {
            tracing::warn!(%error, "reading the ledger clock failed, retrying");
        }
    }
    Ok(())
}

pub async fn write_worker_snapshots(term: Arc<Term>) -> anyhow::Result<()> {
    while term
        .ctx
        .sleep_unless_over(term.ctx.config.scheduler.snapshot_interval)
        .await
    {
        if !term.commit.write_snapshot().await {
            break;
        }
    }
    Ok(())
}
