//! Held jobs: denies those nobody approved in time, and evaluates those that were held
//! under another policy by the active one.
//!
//! It takes no input: it reads the ledger and does what is missing. It decides nothing
//! itself. Time decides about expiry, the kernel about the rest, and the ledger lets every
//! held job be moved once, by whoever is first, and by this leader only while it leads.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use airlock_ledger::{HeldJob, LedgerError, Reevaluated};
use airlock_model::engine::Input;
use airlock_model::{JobId, JobState};

use crate::inbound::submissions;
use crate::metrics::ByOutcome;
use crate::term::{Stores, Term, TermContext, random_u64};

const POLL: Duration = Duration::from_millis(500);
/// Held jobs in one batch.
const PAGE: u32 = 200;
/// How many polls pass before requests whose jobs ended otherwise are closed.
const WITHDRAW_EVERY: u32 = 20;
/// How many polls pass between counts of what is pending.
const COUNT_EVERY: u32 = 4;
/// How many polls pass before it is checked whether the policy has changed.
const CHECK_EVERY: u32 = 2;

/// Runs until the term is over.
pub async fn run(term: Arc<Term>) -> anyhow::Result<()> {
    let (ctx, stores) = (&*term.ctx, &*term.stores);
    // The policy that all held jobs were evaluated by.
    let mut evaluated_by = String::new();
    let mut polls: u32 = 0;
    loop {
        if !ctx.sleep_unless_over(POLL).await {
            return Ok(());
        }
        polls = polls.wrapping_add(1);
        if let Err(error) = deny_expired_holds(ctx, stores).await {
            tracing::warn!(%error, "expiring approvals failed, retrying");
        }
        if polls.is_multiple_of(WITHDRAW_EVERY) {
            match stores.ledger.withdraw_approvals().await {
                Ok(closed) => count_closed_requests(ctx, "withdrawn", closed),
                Err(error) => {
                    tracing::warn!(%error, "closing approvals of ended jobs failed, retrying");
                }
            }
        }
        if polls.is_multiple_of(COUNT_EVERY) {
            match stores.ledger.pending_approvals(ctx.shard).await {
                Ok(pending) => {
                    let pending = i64::try_from(pending).unwrap_or(i64::MAX);
                    ctx.metrics.approvals_pending.set(pending);
                }
                Err(error) => tracing::warn!(%error, "counting approvals failed, retrying"),
            }
        }
        if polls.is_multiple_of(CHECK_EVERY)
            && let Some(snapshot) = term.active_policy.snapshot()
            && snapshot != evaluated_by
        {
            match reevaluate_held_jobs(&term, &snapshot).await {
                Ok(true) => evaluated_by = snapshot,
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(%error, snapshot, "evaluating held jobs failed, retrying");
                }
            }
        }
    }
}

/// Counts requests that ended without a vote.
fn count_closed_requests(ctx: &TermContext, outcome: &'static str, count: u64) {
    if count > 0 {
        let by = ByOutcome { outcome };
        ctx.metrics.approvals.get_or_create(&by).inc_by(count);
    }
}

async fn deny_expired_holds(ctx: &TermContext, stores: &Stores) -> Result<(), LedgerError> {
    loop {
        let expired = stores.ledger.expire_approvals(PAGE).await?;
        count_closed_requests(ctx, "expired", expired.len() as u64);
        for job in &expired {
            tracing::info!(%job, "approval expired, job denied");
        }
        if expired.len() < PAGE as usize {
            return Ok(());
        }
    }
}

/// Asks the kernel about every job that is held under another policy. Whether all of them
/// have an answer now.
async fn reevaluate_held_jobs(term: &Term, snapshot: &str) -> Result<bool, LedgerError> {
    let mut after: Option<JobId> = None;
    let mut complete = true;
    loop {
        let page = term
            .stores
            .ledger
            .held_under_other_policy(term.ctx.shard, snapshot, after.as_ref(), PAGE)
            .await?;
        let Some(last) = page.last().map(|h| h.job_id.clone()) else {
            return Ok(complete);
        };
        let more = page.len() == PAGE as usize;
        complete &= reevaluate_held_page(term, page, snapshot).await?;
        if !more || term.ctx.over.is_cancelled() {
            return Ok(complete);
        }
        after = Some(last);
    }
}

async fn reevaluate_held_page(
    term: &Term,
    page: Vec<HeldJob>,
    snapshot: &str,
) -> Result<bool, LedgerError> {
    let ids: Vec<JobId> = page.iter().map(|h| h.job_id.clone()).collect();
    let held: HashMap<JobId, HeldJob> = page.into_iter().map(|h| (h.job_id.clone(), h)).collect();
    let jobs: Vec<_> = term
        .stores
        .ledger
        .load_jobs(&ids, 0)
        .await?
        .into_iter()
        .filter(|job| job.state == JobState::ApprovalRequired)
        .map(submissions::to_queued_job)
        .collect();
    let mut complete = true;
    for answer in term.kernel.decide_jobs(jobs, random_u64()).await {
        // Anything but a verdict means that the kernel could not be asked.
        let Input::Decided { job, verdict } = answer else {
            complete = false;
            continue;
        };
        let Some(held) = held.get(&job.id) else {
            continue;
        };
        // An answer of the policy before, from the cache or from a kernel that lags.
        if verdict.snapshot != snapshot {
            complete = false;
            continue;
        }
        match term
            .stores
            .ledger
            .apply_reevaluation(held, &verdict)
            .await?
        {
            Reevaluated::Kept => {}
            // It is read again: if it is still held, it has no answer yet.
            Reevaluated::Nothing => complete = false,
            Reevaluated::Denied => {
                count_closed_requests(&term.ctx, "denied", 1);
                tracing::info!(job = %job.id, "held job denied by the new policy");
            }
            Reevaluated::AskedAnew => {
                count_closed_requests(&term.ctx, "superseded", 1);
                tracing::info!(job = %job.id, rule = %verdict.rule_id, "held job needs a new approval");
            }
            Reevaluated::Released => {
                count_closed_requests(&term.ctx, "released", 1);
                tracing::info!(job = %job.id, "held job released by the new policy");
                submissions::load_and_enqueue(term, std::slice::from_ref(&job.id)).await?;
            }
        }
    }
    Ok(complete)
}
