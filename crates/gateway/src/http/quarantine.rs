//! The quarantine: what the output policy objected to, its evidence and its review.
//!
//! What must stay true: a reviewer sees and touches outputs of its own tenant only, never
//! those of its own jobs, and whoever gets an original is in the audit trail.

use std::sync::Arc;

use airlock_api::{Page, RejectRequest, ReleaseRequest};
use airlock_ledger::{
    EvidenceOutcome, Refusal, ReleaseMode, ReviewDecision, ReviewOutcome, Reviewer,
};
use airlock_model::JobId;
use airlock_model::output::OutputStatus;
use axum::Json;
use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS,
};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::jobs::{JobPath, RETRY_FOR};
use super::{App, HandlerResult};
use crate::auth::Caller;
use crate::http::cursor;
use crate::http::decode::decode_json_object;
use crate::http::problem::{Problem, Problems};
use crate::http::query;
use crate::limits::admission;
use crate::retry::{ledger_problem, retry_until};
use crate::view::output::{to_api_quarantine_detail, to_api_quarantine_entry};

const MAX_REASON: usize = 1_024;
/// A mode and a reason.
const REVIEW_BYTES: usize = 16 << 10;
/// Audit entries shown with one output.
const AUDIT_SHOWN: u32 = 200;

/// What cannot be an id is the id of no job.
fn parse_quarantine_id(path: JobPath) -> Result<JobId, Problem> {
    let Ok(axum::extract::Path(text)) = path else {
        return Err(Problem::no_such_quarantined_output("that"));
    };
    JobId::new(&text).map_err(|_| Problem::no_such_quarantined_output(&text))
}

pub(super) async fn list_quarantine(
    State(app): State<Arc<App>>,
    caller: Caller,
    request: Request,
) -> HandlerResult {
    let listing = query::parse_quarantine_listing(request.uri(), caller.scope.as_ref())?;
    let _admitted = app.admission.begin_read(&caller)?;
    let ledger = app.links.require_ledger()?;
    let page = retry_until(Instant::now() + RETRY_FOR, || {
        ledger.quarantined_outputs(&listing.filter, listing.after.clone(), listing.limit)
    })
    .await
    .map_err(|e| ledger_problem(&e))?;
    let items = page.items.iter().map(to_api_quarantine_entry).collect();
    let next_cursor = page
        .next
        .as_ref()
        .map(|(at, id)| cursor::encode_cursor(*at, id));
    Ok(Json(Page { items, next_cursor }).into_response())
}

pub(super) async fn get_quarantined_output(
    State(app): State<Arc<App>>,
    caller: Caller,
    path: JobPath,
) -> HandlerResult {
    let id = parse_quarantine_id(path)?;
    let _admitted = app.admission.begin_read(&caller)?;
    load_quarantine_detail(&app, &caller, &id).await
}

async fn load_quarantine_detail(app: &App, caller: &Caller, id: &JobId) -> HandlerResult {
    let scope = caller.scope.as_ref();
    let ledger = app.links.require_ledger()?;
    let until = Instant::now() + RETRY_FOR;
    let item = retry_until(until, || ledger.quarantined_output(scope, id))
        .await
        .map_err(|e| ledger_problem(&e))?
        .ok_or_else(|| Problem::no_such_quarantined_output(id.as_str()))?;
    let audit = retry_until(until, || ledger.job_audit_entries(scope, id, AUDIT_SHOWN))
        .await
        .map_err(|e| ledger_problem(&e))?;
    Ok(Json(to_api_quarantine_detail(&item, &audit)).into_response())
}

pub(super) async fn get_evidence(
    State(app): State<Arc<App>>,
    caller: Caller,
    path: JobPath,
) -> HandlerResult {
    let id = parse_quarantine_id(path)?;
    let _admitted = app.admission.begin_read(&caller)?;
    let ledger = app.links.require_ledger()?;
    let voter = caller.to_voter();
    let reviewer = Reviewer {
        job_id: &id,
        tenant: caller.scope.as_ref(),
        voter: &voter,
    };
    // Repeating it may write a second audit entry, which is no harm.
    let outcome = retry_until(Instant::now() + RETRY_FOR, || {
        ledger.output_evidence(reviewer)
    })
    .await
    .map_err(|e| ledger_problem(&e))?;
    match outcome {
        EvidenceOutcome::Found(original) => {
            app.metrics.count_output_review("evidence");
            Ok(to_evidence_response(original))
        }
        EvidenceOutcome::EvidenceGone => Err(Problem::evidence_gone().with_job_id(&id)),
        EvidenceOutcome::Refused(refusal) => Err(refusal_problem(refusal).with_job_id(&id)),
        EvidenceOutcome::NotFound => Err(Problem::no_such_quarantined_output(id.as_str())),
    }
}

/// The original as it is. Nobody keeps a copy on the way, and no browser runs it.
fn to_evidence_response(original: bytes::Bytes) -> Response {
    let mut response = original.into_response();
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_TYPE, "application/octet-stream"),
        (CONTENT_DISPOSITION, "attachment"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

fn refusal_problem(refusal: Refusal) -> Problem {
    Problem::forbidden(match refusal {
        Refusal::Own => "nobody reviews the output of their own job",
        Refusal::NotPermitted => "others review this output",
        Refusal::UnverifiedSender => {
            "the job came over the bus without a signature, so nothing proves whose it is; only \
             an administrator reviews its output"
        }
    })
}

pub(super) async fn release_output(
    State(app): State<Arc<App>>,
    caller: Caller,
    path: JobPath,
    request: Request,
) -> HandlerResult {
    let id = parse_quarantine_id(path)?;
    let body: ReleaseRequest = read_review(&app, &caller, request).await?;
    let mut problems = Problems::default();
    let mode = match body.mode.as_deref() {
        Some(mode) => problems.take("mode", mode.parse::<ReleaseMode>()),
        None => problems.take("mode", Err("is required: whole or redacted")),
    };
    let reason = problems.take("reason", validate_reason(body.reason.as_deref()));
    problems.check()?;
    let (Some(mode), Some(reason)) = (mode, reason) else {
        return Err(Problem::internal());
    };
    review_output(&app, &caller, &id, ReviewDecision::Release(mode), reason).await
}

pub(super) async fn reject_output(
    State(app): State<Arc<App>>,
    caller: Caller,
    path: JobPath,
    request: Request,
) -> HandlerResult {
    let id = parse_quarantine_id(path)?;
    let body: RejectRequest = read_review(&app, &caller, request).await?;
    let reason = validate_reason(body.reason.as_deref())
        .map_err(|message| Problem::invalid_field("reason", message))?;
    review_output(&app, &caller, &id, ReviewDecision::Reject, reason).await
}

async fn read_review<T: Default + DeserializeOwned>(
    app: &App,
    caller: &Caller,
    request: Request,
) -> Result<T, Problem> {
    let (parts, body) = request.into_parts();
    let mut admitted = app.admission.begin_write(caller)?;
    let text = admitted
        .read_body(&parts.headers, body, REVIEW_BYTES, "reason")
        .await?;
    if text.is_empty() {
        return Ok(T::default());
    }
    admission::check_content_type(&parts.headers)?;
    decode_json_object(&text)
}

fn validate_reason(reason: Option<&str>) -> Result<&str, String> {
    match reason.map(str::trim) {
        None | Some("") => Err("is required".to_owned()),
        Some(reason) if reason.len() > MAX_REASON => Err(format!(
            "is {} bytes long; at most {MAX_REASON} are allowed",
            reason.len()
        )),
        Some(reason) => Ok(reason),
    }
}

async fn review_output(
    app: &App,
    caller: &Caller,
    id: &JobId,
    decision: ReviewDecision,
    reason: &str,
) -> HandlerResult {
    let _admitted = app.admission.begin_write(caller)?;
    let ledger = app.links.require_ledger()?;
    let voter = caller.to_voter();
    let reviewer = Reviewer {
        job_id: id,
        tenant: caller.scope.as_ref(),
        voter: &voter,
    };
    // Repeating it is safe: a review whose answer was lost is found as decided the same.
    let outcome = retry_until(Instant::now() + RETRY_FOR, || {
        ledger.review_output(reviewer, decision, reason)
    })
    .await
    .map_err(|e| ledger_problem(&e))?;
    let refused = match outcome {
        ReviewOutcome::Done => {
            app.metrics.count_output_review(match decision {
                ReviewDecision::Release(_) => "released",
                ReviewDecision::Reject => "rejected",
            });
            return load_quarantine_detail(app, caller, id).await;
        }
        ReviewOutcome::AlreadyReviewed { status, by } => Problem::conflict(match status {
            OutputStatus::Rejected => format!("the output was rejected by {by}"),
            OutputStatus::Released
            | OutputStatus::Skipped
            | OutputStatus::Allowed
            | OutputStatus::Held
            | OutputStatus::Redacted
            | OutputStatus::Quarantined => format!("the output was released by {by}"),
        }),
        ReviewOutcome::NotQuarantined(status) => Problem::conflict(format!(
            "the output is not quarantined; it is {}",
            status.as_str()
        )),
        ReviewOutcome::NotMaskable => Problem::conflict(
            "not every finding can be masked, so that there is no redacted copy to release",
        ),
        ReviewOutcome::EvidenceGone => Problem::evidence_gone(),
        ReviewOutcome::Refused(refusal) => refusal_problem(refusal),
        ReviewOutcome::NotFound => return Err(Problem::no_such_quarantined_output(id.as_str())),
    };
    Err(refused.with_job_id(id))
}
