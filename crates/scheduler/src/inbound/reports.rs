//! What workers say of their runs beside the result, on its way into the ledger.
//!
//! Progress is gathered for a moment and written together, beside the way of jobs. What
//! must stay true: a job whose worker says nothing pays nothing; what is gathered is
//! bounded; and a result that comes with artifacts or a word on its constraints is taken
//! only when those are in the ledger, so that whoever sees the end sees them too.

#[cfg(test)]
mod tests;
mod words;

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

use crate::term::Term;
pub use words::{of_result, run_of};

/// What is said within this time is written together.
const GATHER: Duration = Duration::from_millis(200);
/// Jobs whose words wait to be written; beyond it words are dropped and counted.
const MOST_WAITING: usize = 5_000;
/// Jobs written at once.
const AT_ONCE: usize = 200;
/// Partial results whose contents are held and written at once.
const PARTIALS_AT_ONCE: usize = 64;

/// What was said and is not written yet: one entry for each job.
#[derive(Debug, Default)]
pub struct ReportBuffer {
    waiting: Mutex<HashMap<JobId, NewReport>>,
    /// Looked at without the lock by every batch of results.
    count: AtomicUsize,
    news: Notify,
}

impl ReportBuffer {
    /// Takes a worker's word down, if there is anything in it. False: there is no room.
    pub fn hear(&self, said: NewReport) -> bool {
        let mut waiting = self.lock();
        let full = waiting.len() >= MOST_WAITING;
        match waiting.entry(said.job_id.clone()) {
            Entry::Occupied(mut known) => words::absorb(known.get_mut(), said),
            Entry::Vacant(_) if full => return false,
            Entry::Vacant(place) => {
                place.insert(said);
            }
        }
        self.count.store(waiting.len(), Ordering::Relaxed);
        drop(waiting);
        self.news.notify_one();
        true
    }

    /// What waits for these jobs.
    fn take<'a>(&self, jobs: impl IntoIterator<Item = &'a JobId>) -> Vec<NewReport> {
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
    fn take_some(&self) -> Vec<NewReport> {
        let mut waiting = self.lock();
        let count = a_handful(waiting.values());
        let jobs: Vec<JobId> = waiting.keys().take(count).cloned().collect();
        let taken = jobs.iter().filter_map(|job| waiting.remove(job)).collect();
        self.count.store(waiting.len(), Ordering::Relaxed);
        taken
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<JobId, NewReport>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A worker's word on a run that goes on.
pub fn hear(term: &Term, envelope: &cap::BusPacket, progress: &cap::JobProgress) {
    let Some(said) = words::of_progress(envelope, progress, term.ctx.clock.now()) else {
        return;
    };
    if !term.reports.hear(said) {
        term.ctx.metrics.reports("dropped", 1);
    }
}

/// Writes what is gathered until the term is over.
pub async fn keep(term: Arc<Term>) -> anyhow::Result<()> {
    loop {
        tokio::select! {
            () = term.ctx.over.cancelled() => break,
            () = term.reports.news.notified() => {}
        }
        let goes_on = term.ctx.sleep_unless_over(GATHER).await;
        flush(&term).await;
        if !goes_on {
            break;
        }
    }
    Ok(())
}

async fn flush(term: &Term) {
    loop {
        let said = term.reports.take_some();
        if said.is_empty() {
            return;
        }
        let count = said.len();
        if let Err(error) = write(term, said).await {
            // Progress is worth no second try: newer words come, and results bring theirs.
            tracing::warn!(%error, jobs = count, "writing worker reports failed, dropped");
            term.ctx.metrics.reports("dropped", count as u64);
        }
    }
}

/// Writes what results brought along, and whatever their jobs said before. An error means
/// that nothing is written and may be tried again.
pub async fn with_results<'a>(
    term: &Term,
    jobs: impl IntoIterator<Item = &'a JobId>,
    brought: Vec<NewReport>,
) -> Result<(), LedgerError> {
    let mut said = term.reports.take(jobs);
    said.extend(brought);
    if said.is_empty() {
        return Ok(());
    }
    match write(term, said).await {
        Err(error) if error.is_data_error() => {
            // The same words would be refused again, and the results are good.
            tracing::error!(%error, "worker reports refused by the ledger, dropped");
            term.ctx.metrics.reports("dropped", 1);
            Ok(())
        }
        done => done,
    }
}

async fn write(term: &Term, mut said: Vec<NewReport>) -> Result<(), LedgerError> {
    while !said.is_empty() {
        let rest = said.split_off(a_handful(&said));
        fetch(term, &mut said).await;
        let kept = term.stores.ledger.record_reports(&said).await?;
        term.ctx.metrics.reports("kept", kept as u64);
        let others = said.len().saturating_sub(kept) as u64;
        term.ctx.metrics.reports("not_believed", others);
        said = rest;
    }
    Ok(())
}

/// How many of these are held and written at once; at least one.
fn a_handful<'a>(said: impl IntoIterator<Item = &'a NewReport>) -> usize {
    let mut partials = 0;
    said.into_iter()
        .take(AT_ONCE)
        .take_while(|report| {
            let room = partials < PARTIALS_AT_ONCE;
            partials += report.partials.len();
            room
        })
        .count()
}

/// Copies partial results that are small enough from where their workers left them.
async fn fetch(term: &Term, said: &mut [NewReport]) {
    let most = term.ctx.config.scheduler.partial_bytes;
    let mut wanted = Vec::new();
    let mut places = Vec::new();
    for (i, report) in said.iter().enumerate() {
        for (j, partial) in report.partials.iter().enumerate() {
            // Anything else is not this job's, whatever its worker says.
            let run = report
                .dispatch_id
                .map(|d| d.to_string())
                .unwrap_or_default();
            let key = keys::parse_pointer(&partial.pointer)
                .filter(|key| keys::is_of_run(&report.job_id, &run, key));
            if let Some(key) = key {
                wanted.push(key.to_owned());
                places.push((i, j));
            }
        }
    }
    if wanted.is_empty() {
        return;
    }
    match term.stores.guard.heads(&wanted, most.max(1)).await {
        Ok(heads) => {
            for ((i, j), head) in places.into_iter().zip(heads) {
                if let Some((size, content)) = head {
                    let partial = &mut said[i].partials[j];
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
