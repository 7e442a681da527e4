//! The reconciler: finds in the ledger what should have moved on and is in nobody's
//! hands.
//!
//! The engine watches every run and deadline it holds, from the last sign of life, and
//! acts at once. This is the net below it. What it finds goes back to the engine, as
//! after a take-over, so that a timeout found here is no different from one found there:
//! the worker is told, the letter written, the event published.
//!
//! What must stay true: nothing is timed out by age alone. A run that the engine holds
//! is left to it, however old; one that nobody holds gets the time in which its worker
//! would have shown it.

use std::sync::Arc;
use std::time::Duration;

use airlock_guard::keys;
use airlock_ledger::{LedgerError, StaleAfter};
use airlock_model::JobId;
use airlock_model::engine::RecoveredJob;
use airlock_service::config::duration;
use serde::{Deserialize, Serialize};

use crate::background::retry_budget::{Strikes, give_up};
use crate::background::upkeep::pause;
use crate::config::SchedulerConfig;
use crate::term::{Term, ToCore};

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

pub async fn reconcile(term: Arc<Term>) -> anyhow::Result<()> {
    let config = &term.config.reconciler;
    let key = term.guard.keys().reconciler();
    let ttl = keys::periodic_ttl(config.interval);
    let lock = term.guard.periodic_lock(key, ttl, term.epoch);
    let mut strikes = Strikes::default();
    let mut from = None;
    while pause(&term, config.interval).await {
        if !lock.tick().await {
            continue;
        }
        // A ledger that is away is asked again in the next tick: nothing is half done.
        if let Err(error) = tick(&term, &mut from, &mut strikes).await {
            tracing::warn!(%error, "looking for stale jobs");
        }
    }
    lock.release().await;
    Ok(())
}

/// Looks at so many jobs as one tick may. What is beyond that is the next tick's: it goes
/// on where this one stopped, so that whatever stands still is reached in its turn.
async fn tick(
    term: &Term,
    from: &mut Option<JobId>,
    strikes: &mut Strikes,
) -> Result<(), LedgerError> {
    let config = &term.config.reconciler;
    let s = &term.config.scheduler;
    let after = StaleAfter {
        dispatch_ms: millis(s.dispatch_timeout),
        running_ms: millis(s.running_timeout),
    };
    if from.is_none() {
        strikes.round();
    }
    let mut found = Vec::new();
    for _ in 0..config.iterations {
        let ids = term
            .ledger
            .stale(term.shard, after, from.as_ref(), config.batch)
            .await?;
        let last = ids.last().cloned();
        let whole = ids.len() < config.batch as usize;
        let loose = term.loose(ids).await;
        let (again, enough) = strikes.divide(loose, config.tries);
        give_up(
            term,
            &enough,
            "reconcile_failed",
            "it stood still, and nothing that was tried moved it",
        )
        .await;
        if !again.is_empty() {
            term.ledger.forget_due(&again).await?;
            // Rows that cannot be read are missing here, and have one strike more.
            let jobs = term.ledger.load(&again, 0).await?;
            found.extend(jobs.iter().map(|job| job.state));
            tracing::warn!(
                jobs = again.len(),
                readable = jobs.len(),
                "stale jobs that nobody holds"
            );
            let open = jobs.into_iter().filter(|j| !j.state.is_final()).collect();
            if term.to_core.send(ToCore::Adopt(open)).await.is_err() {
                return Ok(());
            }
        }
        *from = last.filter(|_| !whole);
        if whole {
            break;
        }
    }
    if from.is_some() {
        tracing::info!("more stale jobs than one tick allows; going on in the next");
    }
    term.metrics.found_stale(found);
    Ok(())
}

/// Makes a run as old as the ledger says, but for the time in which its worker, if it
/// lives and has it, will say so.
pub fn age(job: &mut RecoveredJob, s: &SchedulerConfig) {
    if let Some(a) = &job.assignment {
        let limit = if a.accepted {
            s.running_timeout
        } else {
            s.dispatch_timeout
        };
        job.silent_for = limit.saturating_sub(s.worker_ttl);
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
