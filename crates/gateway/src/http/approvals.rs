//! Approving and rejecting held jobs, and seeing what waits for somebody.

use std::sync::Arc;

use airlock_api::{ApprovalDetail, LastApproved, Page, Vote, VoteRequest};
use airlock_ledger::{Approval, ApprovalSubject, AuditEntry, Input, NewVote, VoteOutcome};
use airlock_model::{Constraints, JobState, Timestamp};
use axum::Json;
use axum::extract::{Request, State};
use axum::response::IntoResponse;
use serde_json::value::{RawValue, to_raw_value};
use tokio::time::Instant;

use super::jobs::{JobPath, RETRY_FOR, parse_job_id};
use super::{App, HandlerResult};
use crate::auth::Caller;
use crate::http::cursor;
use crate::http::decode::decode_json_object;
use crate::http::problem::Problem;
use crate::limits::admission;
use crate::policy::query;
use crate::retry::{ledger_problem, retry_until};
use crate::view::diff::Changes;

const MAX_REASON: usize = 1_024;
/// A word on a job is a reason and perhaps constraints.
const VOTE_BYTES: usize = 64 << 10;
/// How much of an input an approver is shown.
const SHOWN_BYTES: usize = 16 << 10;
/// How much of it is compared with the one approved before.
const COMPARED_BYTES: u32 = 256 << 10;
/// Audit entries shown with one approval.
const AUDIT_SHOWN: u32 = 200;

/// An input as JSON. What is no JSON, or is cut off, is a text.
fn to_raw_json(input: &Input, most: usize) -> Option<Box<RawValue>> {
    if input.is_complete()
        && input.bytes.len() <= most
        && let Ok(value) = serde_json::from_slice::<Box<RawValue>>(&input.bytes)
    {
        return Some(value);
    }
    let start = &input.bytes[..input.bytes.len().min(most)];
    to_raw_value(&String::from_utf8_lossy(start)).ok()
}

/// The last approved request of the same kind, and what differs from it.
fn to_last_approved(approval: &Approval, asked: &ApprovalSubject) -> Option<LastApproved> {
    let last = asked.last.as_ref()?;
    let input = asked.input.as_ref();
    let spec = to_raw_value(&approval.spec).ok();
    let mut changes = Changes::default();
    let before = to_raw_value(&last.spec).ok();
    changes.compare_values("", before.as_deref(), spec.as_deref());
    let whole = |input: Option<&Input>| input.and_then(|i| to_raw_json(i, COMPARED_BYTES as usize));
    let (old, new) = (whole(last.input.as_ref()), whole(input));
    changes.compare_values("payload", old.as_deref(), new.as_deref());
    let longer = [last.input.as_ref(), input]
        .into_iter()
        .flatten()
        .any(|i| !i.is_complete());
    Some(LastApproved {
        job_id: last.job_id.to_string(),
        approved_at: last.approved_at.to_rfc3339(),
        // What was not read may differ, too.
        changes_truncated: changes.cut || longer,
        changes: changes.found,
    })
}

fn to_api_approval_detail(
    approval: &Approval,
    audit: &[AuditEntry],
    asked: Option<&ApprovalSubject>,
) -> ApprovalDetail {
    let input = asked.and_then(|asked| asked.input.as_ref());
    ApprovalDetail {
        approval: to_api_approval(approval),
        audit: audit.iter().map(to_api_audit_entry).collect(),
        payload: input.and_then(|i| to_raw_json(i, SHOWN_BYTES)),
        payload_bytes: input.map_or(0, |i| i.len),
        payload_truncated: input.is_some_and(|i| i.len > SHOWN_BYTES as u64),
        estimated_cost: serde_json::to_value(&approval.spec)
            .ok()
            .and_then(|spec| spec.get("estimated_cost").cloned()),
        constraints: asked.and_then(|asked| asked.constraints.clone()),
        last_approved: asked.and_then(|asked| to_last_approved(approval, asked)),
    }
}

fn to_api_approval(a: &Approval) -> airlock_api::Approval {
    airlock_api::Approval {
        job_id: a.job_id.to_string(),
        round: a.round,
        status: a.status.as_str().to_owned(),
        job_state: a.job_state,
        topic: a.spec.topic.to_string(),
        tenant_id: a.tenant.to_string(),
        principal_id: a.spec.principal_id.clone(),
        actor_id: a.spec.actor_id.clone(),
        on_behalf_of: a.spec.on_behalf_of.as_deref().cloned(),
        submitted_by: a.submitted_by.clone(),
        authors: a.authors.clone(),
        capability: a.spec.capability.clone(),
        risk_tags: a.spec.risk_tags.clone(),
        labels: a.spec.labels.clone(),
        reason: a.reason.clone(),
        rule_id: a.rule_id.clone(),
        rule_hash: a.rule_hash.clone(),
        policy_snapshot: a.policy_snapshot.clone(),
        job_hash: a.job_hash.iter().map(|b| format!("{b:02x}")).collect(),
        quorum: a.quorum,
        approvals: u32::try_from(a.approval_count()).unwrap_or(u32::MAX),
        approvers: a.permitted.approvers.clone(),
        approver_roles: a.permitted.approver_roles.clone(),
        created_at: a.requested_at.to_rfc3339(),
        expires_at: a.expires_at.to_rfc3339(),
        decided_at: a.decided_at.map(Timestamp::to_rfc3339),
        decided_reason: a.decided_reason.clone(),
        used_at: a.used_at.map(Timestamp::to_rfc3339),
        votes: a.votes.iter().map(to_api_vote).collect(),
    }
}

fn to_api_vote(v: &airlock_ledger::Vote) -> Vote {
    Vote {
        voter: v.voter.clone(),
        approve: v.approve,
        reason: v.reason.clone(),
        constraints: v.constraints.clone(),
        at: v.at.to_rfc3339(),
    }
}

fn to_api_audit_entry(e: &AuditEntry) -> airlock_api::AuditEntry {
    airlock_api::AuditEntry {
        at: e.at.to_rfc3339(),
        kind: e.kind.clone(),
        actor: e.actor.clone(),
        detail: e.detail.clone(),
    }
}

pub(super) async fn list_approvals(
    State(app): State<Arc<App>>,
    caller: Caller,
    request: Request,
) -> HandlerResult {
    let listing = query::parse_approval_listing(request.uri(), caller.scope.as_ref())?;
    let _admitted = app.admission.begin_read(&caller)?;
    let ledger = app.links.require_ledger()?;
    let page = retry_until(Instant::now() + RETRY_FOR, || {
        ledger.approvals(&listing.filter, listing.after.clone(), listing.limit)
    })
    .await
    .map_err(|e| ledger_problem(&e))?;
    let items = page.approvals.iter().map(to_api_approval).collect();
    let next_cursor = page
        .next
        .as_ref()
        .map(|(at, id)| cursor::encode_cursor(*at, id));
    Ok(Json(Page { items, next_cursor }).into_response())
}

pub(super) async fn get_approval(
    State(app): State<Arc<App>>,
    caller: Caller,
    path: JobPath,
) -> HandlerResult {
    let id = parse_job_id(path)?;
    let scope = caller.scope.as_ref();
    let _admitted = app.admission.begin_read(&caller)?;
    let ledger = app.links.require_ledger()?;
    let until = Instant::now() + RETRY_FOR;
    let approval = retry_until(until, || ledger.approval(scope, &id))
        .await
        .map_err(|e| ledger_problem(&e))?
        .ok_or_else(|| Problem::no_such_approval(id.as_str()))?;
    let audit = retry_until(until, || ledger.job_audit_entries(scope, &id, AUDIT_SHOWN))
        .await
        .map_err(|e| ledger_problem(&e))?;
    let asked = retry_until(until, || {
        ledger.approval_subject(scope, &approval, COMPARED_BYTES)
    })
    .await
    .map_err(|e| ledger_problem(&e))?;
    Ok(Json(to_api_approval_detail(&approval, &audit, asked.as_ref())).into_response())
}

/// The constraints are of the shape of a rule's.
type VoteBody = VoteRequest<Constraints>;

fn validate_reason(body: &VoteBody) -> Result<&str, Problem> {
    let reason = body.reason.as_deref().or(body.note.as_deref());
    let reason = reason.unwrap_or_default();
    if reason.len() > MAX_REASON {
        let message = format!(
            "is {} bytes long; at most {MAX_REASON} are allowed",
            reason.len()
        );
        return Err(Problem::invalid_field("reason", message));
    }
    Ok(reason)
}

pub(super) async fn approve_job(
    State(app): State<Arc<App>>,
    caller: Caller,
    path: JobPath,
    request: Request,
) -> HandlerResult {
    vote_on_job(&app, caller, path, request, true).await
}

pub(super) async fn reject_job(
    State(app): State<Arc<App>>,
    caller: Caller,
    path: JobPath,
    request: Request,
) -> HandlerResult {
    vote_on_job(&app, caller, path, request, false).await
}

async fn vote_on_job(
    app: &App,
    caller: Caller,
    path: JobPath,
    request: Request,
    approve: bool,
) -> HandlerResult {
    let (parts, body) = request.into_parts();
    let id = parse_job_id(path)?;
    let mut admitted = app.admission.begin_write(&caller)?;
    let text = admitted
        .read_body(&parts.headers, body, VOTE_BYTES, "reason")
        .await?;
    let body = if text.is_empty() {
        VoteBody::default()
    } else {
        admission::check_content_type(&parts.headers)?;
        decode_json_object(&text)?
    };
    let reason = validate_reason(&body)?;
    if !approve && body.constraints.is_some() {
        return Err(Problem::invalid_field(
            "constraints",
            "a job that is rejected cannot be narrowed",
        ));
    }
    if let Some(fault) = body
        .constraints
        .as_ref()
        .and_then(Constraints::find_invalid_limit)
    {
        return Err(Problem::invalid_field("constraints", fault));
    }
    let constraints = body
        .constraints
        .as_ref()
        .map(serde_json::to_value)
        .transpose()
        .map_err(|e| Problem::invalid_field("constraints", e.to_string()))?;
    let voter = caller.to_voter();
    let new = NewVote {
        job_id: &id,
        tenant: caller.scope.as_ref(),
        voter: &voter,
        approve,
        reason,
        constraints: constraints.as_ref(),
    };
    let ledger = app.links.require_ledger()?;
    // Repeating it is safe: a vote whose answer was lost is found as said before.
    let outcome = retry_until(Instant::now() + RETRY_FOR, || ledger.vote(&new))
        .await
        .map_err(|e| ledger_problem(&e))?;
    to_vote_response(app, outcome, &id)
}

fn to_vote_response(app: &App, outcome: VoteOutcome, id: &airlock_model::JobId) -> HandlerResult {
    let refused = match outcome {
        VoteOutcome::Approved(a) => {
            app.metrics.count_vote("approved");
            app.waker.publish_approval(&a);
            return Ok(Json(to_api_approval(&a)).into_response());
        }
        VoteOutcome::Rejected(a) => {
            app.metrics.count_vote("rejected");
            return Ok(Json(to_api_approval(&a)).into_response());
        }
        VoteOutcome::Counted(a) => {
            app.metrics.count_vote("counted");
            return Ok(Json(to_api_approval(&a)).into_response());
        }
        VoteOutcome::Repeated(a) => {
            // The wake-up of the first time may have been lost with its answer.
            if a.job_state == JobState::Pending {
                app.waker.publish_approval(&a);
            }
            return Ok(Json(to_api_approval(&a)).into_response());
        }
        VoteOutcome::Contradiction(_) => {
            Problem::conflict("you have said the opposite about this job before")
        }
        VoteOutcome::Expired(a) => {
            Problem::conflict(format!("the request expired at {}", a.expires_at))
                .with_job_state(a.job_state)
        }
        VoteOutcome::NotHeld(state) => {
            Problem::conflict(format!("the job is not held for approval; it is {state}"))
                .with_job_state(state)
        }
        VoteOutcome::OwnJob => Problem::forbidden("nobody approves or rejects their own job"),
        VoteOutcome::NotPermitted => {
            Problem::forbidden("the rule that holds this job names others to approve it")
        }
        VoteOutcome::UnverifiedSender => Problem::forbidden(
            "the job came over the bus without a signature, so nothing proves whose it is; only \
             an administrator approves or rejects it",
        ),
        VoteOutcome::NotFound => return Err(Problem::no_such_job(id.as_str())),
    };
    Err(refused.with_job_id(id))
}
