//! What workers report of their runs beside the result, on its way into the ledger.
//!
//! Progress is gathered for a moment and written together, beside the way of jobs. What
//! must stay true: a job whose worker reports nothing pays nothing; what is gathered is
//! bounded; and a result that comes with artifacts or constraint reports is taken
//! only when those are in the ledger, so that whoever sees the end sees them too.

mod parse;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use airlock_guard::keys;
use airlock_ledger::{LedgerError, NewReport};
use airlock_model::JobId;
use airlock_proto::cap;
use tokio::sync::Notify;

use crate::output::at_rest::Erasure;
use crate::output::pieces::judge_pieces;
use crate::term::Term;
pub use parse::{report_from_result, run_id_of_progress};

/// What is reported within this time is written together.
const GATHER: Duration = Duration::from_millis(200);
/// Jobs whose reports wait to be written; beyond it reports are dropped and counted.
const MAX_WAITING: usize = 5_000;
/// Jobs written at once.
const AT_ONCE: usize = 200;
/// Partial results whose contents are held and written at once.
const PARTIALS_AT_ONCE: usize = 64;

/// What was reported and is not written yet: one entry for each job.
#[derive(Debug, Default)]
pub struct ReportBuffer {
    waiting: Mutex<HashMap<JobId, NewReport>>,
    /// Read without the lock by every batch of results.
    count: AtomicUsize,
    news: Notify,
}

impl ReportBuffer {
    /// False: there is no room.
    pub fn insert(&self, report: NewReport) -> bool {
        let mut waiting = self.lock();
        let full = waiting.len() >= MAX_WAITING;
        match waiting.entry(report.job_id.clone()) {
            Entry::Occupied(mut earlier) => parse::merge_reports(earlier.get_mut(), report),
            Entry::Vacant(_) if full => return false,
            Entry::Vacant(place) => {
                place.insert(report);
            }
        }
        self.count.store(waiting.len(), Ordering::Relaxed);
        drop(waiting);
        self.news.notify_one();
        true
    }

    /// What waits for these jobs.
    fn take_for_jobs<'a>(&self, jobs: impl IntoIterator<Item = &'a JobId>) -> Vec<NewReport> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let mut waiting = self.lock();
        let taken = jobs.into_iter().filter_map(|job| waiting.remove(job));
        let taken = taken.collect();
        self.count.store(waiting.len(), Ordering::Relaxed);
        taken
    }

    /// The next few of any jobs.
    fn take_batch(&self) -> Vec<NewReport> {
        let mut waiting = self.lock();
        let count = report_batch_len(waiting.values());
        let jobs: Vec<JobId> = waiting.keys().take(count).cloned().collect();
        let taken = jobs.iter().filter_map(|job| waiting.remove(job)).collect();
        self.count.store(waiting.len(), Ordering::Relaxed);
        taken
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<JobId, NewReport>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Buffers the progress of a run, if it says more than that the run goes on.
pub fn buffer_progress(term: &Term, envelope: &cap::BusPacket, progress: &cap::JobProgress) {
    let report = parse::report_from_progress(envelope, progress, term.ctx.clock.now());
    let Some(mut report) = report else {
        return;
    };
    term.output.words.mask_report(&mut report);
    if !term.reports.insert(report) {
        term.ctx.metrics.count_reports("dropped", 1);
    }
}

/// Writes what is gathered until the term is over.
pub async fn run(term: Arc<Term>) -> anyhow::Result<()> {
    loop {
        tokio::select! {
            () = term.ctx.over.cancelled() => break,
            () = term.reports.news.notified() => {}
        }
        let goes_on = term.ctx.sleep_unless_over(GATHER).await;
        flush_reports(&term).await;
        if !goes_on {
            break;
        }
    }
    Ok(())
}

async fn flush_reports(term: &Term) {
    loop {
        let reports = term.reports.take_batch();
        if reports.is_empty() {
            return;
        }
        let count = reports.len();
        if let Err(error) = write_reports(term, reports).await {
            // Progress is worth no second try: newer progress comes, and results bring theirs.
            tracing::warn!(%error, jobs = count, "writing worker reports failed, dropped");
            term.ctx.metrics.count_reports("dropped", count as u64);
        }
    }
}

/// Writes what came with results, and whatever was reported of their jobs before. An error means
/// that nothing is written and may be tried again.
pub async fn write_reports_with_results<'a>(
    term: &Term,
    jobs: impl IntoIterator<Item = &'a JobId>,
    with_them: Vec<NewReport>,
) -> Result<(), LedgerError> {
    let mut reports = term.reports.take_for_jobs(jobs);
    reports.extend(with_them);
    if reports.is_empty() {
        return Ok(());
    }
    match write_reports(term, reports).await {
        Err(error) if error.is_data_error() => {
            // The same reports would be refused again, and the results are good.
            tracing::error!(%error, "worker reports refused by the ledger, dropped");
            term.ctx.metrics.count_reports("dropped", 1);
            Ok(())
        }
        done => done,
    }
}

async fn write_reports(term: &Term, mut reports: Vec<NewReport>) -> Result<(), LedgerError> {
    while !reports.is_empty() {
        let rest = reports.split_off(report_batch_len(&reports));
        fetch_partial_results(term, &mut reports).await;
        let withheld = judge_pieces(term, &mut reports).await;
        let kept = term.stores.ledger.record_reports(&reports).await?;
        for job in withheld {
            term.output.erase_copies(Erasure { job });
        }
        term.ctx.metrics.count_reports("kept", kept as u64);
        let others = reports.len().saturating_sub(kept) as u64;
        term.ctx.metrics.count_reports("not_believed", others);
        reports = rest;
    }
    Ok(())
}

/// How many of these are written at once; at least one.
fn report_batch_len<'a>(reports: impl IntoIterator<Item = &'a NewReport>) -> usize {
    let mut partials = 0;
    reports
        .into_iter()
        .take(AT_ONCE)
        .take_while(|report| {
            let room = partials < PARTIALS_AT_ONCE;
            partials += report.partials.len();
            room
        })
        .count()
}

/// Copies partial results that are small enough from where their workers left them.
async fn fetch_partial_results(term: &Term, reports: &mut [NewReport]) {
    let most = term.ctx.config.scheduler.partial_bytes;
    let mut wanted = Vec::new();
    let mut places = Vec::new();
    for (i, report) in reports.iter().enumerate() {
        for (j, partial) in report.partials.iter().enumerate() {
            // Anything else is not this job's, whatever its worker says.
            let run = report
                .dispatch_id
                .map(|d| d.to_string())
                .unwrap_or_default();
            let key = keys::parse_pointer(&partial.pointer)
                .filter(|key| keys::is_key_of_run(&report.job_id, &run, key));
            if let Some(key) = key {
                wanted.push(key.to_owned());
                places.push((i, j));
            }
        }
    }
    if wanted.is_empty() {
        return;
    }
    match term.stores.guard.get_heads(&wanted, most.max(1)).await {
        Ok(heads) => {
            for ((i, j), head) in places.into_iter().zip(heads) {
                if let Some((size, content)) = head {
                    let partial = &mut reports[i].partials[j];
                    partial.size = Some(size);
                    let whole = usize::try_from(size).is_ok_and(|size| size <= most);
                    partial.content = whole.then_some(content);
                }
            }
        }
        // That there was one is known all the same.
        Err(error) => tracing::debug!(%error, "reading partial results failed"),
    }
}
