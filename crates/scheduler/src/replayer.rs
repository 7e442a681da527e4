//! The pending replayer: takes up PENDING jobs that nobody holds, because their wake-up
//! was lost.
//!
//! It ticks, and it looks at once when the bus came back or a stream was lost. A job
//! goes through the normal way again, under its stored trace id; no attempt is used up.
//! What waits for its due time, backs off or stands in the ready queue is left alone.
//! Approved jobs are PENDING in the ledger from the approval on, so they are found too.

use std::sync::Arc;
use std::time::Duration;

use airlock_guard::keys;
use airlock_ledger::LedgerError;
use airlock_model::JobId;
use airlock_model::engine::Input;

use crate::intake;
use crate::metrics::by_topic;
use crate::strikes::{Strikes, give_up};
use crate::term::{Batch, Term};

/// Jobs read at once; a tick reads at most as many pages as the reconciler.
const PAGE: u32 = 1000;

pub async fn replay(term: Arc<Term>) -> anyhow::Result<()> {
    let s = &term.config.scheduler;
    let lock = term.guard.periodic_lock(
        term.guard.keys().replayer(),
        keys::periodic_ttl(s.replay_interval),
    );
    let mut lost = term.bus.stream_lost();
    let mut connected = term.bus.connected();
    let mut strikes = Strikes::default();
    loop {
        let age = tokio::select! {
            () = term.over.cancelled() => return Ok(()),
            () = tokio::time::sleep(s.replay_interval) => s.pending_age,
            changed = lost.changed() => {
                changed?;
                tracing::warn!("a stream was lost; looking for jobs whose wake-up was in it");
                Duration::ZERO
            }
            changed = connected.changed() => {
                changed?;
                let up = *connected.borrow_and_update();
                let input = if up { Input::BusUp } else { Input::BusDown };
                term.hand_in(Batch::of(vec![input])).await;
                if !up {
                    continue;
                }
                Duration::ZERO
            }
        };
        if !lock.tick().await {
            continue;
        }
        if let Err(error) = tick(&term, age, &mut strikes).await {
            tracing::warn!(%error, "looking for forgotten jobs");
        }
    }
}

async fn tick(term: &Term, age: Duration, strikes: &mut Strikes) -> Result<(), LedgerError> {
    let age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
    strikes.round();
    let mut after: Option<JobId> = None;
    for _ in 0..term.config.reconciler.iterations {
        let ids = term
            .ledger
            .old_pending(term.shard, age_ms, after.as_ref(), PAGE)
            .await?;
        let Some(last) = ids.last().cloned() else {
            break;
        };
        let whole = ids.len() < PAGE as usize;
        let loose = term.loose(ids).await;
        if !loose.is_empty() {
            take_up(term, loose, strikes).await?;
        }
        if whole {
            break;
        }
        after = Some(last);
    }
    Ok(())
}

async fn take_up(term: &Term, ids: Vec<JobId>, strikes: &mut Strikes) -> Result<(), LedgerError> {
    let inline = term.config.scheduler.inline_bytes;
    for chunk in ids.chunks(term.config.scheduler.batch) {
        let jobs = term.ledger.load(chunk, inline).await?;
        tracing::info!(jobs = jobs.len(), "taking up jobs that nobody holds");
        // What could not be read is tried again in the next tick, a few times.
        let missing = chunk
            .iter()
            .filter(|id| jobs.iter().all(|job| job.job_id != **id));
        let tries = term.config.reconciler.tries;
        let (_, enough) = strikes.divide(missing.cloned().collect(), tries);
        give_up(term, &enough, "unreadable", "its row cannot be read").await;
        for job in &jobs {
            by_topic(&term.metrics.orphan_replayed, job.spec.topic.as_str());
        }
        intake::decide(term, jobs).await;
    }
    Ok(())
}
