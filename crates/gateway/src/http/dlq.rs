//! The dead letter queue: looking at what was given up, trying it again, removing it.
//!
//! What must stay true: a tenant sees and touches its own letters only, and a letter
//! becomes at most one job however often it is asked for.

use std::sync::Arc;
use std::time::Duration;

use airlock_api::{BulkOutcome, DeleteOutcome, Page, RetryResponse};
use airlock_ledger::{
    DeadLetterDetail, DeadLetterFilter, NewJob, Retried, RetryBlockedBySaga, retry_idempotency_key,
};
use airlock_model::hash::job_hash;
use airlock_model::{Credential, Due, JobId, Shard, TenantId};
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use tokio::time::Instant;
use uuid::Uuid;

use super::jobs::RETRY_FOR;
use super::{App, HandlerResult};
use crate::auth::Caller;
use crate::dlq::filter::{
    Bulk, parse_dead_letter_listing, to_api_dead_letter, to_api_dead_letter_detail, validate_bulk,
};
use crate::http::decode::decode_json_object;
use crate::http::problem::Problem;
use crate::limits::admission;
use crate::limits::open_jobs;
use crate::retry::{ledger_problem, retry_until};

/// A filter and a few words.
const BULK_BYTES: usize = 16 << 10;
/// Letters of one transaction when many are tried again or removed.
const STEP: u32 = 100;
/// A request ends before its time is over, and says what is left.
const BULK_FOR: Duration = Duration::from_secs(15);

type DeadLetterPath = Result<Path<String>, PathRejection>;

/// What cannot be the number of a letter is that of none.
fn parse_dead_letter_id(path: DeadLetterPath) -> Result<i64, Problem> {
    let Ok(Path(text)) = path else {
        return Err(Problem::no_such_dead_letter("that"));
    };
    text.parse()
        .map_err(|_| Problem::no_such_dead_letter(&text))
}

async fn load_dead_letter(
    app: &App,
    scope: Option<&TenantId>,
    id: i64,
) -> Result<DeadLetterDetail, Problem> {
    let ledger = app.links.require_ledger()?;
    retry_until(Instant::now() + RETRY_FOR, || ledger.dead_letter(scope, id))
        .await
        .map_err(|e| ledger_problem(&e))?
        .ok_or_else(|| Problem::no_such_dead_letter(&id.to_string()))
}

pub(super) async fn list_dead_letters(
    State(app): State<Arc<App>>,
    caller: Caller,
    request: Request,
) -> HandlerResult {
    let listing = parse_dead_letter_listing(request.uri(), caller.scope.as_ref())?;
    let _admitted = app.admission.begin_read(&caller)?;
    let ledger = app.links.require_ledger()?;
    let mut letters = retry_until(Instant::now() + RETRY_FOR, || {
        ledger.dead_letters(&listing.filter, listing.before, listing.limit + 1)
    })
    .await
    .map_err(|e| ledger_problem(&e))?;
    let more = letters.len() > listing.limit as usize;
    letters.truncate(listing.limit as usize);
    let next_cursor = letters.last().filter(|_| more).map(|l| l.id.to_string());
    let items = letters.iter().map(to_api_dead_letter).collect();
    Ok(Json(Page { items, next_cursor }).into_response())
}

pub(super) async fn get_dead_letter(
    State(app): State<Arc<App>>,
    caller: Caller,
    path: DeadLetterPath,
) -> HandlerResult {
    let id = parse_dead_letter_id(path)?;
    let _admitted = app.admission.begin_read(&caller)?;
    let whole = load_dead_letter(&app, caller.scope.as_ref(), id).await?;
    Ok(Json(to_api_dead_letter_detail(&whole, app.output.enabled)).into_response())
}

pub(super) async fn delete_dead_letter(
    State(app): State<Arc<App>>,
    caller: Caller,
    path: DeadLetterPath,
) -> HandlerResult {
    let id = parse_dead_letter_id(path)?;
    let _admitted = app.admission.begin_write(&caller)?;
    let ledger = app.links.require_ledger()?;
    let scope = caller.scope.as_ref();
    let done = retry_until(Instant::now() + RETRY_FOR, || {
        ledger.delete_dead_letter(scope, id, caller.as_actor())
    })
    .await
    .map_err(|e| ledger_problem(&e))?;
    if !done {
        return Err(Problem::no_such_dead_letter(&id.to_string()));
    }
    Ok(Json(DeleteOutcome { deleted: 1 }).into_response())
}

pub(super) async fn retry_dead_letter(
    State(app): State<Arc<App>>,
    caller: Caller,
    path: DeadLetterPath,
    request: Request,
) -> HandlerResult {
    let (parts, body) = request.into_parts();
    let id = parse_dead_letter_id(path)?;
    let mut admitted = app.admission.begin_write(&caller)?;
    admitted
        .read_body(&parts.headers, body, BULK_BYTES, "body")
        .await?;
    let whole = load_dead_letter(&app, caller.scope.as_ref(), id).await?;
    if let Some(blocked) = find_retries_blocked_by_sagas(&app, std::slice::from_ref(&whole))
        .await?
        .pop()
    {
        return Err(blocked_retry_problem(&blocked));
    }
    let Some(job) = app.to_retry_job(&whole, &caller.to_credential()) else {
        let why = "it is not about a job, or its request cannot be read; it can only be removed";
        return Err(Problem::conflict(why));
    };
    let mut done = app.retry_dead_letters(vec![(id, job)], &caller).await?;
    let (status, job_id) = match done.pop() {
        Some(Retried::As { job_id, .. }) => (StatusCode::ACCEPTED, job_id),
        Some(Retried::Already { job_id, .. }) => (StatusCode::OK, job_id),
        Some(Retried::Conflict) => {
            let why = format!("the idempotency key {} is taken", retry_idempotency_key(id));
            return Err(Problem::conflict(why));
        }
        Some(Retried::OfSaga { workflow_id }) => {
            let why = format!(
                "its job belongs to saga {workflow_id}, which is rolled back; act on the saga instead"
            );
            return Err(Problem::conflict(why));
        }
        Some(Retried::Gone) | None => return Err(Problem::no_such_dead_letter(&id.to_string())),
    };
    let retry_of = whole.letter.job_id;
    Ok((
        status,
        Json(RetryResponse {
            id,
            job_id: job_id.to_string(),
            retry_of,
        }),
    )
        .into_response())
}

async fn find_retries_blocked_by_sagas(
    app: &App,
    letters: &[DeadLetterDetail],
) -> Result<Vec<RetryBlockedBySaga>, Problem> {
    let ledger = app.links.require_ledger()?;
    retry_until(Instant::now() + RETRY_FOR, || {
        ledger.retries_blocked_by_sagas(letters)
    })
    .await
    .map_err(|e| ledger_problem(&e))
}

fn blocked_retry_problem(blocked: &RetryBlockedBySaga) -> Problem {
    let saga = &blocked.workflow_id;
    let why = match (blocked.compensation, blocked.state) {
        (true, _) => {
            format!("the job is a compensation of saga {saga:?}; retry the saga if it is STUCK")
        }
        (false, Some(state)) => {
            format!("the saga {saga:?} of the job is {state}, so its jobs do not run again")
        }
        (false, None) => format!("the job belongs to saga {saga:?}"),
    };
    Problem::conflict(why).with_saga(saga, blocked.state)
}

impl App {
    /// The same request again, under a key of its own. A delay counts from when it was
    /// first asked for: what has passed of it is not waited for a second time.
    fn to_retry_job(&self, whole: &DeadLetterDetail, by: &Credential) -> Option<NewJob> {
        let mut spec = whole.spec.clone()?;
        if let Some(Due::After(_)) = spec.due {
            spec.due = Some(Due::At(whole.due_at.unwrap_or(whole.letter.created_at)));
        }
        // Whose request it was stays so; one from before that was kept has only its own word.
        if whole.submitted_principal.is_none() {
            spec.set_identity_from(by);
        }
        let tenant = TenantId::new(whole.letter.tenant.as_deref()?).ok()?;
        let job_id = JobId::from_uuid(Uuid::now_v7());
        let trace = self.tracing.begin_job_trace(None);
        Some(NewJob {
            shard: Shard::for_job(&job_id, self.shards),
            hash: job_hash(&tenant, &spec, whole.payload.as_deref()),
            tenant,
            spec,
            payload: whole.payload.clone(),
            idempotency_key: Some(retry_idempotency_key(whole.letter.id)),
            submitted_by: Some(by.name.clone()),
            submitted_principal: Some(by.principal.clone()),
            trace_id: trace.trace_id.clone(),
            traceparent: trace.traceparent.clone(),
            job_id,
        })
    }

    /// Commits second chances and wakes the scheduler for them. Repeating it is safe: a
    /// letter whose answer was lost is found as tried again.
    async fn retry_dead_letters(
        &self,
        jobs: Vec<(i64, NewJob)>,
        caller: &Caller,
    ) -> Result<Vec<Retried>, Problem> {
        let ledger = self.links.require_ledger()?;
        // Refused as a whole: what was retried before is not asked for again.
        for (at, (_, job)) in jobs.iter().enumerate() {
            if let (_, Some(full)) = self.open_jobs.admit(&job.tenant, 1) {
                for (_, job) in jobs.iter().take(at) {
                    self.open_jobs.release(&job.tenant, 1);
                }
                return Err(open_jobs::open_jobs_problem(full));
            }
        }
        let done = retry_until(Instant::now() + RETRY_FOR, || {
            ledger.retry_dead_letters(&jobs, caller.as_actor())
        })
        .await
        .map_err(|e| ledger_problem(&e))?;
        let (jobs, due): (Vec<NewJob>, Vec<bool>) = jobs
            .into_iter()
            .zip(&done)
            .map(|((_, job), done)| {
                let due = match done {
                    Retried::As { job_id, waits } | Retried::Already { job_id, waits } => {
                        *job_id == job.job_id && !waits
                    }
                    Retried::Conflict | Retried::OfSaga { .. } | Retried::Gone => false,
                };
                (job, due)
            })
            .unzip();
        self.waker.wake_scheduler(jobs, &due, None).await;
        Ok(done)
    }
}

/// Reads a request about many letters.
async fn read_bulk_request(app: &App, caller: &Caller, request: Request) -> Result<Bulk, Problem> {
    let (parts, body) = request.into_parts();
    admission::check_content_type(&parts.headers)?;
    let mut admitted = app.admission.begin_write(caller)?;
    let text = admitted
        .read_body(&parts.headers, body, BULK_BYTES, "body")
        .await?;
    validate_bulk(decode_json_object(&text)?, caller.scope.as_ref())
}

/// Fixes the upper end of what the filter names, unless the request did.
async fn fix_upper_bound(app: &App, filter: &mut DeadLetterFilter) -> Result<(), Problem> {
    if filter.up_to.is_none() {
        let ledger = app.links.require_ledger()?;
        let newest = retry_until(Instant::now() + RETRY_FOR, || {
            ledger.dead_letters(filter, None, 1)
        })
        .await
        .map_err(|e| ledger_problem(&e))?;
        // Of no letters the newest is before the first.
        filter.up_to = Some(newest.first().map_or(0, |letter| letter.id));
    }
    Ok(())
}

async fn count_dead_letters(app: &App, filter: &DeadLetterFilter) -> Result<u64, Problem> {
    let ledger = app.links.require_ledger()?;
    retry_until(Instant::now() + RETRY_FOR, || {
        ledger.count_dead_letters(filter)
    })
    .await
    .map_err(|e| ledger_problem(&e))
}

/// Retries the dead letters of a page; the jobs that they became, and how many did not.
async fn retry_dead_letter_page(
    app: &App,
    caller: &Caller,
    page: &[DeadLetterDetail],
) -> Result<(Vec<RetryResponse>, u64), Problem> {
    let by = caller.to_credential();
    let blocked = find_retries_blocked_by_sagas(app, page).await?;
    let is_blocked = |id: i64| blocked.iter().any(|b| b.dead_letter_id == id);
    let jobs: Vec<(i64, NewJob)> = page
        .iter()
        .filter(|w| !is_blocked(w.letter.id))
        .filter_map(|w| Some((w.letter.id, app.to_retry_job(w, &by)?)))
        .collect();
    let mut skipped = (page.len() - jobs.len()) as u64;
    let ids: Vec<i64> = jobs.iter().map(|(id, _)| *id).collect();
    let mut retried = Vec::with_capacity(ids.len());
    let outcomes = app.retry_dead_letters(jobs, caller).await?;
    for (id, outcome) in ids.into_iter().zip(outcomes) {
        let retry_of = page
            .iter()
            .find(|w| w.letter.id == id)
            .and_then(|w| w.letter.job_id.clone());
        match outcome {
            Retried::As { job_id, .. } | Retried::Already { job_id, .. } => {
                retried.push(RetryResponse {
                    id,
                    job_id: job_id.to_string(),
                    retry_of,
                });
            }
            Retried::Conflict | Retried::OfSaga { .. } | Retried::Gone => skipped += 1,
        }
    }
    Ok((retried, skipped))
}

pub(super) async fn bulk_retry_dead_letters(
    State(app): State<Arc<App>>,
    caller: Caller,
    request: Request,
) -> HandlerResult {
    let mut bulk = read_bulk_request(&app, &caller, request).await?;
    if bulk.filter.retried == Some(true) {
        let message = "what was tried again is not tried again a second time";
        return Err(Problem::invalid_field("retried", message));
    }
    bulk.filter.retried = Some(false);
    bulk.filter.with_request = true;
    fix_upper_bound(&app, &mut bulk.filter).await?;
    let matched = count_dead_letters(&app, &bulk.filter).await?;
    let mut answer = BulkOutcome {
        dry_run: bulk.dry_run,
        matched,
        remaining: matched,
        up_to: bulk.filter.up_to,
        ..BulkOutcome::default()
    };
    if bulk.dry_run {
        return Ok(Json(answer).into_response());
    }
    let started = Instant::now();
    let (mut after, mut jobs, mut handled, mut skipped) = (0, Vec::new(), 0, 0);
    while handled < u64::from(bulk.limit) && started.elapsed() < BULK_FOR {
        let left = u64::from(bulk.limit) - handled;
        let step = STEP.min(u32::try_from(left).unwrap_or(STEP));
        let ledger = app.links.require_ledger()?;
        let page = retry_until(Instant::now() + RETRY_FOR, || {
            ledger.dead_letter_details(&bulk.filter, after, step)
        })
        .await
        .map_err(|e| ledger_problem(&e))?;
        let Some(last) = page.last() else { break };
        after = last.letter.id;
        handled += page.len() as u64;
        let (retried, not_retried) = retry_dead_letter_page(&app, &caller, &page).await?;
        jobs.extend(retried);
        skipped += not_retried;
    }
    answer.remaining = matched.saturating_sub(handled);
    answer.retried = Some(jobs.len() as u64);
    answer.skipped = Some(skipped);
    answer.jobs = Some(jobs);
    Ok(Json(answer).into_response())
}

pub(super) async fn bulk_delete_dead_letters(
    State(app): State<Arc<App>>,
    caller: Caller,
    request: Request,
) -> HandlerResult {
    let mut bulk = read_bulk_request(&app, &caller, request).await?;
    fix_upper_bound(&app, &mut bulk.filter).await?;
    let matched = count_dead_letters(&app, &bulk.filter).await?;
    let mut answer = BulkOutcome {
        dry_run: bulk.dry_run,
        matched,
        remaining: matched,
        up_to: bulk.filter.up_to,
        ..BulkOutcome::default()
    };
    if bulk.dry_run {
        return Ok(Json(answer).into_response());
    }
    let ledger = app.links.require_ledger()?;
    let (started, mut deleted) = (Instant::now(), 0);
    while deleted < u64::from(bulk.limit) && started.elapsed() < BULK_FOR {
        let left = u64::from(bulk.limit) - deleted;
        let step = STEP.min(u32::try_from(left).unwrap_or(STEP));
        let n = retry_until(Instant::now() + RETRY_FOR, || {
            ledger.delete_dead_letters(&bulk.filter, step, caller.as_actor())
        })
        .await
        .map_err(|e| ledger_problem(&e))?;
        deleted += n;
        if n < u64::from(step) {
            break;
        }
    }
    answer.remaining = matched.saturating_sub(deleted);
    answer.deleted = Some(deleted);
    Ok(Json(answer).into_response())
}
