//! The reconciler: finds jobs in the ledger that should have moved on and that nobody
//! tracks.
//!
//! The engine watches every run and deadline it tracks, from the last heartbeat, and acts
//! at once. This is the net below it. What it finds goes back to the engine, as
//! after a take-over, so that a timeout found here is no different from one found there:
//! the worker gets its cancel, the dead letter is written, the event published.
//!
//! What must stay true: nothing is timed out by age alone. A run that the engine tracks
//! is left to it, however old; one that nobody tracks gets the time in which its worker
//! would have shown it.

use std::sync::Arc;
use std::time::Duration;

use airlock_guard::keys;
use airlock_ledger::{LedgerError, StaleAfter};
use airlock_model::JobId;
use airlock_model::engine::RecoveredJob;
use airlock_service::config::duration;
use serde::{Deserialize, Serialize};

use crate::background::retry_budget::{RetryBudget, force_fail_jobs};
use crate::commit::handle::CommitHandle;
use crate::config::SchedulerConfig;
use crate::term::{Stores, TermContext};

/// How it looks for stale jobs.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReconcilerConfig {
    /// Its tick. Its lock lives twice as long.
    #[serde(with = "duration")]
    pub interval: Duration,
    /// Jobs read at once.
    pub batch: u32,
    /// Batches in one tick.
    pub iterations: u32,
    /// Ticks in which something is tried for a job before it is given up.
    pub tries: u32,
}

impl Default for ReconcilerConfig {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(30),
            batch: 200,
            iterations: 100,
            tries: 3,
        }
    }
}

impl ReconcilerConfig {
    pub fn validate(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.interval < Duration::from_millis(100) {
            problems.push("reconciler.interval must be at least 100ms".to_owned());
        }
        if !(1..=1000).contains(&self.batch) {
            problems.push("reconciler.batch must be between 1 and 1000".to_owned());
        }
        if self.iterations == 0 || self.tries == 0 {
            problems
                .push("reconciler.iterations and reconciler.tries must be at least 1".to_owned());
        }
        problems
    }
}

/// Runs until the term is over.
pub async fn run(
    ctx: Arc<TermContext>,
    stores: Arc<Stores>,
    commit: CommitHandle,
) -> anyhow::Result<()> {
    let config = &ctx.config.reconciler;
    let key = stores.guard.keys().reconciler_lock();
    let ttl = keys::periodic_ttl(config.interval);
    let lock = stores.guard.periodic_lock(key, ttl, ctx.epoch);
    let mut budget = RetryBudget::default();
    let mut from = None;
    while ctx.sleep_unless_over(config.interval).await {
        if !lock.acquire_or_extend().await {
            continue;
        }
        // A ledger that is away is asked again in the next tick: nothing is half done.
        if let Err(error) =
            recover_stale_jobs((&ctx, &stores, &commit), &mut from, &mut budget).await
        {
            tracing::warn!(%error, "scan of stale jobs failed, retrying");
        }
    }
    lock.release().await;
    Ok(())
}

/// Reads as many jobs as one tick may. What is beyond that is the next tick's: it goes
/// on where this one stopped, so that whatever stands still is reached in its turn.
async fn recover_stale_jobs(
    (ctx, stores, commit): (&TermContext, &Stores, &CommitHandle),
    from: &mut Option<JobId>,
    budget: &mut RetryBudget,
) -> Result<(), LedgerError> {
    let config = &ctx.config.reconciler;
    let s = &ctx.config.scheduler;
    let after = StaleAfter {
        dispatch_ms: to_millis(s.dispatch_timeout),
        running_ms: to_millis(s.running_timeout),
    };
    if from.is_none() {
        budget.next_round();
    }
    let mut found = Vec::new();
    for _ in 0..config.iterations {
        let ids = stores
            .ledger
            .stale_jobs(ctx.shard, after, from.as_ref(), config.batch)
            .await?;
        let last = ids.last().cloned();
        let last_page = ids.len() < config.batch as usize;
        let untracked = commit.filter_untracked(ids).await;
        let (again, exhausted) = budget.split_exhausted(untracked, config.tries);
        force_fail_jobs(
            &stores.ledger,
            &exhausted,
            "reconcile_failed",
            "it stood still, and nothing that was tried moved it",
        )
        .await;
        if !again.is_empty() {
            stores.ledger.delete_due_times(&again).await?;
            // Rows that cannot be read are missing here; their try is counted.
            let jobs = stores.ledger.load_jobs(&again, 0).await?;
            found.extend(jobs.iter().map(|job| job.state));
            tracing::warn!(
                jobs = again.len(),
                readable = jobs.len(),
                "stale jobs found that nobody tracks"
            );
            let open = jobs.into_iter().filter(|j| !j.state.is_final()).collect();
            if !commit.recover_jobs(open).await {
                return Ok(());
            }
        }
        *from = last.filter(|_| !last_page);
        if last_page {
            break;
        }
    }
    if from.is_some() {
        tracing::info!("more stale jobs than one tick allows; going on in the next");
    }
    ctx.metrics.set_stale_jobs(found);
    Ok(())
}

/// Makes a run as old as the ledger says, but for the time in which its worker, if it
/// lives and has it, will say so.
pub fn set_assumed_silence(job: &mut RecoveredJob, s: &SchedulerConfig) {
    if let Some(a) = &job.assignment {
        let limit = if a.accepted {
            s.running_timeout
        } else {
            s.dispatch_timeout
        };
        job.silent_for = limit.saturating_sub(s.worker_ttl);
    }
}

fn to_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
