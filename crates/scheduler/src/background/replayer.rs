//! The pending replayer: takes up PENDING jobs that nobody holds, because their wake-up
//! was lost.
//!
//! It ticks, and it looks at once when the bus came back or a stream was lost. A job
//! goes through the normal way again, under its stored trace id; no attempt is used up.
//! What waits for its due time, backs off or stands in the ready queue is left alone.
//! Approved jobs are PENDING in the ledger from the approval on, so they are found too.
//!
//! What must stay true: every look comes to its end, in as many ticks as it takes, and a
//! lock that is busy or a ledger that is away delays it and nothing else.

use std::sync::Arc;
use std::time::Duration;

use airlock_guard::{NamedLock, keys};
use airlock_ledger::LedgerError;
use airlock_model::JobId;

use crate::background::retry_budget::{Strikes, give_up};
use crate::inbound::submissions;
use crate::metrics::by_topic;
use crate::term::Term;

/// Jobs read at once; a tick reads at most as many pages as the reconciler.
const PAGE: u32 = 1000;

/// When an urgent look could not be finished, it goes on after this.
const SOON: Duration = Duration::from_secs(1);

/// A look at everything that is PENDING for so long.
struct Look {
    age: Duration,
    /// It does not wait for the next tick.
    urgent: bool,
    /// How far it has got.
    after: Option<JobId>,
}

impl Look {
    fn usual(age: Duration) -> Self {
        Self {
            age,
            urgent: false,
            after: None,
        }
    }

    fn at_once() -> Self {
        Self {
            age: Duration::ZERO,
            urgent: true,
            after: None,
        }
    }
}

pub async fn replay(term: Arc<Term>) -> anyhow::Result<()> {
    let ttl = keys::periodic_ttl(term.config.scheduler.replay_interval);
    let key = term.guard.keys().replayer();
    let lock = term.guard.periodic_lock(key, ttl, term.epoch);
    let ended = look_again_and_again(&term, &lock).await;
    lock.release().await;
    ended
}

async fn look_again_and_again(term: &Term, lock: &NamedLock) -> anyhow::Result<()> {
    let s = &term.config.scheduler;
    let mut lost = term.bus.stream_lost();
    let mut connected = term.bus.connected();
    let mut strikes = Strikes::default();
    let mut look = Look::usual(s.pending_age);
    loop {
        let pause = match look.urgent {
            true => SOON.min(s.replay_interval),
            false => s.replay_interval,
        };
        tokio::select! {
            () = term.over.cancelled() => return Ok(()),
            () = tokio::time::sleep(pause) => {}
            changed = lost.changed() => {
                changed?;
                tracing::warn!("a stream was lost; looking for jobs whose wake-up was in it");
                look = Look::at_once();
            }
            changed = connected.changed() => {
                changed?;
                if !*connected.borrow_and_update() {
                    continue;
                }
                look = Look::at_once();
            }
        }
        if !lock.tick().await {
            continue;
        }
        match tick(term, &mut look, &mut strikes).await {
            Ok(true) => look = Look::usual(s.pending_age),
            Ok(false) => tracing::info!("more jobs to look at than one tick allows; going on"),
            Err(error) => tracing::warn!(%error, "looking for forgotten jobs"),
        }
    }
}

/// Goes on with the look; whether it has come to its end.
async fn tick(term: &Term, look: &mut Look, strikes: &mut Strikes) -> Result<bool, LedgerError> {
    let age_ms = u64::try_from(look.age.as_millis()).unwrap_or(u64::MAX);
    if look.after.is_none() {
        strikes.round();
    }
    for _ in 0..term.config.reconciler.iterations {
        let ids = term
            .ledger
            .old_pending(term.shard, age_ms, look.after.as_ref(), PAGE)
            .await?;
        let last = ids.last().cloned();
        let whole = ids.len() < PAGE as usize;
        let loose = term.loose(ids).await;
        if !loose.is_empty() {
            take_up(term, loose, strikes).await?;
        }
        if whole {
            return Ok(true);
        }
        look.after = last;
    }
    Ok(false)
}

async fn take_up(term: &Term, ids: Vec<JobId>, strikes: &mut Strikes) -> Result<(), LedgerError> {
    let inline = term.config.scheduler.inline_bytes;
    for chunk in ids.chunks(term.config.scheduler.batch) {
        let jobs = term.ledger.load(chunk, inline).await?;
        tracing::info!(jobs = jobs.len(), "taking up jobs that nobody holds");
        // What could not be read is tried again in the next look, a few times.
        let missing = chunk
            .iter()
            .filter(|id| jobs.iter().all(|job| job.job_id != **id));
        let tries = term.config.reconciler.tries;
        let (_, enough) = strikes.divide(missing.cloned().collect(), tries);
        give_up(term, &enough, "unreadable", "its row cannot be read").await;
        for job in &jobs {
            by_topic(&term.metrics.orphan_replayed, job.spec.topic.as_str());
        }
        submissions::decide(term, jobs).await;
    }
    Ok(())
}
