//! What was accepted and has no result yet.
//!
//! The gate lives under the same lock, so that at no moment a dispatch is taken and yet
//! not in the table: an inventory that missed it would have it run a second time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use uuid::Uuid;

use crate::cancels::Cancels;
use crate::gate::{Facts, Gate, Refusal};
use crate::job::{Cause, Job};

#[derive(Debug)]
pub(crate) struct Table {
    inner: Mutex<Inner>,
    /// The first job has come.
    busy: Notify,
    /// The last job has gone.
    idle: Notify,
}

#[derive(Debug)]
struct Inner {
    gate: Gate,
    cancels: Cancels,
    jobs: HashMap<Uuid, Arc<Job>>,
}

impl Table {
    pub fn new(incarnation: &str) -> Self {
        Self {
            inner: Mutex::new(Inner {
                gate: Gate::new(incarnation),
                cancels: Cancels::default(),
                jobs: HashMap::new(),
            }),
            busy: Notify::new(),
            idle: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the gate, and enters the job that `make` gives if it may come in.
    pub fn admit(
        &self,
        facts: Facts<'_>,
        now_ms: i64,
        make: impl FnOnce() -> Job,
    ) -> Result<Arc<Job>, Refusal> {
        let mut inner = self.lock();
        inner.gate.admit(facts, now_ms)?;
        let job = Arc::new(make());
        if let Some(reason) = inner.cancels.of(&job.id, &job.dispatch) {
            let cause = Cause::Cancelled(reason.to_owned());
            job.end(cause, Instant::now(), Duration::ZERO);
        }
        let first = inner.jobs.is_empty();
        inner.jobs.insert(job.dispatch, Arc::clone(&job));
        drop(inner);
        if first {
            self.busy.notify_one();
        }
        Ok(job)
    }

    /// `false`: it comes from a leader that leads no more.
    pub fn note_epoch(&self, ledger: &str, epoch: u64) -> bool {
        self.lock().gate.note_epoch(ledger, epoch)
    }

    /// The ledger that was heard of last, and its highest epoch.
    pub fn last_heard(&self) -> Option<(String, u64)> {
        self.lock().gate.last_heard()
    }

    pub fn remove(&self, dispatch: &Uuid) {
        let mut inner = self.lock();
        let gone = inner.jobs.remove(dispatch);
        if inner.jobs.is_empty() {
            drop(inner);
            self.idle.notify_waiters();
        }
        // The job may be large; it is let go of outside the lock.
        drop(gone);
    }

    pub fn len(&self) -> usize {
        self.lock().jobs.len()
    }

    pub fn ids(&self) -> Vec<String> {
        self.lock().jobs.keys().map(Uuid::to_string).collect()
    }

    pub fn jobs(&self) -> Vec<Arc<Job>> {
        self.lock().jobs.values().cloned().collect()
    }

    /// Those that are so.
    pub fn find_all(&self, wanted: impl Fn(&Job) -> bool) -> Vec<Arc<Job>> {
        let inner = self.lock();
        inner.jobs.values().filter(|j| wanted(j)).cloned().collect()
    }

    /// The job of this name; of this dispatch only, if one is named. A dispatch that is
    /// not here may still come: it is ended then.
    pub fn cancel(&self, job_id: &str, dispatch: Option<Uuid>, reason: &str) -> Vec<Arc<Job>> {
        let wanted =
            |job: &Job| job.id.as_str() == job_id && dispatch.is_none_or(|d| d == job.dispatch);
        let mut inner = self.lock();
        let found: Vec<_> = inner.jobs.values().filter(|j| wanted(j)).cloned().collect();
        if let Some(dispatch) = dispatch
            && found.is_empty()
        {
            let now = Instant::now();
            inner.cancels.remember(job_id, dispatch, reason, now);
        }
        found
    }

    /// Waits until there is a job.
    pub async fn wait_busy(&self) {
        while self.lock().jobs.is_empty() {
            self.busy.notified().await;
        }
    }

    /// Waits until there is none.
    pub async fn wait_idle(&self) {
        loop {
            let mut idle = std::pin::pin!(self.idle.notified());
            // Listening before looking, so that the last one cannot go in between.
            idle.as_mut().enable();
            if self.lock().jobs.is_empty() {
                return;
            }
            idle.await;
        }
    }
}
