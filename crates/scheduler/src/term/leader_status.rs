//! Who leads, who would, and how that changed: what every replica shows and leaves behind.

use std::time::Duration;

use airlock_election::{Elector, Leadership};
use airlock_ledger::{Ledger, LedgerError};
use airlock_model::{Epoch, Shard};
use airlock_service::{Context, OnFailure};
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::{Value, json};

use crate::{Connections, Replica};

/// How often a replica leaves a sign of itself.
const NOTE: Duration = Duration::from_secs(1);

/// A replica without a sign for so long is not counted on.
const RECENT: Duration = Duration::from_secs(5);

/// A leader that hands over waits so long for another before it stands again itself.
const HAND_OVER: Duration = Duration::from_secs(3);

/// Terms that are shown.
const SHOWN_CHANGES: u32 = 10;

/// `/health/leader`: who leads, in which term and since when, who stands by, and how the last
/// terms began.
pub fn mount_leader_endpoint(ctx: &Context, ledger: &Ledger, instance: &str, shard: Shard) {
    let (ledger, instance) = (ledger.clone(), instance.to_owned());
    ctx.mount(
        "/health/leader",
        get(move || {
            let (ledger, instance) = (ledger.clone(), instance.clone());
            async move { answer(describe_leader(&ledger, &instance, shard).await, shard) }
        }),
    );
}

fn answer(described: Result<Value, LedgerError>, shard: Shard) -> Response {
    match described {
        Ok(described) => Json(described).into_response(),
        Err(error) => {
            let text = json!({"shard": shard.0, "error": error.to_string()});
            (StatusCode::SERVICE_UNAVAILABLE, Json(text)).into_response()
        }
    }
}

async fn describe_leader(
    ledger: &Ledger,
    instance: &str,
    shard: Shard,
) -> Result<Value, LedgerError> {
    let Some(info) = ledger.leader(shard).await? else {
        return Ok(json!({"shard": shard.0, "leader": null, "this_instance": instance}));
    };
    let changes = ledger.leader_changes(shard, SHOWN_CHANGES).await?;
    let standbys = ledger.leader_candidates(shard).await?;
    Ok(json!({
        "shard": shard.0,
        "leader": info.leader,
        "epoch": info.epoch.0,
        "since": info.since.to_rfc3339(),
        "renewed_at": info.renewed_at.map(|t| t.to_rfc3339()),
        "backend": changes.first().map(|c| c.backend.as_str()),
        "this_instance": instance,
        "leading": info.leader == instance,
        "standbys": standbys
            .iter()
            .filter(|s| s.instance != info.leader)
            .map(|s| json!({
                "instance": s.instance,
                "seen_ms_ago": s.seen_ago.as_millis() as u64,
                "bus": s.bus_ok,
            }))
            .collect::<Vec<_>>(),
        "changes": changes
            .iter()
            .map(|c| json!({
                "epoch": c.epoch.0,
                "leader": c.leader,
                "backend": c.backend,
                "cause": c.cause,
                "gap_ms": c.gap.map(|gap| gap.as_millis() as u64),
                "at": c.at.to_rfc3339(),
            }))
            .collect::<Vec<_>>(),
    }))
}

/// Leaves a sign of this replica in the ledger, for the others and for whoever asks.
pub fn spawn_candidate_notes(ctx: &Context, stores: &Connections, instance: &str, shard: Shard) {
    let (ledger, connected) = (stores.ledger.clone(), stores.bus.connected());
    let (instance, shutdown) = (instance.to_owned(), ctx.shutdown.clone());
    ctx.tasks
        .spawn("candidate notes", OnFailure::Log, async move {
            loop {
                let bus_ok = *connected.borrow();
                if let Err(error) = ledger.note_candidate(shard, &instance, bus_ok).await {
                    tracing::debug!(%error, "sign of this replica not left");
                }
                tokio::select! {
                    () = shutdown.cancelled() => break,
                    () = tokio::time::sleep(NOTE) => {}
                }
            }
            if let Err(error) = ledger.forget_candidate(shard, &instance).await {
                tracing::debug!(%error, "sign of this replica not removed");
            }
        });
}

/// Shows what keeps this replica from replacing a leader that hangs.
pub fn spawn_elector_health(ctx: &Context, elector: &Elector) {
    const COMPONENT: &str = "hung_leader";
    let (mut status, health) = (elector.status(), ctx.health.clone());
    ctx.tasks
        .spawn("elector health", OnFailure::Log, async move {
            let mut shown = false;
            while status.changed().await.is_ok() {
                let obstacle = status.borrow_and_update().obstacle.clone();
                match obstacle {
                    Some(text) => health.degraded(COMPONENT, text),
                    None if shown => health.remove(COMPONENT),
                    None => continue,
                }
                shown = status.borrow().obstacle.is_some();
            }
        });
}

/// Counts how this term began.
pub fn count_change(replica: &Replica, leadership: &Leadership) {
    let (ledger, metrics) = (replica.stores.ledger.clone(), replica.metrics.clone());
    let (shard, epoch) = (leadership.shard(), leadership.epoch());
    replica
        .service
        .tasks
        .spawn("leader change", OnFailure::Log, async move {
            let Ok(changes) = ledger.leader_changes(shard, 1).await else {
                return;
            };
            if let Some(change) = changes.into_iter().find(|c| c.epoch == epoch) {
                metrics.count_leader_change(&change.cause, change.gap);
            }
        });
}

/// Until another leads, or nobody wants to.
pub async fn wait_for_successor(replica: &Replica, shard: Shard, epoch: Epoch) {
    let ledger = &replica.stores.ledger;
    let succeeded = async {
        while !matches!(ledger.leader(shard).await, Ok(Some(info)) if info.epoch > epoch) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        () = replica.service.shutdown.cancelled() => {}
        done = tokio::time::timeout(HAND_OVER, succeeded) => {
            if done.is_err() {
                tracing::warn!(shard = shard.0, "nobody took over, standing again");
            }
        }
    }
}

/// Until this leader has been without NATS for as long as one may hang, and a standby has it.
pub async fn wait_until_bus_is_better_elsewhere(replica: &Replica, shard: Shard) {
    let mut connected = replica.stores.bus.connected();
    // What passed before it was noticed counts.
    let patience = replica.config.election.hung_after;
    let patience = patience
        .saturating_sub(airlock_bus::Bus::SILENT_WHEN_NOTICED)
        .max(NOTE);
    loop {
        if connected.wait_for(|connected| !connected).await.is_err() {
            // The bus is closed, and the term ends by that.
            std::future::pending::<()>().await;
        }
        let mut wait = patience;
        while tokio::time::timeout(wait, connected.wait_for(|connected| *connected))
            .await
            .is_err()
        {
            match replica.stores.ledger.leader_candidates(shard).await {
                Ok(candidates) => {
                    let better = candidates.iter().find(|c| {
                        c.instance != replica.instance && c.bus_ok && c.seen_ago < RECENT
                    });
                    if let Some(better) = better {
                        tracing::warn!(
                            shard = shard.0,
                            standby = better.instance,
                            "NATS is out of reach, but not for a standby: handing over"
                        );
                        return;
                    }
                }
                Err(error) => tracing::debug!(%error, "reading the standbys failed"),
            }
            wait = NOTE;
        }
    }
}
