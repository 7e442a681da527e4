//! What the leader does without being asked: due jobs, the change log, the clock, the
//! policy's snapshot. Forgotten, stale and old jobs have modules of their own.
//!
//! None of these takes input: each looks at the ledger and does what is missing, so a
//! restart is the normal path.

use std::sync::Arc;
use std::time::Duration;

use airlock_bus::{Outgoing, subjects};
use airlock_ledger::LoadedJob;
use airlock_model::JobState;
use airlock_model::engine::{Input, RunId};
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::{own, packet};

use tokio::sync::Semaphore;

use crate::commit::committer::pack_events;
use crate::inbound::submissions;
use crate::term::{Batch, Term, ToCore};

/// Without anything due, the next due time is asked for this often.
const DUE_POLL: Duration = Duration::from_millis(500);
const TAIL_POLL: Duration = Duration::from_millis(500);
const CONFIRM_POLL: Duration = Duration::from_millis(500);
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
const TAIL_BATCH: u32 = 200;

/// Sleeps, unless the term ends: `false` then.
pub async fn pause(term: &Term, for_: Duration) -> bool {
    tokio::select! {
        () = term.over.cancelled() => false,
        () = tokio::time::sleep(for_) => true,
    }
}

/// Claims delayed jobs when their time comes, never before. While a batch is decided,
/// the next is claimed.
pub async fn due(term: Arc<Term>) -> anyhow::Result<()> {
    let slots = Arc::new(Semaphore::new(DUE_AT_ONCE));
    let inline = term.config.scheduler.inline_bytes;
    loop {
        let wait = match term.ledger.next_due(term.shard).await {
            Ok((Some(at), now)) if at <= now => {
                let slot = tokio::select! {
                    () = term.over.cancelled() => return Ok(()),
                    slot = slots.clone().acquire_owned() => slot?,
                };
                match term.ledger.claim_due(DUE_BATCH, inline).await {
                    // Somebody else has them in hand.
                    Ok(jobs) if jobs.is_empty() => DUE_BUSY,
                    Ok(jobs) => {
                        let wait = pace(jobs.len());
                        let claimer = term.clone();
                        term.tasks.spawn(async move {
                            claimed(&claimer, jobs).await;
                            drop(slot);
                        });
                        wait
                    }
                    Err(error) => {
                        tracing::warn!(%error, "claiming due jobs");
                        DUE_POLL
                    }
                }
            }
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

/// How long to wait after a claim of so many. Where many come, more follow: a little
/// patience makes batches of them. A full batch leaves others behind, which are late.
fn pace(claimed: usize) -> Duration {
    if (DUE_MANY..DUE_BATCH as usize).contains(&claimed) {
        DUE_GATHER
    } else {
        Duration::ZERO
    }
}

/// Takes claimed jobs up. They are in no list any more: if the term ends before, the next
/// one reads them with all open jobs.
async fn claimed(term: &Term, jobs: Vec<LoadedJob>) {
    // Due by the database's clock; ours follows it at a small distance. A short wait spares
    // the engine a timer and the kernel a second question; for more the engine waits.
    let latest = jobs.iter().filter_map(|j| j.due_at).max();
    let early = latest.map_or(Duration::ZERO, |at| at.since(term.clock.now()));
    if !early.is_zero() && !pause(term, early.min(DUE_EARLY)).await {
        return;
    }
    submissions::decide(term, jobs).await;
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
            match term.ledger.advance_cursor(reached).await {
                Ok(()) => at = reached,
                Err(error) => tracing::warn!(%error, "moving the change cursor"),
            }
        }
        match term.ledger.change_lag(term.shard, at).await {
            Ok(lag) => term.metrics.lags("changes", lag),
            Err(error) => tracing::warn!(%error, "asking for the lag of the change log"),
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
    let mut inputs = Vec::new();
    for job in jobs.iter().filter(|j| j.state.is_final()) {
        inputs.push(Input::Ended {
            job: job.job_id.clone(),
            state: job.state,
        });
        inputs.extend(ended_run(job));
    }
    term.hand_in(Batch::of(inputs)).await;
    // Approved meanwhile: it enters anew, also when its wake-up was lost.
    let pending: Vec<_> = jobs
        .iter()
        .filter(|j| j.state == JobState::Pending)
        .map(|j| j.job_id.clone())
        .collect();
    submissions::take_up(term, &pending).await?;
    let mut outgoing: Vec<_> = jobs.iter().filter_map(|j| letter(term, j)).collect();
    let ended = jobs.into_iter().filter(|j| j.state != JobState::Pending);
    outgoing.extend(pack_events(term, ended.map(event).collect()));
    for sent in term.bus.publish_all(outgoing).await {
        sent?;
    }
    Ok(())
}

/// The run that a job's end left behind at its worker.
fn ended_run(job: &LoadedJob) -> Option<Input> {
    if job.state == JobState::Succeeded {
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

/// The dead letter of a job that others ended, or whose own letter may not have got out.
fn letter(term: &Term, job: &LoadedJob) -> Option<Outgoing> {
    let code = match job.state {
        JobState::Denied => "safety_denied".to_owned(),
        JobState::Failed | JobState::Timeout => job.reason_code.clone().unwrap_or_default(),
        JobState::Pending
        | JobState::Scheduled
        | JobState::Dispatched
        | JobState::Running
        | JobState::ApprovalRequired
        | JobState::Succeeded
        | JobState::Cancelled
        | JobState::OutputQuarantined => return None,
    };
    let letter = own::DeadLetter {
        job_id: job.job_id.to_string(),
        tenant_id: job.tenant.to_string(),
        topic: job.spec.topic.as_str().to_owned(),
        reason_code: code,
        reason: job.reason.clone().unwrap_or_default(),
        last_state: job.state.as_str().to_owned(),
        attempts: job.attempt.0,
        at_us: job.finished_at.map_or(0, |t| t.as_micros()),
        ..own::DeadLetter::default()
    };
    Some(Outgoing {
        subject: subjects::JOB_DLQ.to_owned(),
        payload: packet::seal(
            &term.instance,
            &job.trace_id,
            term.clock.now(),
            Payload::DeadLetter(letter),
        ),
        msg_id: None,
        traceparent: None,
    })
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
            term.hand_in(Batch::of(vec![Input::PolicyConfirmed { snapshot }]))
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
