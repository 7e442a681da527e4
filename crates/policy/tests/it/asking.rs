//! What the other tests ask with.

use std::collections::BTreeMap;

use airlock_policy::{
    Count, Counters, Decision, Evaluation, Meta, NoCounters, OwnedRequest, Policy, VelocityQuery,
};

/// A policy, or a panic that says why not.
pub fn policy(text: &str) -> Policy {
    Policy::load(text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// A policy with these rules (a YAML list), which denies by default.
pub fn rules(list: &str) -> Policy {
    policy(&format!("version: 1\nrules:\n{list}"))
}

/// A policy with one rule `r` with this match and decision.
pub fn one(matches: &str, decision: &str) -> Policy {
    rules(&format!(
        "  - {{id: r, match: {{{matches}}}, decision: {decision}}}\n"
    ))
}

pub fn job(topic: &str) -> OwnedRequest {
    OwnedRequest {
        topic: topic.to_owned(),
        ..OwnedRequest::default()
    }
}

pub fn labelled(pairs: &[(&str, &str)]) -> OwnedRequest {
    OwnedRequest {
        labels: pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect(),
        ..job("job.a")
    }
}

pub fn tagged(tags: &[&str]) -> OwnedRequest {
    OwnedRequest {
        meta: Meta {
            risk_tags: tags.iter().map(|t| (*t).to_owned()).collect(),
            ..Meta::default()
        },
        ..job("job.a")
    }
}

pub fn ask(policy: &Policy, request: &OwnedRequest) -> Evaluation {
    policy.evaluate(&request.as_request(), &mut NoCounters)
}

pub fn decision(policy: &Policy, request: &OwnedRequest) -> Decision {
    ask(policy, request).decision
}

/// The id of the rule that decided, or nothing.
pub fn decider(policy: &Policy, request: &OwnedRequest) -> String {
    let answer = ask(policy, request);
    answer.rule_id.as_deref().unwrap_or_default().to_owned()
}

/// Counts by rule id, and remembers what it was asked.
#[derive(Default)]
pub struct Counted {
    pub counts: BTreeMap<String, u64>,
    pub asked: Vec<VelocityQuery>,
}

impl Counted {
    pub fn of(pairs: &[(&str, u64)]) -> Self {
        Self {
            counts: pairs.iter().map(|(k, n)| ((*k).to_owned(), *n)).collect(),
            asked: Vec::new(),
        }
    }
}

impl Counters for Counted {
    fn count(&mut self, query: &VelocityQuery) -> Count {
        self.asked.push(query.clone());
        self.counts
            .get(&*query.rule_id)
            .map_or(Count::Unknown, |n| Count::Is(*n))
    }
}
