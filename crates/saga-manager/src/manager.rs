//! The loop: which sagas have something to do, one step of them, and what follows its commit.
//!
//! The order is: lock, commit, wake-up, pop. A crash after the commit loses nothing, because
//! the scheduler's replayer finds jobs that no wake-up announced; a crash before it has done
//! nothing. One broken saga holds up nobody: a step of many that fails is made of each alone,
//! and a saga that fails alone is set aside as STUCK.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use airlock_bus::{Bus, WakeUps, subjects};
use airlock_guard::{Guard, NamedLock, keys};
use airlock_ledger::{Failure, Ledger, SagaKey, SagaStepped};
use airlock_model::{Epoch, SagaState};
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::{cap, packet};
use airlock_service::Context;
use futures::future::join_all;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use crate::config::Config;
use crate::metrics::SagaMetrics;
use crate::{SagaManager, stack};
use airlock_service::Service as _;

/// Sagas that one look at the ledger finds at most.
const FOUND: u32 = 1_000;

pub struct Manager {
    pub config: Config,
    pub ledger: Ledger,
    pub bus: Bus,
    pub guard: Guard,
    pub wake_ups: WakeUps,
    pub metrics: SagaMetrics,
}

impl Manager {
    /// Works until the service stops.
    pub async fn run(&self, mut hints: mpsc::Receiver<SagaKey>, ctx: &Context) {
        let mut sweep = tokio::time::interval(self.config.saga.sweep_interval);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut heard = Vec::new();
        loop {
            let due = tokio::select! {
                () = ctx.shutdown.cancelled() => return,
                _ = sweep.tick() => self.find_due(ctx).await,
                n = hints.recv_many(&mut heard, FOUND as usize) => match n {
                    0 => return,
                    _ => heard.drain(..).collect(),
                },
            };
            self.make_pass(due, ctx).await;
        }
    }

    /// What the ledger says has something to do. Also keeps the gauges.
    async fn find_due(&self, ctx: &Context) -> BTreeSet<SagaKey> {
        let gauges = self.ledger.saga_gauges().await;
        if let Ok(gauges) = &gauges {
            let to_gauge = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
            self.metrics.active.set(to_gauge(gauges.rolling_back));
            self.metrics.stuck.set(to_gauge(gauges.stuck));
        }
        match self.ledger.sagas_to_examine(FOUND).await {
            Ok(found) => {
                ctx.health.ok("database");
                found.into_iter().collect()
            }
            Err(error) => {
                ctx.health.down("database", error.to_string());
                BTreeSet::new()
            }
        }
    }

    /// Makes a step of each of these, within the time of a pass. The sweep finds the rest.
    async fn make_pass(&self, due: BTreeSet<SagaKey>, ctx: &Context) {
        let began = Instant::now();
        let due: Vec<SagaKey> = due.into_iter().collect();
        for batch in due.chunks(self.config.saga.batch) {
            if ctx.shutdown.is_cancelled() || began.elapsed() >= self.config.saga.pass {
                return;
            }
            self.step_batch(batch).await;
        }
    }

    async fn step_batch(&self, keys: &[SagaKey]) {
        let locks = join_all(keys.iter().map(|key| self.lock(key))).await;
        let (keys, locks): (Vec<SagaKey>, Vec<NamedLock>) = keys
            .iter()
            .cloned()
            .zip(locks)
            .filter_map(|(key, lock)| Some((key, lock?)))
            .unzip();
        for done in self.step_or_split(&keys).await {
            self.follow_up(&done).await;
        }
        join_all(locks.iter().map(NamedLock::release)).await;
    }

    /// The lock of a saga's name, or `None` when another manager works on it. Without Redis
    /// it is a lock of this process, and the row decides between processes, as it always does.
    async fn lock(&self, key: &SagaKey) -> Option<NamedLock> {
        let name = keys::saga_lock_key(&key.workflow_id);
        let lock = self
            .guard
            .periodic_lock(name, keys::SAGA_LOCK_TTL, Epoch(0));
        lock.acquire_or_extend().await.then_some(lock)
    }

    /// One step of all; of each alone when that fails, so that one saga's trouble is its own.
    async fn step_or_split(&self, keys: &[SagaKey]) -> Vec<SagaStepped> {
        let limits = self.config.saga.to_limits();
        let shards = self.config.shards;
        match self.ledger.step_sagas(keys, &limits, shards).await {
            Ok(done) => return done,
            Err(error) if error.failure() != Failure::Fatal => {
                tracing::warn!(%error, sagas = keys.len(), "step of sagas failed, retrying");
                return Vec::new();
            }
            Err(error) if keys.len() > 1 => {
                tracing::warn!(%error, sagas = keys.len(), "step of sagas refused, trying each alone");
            }
            Err(_) => {}
        }
        let mut done = Vec::new();
        for key in keys {
            let alone = std::slice::from_ref(key);
            match self.ledger.step_sagas(alone, &limits, shards).await {
                Ok(stepped) => done.extend(stepped),
                Err(error) if error.failure() != Failure::Fatal => {
                    tracing::warn!(%error, workflow_id = key.workflow_id, "step of a saga failed, retrying");
                }
                Err(error) => self.set_aside(key, &error.to_string()).await,
            }
        }
        done
    }

    async fn set_aside(&self, key: &SagaKey, reason: &str) {
        tracing::error!(tenant = %key.tenant, workflow_id = key.workflow_id, reason, "saga cannot be read, stuck");
        match self.ledger.mark_saga_unreadable(key, reason).await {
            Ok(true) => {
                self.metrics.compensation_failed.inc();
                self.send_alert(key, reason).await;
            }
            Ok(false) => {}
            Err(error) => {
                tracing::error!(%error, workflow_id = key.workflow_id, "saga not set aside");
            }
        }
    }

    /// What follows the commit: wake-ups, then the pop, then the numbers.
    async fn follow_up(&self, done: &SagaStepped) {
        let key = &done.key;
        if !done.submitted.is_empty() {
            let ids = done.submitted.iter().map(|s| s.job_id.to_string());
            let trace = done.submitted.first().map_or("", |s| &s.trace_id);
            self.wake_ups.publish(ids.collect(), None, trace).await;
            let n = u64::try_from(done.submitted.len()).unwrap_or(0);
            self.metrics.compensation_dispatched.inc_by(n);
        }
        stack::sync(&self.guard, &self.ledger, &self.metrics, key).await;
        let failed = done.changes.iter().filter(|c| c.state.is_stuck());
        let failed = u64::try_from(failed.count()).unwrap_or(0);
        self.metrics.compensation_failed.inc_by(failed);
        if let Some(trigger) = &done.trigger {
            self.metrics.rollback_triggered.inc();
            tracing::info!(tenant = %key.tenant, workflow_id = key.workflow_id, trigger, cancelled = done.cancelled, "rollback began");
        }
        if done.state == done.before {
            return;
        }
        match done.state {
            SagaState::RolledBack => {
                let took = done.rollback_started_at.map(|at| done.now.since(at));
                let took = took.unwrap_or(Duration::ZERO);
                self.metrics.rollback_duration.observe(took.as_secs_f64());
                tracing::info!(tenant = %key.tenant, workflow_id = key.workflow_id, took_ms = took.as_millis() as u64, "saga rolled back");
            }
            SagaState::Stuck => {
                let reason = done.changes.iter().find(|c| c.state.is_stuck());
                let reason = reason.and_then(|c| c.reason.as_deref());
                let reason = reason.unwrap_or("a compensation failed for good");
                tracing::error!(tenant = %key.tenant, workflow_id = key.workflow_id, reason, "saga stuck");
                self.send_alert(key, reason).await;
            }
            SagaState::Open | SagaState::RollingBack | SagaState::Completed => {}
        }
    }

    async fn send_alert(&self, key: &SagaKey, reason: &str) {
        let alert = cap::SystemAlert {
            message: format!("saga {} is stuck: {reason}", key.workflow_id),
            severity: cap::AlertSeverity::Error.into(),
            source_component: SagaManager::NAME.to_owned(),
            details: [
                ("tenant_id".to_owned(), key.tenant.to_string()),
                ("workflow_id".to_owned(), key.workflow_id.clone()),
                ("reason".to_owned(), reason.to_owned()),
            ]
            .into(),
            ..cap::SystemAlert::default()
        };
        let now = self.ledger.ping().await.unwrap_or_default();
        let packet = packet::encode(SagaManager::NAME, "", now, Payload::Alert(alert));
        if let Err(error) = self.bus.send(subjects::ALERT, packet, None).await {
            tracing::warn!(%error, workflow_id = key.workflow_id, "alert not sent");
        }
    }
}
