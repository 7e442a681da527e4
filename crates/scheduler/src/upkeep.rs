//! What the leader does without being asked: due jobs, forgotten jobs, the change log,
//! the clock, the policy's snapshot.
//!
//! None of these takes input: each looks at the ledger and does what is missing, so a
//! restart is the normal path.

use std::sync::Arc;
use std::time::Duration;

use airlock_guard::keys;
use airlock_ledger::LoadedJob;
use airlock_model::engine::Input;
use airlock_proto::own;

use crate::core::pack_events;
use crate::intake;
use crate::term::{Batch, Term, ToCore};

/// Without anything due, the next due time is asked for this often.
const DUE_POLL: Duration = Duration::from_millis(500);
const TAIL_POLL: Duration = Duration::from_millis(500);
const CONFIRM_POLL: Duration = Duration::from_millis(500);
const CLOCK_POLL: Duration = Duration::from_secs(10);
const DUE_BATCH: u32 = 500;
const TAIL_BATCH: u32 = 200;
const REPLAY_PAGE: u32 = 1000;

/// Sleeps, unless the term ends: `false` then.
async fn pause(term: &Term, for_: Duration) -> bool {
    tokio::select! {
        () = term.over.cancelled() => false,
        () = tokio::time::sleep(for_) => true,
    }
}

/// Claims delayed jobs when their time comes, never before.
pub async fn due(term: Arc<Term>) -> anyhow::Result<()> {
    loop {
        let wait = match term.ledger.next_due(term.shard).await {
            Ok((Some(at), now)) if at <= now => match claim(&term).await {
                Ok(()) => Duration::ZERO,
                Err(error) => {
                    tracing::warn!(%error, "claiming due jobs");
                    DUE_POLL
                }
            },
            // Rounded up to the next millisecond: waking early would find nothing.
            Ok((Some(at), now)) => (at.since(now) + Duration::from_millis(1)).min(DUE_POLL),
            Ok((None, _)) => DUE_POLL,
            Err(error) => {
                tracing::warn!(%error, "asking for due jobs");
                DUE_POLL
            }
        };
        if !pause(&term, wait).await {
            return Ok(());
        }
    }
}

async fn claim(term: &Term) -> Result<(), airlock_ledger::LedgerError> {
    let ids = term.ledger.claim_due(term.shard, DUE_BATCH).await?;
    intake::take_up(term, &ids).await?;
    Ok(())
}

/// Looks for PENDING jobs that nobody holds: on its tick, and at once when the bus came
/// back or a stream was lost, because then their wake-ups may be lost too.
pub async fn replay(term: Arc<Term>) -> anyhow::Result<()> {
    let s = &term.config.scheduler;
    let lock = term.guard.periodic_lock(
        term.guard.keys().replayer(),
        keys::periodic_ttl(s.replay_interval),
    );
    let mut lost = term.bus.stream_lost();
    let mut connected = term.bus.connected();
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
        if let Err(error) = orphans(&term, age).await {
            tracing::warn!(%error, "looking for forgotten jobs");
        }
    }
}

async fn orphans(term: &Term, age: Duration) -> Result<(), airlock_ledger::LedgerError> {
    let age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
    let mut after = None;
    loop {
        let ids = term
            .ledger
            .old_pending(term.shard, age_ms, after.as_ref(), REPLAY_PAGE)
            .await?;
        let Some(last) = ids.last().cloned() else {
            return Ok(());
        };
        let whole = ids.len() < REPLAY_PAGE as usize;
        if term.to_core.send(ToCore::Orphans(ids)).await.is_err() || whole {
            return Ok(());
        }
        after = Some(last);
    }
}

/// Reads the change log behind its writers: tells the bus what its writer did not, and
/// the engine what others did to its jobs.
pub async fn tail(term: Arc<Term>) -> anyhow::Result<()> {
    let mut at = loop {
        match term.ledger.change_cursor(term.shard).await {
            Ok(at) => break at,
            Err(error) => {
                tracing::warn!(%error, "reading the change cursor");
                if !pause(&term, TAIL_POLL).await {
                    return Ok(());
                }
            }
        }
    };
    loop {
        let changes = match term.ledger.changes(term.shard, at, TAIL_BATCH).await {
            Ok(changes) => changes,
            Err(error) => {
                tracing::warn!(%error, "reading the change log");
                Vec::new()
            }
        };
        let more = changes.len() == TAIL_BATCH as usize;
        let mut reached = at;
        for change in changes {
            if !term.was_told(change.position)
                && let Err(error) = retell(&term, &change.job_ids).await
            {
                tracing::warn!(%error, "telling of a change");
                break;
            }
            reached = change.position;
        }
        if reached != at {
            match term
                .ledger
                .advance_cursor(term.shard, term.epoch, reached)
                .await
            {
                Ok(()) => at = reached,
                Err(error) => tracing::warn!(%error, "moving the change cursor"),
            }
        }
        if !more && !pause(&term, TAIL_POLL).await {
            return Ok(());
        }
        if term.over.is_cancelled() {
            return Ok(());
        }
    }
}

async fn retell(term: &Term, ids: &[airlock_model::JobId]) -> anyhow::Result<()> {
    let jobs = term.ledger.load(ids, 0).await?;
    let inputs = jobs
        .iter()
        .filter(|j| j.state.is_final())
        .map(|j| Input::Ended {
            job: j.job_id.clone(),
            state: j.state,
        })
        .collect();
    term.hand_in(Batch::of(inputs)).await;
    let events = jobs.into_iter().map(event).collect();
    for sent in term.bus.publish_all(pack_events(term, events)).await {
        sent?;
    }
    Ok(())
}

fn event(job: LoadedJob) -> own::JobEvent {
    own::JobEvent {
        seq: 0,
        job_id: job.job_id.to_string(),
        tenant_id: job.tenant.to_string(),
        state: job.state.as_str().to_owned(),
        topic: job.spec.topic.as_str().to_owned(),
        workflow_id: job.spec.workflow_id.unwrap_or_default(),
        attempt: job.attempt.0,
        reason_code: job.reason_code.unwrap_or_default(),
        at_us: job.finished_at.map_or(0, |t| t.as_micros()),
        trace_id: job.trace_id,
    }
}

/// Keeps the engine told which policy is in force, so that verdicts on waiting jobs may
/// be used without asking again; and keeps the clock and the snapshot fresh.
pub async fn confirm(term: Arc<Term>) -> anyhow::Result<()> {
    loop {
        if let Some(snapshot) = term.kernel.snapshot().await {
            term.hand_in(Batch::of(vec![Input::Confirmed { snapshot }]))
                .await;
        }
        if !pause(&term, CONFIRM_POLL).await {
            return Ok(());
        }
    }
}

pub async fn clock(term: Arc<Term>) -> anyhow::Result<()> {
    while pause(&term, CLOCK_POLL).await {
        if let Err(error) = term.clock.sync(&term.ledger).await {
            tracing::warn!(%error, "asking the ledger for its time");
        }
    }
    Ok(())
}

pub async fn snapshots(term: Arc<Term>) -> anyhow::Result<()> {
    while pause(&term, term.config.scheduler.snapshot_interval).await {
        if term.to_core.send(ToCore::Snapshot).await.is_err() {
            break;
        }
    }
    Ok(())
}
