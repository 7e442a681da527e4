//! Looks after held jobs: denies those nobody approved in time, and puts those that were
//! held under another policy to the one in force.
//!
//! Like all upkeep it takes no input: it looks at the ledger and does what is missing.
//! It decides nothing itself. Time decides about expiry, the kernel about the rest, and
//! the ledger lets every held job be moved once, by whoever is first, and by this leader
//! only while it leads.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use airlock_ledger::{HeldJob, LedgerError, Reevaluated};
use airlock_model::engine::Input;
use airlock_model::{JobId, JobState};

use crate::inbound::submissions;
use crate::metrics::ByOutcome;
use crate::term::{Term, random};

const POLL: Duration = Duration::from_millis(500);
/// Held jobs in one batch.
const PAGE: u32 = 200;
/// How many polls pass between looks for requests whose jobs ended otherwise.
const WITHDRAW_EVERY: u32 = 20;
/// How many polls pass between counts of what is pending.
const COUNT_EVERY: u32 = 4;
/// How many polls pass between questions to the kernel which policy is in force.
const ASK_EVERY: u32 = 2;

/// Runs until the term is over.
pub async fn look_after(term: Arc<Term>) -> anyhow::Result<()> {
    // The policy all held jobs have been put to.
    let mut judged_by = String::new();
    let mut polls: u32 = 0;
    loop {
        tokio::select! {
            () = term.over.cancelled() => return Ok(()),
            () = tokio::time::sleep(POLL) => {}
        }
        polls = polls.wrapping_add(1);
        if let Err(error) = expire(&term).await {
            tracing::warn!(%error, "looking for expired approvals");
        }
        if polls.is_multiple_of(WITHDRAW_EVERY) {
            match term.ledger.withdraw_approvals().await {
                Ok(closed) => ended(&term, "withdrawn", closed),
                Err(error) => tracing::warn!(%error, "closing approvals of jobs that ended"),
            }
        }
        if polls.is_multiple_of(COUNT_EVERY) {
            match term.ledger.pending_approvals(term.shard).await {
                Ok(pending) => {
                    let pending = i64::try_from(pending).unwrap_or(i64::MAX);
                    term.metrics.approvals_pending.set(pending);
                }
                Err(error) => tracing::warn!(%error, "counting approvals"),
            }
        }
        if polls.is_multiple_of(ASK_EVERY)
            && let Some(snapshot) = term.kernel.snapshot().await
            && snapshot != judged_by
        {
            match rejudge(&term, &snapshot).await {
                Ok(true) => judged_by = snapshot,
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "judging held jobs by the new policy"),
            }
        }
    }
}

/// Counts requests that ended without a vote.
fn ended(term: &Term, outcome: &'static str, count: u64) {
    if count > 0 {
        let by = ByOutcome { outcome };
        term.metrics.approvals.get_or_create(&by).inc_by(count);
    }
}

async fn expire(term: &Term) -> Result<(), LedgerError> {
    loop {
        let expired = term.ledger.expire_approvals(PAGE).await?;
        ended(term, "expired", expired.len() as u64);
        for job in &expired {
            tracing::info!(%job, "nobody approved it in time; denied");
        }
        if expired.len() < PAGE as usize {
            return Ok(());
        }
    }
}

/// Puts every job that is held under another policy to the kernel. Whether all of them
/// have an answer now.
async fn rejudge(term: &Term, snapshot: &str) -> Result<bool, LedgerError> {
    let mut after: Option<JobId> = None;
    let mut whole = true;
    loop {
        let page = term
            .ledger
            .held_under_other(term.shard, snapshot, after.as_ref(), PAGE)
            .await?;
        let Some(last) = page.last().map(|h| h.job_id.clone()) else {
            return Ok(whole);
        };
        let more = page.len() == PAGE as usize;
        whole &= rejudge_page(term, page, snapshot).await?;
        if !more || term.over.is_cancelled() {
            return Ok(whole);
        }
        after = Some(last);
    }
}

async fn rejudge_page(
    term: &Term,
    page: Vec<HeldJob>,
    snapshot: &str,
) -> Result<bool, LedgerError> {
    let ids: Vec<JobId> = page.iter().map(|h| h.job_id.clone()).collect();
    let held: HashMap<JobId, HeldJob> = page.into_iter().map(|h| (h.job_id.clone(), h)).collect();
    let jobs: Vec<_> = term
        .ledger
        .load(&ids, 0)
        .await?
        .into_iter()
        .filter(|job| job.state == JobState::ApprovalRequired)
        .map(submissions::known)
        .collect();
    let mut whole = true;
    for answer in term.kernel.decide(jobs, random()).await {
        // Anything but a verdict means that the kernel could not be asked.
        let Input::Decided { job, verdict } = answer else {
            whole = false;
            continue;
        };
        let Some(held) = held.get(&job.id) else {
            continue;
        };
        // An answer of the policy before, from the cache or from a kernel that lags.
        if verdict.snapshot != snapshot {
            whole = false;
            continue;
        }
        match term.ledger.rejudge(held, &verdict).await? {
            Reevaluated::Kept => {}
            // Looked at again: if it is still held, it has no answer yet.
            Reevaluated::Nothing => whole = false,
            Reevaluated::Denied => {
                ended(term, "denied", 1);
                tracing::info!(job = %job.id, "held; the new policy denies it");
            }
            Reevaluated::AskedAnew => {
                ended(term, "superseded", 1);
                tracing::info!(job = %job.id, rule = %verdict.rule_id, "held; asked anew");
            }
            Reevaluated::Released => {
                ended(term, "released", 1);
                tracing::info!(job = %job.id, "held; the new policy asks nobody");
                submissions::take_up(term, std::slice::from_ref(&job.id)).await?;
            }
        }
    }
    Ok(whole)
}
