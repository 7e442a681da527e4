//! How old the last good round is, and what `/health/ready` says about it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::term::Term;

/// A leader without a good round for so long is not ready.
const LIMIT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(500);
/// How often the age of the last good round is recorded for other services.
const RECORD: Duration = Duration::from_secs(1);

/// The time of the last round that was carried out; an idle leader has one every second.
#[derive(Debug)]
pub struct LastRound {
    since: Instant,
    last_ms: AtomicU64,
    running: AtomicBool,
}

impl Default for LastRound {
    fn default() -> Self {
        Self {
            since: Instant::now(),
            last_ms: AtomicU64::new(0),
            running: AtomicBool::new(false),
        }
    }
}

impl LastRound {
    /// A round begins.
    pub fn begin(&self) {
        self.running.store(true, Ordering::Relaxed);
    }

    /// Whether a round is being carried out.
    pub fn is_running(&self) -> bool {
        self.running.load(Ordering::Relaxed)
    }

    /// A round was carried out.
    pub fn mark(&self) {
        self.running.store(false, Ordering::Relaxed);
        let ms = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.store(ms, Ordering::Relaxed);
    }

    pub fn age(&self) -> Duration {
        let last = Duration::from_millis(self.last_ms.load(Ordering::Relaxed));
        self.since.elapsed().saturating_sub(last)
    }
}

/// Shows how old the last good round is until the term is over.
pub async fn show_round_age(term: Arc<Term>) -> anyhow::Result<()> {
    let health = &term.ctx.health;
    term.last_round.mark();
    loop {
        let age = term.last_round.age();
        health.set_fact("last_good_round_age_ms", age.as_millis() as u64);
        if age > LIMIT {
            let message = format!("the last good round is {} s old", age.as_secs());
            health.down("rounds", message);
        } else {
            health.ok("rounds");
        }
        if !term.ctx.sleep_unless_over(POLL).await {
            health.remove("rounds");
            return Ok(());
        }
    }
}

/// Records the age of the last good round in the ledger, where the gateway reads it. Apart
/// from [`show_round_age`], so that a slow ledger does not hold up this process's own health.
pub async fn record_round_age(term: Arc<Term>) -> anyhow::Result<()> {
    loop {
        if let Err(error) = term.stores.ledger.record_round(term.last_round.age()).await {
            tracing::debug!(%error, "last good round not recorded");
        }
        if !term.ctx.sleep_unless_over(RECORD).await {
            return Ok(());
        }
    }
}
