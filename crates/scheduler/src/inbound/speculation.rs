//! Jobs that are evaluated and placed while the gateway commits them (ADR 28).
//!
//! The gateway announces a lone transaction as it begins to commit (`Ahead`, sealed with a
//! key of the ledger's). The kernel is asked about its jobs and the answers go to the commit
//! loop, whose own transaction waits in the ledger for the end of the gateway's. The stream
//! brings the wake-up a little later; if anything went wrong on this path, the wake-up has
//! the jobs read and evaluated as usual. `scheduler.speculation` turns it off.
//!
//! What must stay true: the ledger has the last word. A job that is not there once the
//! gateway's transaction is over is never assigned, and not kept.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use airlock_bus::subjects;
use airlock_ledger::{Accepted, LoadedJob};
use airlock_model::{JobId, TenantId, Timestamp, Topic};
use airlock_proto::ahead::{Id, Key, advisory_lock_key};
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::{own, packet};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;

use crate::commit::handle::{Awaited, AwaitedTransaction};
use crate::inbound::submissions;
use crate::metrics::{Metrics, count_by_topic};
use crate::term::Term;

/// How long the kernel is waited for. After that the jobs are left to the stream.
const KERNEL_LIMIT: Duration = Duration::from_millis(500);
/// How long all jobs are left to the stream after a transaction that took too long.
const PAUSE: Duration = Duration::from_secs(1);
/// How long the stream's wake-up is waited for.
const WAKE_LIMIT: Duration = Duration::from_secs(30);
/// Transactions followed at once; more are left to the stream.
const MAX_TRANSACTIONS: usize = 256;

/// The transactions that gateways announced.
pub struct Speculation {
    key: Key,
    metrics: Metrics,
    announced: Mutex<HashMap<Id, Announced>>,
    /// When the last transaction took too long.
    late: Mutex<Option<Instant>>,
}

struct Announced {
    since: Instant,
    /// Its jobs are in the ledger and with the engine.
    finished: bool,
}

impl Speculation {
    pub fn new(key: Key, metrics: Metrics) -> Self {
        Self {
            key,
            metrics,
            announced: Mutex::default(),
            late: Mutex::default(),
        }
    }

    /// A transaction took too long; the next ones are left to the stream for a while.
    fn pause(&self) {
        *self.late.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    fn is_paused(&self) -> bool {
        let late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        late.is_some_and(|at| at.elapsed() < PAUSE)
    }

    fn lock_announced(&self) -> MutexGuard<'_, HashMap<Id, Announced>> {
        self.announced
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows a transaction, if there is room and it is new.
    fn track_transaction(&self, id: Id) -> bool {
        let mut announced = self.lock_announced();
        if announced.len() >= MAX_TRANSACTIONS {
            announced.retain(|_, a| a.since.elapsed() < WAKE_LIMIT);
        }
        if announced.len() >= MAX_TRANSACTIONS || announced.contains_key(&id) {
            return false;
        }
        let entry = Announced {
            since: Instant::now(),
            finished: false,
        };
        announced.insert(id, entry);
        true
    }

    /// Whether it is still followed: the stream may have been first.
    fn is_tracked(&self, id: Id) -> bool {
        self.lock_announced().contains_key(&id)
    }

    /// Its jobs are in the ledger and with the engine.
    fn mark_finished(&self, id: Id) {
        if let Some(announced) = self.lock_announced().get_mut(&id) {
            announced.finished = true;
        }
    }

    /// Leaves its jobs to the stream.
    fn untrack_transaction(&self, id: Id) {
        self.lock_announced().remove(&id);
    }

    /// The stream says that it is committed. True when there is nothing left to do about
    /// it; otherwise it is the stream's from now on.
    pub fn take_finished(&self, id: &[u8]) -> bool {
        let Ok(id) = Id::try_from(id) else {
            return false;
        };
        self.lock_announced()
            .remove(&id)
            .is_some_and(|a| a.finished)
    }

    /// The commit loop is done with a transaction: the engine tracks its jobs, or else the
    /// stream has to bring them.
    fn finish_transaction(&self, id: Id, topics: &[Topic], awaited: Awaited) {
        if awaited.late {
            self.pause();
        }
        let jobs = topics.len() as u64;
        if awaited.tracked {
            self.mark_finished(id);
            self.metrics.jobs_ahead.inc_by(jobs);
            for topic in topics {
                count_by_topic(&self.metrics.jobs_received, topic.as_str());
            }
        } else {
            self.untrack_transaction(id);
            self.metrics.jobs_ahead_in_vain.inc_by(jobs);
        }
    }
}

/// Listens until the term is over. Turned off, it only waits for that: without a
/// transaction to follow, nothing else here does anything.
pub async fn run(term: Arc<Term>) -> anyhow::Result<()> {
    if !term.ctx.config.scheduler.speculation {
        term.ctx.over.cancelled().await;
        return Ok(());
    }
    let mut subscription = term.stores.bus.subscribe(subjects::AHEAD, None).await?;
    // Not tasks of their own: another thread would have to wake for each.
    let mut evaluations = FuturesUnordered::new();
    loop {
        let message = tokio::select! {
            () = term.ctx.over.cancelled() => return Ok(()),
            Some(()) = evaluations.next() => continue,
            message = subscription.recv() => message,
        };
        let Some(message) = message else {
            anyhow::bail!("the subscription to {} ended", subjects::AHEAD);
        };
        match packet::decode(message.payload) {
            // In the middle of a round the commit loop has other things to do than to wait
            // for a gateway.
            Ok((_, Payload::Ahead(ahead)))
                if !term.last_round.is_running() && !term.speculation.is_paused() =>
            {
                if let Some((id, jobs)) = accept_announcement(&term, &ahead) {
                    evaluations.push(evaluate_announced_jobs(&term, id, jobs));
                }
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "unreadable announcement ignored"),
        }
    }
}

/// The jobs of an announcement, when it is genuine, for this shard, and new.
fn accept_announcement(term: &Term, ahead: &own::Ahead) -> Option<(Id, Vec<LoadedJob>)> {
    let Some((id, jobs)) = term.speculation.key.open(ahead) else {
        term.ctx.metrics.signatures_refused.inc();
        tracing::debug!("announcement with a wrong seal ignored");
        return None;
    };
    if jobs
        .iter()
        .any(|job| job.shard != u32::from(term.ctx.shard.0))
    {
        return None;
    }
    let now = term.ctx.clock.now();
    let inline = term.ctx.config.scheduler.inline_bytes;
    let loaded = jobs.into_iter().map(|job| to_loaded_job(job, inline, now));
    let loaded = loaded.collect::<Option<Vec<_>>>()?;
    term.speculation
        .track_transaction(id)
        .then_some((id, loaded))
}

/// The job as it will stand in the ledger. Its id is new, the gateway's own: it names no
/// other tenant's job.
fn to_loaded_job(job: own::AheadJob, inline: usize, now: Timestamp) -> Option<LoadedJob> {
    let payload_len = job.payload.as_ref().map_or(0, |p| p.len() as u64);
    Some(LoadedJob::from_accepted(Accepted {
        job_id: JobId::new(job.job_id).ok()?,
        tenant: TenantId::new(job.tenant).ok()?,
        spec: serde_json::from_slice(&job.spec).ok()?,
        // A copy: a slice would hold on to all that came with it.
        payload: job
            .payload
            .filter(|p| p.len() <= inline)
            .map(|p| Bytes::copy_from_slice(&p)),
        payload_len,
        trace_id: job.trace_id,
        traceparent: job.traceparent,
        at: now,
    }))
}

/// Has them evaluated and hands them in. When that fails, the stream's wake-up has them read
/// and evaluated as usual.
async fn evaluate_announced_jobs(term: &Term, id: Id, loaded: Vec<LoadedJob>) {
    let ids: Vec<JobId> = loaded.iter().map(|job| job.job_id.clone()).collect();
    let topics: Vec<Topic> = loaded.iter().map(|job| job.spec.topic.clone()).collect();
    let evaluated = tokio::select! {
        () = term.ctx.over.cancelled() => None,
        () = tokio::time::sleep(KERNEL_LIMIT) => None,
        batch = submissions::evaluate_before_commit(term, loaded) => batch,
    };
    let Some(mut batch) = evaluated.filter(|_| term.speculation.is_tracked(id)) else {
        term.speculation.untrack_transaction(id);
        return;
    };
    let speculation = Arc::clone(&term.speculation);
    batch.awaits = Some(Box::new(AwaitedTransaction {
        lock: advisory_lock_key(id),
        jobs: ids,
        late: false,
        report: Box::new(move |awaited| speculation.finish_transaction(id, &topics, awaited)),
    }));
    term.commit.enqueue(batch).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speculation() -> Speculation {
        let metrics = Metrics::new(&airlock_service::Metrics::default());
        Speculation::new(Key::new("key"), metrics)
    }

    #[test]
    fn a_transaction_is_finished_once() {
        let speculation = speculation();
        assert!(speculation.track_transaction([1; 16]));
        assert!(!speculation.track_transaction([1; 16]), "it is not new");
        assert!(speculation.is_tracked([1; 16]));
        speculation.mark_finished([1; 16]);
        assert!(speculation.take_finished(&[1; 16]));
        assert!(!speculation.take_finished(&[1; 16]), "it is forgotten");
        assert!(!speculation.take_finished(b"no id"));
    }

    #[test]
    fn a_transaction_that_the_stream_brought_first_is_left_to_it() {
        let speculation = speculation();
        assert!(speculation.track_transaction([1; 16]));
        assert!(
            !speculation.take_finished(&[1; 16]),
            "the commit loop has not finished it"
        );
        assert!(!speculation.is_tracked([1; 16]));
        speculation.mark_finished([1; 16]);
        assert!(!speculation.take_finished(&[1; 16]));
    }

    #[test]
    fn nothing_is_accepted_for_a_while_after_a_slow_transaction() {
        let speculation = speculation();
        assert!(speculation.track_transaction([1; 16]));
        let fine = Awaited {
            tracked: true,
            late: false,
        };
        speculation.finish_transaction([1; 16], &[], fine);
        assert!(!speculation.is_paused());
        let late = Awaited {
            tracked: false,
            late: true,
        };
        speculation.finish_transaction([1; 16], &[], late);
        assert!(speculation.is_paused());
        *speculation.late.lock().expect("whole") = Instant::now().checked_sub(PAUSE);
        assert!(!speculation.is_paused());
    }

    #[test]
    fn a_limited_number_of_transactions_is_followed() {
        let speculation = speculation();
        for n in 0..MAX_TRANSACTIONS as u128 {
            assert!(speculation.track_transaction(n.to_be_bytes()));
        }
        assert!(!speculation.track_transaction([255; 16]));
        speculation.untrack_transaction(0u128.to_be_bytes());
        assert!(speculation.track_transaction([255; 16]));
    }
}
