//! Past decisions, for trying a policy on what really happened.

use std::sync::Arc;

use airlock_api::{Page, PastDecision};
use airlock_model::job::ActorType;
use axum::Json;
use axum::extract::{Request, State};
use axum::response::IntoResponse;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::jobs::RETRY_FOR;
use super::{App, HandlerResult};
use crate::auth::Caller;
use crate::http::cursor;
use crate::policy::query;
use crate::retry::{ledger_problem, retry_until};

/// Inputs up to this size are sent along when they are asked for.
const LARGEST_INPUT: usize = 64 << 10;

pub(super) async fn list_past_decisions(
    State(app): State<Arc<App>>,
    caller: Caller,
    request: Request,
) -> HandlerResult {
    let asked = query::parse_decision_listing(request.uri(), crate::submit::wake_up::local_now())?;
    let _admitted = app.admission.begin_read(&caller)?;
    let ledger = app.links.require_ledger()?;
    let largest = if asked.input { LARGEST_INPUT } else { 0 };
    let past = retry_until(Instant::now() + RETRY_FOR, || {
        ledger.past_decisions(
            caller.scope.as_ref(),
            asked.since,
            asked.after.clone(),
            asked.limit,
            largest,
        )
    })
    .await
    .map_err(|e| ledger_problem(&e))?;
    let next_cursor = past
        .last()
        .filter(|_| past.len() == asked.limit as usize)
        .map(|p| cursor::encode_cursor(p.created_at, &p.job_id));
    let items = past.iter().map(to_api_past_decision).collect();
    Ok(Json(Page { items, next_cursor }).into_response())
}

/// The request in the shape of `policy/evaluate`, and the answer it got.
fn to_api_past_decision(p: &airlock_ledger::PastDecision) -> PastDecision {
    let spec = &p.spec;
    let mut meta = Map::new();
    let mut put = |name: &str, value: &Option<String>| {
        if let Some(value) = value {
            meta.insert(name.to_owned(), json!(value));
        }
    };
    put("capability", &spec.capability);
    put("pack_id", &spec.pack_id);
    put("actor_id", &spec.actor_id);
    if let Some(actor) = spec.actor_type {
        let word = match actor {
            ActorType::Human => "human",
            ActorType::Service => "service",
        };
        meta.insert("actor_type".to_owned(), json!(word));
    }
    meta.insert("risk_tags".to_owned(), json!(spec.risk_tags));
    meta.insert("requires".to_owned(), json!(spec.requires));
    let mut request = Map::new();
    request.insert("topic".to_owned(), json!(spec.topic.as_str()));
    request.insert("tenant".to_owned(), json!(p.tenant.as_str()));
    if let Some(principal) = &spec.principal_id {
        request.insert("principal_id".to_owned(), json!(principal));
    }
    request.insert("priority".to_owned(), json!(spec.priority.as_str()));
    request.insert("labels".to_owned(), json!(spec.labels));
    if let Some(budget) = &spec.budget {
        request.insert("budget".to_owned(), json!(budget));
    }
    if let Some(cost) = spec.estimated_cost {
        request.insert("estimated_cost".to_owned(), json!(cost));
    }
    request.insert("meta".to_owned(), Value::Object(meta));
    let input = p
        .payload
        .as_ref()
        .and_then(|bytes| std::str::from_utf8(bytes).ok());
    if let Some(input) = input {
        request.insert("input".to_owned(), json!(input));
    } else if p.payload_len > 0 {
        request.insert("input_size_bytes".to_owned(), json!(p.payload_len));
    }
    PastDecision {
        job_id: p.job_id.to_string(),
        decision: p.decision.as_str().to_owned(),
        rule_id: p.rule_id.clone(),
        policy_snapshot: p.policy_snapshot.clone(),
        decided_at: p.decided_at.to_rfc3339(),
        created_at: p.created_at.to_rfc3339(),
        request: Value::Object(request),
    }
}
