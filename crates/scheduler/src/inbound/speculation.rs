//! Jobs that are judged and placed while the gateway commits them.
//!
//! The gateway tells of a lone transaction as it begins to commit (`Ahead`, sealed with a
//! key of the ledger's). Its jobs are put to the kernel and handed to the core, whose own
//! transaction waits in the ledger for the end of the gateway's. The stream brings the
//! wake-up a little later; if anything went wrong on this way, that one has the jobs read
//! and judged as usual.
//!
//! What must stay true: the ledger has the last word. A job that is not there once the
//! gateway's transaction is over is never assigned, and not kept.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use airlock_bus::subjects;
use airlock_ledger::{Accepted, LoadedJob};
use airlock_model::{JobId, TenantId, Timestamp, Topic};
use airlock_proto::ahead::{Id, Key};
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::{own, packet};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;

use crate::inbound::submissions;
use crate::metrics::by_topic;
use crate::term::{Term, Told};

/// How long the kernel is waited for. After that it is the stream's.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long nothing is taken in after a transaction that took too long.
const PAUSE: Duration = Duration::from_secs(1);
/// How long the stream's wake-up is waited for.
const KEPT: Duration = Duration::from_secs(30);
/// Transactions known of at once; more are left to the stream.
const MOST: usize = 256;

/// The transactions that were told of.
pub struct Ahead {
    key: Key,
    known: Mutex<HashMap<Id, Known>>,
    /// The core is in the middle of a round.
    busy: AtomicBool,
    /// When the last transaction took too long.
    late: Mutex<Option<Instant>>,
}

struct Known {
    since: Instant,
    /// Its jobs are in the ledger and with the engine.
    settled: bool,
}

impl Ahead {
    pub fn new(key: Key) -> Self {
        Self {
            key,
            known: Mutex::default(),
            busy: AtomicBool::new(false),
            late: Mutex::default(),
        }
    }

    /// Whether the core is in the middle of a round: then it has other things to do than to
    /// wait for a gateway.
    pub fn busy(&self, yes: bool) {
        self.busy.store(yes, Ordering::Relaxed);
    }

    /// A transaction took too long; the next ones are left to the stream for a while.
    pub fn pause(&self) {
        *self.late.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    fn is_calm(&self) -> bool {
        let late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        !self.busy.load(Ordering::Relaxed) && late.is_none_or(|at| at.elapsed() >= PAUSE)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Id, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a transaction, if there is room and it is new.
    fn enter(&self, id: Id) -> bool {
        let mut known = self.known();
        if known.len() >= MOST {
            known.retain(|_, k| k.since.elapsed() < KEPT);
        }
        if known.len() >= MOST || known.contains_key(&id) {
            return false;
        }
        let entry = Known {
            since: Instant::now(),
            settled: false,
        };
        known.insert(id, entry);
        true
    }

    /// Whether it is still ours: the stream may have been first.
    fn has(&self, id: Id) -> bool {
        self.known().contains_key(&id)
    }

    /// Its jobs are in the ledger and with the engine.
    fn settle(&self, id: Id) {
        if let Some(known) = self.known().get_mut(&id) {
            known.settled = true;
        }
    }

    /// The stream has them read and judged.
    fn forget(&self, id: Id) {
        self.known().remove(&id);
    }

    /// The stream says that it is committed. True when there is nothing left to do about
    /// it; otherwise it is the stream's from now on.
    pub fn is_settled(&self, id: &[u8]) -> bool {
        let Ok(id) = Id::try_from(id) else {
            return false;
        };
        self.known().remove(&id).is_some_and(|k| k.settled)
    }
}

/// What came of a transaction: its jobs are known, or the stream has to bring them.
pub fn settle(term: &Term, told: &Told, known: bool) {
    let metrics = &term.metrics;
    let jobs = told.topics.len() as u64;
    if known {
        term.ahead.settle(told.id);
        metrics.jobs_ahead.inc_by(jobs);
        for topic in &told.topics {
            by_topic(&metrics.jobs_received, topic.as_str());
        }
    } else {
        term.ahead.forget(told.id);
        metrics.jobs_ahead_in_vain.inc_by(jobs);
    }
}

/// Listens until the term is over.
pub async fn listen(term: Arc<Term>) -> anyhow::Result<()> {
    let mut subscription = term.bus.subscribe(subjects::AHEAD, None).await?;
    // Not tasks of their own: another thread would have to wake for each.
    let mut judging = FuturesUnordered::new();
    loop {
        let message = tokio::select! {
            () = term.over.cancelled() => return Ok(()),
            Some(()) = judging.next() => continue,
            message = subscription.recv() => message,
        };
        let Some(message) = message else {
            anyhow::bail!("a subscription ended");
        };
        match packet::open(message.payload) {
            Ok((_, Payload::Ahead(ahead))) if term.ahead.is_calm() => {
                if let Some((id, jobs)) = begin(&term, &ahead) {
                    judging.push(judge(&term, id, jobs));
                }
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "ignored"),
        }
    }
}

/// The jobs that are ours to judge.
fn begin(term: &Term, ahead: &own::Ahead) -> Option<(Id, Vec<LoadedJob>)> {
    let Some((id, jobs)) = term.ahead.key.open(ahead) else {
        term.metrics.signatures_refused.inc();
        tracing::debug!("ignored jobs told of ahead: the ledger's key did not seal them");
        return None;
    };
    if jobs.iter().any(|job| job.shard != u32::from(term.shard.0)) {
        return None;
    }
    let now = term.clock.now();
    let inline = term.config.scheduler.inline_bytes;
    let loaded = jobs.into_iter().map(|job| read(job, inline, now));
    let loaded = loaded.collect::<Option<Vec<_>>>()?;
    term.ahead.enter(id).then_some((id, loaded))
}

/// The job as it will stand in the ledger. Its id is new, the gateway's own: it names no
/// other tenant's job.
fn read(job: own::AheadJob, inline: usize, now: Timestamp) -> Option<LoadedJob> {
    let payload_len = job.payload.as_ref().map_or(0, |p| p.len() as u64);
    Some(LoadedJob::accepted(Accepted {
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

/// Has them judged and hands them in. When that fails, the stream's wake-up has them read
/// and judged as usual.
async fn judge(term: &Term, id: Id, loaded: Vec<LoadedJob>) {
    let ids: Vec<JobId> = loaded.iter().map(|job| job.job_id.clone()).collect();
    let topics: Vec<Topic> = loaded.iter().map(|job| job.spec.topic.clone()).collect();
    let foreseen = tokio::select! {
        () = term.over.cancelled() => None,
        () = tokio::time::sleep(PATIENCE) => None,
        batch = submissions::foresee(term, loaded) => batch,
    };
    let Some(mut batch) = foreseen.filter(|_| term.ahead.has(id)) else {
        term.ahead.forget(id);
        return;
    };
    batch.told = Some(Box::new(Told {
        id,
        jobs: ids,
        topics,
    }));
    term.hand_in(batch).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ahead() -> Ahead {
        Ahead::new(Key::new("key"))
    }

    #[test]
    fn a_transaction_is_settled_once() {
        let ahead = ahead();
        assert!(ahead.enter([1; 16]));
        assert!(!ahead.enter([1; 16]), "it is known");
        assert!(ahead.has([1; 16]));
        ahead.settle([1; 16]);
        assert!(ahead.is_settled(&[1; 16]));
        assert!(!ahead.is_settled(&[1; 16]), "it is forgotten");
        assert!(!ahead.is_settled(b"no id"));
    }

    #[test]
    fn what_the_stream_has_first_is_its_own() {
        let ahead = ahead();
        assert!(ahead.enter([1; 16]));
        assert!(!ahead.is_settled(&[1; 16]), "the core has not said so");
        assert!(!ahead.has([1; 16]));
        ahead.settle([1; 16]);
        assert!(!ahead.is_settled(&[1; 16]));
    }

    #[test]
    fn there_are_times_without() {
        let ahead = ahead();
        assert!(ahead.is_calm());
        ahead.busy(true);
        assert!(!ahead.is_calm());
        ahead.busy(false);
        assert!(ahead.is_calm());
        ahead.pause();
        assert!(!ahead.is_calm());
        *ahead.late.lock().expect("whole") = Instant::now().checked_sub(PAUSE);
        assert!(ahead.is_calm());
    }

    #[test]
    fn there_is_room_for_so_many() {
        let ahead = ahead();
        for n in 0..MOST as u128 {
            assert!(ahead.enter(n.to_be_bytes()));
        }
        assert!(!ahead.enter([255; 16]));
        ahead.forget(0u128.to_be_bytes());
        assert!(ahead.enter([255; 16]));
    }
}
