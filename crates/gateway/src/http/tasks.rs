//! `POST /tasks`: a time and a payload.

use std::sync::Arc;

use airlock_api::{TaskResponse, TaskStatus};
use airlock_ledger::NewJob;
use airlock_model::hash::job_hash;
use airlock_model::{JobId, Shard};
use axum::Json;
use axum::extract::{Request, State};
use axum::http::header::LOCATION;
use axum::http::{HeaderValue, StatusCode};
use axum::response::IntoResponse;
use serde::Deserialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::jobs::{self, JobPath};
use super::submit::{accepted_or_problem, idempotency_header};
use super::{App, HandlerResult};
use crate::auth::ANONYMOUS;
use crate::auth::Caller;
use crate::http::decode::decode_json_object;
use crate::http::problem::Problem;
use crate::limits::admission;
use crate::limits::quota::QuotaOwner;
use crate::submit::body;
use crate::submit::commit::Outcome;
use crate::tasks::to_task_status;
use crate::trace;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TaskBody<'a> {
    due_at: Option<String>,
    #[serde(borrow, default, deserialize_with = "body::deserialize_present")]
    payload: Option<&'a RawValue>,
    idempotency_key: Option<String>,
}

pub(super) async fn create_task(
    State(app): State<Arc<App>>,
    caller: Caller,
    request: Request,
) -> HandlerResult {
    let (parts, content) = request.into_parts();
    let (tenant, by) = (caller.submit_tenant()?.clone(), caller.to_credential());
    admission::check_content_type(&parts.headers)?;
    let key = idempotency_header(&parts.headers)?;
    let limit = app.limits.max_body_bytes();
    let mut admitted = app.admission.begin_write(QuotaOwner::new_user(&by.name))?;
    let whole = admitted
        .read_body(&parts.headers, content, limit, "payload")
        .await?;
    let body: TaskBody<'_> = decode_json_object(&whole)?;
    let idempotency_key = body::choose_idempotency_key(body.idempotency_key, key)?;
    let payload = body.payload.map(|p| whole.slice_ref(p.get().as_bytes()));
    let most = app.limits.payload_bytes;
    if let Some(long) = payload.as_ref().map(|p| p.len()).filter(|n| *n > most) {
        let message = format!("is {long} bytes long; at most {most} are allowed");
        return Err(Problem::too_large("payload", message));
    }
    let mut spec = app.tasks.to_job_spec();
    spec.due = body::parse_due(body.due_at.as_deref(), None)?;
    // Of what was asked for, whoever asks.
    let hash = job_hash(&tenant, &spec, payload.as_deref());
    spec.set_identity_from(&by);
    let job_id = JobId::from_uuid(Uuid::now_v7());
    let trace = app
        .tracing
        .begin_job_trace(trace::incoming_traceparent(&parts.headers));
    let job = NewJob {
        shard: Shard::for_job(&job_id, app.shards),
        hash,
        tenant,
        spec,
        payload,
        idempotency_key,
        submitted_by: Some(by.name),
        submitted_principal: Some(by.principal),
        trace_id: trace.trace_id.clone(),
        traceparent: trace.traceparent.clone(),
        job_id: job_id.clone(),
    };
    let tenant = job.tenant.clone();
    let mut outcomes = app.commit_jobs(&tenant, vec![job]).await?;
    let outcome = outcomes.pop().unwrap_or(Outcome::Failed);
    let accepted = accepted_or_problem(outcome, &job_id, &trace.trace_id)?;
    let created = if accepted.replayed {
        StatusCode::OK
    } else {
        StatusCode::CREATED
    };
    let place = HeaderValue::from_str(&format!("/tasks/{}", accepted.job_id));
    let task = TaskResponse {
        id: accepted.job_id.to_string(),
        status: to_task_status(accepted.state).to_owned(),
    };
    let mut response = (created, Json(task)).into_response();
    if let Ok(place) = place {
        response.headers_mut().insert(LOCATION, place);
    }
    Ok(response)
}

/// How a task is doing.
pub(super) async fn get_task(
    State(app): State<Arc<App>>,
    caller: Caller,
    path: JobPath,
) -> HandlerResult {
    let id = jobs::parse_job_id(path)?;
    let _admitted = app
        .admission
        .begin_read(QuotaOwner::new_user(&caller.name))?;
    let job = jobs::load_job(&app, caller.scope.as_ref(), &id).await?;
    // Without a key, only what came without one.
    if caller.is_anonymous() && job.submitted_by.as_deref() != Some(ANONYMOUS) {
        return Err(Problem::no_such_job(id.as_str()));
    }
    let error = job
        .reason
        .filter(|_| to_task_status(job.state) != "COMPLETED");
    Ok(Json(TaskStatus {
        id: job.job_id.to_string(),
        status: to_task_status(job.state).to_owned(),
        due_at: job.due_at.map(|at| at.to_rfc3339()),
        attempts: job.attempt,
        error,
    })
    .into_response())
}
