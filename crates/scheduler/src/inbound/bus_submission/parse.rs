//! From a packet to a job: pure, and as strict as REST.

use airlock_model::job::{ActorType, Budget, Compensation, limits};
use airlock_model::{JobSpec, Priority, TenantId, Topic};
use airlock_proto::{cap, trace};

use super::{Refused, invalid_request};

/// Where a bus job belongs when it names no tenant.
const DEFAULT_TENANT: &str = "default";

/// How to undo the job, but for its input.
pub(super) fn parse_compensation(c: &cap::Compensation) -> Result<Compensation, Refused> {
    let meta = c.meta.clone().unwrap_or_default();
    let mut labels = c.labels.clone();
    for (key, value) in meta.labels {
        labels.entry(key).or_insert(value);
    }
    let topic =
        Topic::new(&c.topic).map_err(|e| invalid_request(format!("compensation.topic: {e}")))?;
    Ok(Compensation {
        labels,
        env: c.env.clone(),
        budget: c.budget.as_ref().map(parse_budget),
        priority: i16::try_from(c.priority)
            .ok()
            .filter(|code| *code != 0)
            .and_then(Priority::from_code),
        capability: Some(meta.capability).filter(|s| !s.is_empty()),
        risk_tags: Some(meta.risk_tags).filter(|tags| !tags.is_empty()),
        requires: Some(meta.requires).filter(|names| !names.is_empty()),
        idempotency_key: Some(meta.idempotency_key).filter(|s| !s.is_empty()),
        ..Compensation::new(topic)
    })
}

pub(super) fn parse_idempotency_key(r: &cap::JobRequest) -> Result<Option<String>, Refused> {
    let Some(meta) = r.meta.as_ref().filter(|m| !m.idempotency_key.is_empty()) else {
        return Ok(None);
    };
    let key = &meta.idempotency_key;
    if key.len() > limits::IDEMPOTENCY_KEY || key.chars().any(char::is_control) {
        return Err(invalid_request(format!(
            "meta.idempotency_key must be at most {} bytes without control characters",
            limits::IDEMPOTENCY_KEY
        )));
    }
    Ok(Some(key.clone()))
}

/// The client's trace goes on when it names one as W3C does; a new one begins otherwise.
pub(super) fn to_traceparent(trace_id: &str) -> String {
    let fresh = trace::new_traceparent();
    let theirs = trace_id.to_ascii_lowercase();
    let asked = fresh
        .get(35..)
        .map(|rest| format!("00-{theirs}{rest}"))
        .filter(|t| trace::trace_id(t).is_some());
    asked.unwrap_or(fresh)
}

/// `identity`, then `tenant_id`, `meta.tenant_id`, the default. In lower case: to the policy
/// the case of a tenant does not count, and limits must not be counted once for each.
pub(super) fn parse_tenant(
    envelope: &cap::BusPacket,
    r: &cap::JobRequest,
) -> Result<TenantId, Refused> {
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
    TenantId::new(name.to_ascii_lowercase()).map_err(invalid_request)
}

pub(super) fn parse_job_spec(r: &cap::JobRequest) -> Result<JobSpec, Refused> {
    let some = |s: &str| (!s.is_empty()).then(|| s.to_owned());
    let mut spec = JobSpec::new(Topic::new(&r.topic).map_err(invalid_request)?);
    spec.priority = i16::try_from(r.priority)
        .ok()
        .and_then(Priority::from_code)
        .ok_or_else(|| invalid_request(format!("priority {}", r.priority)))?;
    spec.labels = r.labels.clone();
    spec.env = r.env.clone();
    spec.budget = r.budget.as_ref().map(parse_budget);
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

fn parse_budget(b: &cap::Budget) -> Budget {
    let some = |n: i64| (n != 0).then_some(n);
    Budget {
        max_input_tokens: some(b.max_input_tokens),
        max_output_tokens: some(b.max_output_tokens),
        max_total_tokens: some(b.max_total_tokens),
        deadline_ms: some(b.deadline_ms),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_one_spelling() {
        let named = |name: &str| {
            let request = cap::JobRequest {
                tenant_id: name.to_owned(),
                ..cap::JobRequest::default()
            };
            parse_tenant(&cap::BusPacket::default(), &request).map(|t| t.to_string())
        };
        for name in ["acme", "ACME", "Acme"] {
            assert_eq!(named(name).ok().as_deref(), Some("acme"));
        }
        assert_eq!(named("").ok().as_deref(), Some(DEFAULT_TENANT));
        assert!(named("a b").is_err());
    }
}
