//! The safety policy.

use std::fmt::Write as _;

use airlock_policy::{Meta, NoCounters, OwnedRequest, Policy};

use crate::{Ask, Condition, Engine, Rule};

pub struct Ours {
    policy: Policy,
    requests: Vec<OwnedRequest>,
}

impl Ours {
    pub fn new(rules: &[Rule], requests: &[Ask]) -> Self {
        let policy = Policy::load(&yaml(rules)).expect("a sound policy");
        let requests = requests.iter().map(request).collect();
        Self { policy, requests }
    }
}

impl Engine for Ours {
    fn name(&self) -> &'static str {
        "airlock-policy"
    }

    fn allows(&mut self, request: usize) -> bool {
        let request = self.requests[request].as_request();
        self.policy.evaluate(&request, &mut NoCounters).may_run()
    }
}

fn yaml(rules: &[Rule]) -> String {
    let mut text = "version: 1\nrules:\n".to_owned();
    for (i, rule) in rules.iter().enumerate() {
        let conditions: Vec<String> = rule
            .conditions
            .iter()
            .map(|c| match c {
                Condition::TopicPrefix(prefix) => format!("topics: ['{prefix}*']"),
                Condition::Topic(topic) => format!("topics: ['{topic}']"),
                Condition::Tenants(tenants) => format!("tenants: [{}]", tenants.join(", ")),
                Condition::RiskTags(tags) => format!("risk_tags: [{}]", tags.join(", ")),
                Condition::Label(name, value) => format!("labels: {{{name}: {value}}}"),
            })
            .collect();
        let decision = if rule.allow { "allow" } else { "deny" };
        let _ = writeln!(
            text,
            "  - {{id: rule-{i}, match: {{{}}}, decision: {decision}}}",
            conditions.join(", ")
        );
    }
    text
}

fn request(ask: &Ask) -> OwnedRequest {
    OwnedRequest {
        topic: ask.topic.clone(),
        tenant: ask.tenant.clone(),
        labels: ask.labels.iter().cloned().collect(),
        meta: Meta {
            risk_tags: ask.risk_tags.clone(),
            ..Meta::default()
        },
        ..OwnedRequest::default()
    }
}
