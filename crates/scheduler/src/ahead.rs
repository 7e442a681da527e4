//! Jobs that are judged while the gateway commits them.
//!
//! The gateway tells of a lone transaction before it is committed (`Ahead`, sealed with a
//! key of the ledger's) and once it is (`Wake`), both straight to us. In between its jobs
//! are put to the kernel, so that after the commit only a worker has to be found. The
//! stream brings the same wake-up a little later; if anything went wrong on this way,
//! that one has the jobs read and judged as usual.
//!
//! What must stay true: nothing of it reaches the core before the gateway says that the
//! jobs are in the ledger, and the ledger has the last word: a job that is not there is
//! never assigned.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use airlock_bus::subjects;
use airlock_ledger::{Accepted, LoadedJob};
use airlock_model::engine::Input;
use airlock_model::{JobId, TenantId, Timestamp, Topic};
use airlock_proto::ahead::{Id, Key, id_of};
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::{own, packet};
use bytes::Bytes;
use tokio::sync::oneshot;

use crate::intake;
use crate::metrics::by_topic;
use crate::term::{Done, Term};

/// How long the kernel and the commit are waited for. After that the wake-up finds
/// nothing here.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long the stream's wake-up is waited for.
const KEPT: Duration = Duration::from_secs(30);
/// Transactions known of at once; more are left to the stream.
const MOST: usize = 256;

/// The transactions that were told of.
pub struct Ahead {
    key: Key,
    known: Mutex<HashMap<Id, Known>>,
}

struct Known {
    since: Instant,
    /// Gone when the commit was announced.
    word: Option<oneshot::Sender<()>>,
    /// The core has its jobs.
    taken: bool,
}

impl Ahead {
    pub fn new(key: Key) -> Self {
        Self {
            key,
            known: Mutex::default(),
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Id, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a transaction, and the word of its commit.
    fn enter(&self, id: Id) -> Option<oneshot::Receiver<()>> {
        let mut known = self.known();
        if known.len() >= MOST {
            known.retain(|_, k| k.since.elapsed() < KEPT);
        }
        if known.len() >= MOST || known.contains_key(&id) {
            return None;
        }
        let (word, committed) = oneshot::channel();
        let entry = Known {
            since: Instant::now(),
            word: Some(word),
            taken: false,
        };
        known.insert(id, entry);
        Some(committed)
    }

    /// The gateway says that it is committed.
    fn committed(&self, token: &[u8]) {
        let mut known = self.known();
        let entry = known.get_mut(&id_of(token));
        if let Some(word) = entry.and_then(|k| k.word.take()) {
            // Who has given up on it needs no word.
            let _ = word.send(());
        }
    }

    /// The core is about to have its jobs. False when the stream was first.
    fn take(&self, id: Id) -> bool {
        match self.known().get_mut(&id) {
            Some(known) => {
                known.taken = true;
                true
            }
            None => false,
        }
    }

    fn forget(&self, id: Id) {
        self.known().remove(&id);
    }

    /// The stream says that it is committed. True when there is nothing left to do about
    /// it; otherwise it is the stream's from now on.
    pub fn settled(&self, token: &[u8]) -> bool {
        let known = self.known().remove(&id_of(token));
        known.is_some_and(|k| k.taken)
    }
}

/// Listens until the term is over.
pub async fn listen(term: Arc<Term>) -> anyhow::Result<()> {
    let mut subscription = term.bus.subscribe(subjects::AHEAD, None).await?;
    loop {
        let message = tokio::select! {
            () = term.over.cancelled() => return Ok(()),
            message = subscription.recv() => message,
        };
        let Some(message) = message else {
            anyhow::bail!("a subscription ended");
        };
        match packet::open(message.payload) {
            Ok((_, Payload::Ahead(ahead))) => begin(&term, &ahead),
            Ok((_, Payload::Wake(wake))) => term.ahead.committed(&wake.ahead),
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "ignored"),
        }
    }
}

fn begin(term: &Arc<Term>, ahead: &own::Ahead) {
    let Some((id, jobs)) = term.ahead.key.open(ahead) else {
        term.metrics.signatures_refused.inc();
        tracing::debug!("ignored jobs told of ahead: the ledger's key did not seal them");
        return;
    };
    if jobs.iter().any(|job| job.shard != u32::from(term.shard.0)) {
        return;
    }
    let now = term.clock.now();
    let inline = term.config.scheduler.inline_bytes;
    let loaded: Option<Vec<LoadedJob>> = jobs.into_iter().map(|j| read(j, inline, now)).collect();
    let Some(loaded) = loaded else {
        return;
    };
    let Some(word) = term.ahead.enter(id) else {
        return;
    };
    let term_ = term.clone();
    term.tasks.spawn(async move {
        judge(&term_, id, loaded, word).await;
    });
}

/// The job as it will stand in the ledger.
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

/// Has them judged, waits for the word that they are committed, and hands them in. When
/// one of these fails, the stream's wake-up has them read and judged as usual.
async fn judge(term: &Term, id: Id, loaded: Vec<LoadedJob>, committed: oneshot::Receiver<()>) {
    let ids: Vec<JobId> = loaded.iter().map(|job| job.job_id.clone()).collect();
    let topics: Vec<Topic> = loaded.iter().map(|job| job.spec.topic.clone()).collect();
    let (_, foreseen) = tokio::join!(term.begin(&[], &ids), async {
        tokio::select! {
            () = term.over.cancelled() => None,
            () = tokio::time::sleep(PATIENCE) => None,
            batch = async {
                let batch = intake::foresee(term, loaded).await?;
                committed.await.ok()?;
                Some(batch)
            } => batch,
        }
    });
    let Some(mut batch) = foreseen.filter(|_| term.ahead.take(id)) else {
        term.ahead.forget(id);
        term.locks.unlock(&ids).await;
        return;
    };
    // It was decided on before there was a job; what counts is when it is used.
    let now = term.clock.now();
    for input in &mut batch.inputs {
        if let Input::Decided { verdict, .. } = input {
            verdict.decided_at = now;
        }
    }
    for topic in &topics {
        by_topic(&term.metrics.jobs_received, topic.as_str());
    }
    term.metrics.jobs_ahead.inc_by(ids.len() as u64);
    batch.done = Some(Done {
        settler: None,
        deliveries: Vec::new(),
        keys: Vec::new(),
        jobs: ids,
    });
    term.hand_in(batch).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ahead() -> Ahead {
        Ahead::new(Key::new("key"))
    }

    #[tokio::test]
    async fn a_commit_is_told_and_settled_once() {
        let ahead = ahead();
        let (token, id) = (b"one", id_of(b"one"));
        ahead.committed(token);
        let word = ahead.enter(id).expect("a place");
        assert!(ahead.enter(id).is_none(), "it is known");
        ahead.committed(&id);
        ahead.committed(token);
        assert!(word.await.is_ok());
        assert!(ahead.take(id));
        assert!(!ahead.settled(&id), "the id is no token");
        assert!(ahead.settled(token), "it was taken");
        assert!(!ahead.settled(token), "it is forgotten");
    }

    #[tokio::test]
    async fn what_the_stream_has_first_is_its_own() {
        let ahead = ahead();
        let (token, id) = (b"one", id_of(b"one"));
        let word = ahead.enter(id).expect("a place");
        assert!(!ahead.settled(token), "it is not taken yet");
        assert!(word.await.is_err());
        assert!(!ahead.take(id));
        // Also when the word came before.
        let word = ahead.enter(id).expect("a place");
        ahead.committed(token);
        assert!(word.await.is_ok());
        assert!(!ahead.settled(token));
        assert!(!ahead.take(id));
    }

    #[test]
    fn there_is_room_for_so_many() {
        let ahead = ahead();
        let words: Vec<_> = (0..MOST as u128)
            .map(|n| ahead.enter(n.to_be_bytes()).expect("a place"))
            .collect();
        assert!(ahead.enter([255; 16]).is_none());
        ahead.forget(0u128.to_be_bytes());
        assert!(ahead.enter([255; 16]).is_some());
        drop(words);
    }
}
