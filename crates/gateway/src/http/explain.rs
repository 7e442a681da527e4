//! `GET /api/v1/jobs/{id}/explain`: what the job waits for, and since when.
//!
//! The row says what is settled; of an open job the leader is asked too, because what a
//! waiting job waits for is not written down. Without an answer the row must do.

use std::sync::Arc;
use std::time::Duration;

use airlock_bus::subjects;
use airlock_ledger::JobView;
use airlock_model::explain::{CHECKING, ExplainReply, ExplainRequest, WaitStatus};
use airlock_model::output::OUTPUT_HELD;
use airlock_model::{JobId, JobState, Timestamp};
use axum::Json;
use axum::extract::State;
use axum::response::IntoResponse;
use bytes::Bytes;

use super::jobs::{self, JobPath};
use super::{App, HandlerResult};
use crate::auth::Caller;
use crate::submit::wake_up::local_now;
use crate::view::explanation::{explain_from_row, is_with_leader};

/// How long the leader may take. A person waits.
const ASK_FOR: Duration = Duration::from_secs(1);

/// The same for a plain look at a job, which must not become slow by it.
const LOOK_FOR: Duration = Duration::from_millis(250);

/// A job that was accepted a moment ago waits for nothing yet: nobody is asked.
const FRESH: Duration = Duration::from_secs(1);

/// What a job that is PENDING waits for, as the leader has it: the code and the words.
/// `None` when the row says as much.
pub(super) async fn query_wait_reason(
    app: &App,
    job: &JobView,
    now: Timestamp,
) -> Option<(String, String)> {
    let open = job.state == JobState::Pending && is_with_leader(job, now);
    let since = job.history.last().map_or(job.created_at, |step| step.at);
    if !open || now.since(since) < FRESH || job.not_before.is_some_and(|at| at > now) {
        return None;
    }
    query_leader(app, &job.job_id, LOOK_FOR)
        .await?
        .status
        .waits_for()
}

pub(super) async fn explain_job(
    State(app): State<Arc<App>>,
    caller: Caller,
    path: JobPath,
) -> HandlerResult {
    let id = jobs::parse_job_id(path)?;
    let _admitted = app.admission.begin_read(&caller)?;
    let job = jobs::load_job(&app, caller.scope.as_ref(), &id).await?;
    let now = local_now();
    let mut explained = explain_from_row(&job, now);
    if is_with_leader(&job, now) {
        match query_leader(&app, &id, ASK_FOR).await {
            Some(reply) => {
                match reply.status {
                    // Ended, or not taken up yet: the row is as good.
                    WaitStatus::Unknown => {}
                    WaitStatus::Checking { .. }
                    | WaitStatus::Waiting { .. }
                    | WaitStatus::Sleeping { .. }
                    | WaitStatus::Held { .. }
                    | WaitStatus::OutputHeld { .. }
                    | WaitStatus::Assigned { .. } => {
                        explained.explanation = reply.status.to_sentence(now);
                    }
                }
                let (code, since, until) = to_api_facts(&reply.status);
                explained.reason_code = code.or(explained.reason_code);
                explained.since = since.or(explained.since);
                explained.until = until.or(explained.until);
                explained.scheduler = serde_json::to_value(&reply).ok();
            }
            None => explained
                .explanation
                .push_str(" The scheduler's leader could not be asked for more."),
        }
    }
    Ok(Json(explained).into_response())
}

type Facts = (Option<String>, Option<String>, Option<String>);

fn to_api_facts(status: &WaitStatus) -> Facts {
    match status {
        WaitStatus::Unknown => (None, None, None),
        WaitStatus::Checking { since } => {
            let code = CHECKING.to_owned();
            (Some(code), Some(since.to_rfc3339()), None)
        }
        WaitStatus::Waiting {
            reason,
            since,
            next_try_at,
            ..
        } => (
            Some(reason.clone()),
            Some(since.to_rfc3339()),
            Some(next_try_at.to_rfc3339()),
        ),
        WaitStatus::Sleeping {
            reason,
            since,
            until,
            ..
        } => (
            Some(reason.clone()),
            Some(since.to_rfc3339()),
            Some(until.to_rfc3339()),
        ),
        WaitStatus::Held { since } => (None, Some(since.to_rfc3339()), None),
        WaitStatus::OutputHeld { since, .. } => {
            let code = OUTPUT_HELD.to_owned();
            (Some(code), Some(since.to_rfc3339()), None)
        }
        WaitStatus::Assigned {
            since, started_at, ..
        } => (None, Some(started_at.unwrap_or(*since).to_rfc3339()), None),
    }
}

async fn query_leader(app: &App, id: &JobId, bound: Duration) -> Option<ExplainReply> {
    let bus = app.links.bus()?;
    let question = serde_json::to_vec(&ExplainRequest { job_id: id.clone() }).ok()?;
    let answer = bus
        .request(subjects::EXPLAIN, Bytes::from(question), bound)
        .await;
    match answer {
        Ok(bytes) => serde_json::from_slice::<ExplainReply>(&bytes)
            .ok()
            .filter(|reply| reply.job_id == *id),
        Err(error) => {
            tracing::debug!(%error, job = %id, "explain request to the leader failed");
            None
        }
    }
}
