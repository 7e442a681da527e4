//! Stored results against today's policy. Where a rescan stands is in the ledger, so it goes
//! on where it stood under the next leader.

use std::sync::Arc;
use std::time::Duration;

use airlock_ledger::{RescanCounts, RescanJob, RunningRescan};
use airlock_model::engine::QueuedJob;
use airlock_model::output::{OutputPhase, OutputStatus};
use sha2::{Digest, Sha256};

use super::judge::{self, Candidate, RunOutput, decide};
use super::scans::apply_late;
use super::wire::RunFacts;
use crate::inbound::submissions;
use crate::term::Term;

const POLL: Duration = Duration::from_secs(1);
/// Rows looked at in one step.
const PAGE: u32 = 100;
/// Pages that nobody could judge before the rescan is given up.
const MAX_FAILURES: u32 = 30;

/// Runs until the term is over.
pub async fn run(term: Arc<Term>) -> anyhow::Result<()> {
    if !term.output.is_on() {
        term.ctx.over.cancelled().await;
        return Ok(());
    }
    let mut failures = 0;
    loop {
        let more = match step(&term, &mut failures).await {
            Ok(more) => more,
            Err(error) => {
                tracing::warn!(%error, "rescanning outputs failed, retrying");
                false
            }
        };
        if term.ctx.over.is_cancelled() || (!more && !term.ctx.sleep_unless_over(POLL).await) {
            return Ok(());
        }
    }
}

/// One page of the oldest rescan; whether there is more.
async fn step(term: &Term, failures: &mut u32) -> anyhow::Result<bool> {
    let ledger = &term.stores.ledger;
    let Some(rescan) = ledger.next_rescan().await? else {
        return Ok(false);
    };
    let Some((jobs, last)) = ledger.rescan_page(&rescan, PAGE).await? else {
        ledger.finish_rescan(rescan.id, None).await?;
        return Ok(true);
    };
    let after_at = jobs.last().map(|job| job.finished_at);
    match rescan_jobs(term, &rescan, jobs).await? {
        Ok(counts) => {
            *failures = 0;
            let after = (last.as_str(), after_at);
            ledger.advance_rescan(rescan.id, after, counts).await?;
            Ok(true)
        }
        Err(why) => {
            *failures += 1;
            if *failures >= MAX_FAILURES {
                *failures = 0;
                ledger.finish_rescan(rescan.id, Some(&why)).await?;
            }
            Ok(false)
        }
    }
}

/// What became of a page; the inner error when nobody could judge it.
async fn rescan_jobs(
    term: &Term,
    rescan: &RunningRescan,
    jobs: Vec<RescanJob>,
) -> anyhow::Result<Result<RescanCounts, String>> {
    let mut counts = RescanCounts::default();
    if jobs.is_empty() {
        return Ok(Ok(counts));
    }
    let gate = &term.output;
    let ids: Vec<_> = jobs.iter().map(|job| job.job_id.clone()).collect();
    let rows = term.stores.ledger.load_jobs(&ids, 0).await?;
    let queued: Vec<QueuedJob> = rows.into_iter().map(submissions::to_queued_job).collect();
    let mut candidates = Vec::with_capacity(jobs.len());
    for job in &jobs {
        let Some(queued) = queued.iter().find(|q| q.id == job.job_id) else {
            counts.failed += 1;
            continue;
        };
        candidates.push(Candidate::new(
            queued,
            Some(job.result.clone()),
            false,
            true,
        ));
    }
    let facts = RunFacts::default();
    let requests = candidates.iter().map(|c| c.to_request(&facts)).collect();
    let answers = match gate.check(gate.config.scan_timeout, requests).await {
        Ok(answers) => answers,
        Err(why) => return Ok(Err(why.as_short_text().to_owned())),
    };
    for (candidate, mut answer) in candidates.into_iter().zip(answers) {
        let (job, content) = (candidate.job.id.clone(), candidate.content.clone());
        let sha256 = Sha256::digest(content.as_deref().unwrap_or_default()).to_vec();
        let run = RunOutput {
            job: job.clone(),
            dispatch: String::new(),
            facts: facts.clone(),
            content,
        };
        judge::fetch_masked_copy(term, &run, &mut answer).await;
        let judged = decide(gate, candidate, Ok(answer), OutputPhase::Async);
        let status = judged.checked.status();
        counts.scanned += 1;
        if !rescan.dry_run && status != OutputStatus::Allowed {
            apply_late(term, &job, &sha256, judged).await?;
        }
        match status {
            OutputStatus::Redacted => counts.redacted += 1,
            OutputStatus::Quarantined => counts.quarantined += 1,
            OutputStatus::Allowed => counts.allowed += 1,
            OutputStatus::Held
            | OutputStatus::Skipped
            | OutputStatus::Released
            | OutputStatus::Rejected => counts.failed += 1,
        }
    }
    Ok(Ok(counts))
}
