//! Messages from their delivery to their acknowledgement: duplicate check, locks of their
//! jobs, acknowledgement.
//!
//! What must stay true: none of it decides anything. The ledger does; duplicate checks and
//! locks in Redis save work, and a lock that stays busy only delays.

use std::time::{Duration, Instant};

use airlock_bus::{Delivery, MessageKey, Outcome, Settler};
use airlock_guard::JobLocks;
use airlock_model::JobId;

use crate::commit::handle::PendingAck;
use crate::inbound::bad_messages::DeadLetterSink;
use crate::metrics::Metrics;

/// See the module's page.
pub struct Acks {
    locks: JobLocks,
    dead_letters: DeadLetterSink,
    metrics: Metrics,
    /// How long busy locks are waited for.
    busy_wait: Duration,
}

impl Acks {
    pub fn new(
        locks: JobLocks,
        dead_letters: DeadLetterSink,
        metrics: Metrics,
        busy_wait: Duration,
    ) -> Self {
        Self {
            locks,
            dead_letters,
            metrics,
            busy_wait,
        }
    }

    /// Before anything is done about messages: says which of them were processed already,
    /// and takes the locks of their jobs.
    pub async fn check_duplicates_and_lock(
        &self,
        keys: &[MessageKey],
        jobs: &[JobId],
    ) -> Vec<bool> {
        let since = Instant::now();
        let (seen, locked) = self.locks.begin_batch(keys, jobs).await;
        if locked.contains(&false) {
            let busy = self
                .locks
                .wait_for_busy(jobs, &locked, self.busy_wait)
                .await;
            if busy > 0 {
                tracing::info!(jobs = busy, "job locks busy, going on without them");
            }
        }
        if !jobs.is_empty() {
            self.metrics.observe_lock_wait(since.elapsed());
        }
        seen
    }

    /// Gives the locks back without having done anything.
    pub async fn release_locks(&self, jobs: &[JobId]) {
        self.locks.unlock(jobs).await;
    }

    /// After commit and publish: marks the messages as processed, releases the locks and
    /// acknowledges.
    pub async fn acknowledge(&self, done: PendingAck) {
        self.locks.finish_batch(&done.keys, &done.jobs).await;
        let outcomes = done.deliveries.into_iter().map(|d| (d, Outcome::Done));
        self.settle_deliveries(&done.settler, outcomes.collect())
            .await;
    }

    /// Gives back what is still locked; the term is over.
    pub async fn release_all_locks(&self) {
        self.locks.close().await;
    }

    /// Acknowledges, sends back or dead-letters messages.
    pub async fn settle_deliveries(&self, settler: &Settler, outcomes: Vec<(Delivery, Outcome)>) {
        if !outcomes.is_empty() {
            settler.settle(outcomes, &self.dead_letters).await;
        }
    }
}
