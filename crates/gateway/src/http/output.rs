//! Scanning and redacting what a request brings, and scanning stored results again.
//!
//! Scanning is computation: it runs on threads for blocking work, a few at a time, so that
//! large texts do not keep other requests from being answered.

use std::sync::Arc;

use airlock_api::RescanRequest;
use airlock_ledger::NewRescan;
use airlock_model::{TenantId, Timestamp, Topic};
use airlock_scan::{Finding, Redacted, ScanReport, Scanner, limits};
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::header::{CONTENT_TYPE, LOCATION, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::IntoResponse;
use bytes::Bytes;
use serde::Serialize;
use tokio::time::Instant;
use uuid::Uuid;

use super::jobs::RETRY_FOR;
use super::{App, HandlerResult};
use crate::auth::Caller;
use crate::http::decode::decode_json_object;
use crate::http::problem::{Problem, Problems};
use crate::limits::admission;
use crate::retry::{ledger_problem, retry_until};
use crate::view::output::to_api_rescan;

/// A moment and a few names.
const RESCAN_BYTES: usize = 16 << 10;
/// Findings that a problem lists; there may be a thousand.
const LISTED_FINDINGS: usize = 100;

/// As `airlock output scan --json` prints it of standard input.
#[derive(Serialize)]
struct ScanResponse {
    file: &'static str,
    #[serde(flatten)]
    report: ScanReport,
}

pub(super) async fn scan_text(
    State(app): State<Arc<App>>,
    caller: Caller,
    request: Request,
) -> HandlerResult {
    let (_, report) = run_scanner(&app, &caller, request, Scanner::scan).await?;
    Ok(Json(ScanResponse { file: "-", report }).into_response())
}

/// The text with its findings masked, or a problem that lists those that cannot be.
pub(super) async fn redact_text(
    State(app): State<Arc<App>>,
    caller: Caller,
    request: Request,
) -> HandlerResult {
    let (headers, redacted): (HeaderMap, Redacted) =
        run_scanner(&app, &caller, request, Scanner::redact).await?;
    if !redacted.remaining.is_empty() {
        let listed = redacted.remaining.iter().take(LISTED_FINDINGS);
        return Err(Problem::not_redactable(listed.map(describe).collect()));
    }
    let mut response = redacted.bytes.into_response();
    let answer = response.headers_mut();
    answer.insert(CONTENT_TYPE, answer_type(&headers));
    answer.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    Ok(response)
}

/// JSON stays JSON and plain text stays plain text; whatever else is only bytes.
fn answer_type(headers: &HeaderMap) -> HeaderValue {
    let given = headers.get(CONTENT_TYPE);
    let text = given.and_then(|v| v.to_str().ok()).unwrap_or_default();
    let essence = text.split(';').next().unwrap_or_default().trim();
    match given {
        Some(given) if ["application/json", "text/plain"].contains(&essence) => given.clone(),
        Some(_) | None => HeaderValue::from_static("application/octet-stream"),
    }
}

/// Where a finding is and what found it, as a field's mistake. Its pointer may hold what
/// was found, which the caller sent.
fn describe(finding: &Finding) -> (String, String) {
    let place = match &finding.pointer {
        Some(pointer) => pointer.clone(),
        None => format!("{}-{}", finding.start, finding.end),
    };
    let message = format!(
        "{} {} cannot be replaced: it is in a key or a number, or over a limit",
        finding.kind, finding.detector
    );
    (place, message)
}

/// Reads the body and lets the scanner work on it.
async fn run_scanner<T: Send + 'static>(
    app: &App,
    caller: &Caller,
    request: Request,
    work: impl FnOnce(&Scanner, &[u8]) -> T + Send + 'static,
) -> Result<(HeaderMap, T), Problem> {
    let (parts, body) = request.into_parts();
    let mut admitted = app.admission.begin_write(caller)?;
    let text: Bytes = admitted
        .read_body(&parts.headers, body, limits::INPUT_BYTES, "body")
        .await?;
    let scanner = app.scanner.current();
    let _turn = app.scans.acquire().await.map_err(|_| Problem::internal())?;
    let done = tokio::task::spawn_blocking(move || work(&scanner, &text)).await;
    let done = done.map_err(|error| {
        tracing::error!(%error, "scanner failed");
        Problem::internal()
    })?;
    Ok((parts.headers, done))
}

pub(super) async fn create_rescan(
    State(app): State<Arc<App>>,
    caller: Caller,
    request: Request,
) -> HandlerResult {
    let (parts, body) = request.into_parts();
    let mut admitted = app.admission.begin_write(&caller)?;
    let text = admitted
        .read_body(&parts.headers, body, RESCAN_BYTES, "body")
        .await?;
    let body: RescanRequest = if text.is_empty() {
        RescanRequest::default()
    } else {
        admission::check_content_type(&parts.headers)?;
        decode_json_object(&text)?
    };
    let new = validate_rescan(body, &caller)?;
    let ledger = app.links.require_ledger()?;
    // Repeating it is safe: the id makes it one rescan.
    let rescan = retry_until(Instant::now() + RETRY_FOR, || {
        ledger.create_rescan(&new, caller.as_actor())
    })
    .await
    .map_err(|e| ledger_problem(&e))?;
    let rescan = to_api_rescan(rescan);
    let place = HeaderValue::from_str(&format!("/api/v1/output/rescans/{}", rescan.id));
    let mut response = (StatusCode::ACCEPTED, Json(rescan)).into_response();
    if let Ok(place) = place {
        response.headers_mut().insert(LOCATION, place);
    }
    Ok(response)
}

/// A reviewer's rescan is of its tenant, whether that is named or not.
fn validate_rescan(body: RescanRequest, caller: &Caller) -> Result<NewRescan, Problem> {
    let mut problems = Problems::default();
    let since = match &body.since {
        Some(text) => problems.take(
            "since",
            Timestamp::parse_rfc3339(text).map_err(|e| format!("is not an RFC 3339 time: {e}")),
        ),
        None => problems.take("since", Err("is required: an RFC 3339 time")),
    };
    let tenant = body
        .tenant
        .and_then(|tenant| problems.take("tenant", TenantId::new(tenant)));
    let topic = body
        .topic
        .and_then(|topic| problems.take("topic", Topic::new(topic)));
    problems.check()?;
    let tenant = match (&caller.scope, tenant) {
        (Some(own), Some(other)) if *own != other => {
            return Err(Problem::forbidden("this API key belongs to another tenant")
                .with_field("tenant")
                .with_key_name(&caller.name));
        }
        (Some(own), _) => Some(own.clone()),
        (None, tenant) => tenant,
    };
    Ok(NewRescan {
        id: Uuid::now_v7(),
        tenant,
        topic,
        since: since.unwrap_or_default(),
        dry_run: body.dry_run.unwrap_or(false),
    })
}

pub(super) async fn get_rescan(
    State(app): State<Arc<App>>,
    caller: Caller,
    path: Result<Path<String>, PathRejection>,
) -> HandlerResult {
    let text = path.map_or_else(|_| "that".to_owned(), |Path(text)| text);
    let id: Uuid = text.parse().map_err(|_| Problem::no_such_rescan(&text))?;
    let _admitted = app.admission.begin_read(&caller)?;
    let ledger = app.links.require_ledger()?;
    let scope = caller.scope.as_ref();
    let rescan = retry_until(Instant::now() + RETRY_FOR, || ledger.rescan(scope, id))
        .await
        .map_err(|e| ledger_problem(&e))?
        .ok_or_else(|| Problem::no_such_rescan(&text))?;
    Ok(Json(to_api_rescan(rescan)).into_response())
}
