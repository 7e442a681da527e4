//! The question whether a job may run, as the safety kernel is asked it.
//!
//! What must stay true: the gateway's question about a job that is not submitted yet and
//! the scheduler's about one that is are built in this one place, or a policy would answer
//! the same job differently.

use std::collections::BTreeMap;

use airlock_model::job::{ActorType, Budget, Cost, Priority};

use crate::cap;

impl From<&Budget> for cap::Budget {
    fn from(b: &Budget) -> Self {
        Self {
            max_input_tokens: b.max_input_tokens.unwrap_or(0),
            max_output_tokens: b.max_output_tokens.unwrap_or(0),
            max_total_tokens: b.max_total_tokens.unwrap_or(0),
            deadline_ms: b.deadline_ms.unwrap_or(0),
        }
    }
}

impl From<Option<ActorType>> for cap::ActorType {
    fn from(actor_type: Option<ActorType>) -> Self {
        match actor_type {
            None => Self::Unspecified,
            Some(ActorType::Human) => Self::Human,
            Some(ActorType::Service) => Self::Service,
        }
    }
}

/// What a policy is asked about.
#[derive(Debug, Clone, Default)]
pub struct CheckedJob {
    pub job_id: String,
    pub topic: String,
    pub tenant: String,
    pub priority: Priority,
    pub budget: Option<Budget>,
    pub estimated_cost: Option<Cost>,
    pub principal_id: String,
    pub labels: BTreeMap<String, String>,
    pub memory_id: String,
    pub actor_id: String,
    pub actor_type: Option<ActorType>,
    pub capability: String,
    pub risk_tags: Vec<String>,
    pub requires: Vec<String>,
    pub pack_id: String,
    pub input_size: u64,
}

impl CheckedJob {
    /// The question, without the input itself.
    pub fn into_request(self) -> cap::PolicyCheckRequest {
        cap::PolicyCheckRequest {
            job_id: self.job_id,
            topic: self.topic,
            tenant: self.tenant.clone(),
            priority: i32::from(self.priority.code()),
            budget: self.budget.as_ref().map(Into::into),
            estimated_cost: self.estimated_cost.map_or(0.0, Cost::get),
            principal_id: self.principal_id,
            labels: self.labels,
            memory_id: self.memory_id,
            meta: Some(cap::JobMetadata {
                tenant_id: self.tenant,
                actor_id: self.actor_id,
                actor_type: cap::ActorType::from(self.actor_type).into(),
                capability: self.capability,
                risk_tags: self.risk_tags,
                requires: self.requires,
                pack_id: self.pack_id,
                ..cap::JobMetadata::default()
            }),
            input_size_bytes: i64::try_from(self.input_size).unwrap_or(i64::MAX),
            ..cap::PolicyCheckRequest::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_asked_about_all_of_a_job() {
        let text = str::to_owned;
        let request = CheckedJob {
            job_id: text("j"),
            topic: text("job.pay"),
            tenant: text("acme"),
            priority: Priority::Critical,
            budget: Some(Budget {
                max_total_tokens: Some(7),
                ..Budget::default()
            }),
            principal_id: text("ann"),
            actor_id: text("bot"),
            actor_type: Some(ActorType::Service),
            risk_tags: vec![text("money")],
            input_size: u64::MAX,
            ..CheckedJob::default()
        }
        .into_request();
        assert_eq!(request.tenant, "acme");
        assert_eq!(request.priority, i32::from(Priority::Critical.code()));
        assert_eq!(request.budget.map(|b| b.max_total_tokens), Some(7));
        assert_eq!(request.input_size_bytes, i64::MAX);
        let meta = request.meta.expect("what the job says of itself");
        assert_eq!(meta.tenant_id, "acme");
        assert_eq!(meta.actor_type, i32::from(cap::ActorType::Service));
        assert_eq!(
            (meta.actor_id, meta.risk_tags),
            (text("bot"), vec![text("money")])
        );
    }
}
