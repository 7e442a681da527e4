//! Job locks: who may change a job's state.
//!
//! A lock's value is the leader's epoch and a random token. A newer epoch takes an older
//! one's locks over, so a dead leader blocks nobody; renewing and releasing compare the
//! value first, so a lock that went to somebody else is left alone.
//!
//! Held locks are renewed every third of their life time, all in one round trip. A lock
//! that cannot be renewed three times in a row is left to expire: under pressure Redis
//! must not be burdened further. The work goes on; the ledger refuses what is stale.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use airlock_bus::MessageKey;
use airlock_model::ids::{Epoch, JobId};
use airlock_settings::lock;
use fred::types::Value;
use tokio::task::JoinHandle;

use crate::counters;
use crate::link::{Guard, Mode};
use crate::local::Holder;
use crate::messages::millis_value;
use crate::scripts::CHUNK;

/// How often a busy lock is tried again while it is waited for. Whoever else changes a job
/// holds its lock for one write.
const BUSY_POLL: Duration = Duration::from_millis(10);

/// The locks of one leader. Clones are not needed: share it in an `Arc`.
pub struct JobLocks {
    guard: Guard,
    holder: Holder,
    held: Arc<HeldLocks>,
    renewal: Mutex<Option<JoinHandle<()>>>,
}

/// Held locks with the number of renewals that failed in a row.
#[derive(Default)]
struct HeldLocks(Mutex<HashMap<JobId, u32>>);

impl HeldLocks {
    fn map(&self) -> MutexGuard<'_, HashMap<JobId, u32>> {
        lock(&self.0)
    }

    fn remember(&self, jobs: &[JobId], locked: &[bool]) {
        let ours = jobs.iter().zip(locked).filter(|(_, locked)| **locked);
        self.map().extend(ours.map(|(job, _)| (job.clone(), 0)));
    }

    fn forget(&self, jobs: &[JobId]) {
        let mut held = self.map();
        for job in jobs {
            held.remove(job);
        }
    }
}

impl Guard {
    /// Job locks for a leader of this epoch, renewed while they are held.
    pub fn job_locks(&self, epoch: Epoch) -> JobLocks {
        let holder = Holder {
            epoch: epoch.0,
            token: uuid::Uuid::new_v4().simple().to_string(),
        };
        let held = Arc::new(HeldLocks::default());
        let renewal = tokio::spawn(renew_held_locks(
            self.clone(),
            holder.clone(),
            Arc::clone(&held),
        ));
        JobLocks {
            guard: self.clone(),
            holder,
            held,
            renewal: Mutex::new(Some(renewal)),
        }
    }

    pub(crate) fn lock_locally(&self, jobs: &[JobId], holder: &Holder) -> Vec<bool> {
        let ttl = self.inner.config.job_lock_ttl;
        let now = Instant::now();
        let mut local = self.local_locks();
        jobs.iter()
            .map(|job| local.lock(&self.keys().job_lock(job), holder, ttl, now))
            .collect()
    }
}

impl JobLocks {
    /// For each job whether its lock is ours now. Busy is for the caller to try again
    /// shortly, never a reason to give a message back.
    pub async fn lock(&self, jobs: &[JobId]) -> Vec<bool> {
        self.begin_batch(&[], jobs).await.1
    }

    /// Tries again, for so long, to get the locks that were busy. Returns how many still
    /// are; the caller goes on in any case, and the ledger's compare-and-set decides.
    pub async fn wait_for_busy(&self, jobs: &[JobId], locked: &[bool], bound: Duration) -> usize {
        let until = Instant::now() + bound;
        let busy = jobs.iter().zip(locked).filter(|(_, locked)| !**locked);
        let mut busy: Vec<JobId> = busy.map(|(job, _)| job.clone()).collect();
        while !busy.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            tokio::time::sleep(BUSY_POLL.min(left)).await;
            let mut locked = self.lock(&busy).await.into_iter();
            busy.retain(|_| !locked.next().unwrap_or(true));
        }
        busy.len()
    }

    /// Releases locks; others' are left alone.
    pub async fn unlock(&self, jobs: &[JobId]) {
        self.finish_batch(&[], jobs).await;
    }

    /// Which messages were processed already, and which jobs' locks are ours now: one
    /// round trip for both.
    pub async fn begin_batch(&self, keys: &[MessageKey], jobs: &[JobId]) -> (Vec<bool>, Vec<bool>) {
        let (seen, locked) = self
            .guard
            .check_messages_and_lock_jobs(keys, jobs, &self.holder)
            .await;
        self.held.remember(jobs, &locked);
        (seen, locked)
    }

    /// Remembers messages as processed and releases locks: one round trip for both.
    pub async fn finish_batch(&self, keys: &[MessageKey], jobs: &[JobId]) {
        // First no more renewal, then the release. A renewal already on its way finds
        // the lock gone and changes nothing.
        self.held.forget(jobs);
        self.guard
            .mark_processed_and_unlock(keys, jobs, &self.holder)
            .await;
    }

    /// How many locks are held, those left to expire included.
    pub fn held_count(&self) -> usize {
        self.held.map().len()
    }

    /// Stops renewing, waits until no renewal is on its way, and releases everything.
    pub async fn close(&self) {
        let renewal = lock(&self.renewal).take();
        if let Some(renewal) = renewal {
            renewal.abort();
            let _ = renewal.await;
        }
        let jobs: Vec<JobId> = self.held.map().drain().map(|(job, _)| job).collect();
        self.guard
            .mark_processed_and_unlock(&[], &jobs, &self.holder)
            .await;
    }
}

impl Drop for JobLocks {
    fn drop(&mut self) {
        if let Some(renewal) = lock(&self.renewal).take() {
            renewal.abort();
        }
    }
}

async fn renew_held_locks(guard: Guard, holder: Holder, held: Arc<HeldLocks>) {
    let max_failures = guard.inner.config.max_renewal_failures;
    loop {
        tokio::time::sleep(guard.inner.config.job_lock_ttl / 3).await;
        let jobs: Vec<JobId> = held
            .map()
            .iter()
            .filter(|(_, failures)| **failures < max_failures)
            .map(|(job, _)| job.clone())
            .collect();
        for jobs in jobs.chunks(CHUNK) {
            let renewed = renew_lock_chunk(&guard, &holder, jobs).await;
            record_renewals(&guard, &held, jobs, &renewed);
        }
    }
}

async fn renew_lock_chunk(guard: &Guard, holder: &Holder, jobs: &[JobId]) -> Vec<bool> {
    let names: Vec<String> = jobs.iter().map(|job| guard.keys().job_lock(job)).collect();
    let ttl = guard.inner.config.job_lock_ttl;
    let args = vec![Value::from(holder.lock_value()), millis_value(ttl)];
    let answers: Option<Vec<i64>> = guard
        .run_script(&guard.inner.scripts.renew, names.clone(), args)
        .await;
    match answers {
        Some(answers) => answers.into_iter().map(|n| n == 1).collect(),
        None => {
            let mut local = guard.local_locks();
            let now = Instant::now();
            names
                .iter()
                .map(|name| local.renew(name, holder, ttl, now))
                .collect()
        }
    }
}

fn record_renewals(guard: &Guard, held: &HeldLocks, jobs: &[JobId], renewed: &[bool]) {
    let max_failures = guard.inner.config.max_renewal_failures;
    let (mut good, mut failed) = (0, 0);
    let mut abandoned = Vec::new();
    let mut held = held.map();
    for (job, renewed) in jobs.iter().zip(renewed) {
        // One that was released meanwhile is no failure.
        let Some(failures) = held.get_mut(job) else {
            continue;
        };
        if *renewed {
            *failures = 0;
            good += 1;
            continue;
        }
        failed += 1;
        *failures += 1;
        if *failures == max_failures {
            abandoned.push(job.as_str());
        }
    }
    counters::add_to_counter(&guard.inner.counters.renewals, good);
    counters::add_to_counter(&guard.inner.counters.renewals_failed, failed);
    counters::add_to_counter(&guard.inner.counters.renewals_abandoned, abandoned.len());
    if let Some(first) = abandoned.first() {
        let local = matches!(&*guard.mode().borrow(), Mode::Local { .. });
        tracing::error!(
            locks = abandoned.len(),
            first,
            failures = max_failures,
            redis_away = local,
            "job lock renewal failed, locks left to expire"
        );
    }
}
