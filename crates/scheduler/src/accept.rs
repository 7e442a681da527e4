//! Accepting a job that came over the bus alone, under the rules of REST: validated,
//! its input copied and hashed, committed in the ledger before anything else happens.

use airlock_guard::keys;
use airlock_ledger::{Failure, LoadedJob, NewJob, Submitted};
use airlock_model::hash::job_hash;
use airlock_model::job::{ActorType, Budget};
use airlock_model::{JobId, JobSpec, Priority, TenantId, Topic};
use airlock_proto::cap;
use airlock_proto::trace;

use crate::term::Term;

/// Where a bus job belongs when it names no tenant.
const DEFAULT_TENANT: &str = "default";

/// Why a packet is not a job.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// It never will be.
    #[error("{0}")]
    Invalid(String),
    /// A store is in trouble.
    #[error("{0}")]
    Later(String),
}

fn invalid(e: impl std::fmt::Display) -> Refused {
    Refused::Invalid(e.to_string())
}

/// Commits the job and reads it back. `None` when someone else was first: its own
/// wake-up is on the way.
pub async fn accept(
    term: &Term,
    envelope: &cap::BusPacket,
    request: cap::JobRequest,
) -> Result<Option<LoadedJob>, Refused> {
    let job_id = JobId::new(&request.job_id).map_err(invalid)?;
    let tenant = tenant(envelope, &request)?;
    let spec = spec(&request)?;
    spec.validate().map_err(invalid)?;
    let payload = match request.context_ptr.as_str() {
        "" => None,
        pointer => {
            let key = keys::parse_pointer(pointer)
                .ok_or_else(|| invalid(format!("context_ptr {pointer:?} is not redis://<key>")))?;
            let content = term
                .guard
                .get(key)
                .await
                .map_err(|e| Refused::Later(e.to_string()))?;
            Some(content.ok_or_else(|| invalid(format!("there is nothing at {pointer}")))?)
        }
    };
    let meta = request.meta.as_ref();
    let traceparent = trace::fresh();
    let job = NewJob {
        hash: job_hash(&tenant, &spec, payload.as_deref()),
        job_id: job_id.clone(),
        tenant,
        spec,
        payload,
        idempotency_key: meta
            .map(|m| m.idempotency_key.clone())
            .filter(|k| !k.is_empty()),
        shard: term.shard,
        trace_id: trace::trace_id(&traceparent).unwrap_or_default().to_owned(),
        traceparent,
    };
    let outcome = term
        .ledger
        .submit(std::slice::from_ref(&job))
        .await
        .map_err(|e| match e.failure() {
            Failure::Fatal => invalid(e),
            Failure::Retryable | Failure::Ambiguous => Refused::Later(e.to_string()),
        })?;
    match outcome.first() {
        Some(Submitted::Accepted { .. }) => {}
        Some(Submitted::Existing { .. }) | None => return Ok(None),
        Some(Submitted::Conflict { .. }) => {
            return Err(invalid("its idempotency key belongs to another request"));
        }
    }
    let loaded = term
        .ledger
        .load(&[job_id], term.config.scheduler.inline_bytes)
        .await
        .map_err(|e| Refused::Later(e.to_string()))?;
    Ok(loaded.into_iter().next())
}

/// `identity`, then `tenant_id`, `meta.tenant_id`, the default.
fn tenant(envelope: &cap::BusPacket, r: &cap::JobRequest) -> Result<TenantId, Refused> {
    let named = [
        envelope.identity.as_ref().map(|i| i.tenant_id.as_str()),
        r.identity.as_ref().map(|i| i.tenant_id.as_str()),
        Some(r.tenant_id.as_str()),
        r.meta.as_ref().map(|m| m.tenant_id.as_str()),
    ];
    let name = named
        .into_iter()
        .flatten()
        .find(|t| !t.is_empty())
        .unwrap_or(DEFAULT_TENANT);
    TenantId::new(name).map_err(invalid)
}

fn spec(r: &cap::JobRequest) -> Result<JobSpec, Refused> {
    let some = |s: &str| (!s.is_empty()).then(|| s.to_owned());
    let mut spec = JobSpec::new(Topic::new(&r.topic).map_err(invalid)?);
    spec.priority = i16::try_from(r.priority)
        .ok()
        .and_then(Priority::from_code)
        .ok_or_else(|| invalid(format!("priority {}", r.priority)))?;
    spec.labels = r.labels.clone();
    spec.env = r.env.clone();
    spec.budget = r.budget.as_ref().map(|b| {
        let some = |n: i64| (n != 0).then_some(n);
        Budget {
            max_input_tokens: some(b.max_input_tokens),
            max_output_tokens: some(b.max_output_tokens),
            max_total_tokens: some(b.max_total_tokens),
            deadline_ms: some(b.deadline_ms),
        }
    });
    spec.workflow_id = some(&r.workflow_id);
    spec.parent_job_id = some(&r.parent_job_id);
    spec.step_index = (r.step_index != 0).then_some(r.step_index);
    spec.principal_id = some(&r.principal_id);
    spec.adapter_id = some(&r.adapter_id);
    spec.memory_id = some(&r.memory_id);
    if let Some(m) = &r.meta {
        for (k, v) in &m.labels {
            spec.labels.entry(k.clone()).or_insert_with(|| v.clone());
        }
        spec.actor_id = some(&m.actor_id);
        spec.actor_type = match m.actor_type {
            1 => Some(ActorType::Human),
            2 => Some(ActorType::Service),
            _ => None,
        };
        spec.capability = some(&m.capability);
        spec.risk_tags = m.risk_tags.clone();
        spec.requires = m.requires.clone();
        spec.pack_id = some(&m.pack_id);
    }
    Ok(spec)
}
