//! The workers as we know them, left in Redis for whoever leads next, so that it can
//! place jobs before the first heartbeats come.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use airlock_model::engine::{Engine, Input};
use airlock_model::routing::{Addressing, Worker, WorkerHealth};
use airlock_model::{Incarnation, LedgerId, ListenTime, PoolName, WorkerId};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::term::{Stores, TermContext};

#[derive(Debug, Serialize, Deserialize)]
struct Snapshot {
    /// Whose workers they are; absent in what earlier versions wrote.
    #[serde(default)]
    ledger_id: Option<LedgerId>,
    workers: Vec<Entry>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    worker_id: WorkerId,
    incarnation: Incarnation,
    sdk: bool,
    inline: bool,
    pool: Option<PoolName>,
    topics: BTreeSet<String>,
    capabilities: BTreeSet<String>,
    labels: BTreeMap<String, String>,
    max_parallel_jobs: u32,
    active_jobs: u32,
    cpu_load: f32,
    gpu_utilization: f32,
}

/// Writes the snapshot in the background; the next one comes soon.
pub fn write_worker_snapshot(ctx: &TermContext, stores: &Arc<Stores>, engine: &Engine) {
    let snapshot = Snapshot {
        ledger_id: Some(ctx.ledger_id.clone()),
        workers: engine
            .workers()
            // Configuration says who those are, not the past.
            .filter(|w| w.addressing != Addressing::Unregistered)
            .map(|w| Entry {
                worker_id: w.id.clone(),
                incarnation: w.incarnation.clone(),
                sdk: w.sdk,
                inline: w.inline,
                pool: w.pool.clone(),
                topics: w.topics.clone(),
                capabilities: w.capabilities.clone(),
                labels: w.labels.clone(),
                max_parallel_jobs: w.max_parallel,
                active_jobs: w.in_flight,
                cpu_load: w.cpu_load,
                gpu_utilization: w.gpu_utilization,
            })
            .collect(),
    };
    let Ok(bytes) = serde_json::to_vec(&snapshot) else {
        return;
    };
    let stores = stores.clone();
    ctx.tasks.spawn("worker snapshot", async move {
        match stores.guard.write_snapshot(Bytes::from(bytes)).await {
            Ok(true) => {}
            Ok(false) => tracing::debug!("worker snapshot belongs to another replica"),
            Err(error) => tracing::debug!(%error, "writing the worker snapshot failed"),
        }
    });
}

/// The workers of the last snapshot. Missing, unreadable or no Redis: a cold start.
pub async fn read_worker_snapshot(ledger_id: &LedgerId, stores: &Stores) -> Vec<Input> {
    let bytes = match stores.guard.read_snapshot().await {
        Ok(Some(bytes)) => bytes,
        Ok(None) => {
            tracing::warn!("no worker snapshot, waiting for heartbeats");
            return Vec::new();
        }
        Err(error) => {
            tracing::warn!(%error, "reading the worker snapshot failed, waiting for heartbeats");
            return Vec::new();
        }
    };
    match serde_json::from_slice::<Snapshot>(&bytes) {
        Ok(Snapshot {
            ledger_id: Some(other),
            ..
        }) if other != *ledger_id => {
            tracing::warn!(ledger = %other, "worker snapshot of another ledger, waiting for heartbeats");
            Vec::new()
        }
        Ok(snapshot) => snapshot
            .workers
            .into_iter()
            .map(|e| {
                Input::Register(Box::new(Worker {
                    id: e.worker_id,
                    addressing: e.incarnation.addressing(),
                    incarnation: e.incarnation,
                    sdk: e.sdk,
                    inline: e.inline,
                    pool: e.pool,
                    topics: e.topics,
                    capabilities: e.capabilities,
                    labels: e.labels,
                    max_parallel: e.max_parallel_jobs,
                    // Load is a matter of the moment: heartbeats bring it.
                    reported_active: 0,
                    cpu_load: 0.0,
                    gpu_utilization: 0.0,
                    draining: false,
                    last_seen: ListenTime::default(),
                    in_flight: 0,
                    health: WorkerHealth::default(),
                }))
            })
            .collect(),
        Err(error) => {
            tracing::warn!(%error, "worker snapshot corrupt, waiting for heartbeats");
            Vec::new()
        }
    }
}
