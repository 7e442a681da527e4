//! The jobs that were accepted and have no result yet.
//!
//! The gate is under the same lock, so that at no moment a dispatch is accepted and yet
//! not in the table: an inventory that missed it would have it run a second time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use airlock_settings::lock;
use tokio::sync::Notify;
use uuid::Uuid;

use crate::intake::early_cancels::EarlyCancels;
use crate::intake::gate::{DispatchGate, DispatchHeader, DropReason};
use crate::run::job::{Job, StopCause};

#[derive(Debug)]
pub(crate) struct JobTable {
    inner: Mutex<Inner>,
    /// The first job has come.
    busy: Notify,
    /// The last job has gone.
    idle: Notify,
}

#[derive(Debug)]
struct Inner {
    gate: DispatchGate,
    early_cancels: EarlyCancels,
    jobs: HashMap<Uuid, Arc<Job>>,
}

impl JobTable {
    pub fn new(incarnation: &str) -> Self {
        Self {
            inner: Mutex::new(Inner {
                gate: DispatchGate::new(incarnation),
                early_cancels: EarlyCancels::default(),
                jobs: HashMap::new(),
            }),
            busy: Notify::new(),
            idle: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// Enters the job that `make` gives, if the gate accepts its dispatch.
    pub fn accept(
        &self,
        header: DispatchHeader<'_>,
        now_ms: i64,
        make: impl FnOnce() -> Job,
    ) -> Result<Arc<Job>, DropReason> {
        let mut inner = self.lock();
        inner.gate.accept(header, now_ms)?;
        let job = Arc::new(make());
        if let Some(reason) = inner.early_cancels.reason_for(&job.id, &job.dispatch) {
            let cause = StopCause::Cancelled(reason.to_owned());
            job.stop(cause, Instant::now(), Duration::ZERO);
        }
        let first = inner.jobs.is_empty();
        inner.jobs.insert(job.dispatch, Arc::clone(&job));
        drop(inner);
        if first {
            self.busy.notify_one();
        }
        Ok(job)
    }

    /// `false`: the epoch is that of an earlier leader.
    pub fn note_epoch(&self, ledger: &str, epoch: u64) -> bool {
        self.lock().gate.note_epoch(ledger, epoch)
    }

    /// The ledger that was seen last, and its highest epoch.
    pub fn latest_epoch(&self) -> Option<(String, u64)> {
        self.lock().gate.latest_epoch()
    }

    pub fn remove(&self, dispatch: &Uuid) {
        let mut inner = self.lock();
        let removed = inner.jobs.remove(dispatch);
        if inner.jobs.is_empty() {
            drop(inner);
            self.idle.notify_waiters();
        }
        // The job may be large; it is freed outside the lock.
        drop(removed);
    }

    pub fn len(&self) -> usize {
        self.lock().jobs.len()
    }

    pub fn dispatch_ids(&self) -> Vec<String> {
        self.lock().jobs.keys().map(Uuid::to_string).collect()
    }

    pub fn jobs(&self) -> Vec<Arc<Job>> {
        self.lock().jobs.values().cloned().collect()
    }

    /// The jobs that `wanted` holds for.
    pub fn find_all(&self, wanted: impl Fn(&Job) -> bool) -> Vec<Arc<Job>> {
        let inner = self.lock();
        inner.jobs.values().filter(|j| wanted(j)).cloned().collect()
    }

    /// The jobs that a cancel means: those of this id, or only this dispatch if one is
    /// named. A dispatch that is not here may still come: it is cancelled then.
    pub fn find_or_remember_cancelled(
        &self,
        job_id: &str,
        dispatch: Option<Uuid>,
        reason: &str,
    ) -> Vec<Arc<Job>> {
        let wanted =
            |job: &Job| job.id.as_str() == job_id && dispatch.is_none_or(|d| d == job.dispatch);
        let mut inner = self.lock();
        let found: Vec<_> = inner.jobs.values().filter(|j| wanted(j)).cloned().collect();
        if let Some(dispatch) = dispatch
            && found.is_empty()
        {
            let now = Instant::now();
            inner.early_cancels.remember(job_id, dispatch, reason, now);
        }
        found
    }

    /// Waits until there is a job.
    pub async fn wait_until_busy(&self) {
        while self.lock().jobs.is_empty() {
            self.busy.notified().await;
        }
    }

    /// Waits until there is none.
    pub async fn wait_until_idle(&self) {
        loop {
            let mut idle = std::pin::pin!(self.idle.notified());
            // Enabled before the check, so that the last job cannot end in between.
            idle.as_mut().enable();
            if self.lock().jobs.is_empty() {
                return;
            }
            idle.await;
        }
    }
}
