//! `GET /api/v1/jobs/{id}/explain`: what the job waits for, and since when.
//!
//! The row says what is settled; of an open job the leader is asked too, because what a
//! waiting job waits for is not written down. Without an answer the row must do.

use std::sync::Arc;
use std::time::Duration;

use airlock_bus::subjects;
use airlock_model::JobId;
use airlock_model::explain::{Answer as Told, Question, Standing};
use axum::Json;
use axum::extract::{Request, State};
use axum::response::IntoResponse;
use bytes::Bytes;

use super::jobs::{self, JobPath};
use super::{Answer, App};
use crate::explain::{ask_leader, explain};
use crate::wake::now;

/// How long the leader may take. A person waits.
const ASK_FOR: Duration = Duration::from_secs(1);

pub async fn get(State(app): State<Arc<App>>, path: JobPath, request: Request) -> Answer {
    let caller = app.keys.caller(request.headers())?;
    let id = jobs::job_id(path)?;
    let _admitted = app.admission.enter(request.headers(), 0)?;
    let job = jobs::read(&app, caller.scope.as_ref(), &id).await?;
    let now = now();
    let mut explained = explain(&job, now);
    if ask_leader(&job, now) {
        match ask(&app, &id).await {
            Some(told) => {
                match told.standing {
                    // Ended, or not taken up yet: the row is as good.
                    Standing::Unknown => {}
                    Standing::Checking { .. }
                    | Standing::Waiting { .. }
                    | Standing::Sleeping { .. }
                    | Standing::Held { .. }
                    | Standing::Assigned { .. } => {
                        explained.explanation = told.standing.sentence(now);
                    }
                }
                let (code, since, until) = facts(&told.standing);
                explained.reason_code = code.or(explained.reason_code);
                explained.since = since.or(explained.since);
                explained.until = until.or(explained.until);
                explained.scheduler = serde_json::to_value(&told).ok();
            }
            None => explained
                .explanation
                .push_str(" The scheduler's leader could not be asked for more."),
        }
    }
    Ok(Json(explained).into_response())
}

type Facts = (Option<String>, Option<String>, Option<String>);

fn facts(standing: &Standing) -> Facts {
    match standing {
        Standing::Unknown => (None, None, None),
        Standing::Checking { since } => {
            let code = "safety_check".to_owned();
            (Some(code), Some(since.to_rfc3339()), None)
        }
        Standing::Waiting {
            reason,
            since,
            next_try_at,
            ..
        } => (
            Some(reason.clone()),
            Some(since.to_rfc3339()),
            Some(next_try_at.to_rfc3339()),
        ),
        Standing::Sleeping {
            reason,
            since,
            until,
        } => (
            Some(reason.clone()),
            Some(since.to_rfc3339()),
            Some(until.to_rfc3339()),
        ),
        Standing::Held { since } => (None, Some(since.to_rfc3339()), None),
        Standing::Assigned {
            since, started_at, ..
        } => (None, Some(started_at.unwrap_or(*since).to_rfc3339()), None),
    }
}

async fn ask(app: &App, id: &JobId) -> Option<Told> {
    let bus = app.links.bus()?;
    let question = serde_json::to_vec(&Question { job_id: id.clone() }).ok()?;
    let answer = bus
        .request(subjects::EXPLAIN, Bytes::from(question), ASK_FOR)
        .await;
    match answer {
        Ok(bytes) => serde_json::from_slice::<Told>(&bytes)
            .ok()
            .filter(|told| told.job_id == *id),
        Err(error) => {
            tracing::debug!(%error, job = %id, "the leader was not asked about a job");
            None
        }
    }
}
