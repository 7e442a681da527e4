//! Submitting jobs, one or many.

use std::sync::Arc;
use std::time::Duration;

use airlock_api::{BatchItem, BatchResponse, SubmitResponse};
use airlock_ledger::{Full, NewJob, SubmitConflict};
use airlock_model::hash::job_hash;
use airlock_model::{Credential, JobId, JobState, Shard, TenantId};
use axum::Json;
use axum::extract::{Request, State};
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::{App, HandlerResult, jobs};
use crate::auth::Caller;
use crate::http::decode::decode_json;
use crate::http::problem::Problem;
use crate::http::query;
use crate::limits::admission;
use crate::limits::open_jobs;
use crate::limits::quota::QuotaOwner;
use crate::submit::body::SubmitBody;
use crate::submit::commit::{Outcome, to_outcome};
use crate::trace::{self, JobTrace};
use crate::waiting::Waiter;

const IDEMPOTENCY_KEY: &str = "idempotency-key";
const REPLAYED: &str = "idempotency-replayed";

#[derive(Debug)]
pub(super) struct Accepted {
    pub job_id: JobId,
    pub state: JobState,
    trace_id: String,
    /// The same request came before; this is its job.
    pub replayed: bool,
}

impl Accepted {
    fn to_response(&self) -> SubmitResponse {
        SubmitResponse {
            job_id: self.job_id.to_string(),
            state: self.state,
            trace_id: self.trace_id.clone(),
        }
    }
}

/// A job ready to commit, and its span, which ends with the answer.
struct Draft {
    job: NewJob,
    trace: JobTrace,
}

impl App {
    fn draft_job(
        &self,
        text: &[u8],
        whole: &Bytes,
        (tenant, by): (&TenantId, &Credential),
        header_key: Option<&str>,
        incoming: Option<&str>,
    ) -> Result<Draft, Problem> {
        let mut submission =
            SubmitBody::parse_submission(text, whole, header_key, self.limits.payload_bytes)?;
        let job_id = JobId::from_uuid(Uuid::now_v7());
        let trace = self.tracing.begin_job_trace(incoming);
        // Of what was asked for, whoever asks: the same request has the same hash.
        let hash = job_hash(tenant, &submission.spec, submission.payload.as_deref());
        submission.spec.set_identity_from(by);
        let job = NewJob {
            shard: Shard::for_job(&job_id, self.shards),
            hash,
            tenant: tenant.clone(),
            spec: submission.spec,
            payload: submission.payload,
            idempotency_key: submission.idempotency_key,
            submitted_by: Some(by.name.clone()),
            submitted_principal: Some(by.principal.clone()),
            trace_id: trace.trace_id.clone(),
            traceparent: trace.traceparent.clone(),
            job_id,
        };
        Ok(Draft { job, trace })
    }
}

impl App {
    /// Commits jobs of a tenant as far as there is room for them; the outcomes are in order.
    pub(super) async fn commit_jobs(
        &self,
        tenant: &TenantId,
        mut jobs: Vec<NewJob>,
    ) -> Result<Vec<Outcome>, Problem> {
        let (room, full) = self.open_jobs.admit(tenant, jobs.len());
        let over = jobs.split_off(room);
        let mut outcomes = Vec::new();
        if !jobs.is_empty() {
            let submitted = self.submitter.submit_jobs(jobs).await;
            let new = submitted.as_ref().map_or(0, |outcomes| {
                let new = |o: &&Outcome| matches!(o, Outcome::Accepted { .. });
                outcomes.iter().filter(new).count()
            });
            self.open_jobs.release(tenant, room - new);
            outcomes = submitted?;
        }
        if let Some(full) = full {
            outcomes.extend(self.outcomes_over_limit(&over, full).await);
        }
        Ok(outcomes)
    }

    /// What becomes of jobs there is no room for: a request that was accepted before has
    /// its answer all the same.
    async fn outcomes_over_limit(&self, jobs: &[NewJob], full: Full) -> Vec<Outcome> {
        let mut before = vec![None; jobs.len()];
        if jobs.iter().any(|job| job.idempotency_key.is_some())
            && let Some(ledger) = self.links.ledger()
            && let Ok(found) = ledger.find_previous_submissions(jobs).await
        {
            before = found;
        }
        let outcomes: Vec<Outcome> = jobs
            .iter()
            .zip(before)
            .map(|(job, before)| before.map_or(Outcome::Full(full), |found| to_outcome(job, found)))
            .collect();
        for outcome in &outcomes {
            self.metrics.count_submission(outcome.metric_label());
        }
        outcomes
    }
}

/// What to tell about a job that was committed, or why not.
pub(super) fn accepted_or_problem(
    outcome: Outcome,
    job_id: &JobId,
    trace_id: &str,
) -> Result<Accepted, Problem> {
    let problem = match outcome {
        Outcome::Accepted { .. } => {
            return Ok(Accepted {
                job_id: job_id.clone(),
                state: JobState::Pending,
                trace_id: trace_id.to_owned(),
                replayed: false,
            });
        }
        Outcome::Existing {
            job_id,
            state,
            trace_id,
        } => {
            return Ok(Accepted {
                job_id,
                state,
                trace_id,
                replayed: true,
            });
        }
        Outcome::Conflict { job_id, by } => {
            let (what, field) = match by {
                SubmitConflict::IdempotencyKey => ("the idempotency key", "idempotency_key"),
                SubmitConflict::Id => ("the job id", "job_id"),
            };
            let detail = format!("{what} was used before, for another request");
            let problem = Problem::conflict(detail).with_field(field);
            match job_id {
                Some(job_id) => problem.with_job_id(job_id),
                None => problem,
            }
        }
        Outcome::Refused => Problem::unstorable_job("the ledger cannot hold this job as it is"),
        Outcome::Unknown => Problem::unavailable(
            "the ledger gave no answer, so the job may or may not have been accepted; \
             try again with the same idempotency key",
        ),
        Outcome::Full(full) => open_jobs::open_jobs_problem(full),
        Outcome::Busy => Problem::overloaded("too many submissions are waiting"),
        Outcome::Failed => Problem::internal(),
    };
    Err(problem.with_trace_id(trace_id))
}

pub(super) fn idempotency_header(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    headers
        .get(IDEMPOTENCY_KEY)
        .map(|value| {
            value
                .to_str()
                .map_err(|_| Problem::invalid_field("Idempotency-Key", "is not visible ASCII"))
        })
        .transpose()
}

pub(super) async fn submit_job(
    State(app): State<Arc<App>>,
    caller: Caller,
    request: Request,
) -> HandlerResult {
    let (parts, body) = request.into_parts();
    let tenant = caller.submit_tenant()?;
    admission::check_content_type(&parts.headers)?;
    let wait = query::parse_wait_parameter(&parts.uri, app.limits.max_wait)?;
    let key = idempotency_header(&parts.headers)?;
    let limit = app.limits.max_body_bytes();
    let mut admitted = app.admission.begin_write(&caller)?;
    let whole = admitted
        .read_body(&parts.headers, body, limit, "payload")
        .await?;
    let incoming = trace::incoming_traceparent(&parts.headers);
    let by = caller.to_credential();
    let Draft { job, trace } = app.draft_job(&whole, &whole, (tenant, &by), key, incoming)?;
    let job_id = job.job_id.clone();
    // Before the commit, so that no end of the job can be missed.
    let waiter = wait
        .map(|_| app.waiting.register(&job_id, (&caller).into()))
        .transpose()?;
    let mut outcomes = app.commit_jobs(tenant, vec![job]).await?;
    let outcome = outcomes.pop().unwrap_or(Outcome::Failed);
    let accepted = accepted_or_problem(outcome, &job_id, &trace.trace_id)?;
    drop((trace, admitted, whole));
    match (wait, waiter) {
        (Some(wait), Some(waiter)) => {
            respond_when_ended(&app, (&caller).into(), accepted, wait, waiter).await
        }
        (None, _) | (_, None) => {
            let status = if accepted.replayed {
                StatusCode::OK
            } else {
                StatusCode::ACCEPTED
            };
            Ok(with_job_headers(
                (status, Json(accepted.to_response())).into_response(),
                &accepted,
            ))
        }
    }
}

/// The job once it has ended, or as it is when the time is up.
async fn respond_when_ended(
    app: &App,
    who: QuotaOwner<'_>,
    accepted: Accepted,
    wait: Duration,
    waiter: Waiter,
) -> HandlerResult {
    // A replayed submission is about another job than the one we registered for.
    let (waiter, read_first) = if accepted.replayed {
        (app.waiting.register(&accepted.job_id, who)?, true)
    } else {
        (waiter, false)
    };
    let response = jobs::respond_when_final(app, None, wait, waiter, read_first).await?;
    Ok(with_job_headers(response, &accepted))
}

fn with_job_headers(mut response: Response, accepted: &Accepted) -> Response {
    let headers = response.headers_mut();
    if let Ok(place) = HeaderValue::from_str(&format!("/api/v1/jobs/{}", accepted.job_id)) {
        headers.insert(LOCATION, place);
    }
    if accepted.replayed {
        headers.insert(REPLAYED, HeaderValue::from_static("true"));
    }
    response
}

/// A list by itself, or under `jobs`. The items stay unread, so that one that is wrong
/// does not spoil the others.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BatchBody<'a> {
    #[serde(borrow)]
    jobs: Vec<&'a RawValue>,
}

pub(super) async fn submit_batch(
    State(app): State<Arc<App>>,
    caller: Caller,
    request: Request,
) -> HandlerResult {
    let (parts, body) = request.into_parts();
    let tenant = caller.submit_tenant()?;
    admission::check_content_type(&parts.headers)?;
    if parts.headers.contains_key(IDEMPOTENCY_KEY) {
        let message = "is for single jobs; give each job of a batch its own idempotency_key";
        return Err(Problem::invalid_field("Idempotency-Key", message));
    }
    let limit = app.limits.batch_bytes;
    let mut admitted = app.admission.begin_write(&caller)?;
    let whole = admitted
        .read_body(&parts.headers, body, limit, "jobs")
        .await?;
    let items = split_batch(&whole)?;
    if items.len() > app.limits.batch_items {
        let most = app.limits.batch_items;
        let message = format!("{} jobs; at most {most} are allowed", items.len());
        return Err(Problem::too_large("jobs", message));
    }
    let incoming = trace::incoming_traceparent(&parts.headers);
    let by = caller.to_credential();
    let mut jobs = Vec::with_capacity(items.len());
    let mut traces = Vec::with_capacity(items.len());
    for (at, item) in items.iter().enumerate() {
        match app.draft_job(item.get().as_bytes(), &whole, (tenant, &by), None, incoming) {
            Ok(Draft { job, trace }) => {
                traces.push(Ok((job.job_id.clone(), trace)));
                jobs.push(job);
            }
            Err(problem) => traces.push(Err(problem.with_field_prefix(&format!("jobs[{at}]")))),
        }
    }
    let mut outcomes = if jobs.is_empty() {
        Vec::new()
    } else {
        app.commit_jobs(tenant, jobs).await?
    }
    .into_iter();
    let mut results = Vec::with_capacity(traces.len());
    for trace in traces {
        let outcome = trace.and_then(|(job_id, trace)| {
            let outcome = outcomes.next().unwrap_or(Outcome::Failed);
            accepted_or_problem(outcome, &job_id, &trace.trace_id)
        });
        results.push(match outcome {
            Ok(accepted) => BatchItem::Accepted(accepted.to_response()),
            Err(problem) => BatchItem::Rejected {
                error: Box::new(problem.into_body()),
            },
        });
    }
    Ok(Json(BatchResponse { results }).into_response())
}

fn split_batch(whole: &Bytes) -> Result<Vec<&RawValue>, Problem> {
    let first = whole.iter().find(|b| !b.is_ascii_whitespace());
    if first == Some(&b'[') {
        decode_json(whole)
    } else {
        decode_json::<BatchBody<'_>>(whole).map(|body| body.jobs)
    }
}
