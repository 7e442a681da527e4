//! The pending replayer: takes up PENDING jobs that nobody holds, because their wake-up
//! was lost.
//!
//! It scans at intervals, and at once when the bus came back or a stream was lost. A job
//! goes through the normal way again, under its stored trace id; no attempt is used up.
//! What waits for its due time, backs off or stands in the ready queue is left alone.
//! Approved jobs are PENDING in the ledger from the approval on, so they are found too.
//!
//! What must stay true: every scan comes to its end, in as many ticks as it takes, and a
//! lock that is busy or a ledger that is away delays it and nothing else.

use std::sync::Arc;
use std::time::Duration;

use airlock_guard::{NamedLock, keys};
use airlock_ledger::LedgerError;
use airlock_model::JobId;

use crate::background::retry_budget::{RetryBudget, force_fail_jobs};
use crate::inbound::submissions;
use crate::metrics::count_by_topic;
use crate::term::Term;

/// Jobs read at once; a tick reads at most as many pages as the reconciler.
const PAGE: u32 = 1000;

/// When an urgent scan could not be finished, it goes on after this.
const SOON: Duration = Duration::from_secs(1);

/// A scan of everything that is PENDING for so long.
struct Scan {
    age: Duration,
    /// It does not wait for the next tick.
    urgent: bool,
    /// How far it has got.
    after: Option<JobId>,
}

impl Scan {
    fn new_regular(age: Duration) -> Self {
        Self {
            age,
            urgent: false,
            after: None,
        }
    }

    fn new_urgent() -> Self {
        Self {
            age: Duration::ZERO,
            urgent: true,
            after: None,
        }
    }
}

pub async fn run(term: Arc<Term>) -> anyhow::Result<()> {
    let ttl = keys::periodic_ttl(term.ctx.config.scheduler.replay_interval);
    let key = term.stores.guard.keys().replayer_lock();
    let lock = term.stores.guard.periodic_lock(key, ttl, term.ctx.epoch);
    let ended = scan_repeatedly(&term, &lock).await;
    lock.release().await;
    ended
}

async fn scan_repeatedly(term: &Term, lock: &NamedLock) -> anyhow::Result<()> {
    let s = &term.ctx.config.scheduler;
    let mut lost = term.stores.bus.stream_lost();
    let mut connected = term.stores.bus.connected();
    let mut budget = RetryBudget::default();
    let mut scan = Scan::new_regular(s.pending_age);
    loop {
        let wait = match scan.urgent {
            true => SOON.min(s.replay_interval),
            false => s.replay_interval,
        };
        tokio::select! {
            () = term.ctx.over.cancelled() => return Ok(()),
            () = tokio::time::sleep(wait) => {}
            changed = lost.changed() => {
                changed?;
                tracing::warn!("stream lost, scanning for jobs whose wake-up was in it");
                scan = Scan::new_urgent();
            }
            changed = connected.changed() => {
                changed?;
                if !*connected.borrow_and_update() {
                    continue;
                }
                scan = Scan::new_urgent();
            }
        }
        if !lock.acquire_or_extend().await {
            continue;
        }
        match continue_scan(term, &mut scan, &mut budget).await {
            Ok(true) => scan = Scan::new_regular(s.pending_age),
            Ok(false) => tracing::info!("scan of PENDING jobs continues in the next tick"),
            Err(error) => tracing::warn!(%error, "scan of PENDING jobs failed, retrying"),
        }
    }
}

/// Continues the scan; whether it has come to its end.
async fn continue_scan(
    term: &Term,
    scan: &mut Scan,
    budget: &mut RetryBudget,
) -> Result<bool, LedgerError> {
    let age_ms = u64::try_from(scan.age.as_millis()).unwrap_or(u64::MAX);
    if scan.after.is_none() {
        budget.next_round();
    }
    for _ in 0..term.ctx.config.reconciler.iterations {
        let ids = term
            .stores
            .ledger
            .old_pending_jobs(term.ctx.shard, age_ms, scan.after.as_ref(), PAGE)
            .await?;
        let last = ids.last().cloned();
        let last_page = ids.len() < PAGE as usize;
        let untracked = term.commit.filter_untracked(ids).await;
        if !untracked.is_empty() {
            replay_jobs(term, untracked, budget).await?;
        }
        if last_page {
            return Ok(true);
        }
        scan.after = last;
    }
    Ok(false)
}

async fn replay_jobs(
    term: &Term,
    ids: Vec<JobId>,
    budget: &mut RetryBudget,
) -> Result<(), LedgerError> {
    let inline = term.ctx.config.scheduler.inline_bytes;
    for chunk in ids.chunks(term.ctx.config.scheduler.batch) {
        let jobs = term.stores.ledger.load_jobs(chunk, inline).await?;
        tracing::info!(jobs = jobs.len(), "replaying untracked PENDING jobs");
        // What could not be read is tried again in the next scan, a few times.
        let missing = chunk
            .iter()
            .filter(|id| jobs.iter().all(|job| job.job_id != **id));
        let tries = term.ctx.config.reconciler.tries;
        let (_, exhausted) = budget.split_exhausted(missing.cloned().collect(), tries);
        let ledger = &term.stores.ledger;
        force_fail_jobs(ledger, &exhausted, "unreadable", "its row cannot be read").await;
        for job in &jobs {
            count_by_topic(&term.ctx.metrics.orphan_replayed, job.spec.topic.as_str());
        }
        submissions::evaluate_and_enqueue(term, jobs).await;
    }
    Ok(())
}
