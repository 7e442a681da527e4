//! Sagas over REST: what was recorded to be undone, how far that has come, and what people
//! decide about it.
//!
//! What must stay true: a tenant sees and moves its own sagas only; an action is repeated
//! only when the ledger surely did nothing, because a second skip could meet the next
//! compensation that is stuck.

mod listing;
mod plan;
mod receipt;

use std::sync::Arc;
use std::time::Duration;

use airlock_api::{Page, SagaActionRequest, SagaPlan, SagaRollbackRequest};
use airlock_bus::subjects;
use airlock_ledger::{
    Failure, Ledger, LedgerError, RollbackRequest, SagaActed, SagaAction, SagaView,
};
use airlock_model::{SagaState, TenantId};
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::own::{JobEvent, JobEvents};
use airlock_proto::packet;
use airlock_service::OnFailure;
use airlock_settings::Backoff;
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::jobs::RETRY_FOR;
use super::{App, HandlerResult};
use crate::auth::Caller;
use crate::http::decode::decode_json_object;
use crate::http::problem::Problem;
use crate::http::query;
use crate::limits::admission::{self, Admitted};
use crate::retry::{ledger_problem, retry_until};
use crate::submit::wake_up::{SENDER, local_now};
use crate::trace;
use crate::view::saga::{to_api_saga, to_api_saga_line};

pub(super) use receipt::get_receipt;

const MAX_REASON: usize = 1_024;
/// An action is a reason and a few words.
const ACTION_BYTES: usize = 16 << 10;
/// What asked for a rollback that a person began.
const MANUAL: &str = "manual";

type SagaPath = Result<Path<String>, PathRejection>;

/// What cannot be an id is the id of no saga.
fn parse_workflow_id(path: SagaPath) -> Result<String, Problem> {
    match path {
        Ok(Path(id)) => Ok(id),
        Err(_) => Err(Problem::no_such_saga("that")),
    }
}

/// Which of the tenants a caller may see is meant: two tenants may use one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Candidates {
    /// Those with a saga of this name.
    Sagas,
    /// Also those that only have jobs of this name.
    SagasAndJobs,
}

async fn resolve_tenant(
    ledger: &Ledger,
    caller: &Caller,
    workflow_id: &str,
    candidates: Candidates,
) -> Result<TenantId, Problem> {
    if let Some(own) = &caller.scope {
        return Ok(own.clone());
    }
    let until = Instant::now() + RETRY_FOR;
    let found = retry_until(until, || ledger.saga_tenants(None, workflow_id))
        .await
        .map_err(|e| ledger_problem(&e))?;
    let mut tenants = Vec::with_capacity(found.len());
    for tenant in found {
        let meant = match candidates {
            Candidates::SagasAndJobs => true,
            Candidates::Sagas => retry_until(until, || ledger.saga_state(&tenant, workflow_id))
                .await
                .map_err(|e| ledger_problem(&e))?
                .is_some(),
        };
        if meant {
            tenants.push(tenant);
        }
    }
    if tenants.len() > 1 {
        let names: Vec<&str> = tenants.iter().map(TenantId::as_str).collect();
        let message = format!(
            "several tenants have a workflow of this name; name one of {}",
            names.join(", ")
        );
        return Err(Problem::invalid_field("X-Tenant-ID", message));
    }
    tenants
        .pop()
        .ok_or_else(|| Problem::no_such_saga(workflow_id))
}

async fn load_saga(
    ledger: &Ledger,
    tenant: &TenantId,
    workflow_id: &str,
) -> Result<SagaView, Problem> {
    retry_until(Instant::now() + RETRY_FOR, || {
        ledger.saga(tenant, workflow_id)
    })
    .await
    .map_err(|e| ledger_problem(&e))?
    .ok_or_else(|| Problem::no_such_saga(workflow_id))
}

pub(super) async fn list_sagas(
    State(app): State<Arc<App>>,
    caller: Caller,
    request: Request,
) -> HandlerResult {
    let listing = listing::parse_saga_listing(request.uri(), caller.scope.as_ref())?;
    let _admitted = app.admission.begin_read(&caller)?;
    let ledger = app.links.require_ledger()?;
    let page = retry_until(Instant::now() + RETRY_FOR, || {
        ledger.list_sagas(&listing.filter, listing.after.as_ref(), listing.limit)
    })
    .await
    .map_err(|e| ledger_problem(&e))?;
    let items = page.sagas.iter().map(to_api_saga_line).collect();
    let next_cursor = page.next.as_ref().map(listing::encode_cursor);
    Ok(Json(Page { items, next_cursor }).into_response())
}

pub(super) async fn get_saga(
    State(app): State<Arc<App>>,
    caller: Caller,
    path: SagaPath,
    request: Request,
) -> HandlerResult {
    let workflow_id = parse_workflow_id(path)?;
    let wait = query::parse_wait_parameter(request.uri(), app.limits.max_wait)?;
    let ledger = app.links.require_ledger()?;
    if let Some(wait) = wait {
        let _place = app.waiting.acquire_place((&caller).into())?;
        let tenant = resolve_tenant(&ledger, &caller, &workflow_id, Candidates::Sagas).await?;
        return respond_when_at_rest(&app, &ledger, &tenant, &workflow_id, wait).await;
    }
    let _admitted = app.admission.begin_read(&caller)?;
    let tenant = resolve_tenant(&ledger, &caller, &workflow_id, Candidates::Sagas).await?;
    let saga = load_saga(&ledger, &tenant, &workflow_id).await?;
    Ok(Json(to_api_saga(&saga)).into_response())
}

/// 200 with the saga once nothing more happens by itself, or 202 with it as it is when the
/// time is up or the gateway stops. Few wait for sagas, so each polls by itself, faster
/// while the saga moves.
async fn respond_when_at_rest(
    app: &App,
    ledger: &Ledger,
    tenant: &TenantId,
    workflow_id: &str,
    wait: Duration,
) -> HandlerResult {
    let deadline = Instant::now() + wait;
    let mut backoff = Backoff::from_millis(50, 1_000);
    let (mut seen, mut stopping) = (None, false);
    loop {
        let now = retry_until(Instant::now() + RETRY_FOR, || {
            ledger.saga_state(tenant, workflow_id)
        })
        .await
        .map_err(|e| ledger_problem(&e))?;
        let Some((state, version)) = now else {
            return Err(Problem::no_such_saga(workflow_id));
        };
        let last = stopping || Instant::now() >= deadline;
        if state.is_at_rest() || last {
            let saga = load_saga(ledger, tenant, workflow_id).await?;
            let status = match saga.state.is_at_rest() {
                true => StatusCode::OK,
                false => StatusCode::ACCEPTED,
            };
            return Ok((status, Json(to_api_saga(&saga))).into_response());
        }
        if seen.replace(version) != Some(version) {
            backoff.reset();
        }
        let next = (Instant::now() + backoff.pause()).min(deadline);
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            () = app.ctx.shutdown.cancelled() => stopping = true,
        }
    }
}

/// Reads the body of an action; one without a body says nothing.
async fn read_action<T: DeserializeOwned + Default>(
    app: &App,
    caller: &Caller,
    request: Request,
) -> Result<(Admitted, T), Problem> {
    let (parts, body) = request.into_parts();
    let mut admitted = app.admission.begin_write(caller)?;
    let text = admitted
        .read_body(&parts.headers, body, ACTION_BYTES, "reason")
        .await?;
    if text.is_empty() {
        return Ok((admitted, T::default()));
    }
    admission::check_content_type(&parts.headers)?;
    Ok((admitted, decode_json_object(&text)?))
}

fn check_reason(reason: Option<&str>, required: bool) -> Result<&str, Problem> {
    let reason = reason.unwrap_or_default();
    if required && reason.trim().is_empty() {
        return Err(Problem::invalid_field("reason", "is missing"));
    }
    if reason.len() > MAX_REASON {
        let message = format!(
            "is {} bytes long; at most {MAX_REASON} are allowed",
            reason.len()
        );
        return Err(Problem::invalid_field("reason", message));
    }
    Ok(reason)
}

pub(super) async fn roll_back(
    State(app): State<Arc<App>>,
    caller: Caller,
    path: SagaPath,
    request: Request,
) -> HandlerResult {
    let workflow_id = parse_workflow_id(path)?;
    let (_admitted, body) = read_action::<SagaRollbackRequest>(&app, &caller, request).await?;
    // A dry run changes nothing, so that nobody has to say why.
    let reason = check_reason(body.reason.as_deref(), !body.dry_run)?;
    let ledger = app.links.require_ledger()?;
    let tenant = resolve_tenant(&ledger, &caller, &workflow_id, Candidates::SagasAndJobs).await?;
    if body.dry_run {
        return plan_rollback(&app, &ledger, &tenant, &workflow_id).await;
    }
    let request = RollbackRequest {
        action: SagaAction {
            tenant: &tenant,
            workflow_id: &workflow_id,
            by: caller.as_actor(),
            reason,
        },
        trigger: MANUAL,
        mode: body.mode,
    };
    // Repeating it is safe: a rollback whose answer was lost is found as under way.
    let acted = retry_until(Instant::now() + RETRY_FOR, || {
        ledger.begin_rollback(request)
    })
    .await
    .map_err(|e| ledger_problem(&e))?;
    respond_to_action(&app, &workflow_id, "rolled back", acted)
}

async fn plan_rollback(
    app: &App,
    ledger: &Ledger,
    tenant: &TenantId,
    workflow_id: &str,
) -> HandlerResult {
    let until = Instant::now() + RETRY_FOR;
    let state = retry_until(until, || ledger.saga_state(tenant, workflow_id))
        .await
        .map_err(|e| ledger_problem(&e))?;
    match state {
        Some((SagaState::Completed, _)) => {
            return Err(wrong_state(
                workflow_id,
                SagaState::Completed,
                "rolled back",
            ));
        }
        Some(_) => {}
        // A name that only has jobs can be rolled back; one without is nobody's.
        None => {
            let known = retry_until(until, || ledger.saga_tenants(Some(tenant), workflow_id))
                .await
                .map_err(|e| ledger_problem(&e))?;
            if known.is_empty() {
                return Err(Problem::no_such_saga(workflow_id));
            }
        }
    }
    let planned = retry_until(until, || ledger.planned_compensations(tenant, workflow_id))
        .await
        .map_err(|e| ledger_problem(&e))?;
    let plan = plan::plan_rollback(&app.kernel, tenant, planned).await?;
    Ok(Json(SagaPlan { plan }).into_response())
}

/// What a person decides about a saga, besides rolling it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decided {
    Retry,
    Skip,
    Resolve,
    Complete,
}

impl Decided {
    /// Whether somebody must say why: whatever gives a compensation up for good.
    const fn needs_reason(self) -> bool {
        match self {
            Self::Skip | Self::Resolve => true,
            Self::Retry | Self::Complete => false,
        }
    }

    const fn participle(self) -> &'static str {
        match self {
            Self::Retry => "retried",
            Self::Skip => "skipped",
            Self::Resolve => "resolved",
            Self::Complete => "completed",
        }
    }

    async fn apply(
        self,
        ledger: &Ledger,
        action: SagaAction<'_>,
    ) -> Result<SagaActed, LedgerError> {
        match self {
            Self::Retry => ledger.retry_saga(action).await,
            Self::Skip => ledger.skip_compensation(action).await,
            Self::Resolve => ledger.resolve_saga(action).await,
            Self::Complete => ledger.complete_saga(action).await,
        }
    }
}

pub(super) async fn retry_saga(
    State(app): State<Arc<App>>,
    caller: Caller,
    path: SagaPath,
    request: Request,
) -> HandlerResult {
    act_on_saga(&app, &caller, path, request, Decided::Retry).await
}

pub(super) async fn skip_compensation(
    State(app): State<Arc<App>>,
    caller: Caller,
    path: SagaPath,
    request: Request,
) -> HandlerResult {
    act_on_saga(&app, &caller, path, request, Decided::Skip).await
}

pub(super) async fn resolve_saga(
    State(app): State<Arc<App>>,
    caller: Caller,
    path: SagaPath,
    request: Request,
) -> HandlerResult {
    act_on_saga(&app, &caller, path, request, Decided::Resolve).await
}

pub(super) async fn complete_saga(
    State(app): State<Arc<App>>,
    caller: Caller,
    path: SagaPath,
    request: Request,
) -> HandlerResult {
    act_on_saga(&app, &caller, path, request, Decided::Complete).await
}

async fn act_on_saga(
    app: &App,
    caller: &Caller,
    path: SagaPath,
    request: Request,
    decided: Decided,
) -> HandlerResult {
    let workflow_id = parse_workflow_id(path)?;
    let (_admitted, body) = read_action::<SagaActionRequest>(app, caller, request).await?;
    let reason = check_reason(body.reason.as_deref(), decided.needs_reason())?;
    let ledger = app.links.require_ledger()?;
    let tenant = resolve_tenant(&ledger, caller, &workflow_id, Candidates::Sagas).await?;
    let action = SagaAction {
        tenant: &tenant,
        workflow_id: &workflow_id,
        by: caller.as_actor(),
        reason,
    };
    let deadline = Instant::now() + RETRY_FOR;
    let mut backoff = Backoff::from_millis(5, 250);
    let acted = loop {
        match decided.apply(&ledger, action).await {
            Ok(acted) => break acted,
            Err(error)
                if error.failure() == Failure::Retryable
                    && Instant::now() + backoff.peek() < deadline =>
            {
                tokio::time::sleep(backoff.pause()).await;
            }
            Err(error) => return Err(ledger_problem(&error)),
        }
    };
    respond_to_action(app, &workflow_id, decided.participle(), acted)
}

fn wrong_state(workflow_id: &str, state: SagaState, participle: &str) -> Problem {
    Problem::conflict(format!("the saga is {state}, so it cannot be {participle}"))
        .with_saga(workflow_id, Some(state))
}

fn respond_to_action(
    app: &App,
    workflow_id: &str,
    participle: &str,
    acted: SagaActed,
) -> HandlerResult {
    match acted {
        SagaActed::Done(saga) => {
            publish_rollback_hint(app, &saga);
            Ok((StatusCode::ACCEPTED, Json(to_api_saga(&saga))).into_response())
        }
        SagaActed::Unchanged(saga) => {
            publish_rollback_hint(app, &saga);
            Ok(Json(to_api_saga(&saga)).into_response())
        }
        SagaActed::WrongState(state) => Err(wrong_state(workflow_id, state, participle)),
        SagaActed::NotFound => Err(Problem::no_such_saga(workflow_id)),
    }
}

/// Tells the saga managers that there is something to do. A hint that is lost costs the time
/// until they look by themselves.
fn publish_rollback_hint(app: &App, saga: &SagaView) {
    if saga.state != SagaState::RollingBack {
        return;
    }
    let Some(bus) = app.links.bus() else { return };
    let event = JobEvent {
        tenant_id: saga.tenant.to_string(),
        workflow_id: saga.workflow_id.clone(),
        state: saga.state.as_str().to_owned(),
        ..JobEvent::default()
    };
    let events = Payload::JobEvents(JobEvents {
        events: vec![event],
    });
    let packet = packet::encode(SENDER, &trace::new_trace_id(), local_now(), events);
    app.ctx
        .tasks
        .spawn("rollback hint", OnFailure::Log, async move {
            if let Err(error) = bus.send(subjects::SAGA_ROLLBACK, packet, None).await {
                tracing::debug!(%error, "rollback not announced");
            }
        });
}
