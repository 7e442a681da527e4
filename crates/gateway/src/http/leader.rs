//! Who leads the schedulers, and asking the leader to hand over. For administrators only.

use std::sync::Arc;

use airlock_api::{LeaderChange, LeaderStatus, Standby, StepDownResponse};
use airlock_model::Shard;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;

use super::{App, HandlerResult};
use crate::http::problem::Problem;
use crate::retry::ledger_problem;

const SHARD: Shard = Shard(0);
const SHOWN_CHANGES: u32 = 10;

pub(super) async fn get_leader(State(app): State<Arc<App>>) -> HandlerResult {
    let ledger = app.links.require_ledger()?;
    let problem = |error| ledger_problem(&error);
    let info = ledger.leader(SHARD).await.map_err(problem)?;
    let changes = ledger
        .leader_changes(SHARD, SHOWN_CHANGES)
        .await
        .map_err(problem)?;
    let replicas = ledger.leader_candidates(SHARD).await.map_err(problem)?;
    let leader = info.as_ref().map(|info| info.leader.clone());
    let status = LeaderStatus {
        shard: SHARD.0,
        epoch: info.as_ref().map_or(0, |info| info.epoch.0),
        since: info.as_ref().map(|info| info.since.to_rfc3339()),
        renewed_at: info
            .as_ref()
            .and_then(|info| info.renewed_at)
            .map(|at| at.to_rfc3339()),
        backend: changes.first().map(|change| change.backend.clone()),
        standbys: replicas
            .into_iter()
            .filter(|replica| Some(&replica.instance) != leader.as_ref())
            .map(|replica| Standby {
                instance: replica.instance,
                seen_ms_ago: replica.seen_ago.as_millis() as u64,
                bus: replica.bus_ok,
            })
            .collect(),
        changes: changes
            .into_iter()
            .map(|change| LeaderChange {
                epoch: change.epoch.0,
                leader: change.leader,
                backend: change.backend,
                cause: change.cause,
                gap_ms: change.gap.map(|gap| gap.as_millis() as u64),
                at: change.at.to_rfc3339(),
            })
            .collect(),
        leader,
    };
    Ok(Json(status).into_response())
}

pub(super) async fn step_down(State(app): State<Arc<App>>) -> HandlerResult {
    let ledger = app.links.require_ledger()?;
    let asked = ledger
        .request_step_down(SHARD)
        .await
        .map_err(|e| ledger_problem(&e))?;
    let info = ledger.leader(SHARD).await.map_err(|e| ledger_problem(&e))?;
    match (asked, info) {
        (Some(epoch), Some(info)) => {
            tracing::info!(
                leader = info.leader,
                epoch = epoch.0,
                "leader asked to step down"
            );
            let body = StepDownResponse {
                leader: info.leader,
                epoch: epoch.0,
            };
            Ok((StatusCode::ACCEPTED, Json(body)).into_response())
        }
        _ => Err(Problem::unavailable("no scheduler leads")),
    }
}
