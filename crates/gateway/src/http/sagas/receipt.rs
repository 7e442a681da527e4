//! `GET /api/v1/sagas/{workflow_id}/receipt`: what a saga that is over did, in bytes that
//! never change. The first answer is kept, because the jobs it is made of are removed in time.

use std::sync::Arc;

use airlock_api::SagaReceipt;
use airlock_ledger::Receipt;
use airlock_model::SagaState;
use axum::Json;
use axum::extract::State;
use axum::response::IntoResponse;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::{App, Candidates, HandlerResult, SagaPath, parse_workflow_id, resolve_tenant};
use crate::auth::Caller;
use crate::http::jobs::RETRY_FOR;
use crate::http::problem::Problem;
use crate::retry::{ledger_problem, retry_until};
use crate::view::saga::to_receipt_document;

/// How often it is made anew when the saga changes meanwhile.
const TRIES: usize = 3;

pub(in crate::http) async fn get_receipt(
    State(app): State<Arc<App>>,
    caller: Caller,
    path: SagaPath,
) -> HandlerResult {
    let workflow_id = parse_workflow_id(path)?;
    let _admitted = app.admission.begin_read(&caller)?;
    let ledger = app.links.require_ledger()?;
    let tenant = resolve_tenant(&ledger, &caller, &workflow_id, Candidates::Sagas).await?;
    let until = Instant::now() + RETRY_FOR;
    for _ in 0..TRIES {
        let receipt = retry_until(until, || ledger.saga_receipt(&tenant, &workflow_id))
            .await
            .map_err(|e| ledger_problem(&e))?
            .ok_or_else(|| Problem::no_such_saga(&workflow_id))?;
        check_over(&receipt)?;
        let saga = &receipt.saga;
        let kept = retry_until(until, || ledger.kept_saga_receipt(saga))
            .await
            .map_err(|e| ledger_problem(&e))?;
        if let Some(document) = kept {
            return render(&document);
        }
        let document = serde_json::to_vec(&to_receipt_document(&receipt)).map_err(|error| {
            tracing::error!(%error, "receipt cannot be written");
            Problem::internal()
        })?;
        // What counts is what is kept, which another gateway may have written first.
        retry_until(until, || ledger.keep_saga_receipt(saga, &document))
            .await
            .map_err(|e| ledger_problem(&e))?;
    }
    Err(Problem::unavailable("the saga changes; try again shortly"))
}

fn check_over(receipt: &Receipt) -> Result<(), Problem> {
    let saga = &receipt.saga;
    let why = match saga.state {
        SagaState::Completed => return Ok(()),
        SagaState::RolledBack if saga.counts.pending == 0 => return Ok(()),
        SagaState::RolledBack => {
            "the saga is ROLLED_BACK, but a job succeeded after that and will be undone".to_owned()
        }
        SagaState::Open | SagaState::RollingBack | SagaState::Stuck => {
            format!(
                "the saga is {}; there is a receipt once it is over",
                saga.state
            )
        }
    };
    Err(Problem::conflict(why).with_saga(&saga.workflow_id, Some(saga.state)))
}

/// The document goes out as it is kept, byte for byte.
fn render(document: &[u8]) -> HandlerResult {
    let raw: &RawValue = serde_json::from_slice(document).map_err(|error| {
        tracing::error!(%error, "kept receipt cannot be read");
        Problem::internal()
    })?;
    let digest = Sha256::digest(document);
    let receipt = SagaReceipt {
        document: raw,
        sha256: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
    };
    Ok(Json(receipt).into_response())
}
