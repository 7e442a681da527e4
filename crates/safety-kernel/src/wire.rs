//! Between CAP's messages and the policy's own types.
//!
//! The request's own fields are what the control plane says of a job, its metadata is
//! what the client said. Where both say something, the control plane is believed.

use std::borrow::Cow;
use std::collections::BTreeMap;

use airlock_policy::{Decision, PolicyInput, Verdict};
use airlock_proto::cap;

/// A request in the form the policy reads, borrowing from it.
pub struct Question<'a> {
    request: &'a cap::PolicyCheckRequest,
    /// Both sets of labels. Copied only when there are two.
    labels: Cow<'a, BTreeMap<String, String>>,
}

impl<'a> Question<'a> {
    pub fn new(request: &'a cap::PolicyCheckRequest) -> Self {
        let labels = match &request.meta {
            Some(meta) if !meta.labels.is_empty() => {
                if request.labels.is_empty() {
                    Cow::Borrowed(&meta.labels)
                } else {
                    let mut both = meta.labels.clone();
                    both.extend(request.labels.clone());
                    Cow::Owned(both)
                }
            }
            Some(_) | None => Cow::Borrowed(&request.labels),
        };
        Self { request, labels }
    }

    pub fn input(&self) -> PolicyInput<'_> {
        let request = self.request;
        let meta = request.meta.as_ref();
        let identity = request.identity.as_ref();
        PolicyInput {
            topic: &request.topic,
            tenant: first([
                &request.tenant,
                identity.map_or("", |i| &i.tenant_id),
                meta.map_or("", |m| &m.tenant_id),
            ]),
            principal_id: first([
                &request.principal_id,
                identity.map_or("", |i| &i.principal_id),
            ]),
            capability: meta.map_or("", |m| &m.capability),
            risk_tags: meta.map_or(&[], |m| &m.risk_tags),
            requires: meta.map_or(&[], |m| &m.requires),
            labels: &self.labels,
            pack_id: meta.map_or("", |m| &m.pack_id),
            actor_id: first([
                identity.map_or("", |i| &i.actor_id),
                meta.map_or("", |m| &m.actor_id),
            ]),
            actor_type: actor_word(meta.map_or(cap::ActorType::Unspecified, |m| m.actor_type())),
            priority: priority_word(request.priority()),
        }
    }
}

fn first<const N: usize>(given: [&str; N]) -> &str {
    given
        .into_iter()
        .find(|s| !s.trim().is_empty())
        .unwrap_or_default()
}

fn actor_word(actor: cap::ActorType) -> &'static str {
    match actor {
        cap::ActorType::Unspecified => "",
        cap::ActorType::Human => "human",
        cap::ActorType::Service => "service",
    }
}

fn priority_word(priority: cap::JobPriority) -> &'static str {
    match priority {
        cap::JobPriority::Unspecified => "",
        cap::JobPriority::Interactive => "interactive",
        cap::JobPriority::Batch => "batch",
        cap::JobPriority::Critical => "critical",
    }
}

pub fn decision_type(decision: Decision) -> cap::DecisionType {
    match decision {
        Decision::Allow => cap::DecisionType::Allow,
        Decision::Deny => cap::DecisionType::Deny,
        Decision::RequireApproval => cap::DecisionType::RequireHuman,
        Decision::Throttle => cap::DecisionType::Throttle,
    }
}

pub fn response(verdict: &Verdict) -> cap::PolicyCheckResponse {
    cap::PolicyCheckResponse {
        decision: decision_type(verdict.decision).into(),
        reason: verdict.reason.to_string(),
        policy_snapshot: verdict.snapshot.to_string(),
        rule_id: verdict.rule_id.as_deref().unwrap_or_default().to_owned(),
        approval_required: verdict.decision == Decision::RequireApproval,
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    #[test]
    fn the_control_plane_is_believed_over_the_client() {
        let mut request = cap::PolicyCheckRequest {
            tenant: "acme".to_owned(),
            labels: map(&[("env", "prod")]),
            meta: Some(cap::JobMetadata {
                tenant_id: "other".to_owned(),
                labels: map(&[("env", "dev"), ("team", "x")]),
                actor_type: cap::ActorType::Human.into(),
                ..Default::default()
            }),
            ..Default::default()
        };
        let question = Question::new(&request);
        let input = question.input();
        assert_eq!((input.tenant, input.actor_type), ("acme", "human"));
        assert_eq!(*input.labels, map(&[("env", "prod"), ("team", "x")]));
        request.tenant = " ".to_owned();
        request.labels.clear();
        let question = Question::new(&request);
        assert_eq!(question.input().tenant, "other");
        assert_eq!(
            *question.input().labels,
            map(&[("env", "dev"), ("team", "x")])
        );
    }

    #[test]
    fn only_an_approval_is_flagged_as_one() {
        for decision in Decision::ALL {
            let verdict = Verdict {
                decision,
                reason: "r".into(),
                rule_id: None,
                snapshot: "s".into(),
            };
            let response = response(&verdict);
            assert_eq!(
                response.approval_required,
                decision == Decision::RequireApproval
            );
            assert_eq!(response.decision(), decision_type(decision));
        }
    }
}
