//! Reading, listing and cancelling jobs.

use std::sync::Arc;
use std::time::Duration;

use airlock_api::{CancelRequest as CancelBody, CancelResponse, Job, Page};
use airlock_ledger::{CancelOutcome, CancelRequest, JobView};
use airlock_model::{JobId, JobState, TenantId};
use airlock_proto::cap::JobCancel;
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::{App, HandlerResult, explain};
use crate::auth::Caller;
use crate::http::cursor;
use crate::http::decode::decode_json_object;
use crate::http::problem::Problem;
use crate::http::query;
use crate::limits::admission;
use crate::retry::{ledger_problem, retry_until};
use crate::submit::wake_up::local_now;
use crate::trace;
use crate::view::job::{Detail, to_api_job};
use crate::waiting::Waiter;

/// How long a read is tried when the ledger does not answer.
pub(super) const RETRY_FOR: Duration = Duration::from_secs(3);
const MAX_REASON: usize = 1_024;
/// A cancellation has nothing but a reason.
const CANCEL_BYTES: usize = 16 << 10;

pub(super) type JobPath = Result<Path<String>, PathRejection>;

/// What cannot be an id is the id of no job.
pub(super) fn parse_job_id(path: JobPath) -> Result<JobId, Problem> {
    let Ok(Path(text)) = path else {
        return Err(Problem::no_such_job("that"));
    };
    JobId::new(&text).map_err(|_| Problem::no_such_job(&text))
}

pub(super) async fn load_job(
    app: &App,
    scope: Option<&TenantId>,
    id: &JobId,
) -> Result<JobView, Problem> {
    let ledger = app.links.require_ledger()?;
    retry_until(Instant::now() + RETRY_FOR, || ledger.job(scope, id))
        .await
        .map_err(|e| ledger_problem(&e))?
        .ok_or_else(|| Problem::no_such_job(id.as_str()))
}

pub(super) async fn get_job(
    State(app): State<Arc<App>>,
    caller: Caller,
    path: JobPath,
    request: Request,
) -> HandlerResult {
    let id = parse_job_id(path)?;
    let scope = caller.scope.as_ref();
    let Some(wait) = query::parse_wait_parameter(request.uri(), app.limits.max_wait)? else {
        let _admitted = app.admission.begin_read(&caller)?;
        let job = load_job(&app, scope, &id).await?;
        let now = local_now();
        let mut shown = to_api_job(&job, Detail::Full, now);
        if let Some((code, reason)) = explain::query_wait_reason(&app, &job, now).await {
            // What the leader waits for is newer than what the row says.
            shown.waiting_code = Some(code);
            shown.waiting_reason = Some(reason);
        }
        return Ok(Json(shown).into_response());
    };
    let waiter = app.waiting.register(&id, (&caller).into())?;
    respond_when_final(&app, scope, wait, waiter, true).await
}

/// 200 with the job once it has ended, or 202 with it as it is when the time is up or
/// the gateway stops. `waiter` was registered before the job was last read;
/// `read_first` says that it was never read.
pub(super) async fn respond_when_final(
    app: &App,
    scope: Option<&TenantId>,
    wait: Duration,
    mut waiter: Waiter,
    mut read_first: bool,
) -> HandlerResult {
    let deadline = Instant::now() + wait;
    loop {
        let mut last = Instant::now() >= deadline;
        if !read_first && !last {
            tokio::select! {
                () = waiter.wait_until_woken() => {}
                () = tokio::time::sleep_until(deadline) => last = true,
                () = app.ctx.shutdown.cancelled() => last = true,
            }
        }
        read_first = false;
        let job = load_job(app, scope, waiter.job_id()).await?;
        if job.state.is_final() || last {
            let status = if job.state.is_final() {
                StatusCode::OK
            } else {
                StatusCode::ACCEPTED
            };
            let now = local_now();
            let mut shown = to_api_job(&job, Detail::Outcome, now);
            if let Some((code, reason)) = explain::query_wait_reason(app, &job, now).await {
                // What the leader waits for is newer than what the row says.
                shown.waiting_code = Some(code);
                shown.waiting_reason = Some(reason);
            }
            return Ok((status, Json(shown)).into_response());
        }
    }
}

pub(super) async fn list_jobs(
    State(app): State<Arc<App>>,
    caller: Caller,
    request: Request,
) -> HandlerResult {
    let listing = query::parse_job_listing(request.uri(), caller.scope.as_ref())?;
    let _admitted = app.admission.begin_read(&caller)?;
    let ledger = app.links.require_ledger()?;
    let page = retry_until(Instant::now() + RETRY_FOR, || {
        ledger.list_jobs(&listing.filter, listing.after.clone(), listing.limit)
    })
    .await
    .map_err(|e| ledger_problem(&e))?;
    let now = local_now();
    let items: Vec<Job<&RawValue>> = page
        .jobs
        .iter()
        .map(|job| to_api_job(job, Detail::Line, now))
        .collect();
    let next_cursor = page
        .next
        .as_ref()
        .map(|(at, id)| cursor::encode_cursor(*at, id));
    Ok(Json(Page { items, next_cursor }).into_response())
}

pub(super) async fn cancel_job(
    State(app): State<Arc<App>>,
    caller: Caller,
    path: JobPath,
    request: Request,
) -> HandlerResult {
    let (parts, body) = request.into_parts();
    let id = parse_job_id(path)?;
    let mut admitted = app.admission.begin_write(&caller)?;
    let text = admitted
        .read_body(&parts.headers, body, CANCEL_BYTES, "reason")
        .await?;
    let body = if text.is_empty() {
        CancelBody::default()
    } else {
        admission::check_content_type(&parts.headers)?;
        decode_json_object(&text)?
    };
    let reason = body.reason.unwrap_or_default();
    if reason.len() > MAX_REASON {
        let message = format!(
            "is {} bytes long; at most {MAX_REASON} are allowed",
            reason.len()
        );
        return Err(Problem::invalid_field("reason", message));
    }
    let ledger = app.links.require_ledger()?;
    // Repeating it is safe: a cancellation whose answer was lost is found as CANCELLED.
    let outcome = retry_until(Instant::now() + RETRY_FOR, || {
        ledger.cancel_job(CancelRequest {
            job_id: &id,
            tenant: caller.scope.as_ref(),
            by: caller.as_actor(),
            reason: &reason,
        })
    })
    .await
    .map_err(|e| ledger_problem(&e))?;
    match outcome {
        CancelOutcome::NotFound => return Err(Problem::no_such_job(id.as_str())),
        CancelOutcome::AlreadyFinal(JobState::Cancelled) => {}
        CancelOutcome::AlreadyFinal(state) => {
            let detail = format!("the job has ended already, as {state}");
            return Err(Problem::conflict(detail)
                .with_job_id(&id)
                .with_job_state(state));
        }
        CancelOutcome::Cancelled => {
            let cancel = JobCancel {
                job_id: id.as_str().to_owned(),
                reason,
                requested_by: caller.name,
                ..JobCancel::default()
            };
            app.waker.publish_cancel(cancel, &trace::new_trace_id());
        }
    }
    let state = JobState::Cancelled;
    let job_id = id.to_string();
    Ok(Json(CancelResponse { job_id, state }).into_response())
}
