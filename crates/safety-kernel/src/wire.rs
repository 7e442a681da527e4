//! Conversions between CAP's messages and the policy's types.
//!
//! The request's own fields come from the control plane, its metadata from the client.
//! Where both have a value, the control plane's wins.

use std::borrow::Cow;
use std::collections::BTreeMap;

use airlock_policy::{Budget, Content, Decision, Evaluation, Request};
use airlock_proto::{cap, own};

use crate::evaluator::{CountedBy, Verdict};

/// A request in the form the policy evaluates, borrowing from it.
pub struct CheckInput<'a> {
    request: &'a cap::PolicyCheckRequest,
    /// Both sets of labels. Copied only when there are two.
    labels: Cow<'a, BTreeMap<String, String>>,
    job: Cow<'a, str>,
}

impl<'a> CheckInput<'a> {
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
        // Without an id a repeated job cannot be recognized, so each counts as a new one.
        let job = match request.job_id.as_str() {
            "" => Cow::Owned(uuid::Uuid::new_v4().to_string()),
            id => Cow::Borrowed(id),
        };
        Self {
            request,
            labels,
            job,
        }
    }

    /// The job that velocity rules count.
    pub fn job_id(&self) -> &str {
        &self.job
    }

    pub fn to_policy_request(&self) -> Request<'_> {
        let request = self.request;
        let meta = request.meta.as_ref();
        let identity = request.identity.as_ref();
        let budget = request.budget.unwrap_or_default();
        Request {
            topic: &request.topic,
            tenant: first_non_blank([
                &request.tenant,
                identity.map_or("", |i| &i.tenant_id),
                meta.map_or("", |m| &m.tenant_id),
            ]),
            principal_id: first_non_blank([
                &request.principal_id,
                identity.map_or("", |i| &i.principal_id),
            ]),
            capability: meta.map_or("", |m| &m.capability),
            risk_tags: meta.map_or(&[], |m| &m.risk_tags),
            requires: meta.map_or(&[], |m| &m.requires),
            labels: &self.labels,
            pack_id: meta.map_or("", |m| &m.pack_id),
            actor_id: first_non_blank([
                identity.map_or("", |i| &i.actor_id),
                meta.map_or("", |m| &m.actor_id),
            ]),
            actor_type: actor_name(meta.map_or(cap::ActorType::Unspecified, |m| m.actor_type())),
            priority: priority_name(request.priority()),
            budget: Budget {
                max_input_tokens: budget.max_input_tokens,
                max_output_tokens: budget.max_output_tokens,
                max_total_tokens: budget.max_total_tokens,
                deadline_ms: budget.deadline_ms,
            },
            estimated_cost: request.estimated_cost,
            content: Some(input_content(request)),
        }
    }
}

/// The job's input, or its size alone when it was not sent. An input of size 0 needs no
/// sending: it is empty.
fn input_content(request: &cap::PolicyCheckRequest) -> Content<'_> {
    let sent = &request.input_content;
    let size = u64::try_from(request.input_size_bytes).unwrap_or(0);
    Content {
        bytes: (size == 0 || !sent.is_empty()).then_some(&sent[..]),
        content_type: &request.input_content_type,
        size: size.max(sent.len() as u64),
    }
}

/// Whether a rule reads the input and the input was not sent.
pub fn lacks_input_content(request: &cap::PolicyCheckRequest, verdict: &Verdict) -> bool {
    match verdict {
        Verdict::ByPolicy { evaluation, .. } => {
            evaluation.content_read && input_content(request).bytes.is_none()
        }
        Verdict::WithoutPolicy { .. } => false,
    }
}

fn first_non_blank<const N: usize>(given: [&str; N]) -> &str {
    given
        .into_iter()
        .find(|s| !s.trim().is_empty())
        .unwrap_or_default()
}

fn actor_name(actor: cap::ActorType) -> &'static str {
    match actor {
        cap::ActorType::Unspecified => "",
        cap::ActorType::Human => "human",
        cap::ActorType::Service => "service",
    }
}

fn priority_name(priority: cap::JobPriority) -> &'static str {
    match priority {
        cap::JobPriority::Unspecified => "",
        cap::JobPriority::Interactive => "interactive",
        cap::JobPriority::Batch => "batch",
        cap::JobPriority::Critical => "critical",
    }
}

pub fn decision_to_cap(decision: Decision) -> cap::DecisionType {
    match decision {
        Decision::Allow => cap::DecisionType::Allow,
        Decision::AllowWithConstraints => cap::DecisionType::AllowWithConstraints,
        Decision::Deny => cap::DecisionType::Deny,
        Decision::RequireApproval => cap::DecisionType::RequireHuman,
        Decision::Throttle => cap::DecisionType::Throttle,
    }
}

pub fn verdict_to_response(verdict: &Verdict) -> cap::PolicyCheckResponse {
    match verdict {
        Verdict::ByPolicy {
            evaluation,
            counted_by,
        } => evaluation_to_response(evaluation, *counted_by),
        Verdict::WithoutPolicy {
            decision,
            reason,
            snapshot,
        } => cap::PolicyCheckResponse {
            decision: decision_to_cap(*decision).into(),
            reason: (*reason).to_owned(),
            policy_snapshot: snapshot.to_string(),
            ..Default::default()
        },
    }
}

fn evaluation_to_response(e: &Evaluation, counted_by: CountedBy) -> cap::PolicyCheckResponse {
    let (counters, counted) = match counted_by {
        CountedBy::Nobody => ("", ""),
        CountedBy::AllKernels => ("shared", ""),
        // In the reason, because that is what the ledger records of a decision.
        CountedBy::ThisKernel => (
            "local",
            " (counted by this kernel alone: Redis is unavailable)",
        ),
    };
    cap::PolicyCheckResponse {
        decision: decision_to_cap(e.decision).into(),
        reason: format!("{}{counted}", e.reason),
        policy_snapshot: e.snapshot.to_string(),
        rule_id: e.rule_id.as_deref().unwrap_or_default().to_owned(),
        constraints: e.constraints.as_deref().map(Into::into),
        approval_required: e.decision == Decision::RequireApproval,
        remediations: e
            .remediations
            .iter()
            .map(|r| cap::PolicyRemediation {
                id: r.id.clone(),
                title: r.title.clone(),
                summary: r.summary.clone(),
                replacement_topic: r.replacement_topic.clone(),
                replacement_capability: r.replacement_capability.clone(),
                add_labels: r.add_labels.clone(),
                remove_labels: r.remove_labels.clone(),
            })
            .collect(),
        airlock: Some(own::PolicyDetail {
            rule_hash: e.rule_hash.as_deref().unwrap_or_default().to_owned(),
            approval: e.approval.as_deref().map(Into::into),
            shadows: e
                .shadows
                .iter()
                .map(|s| own::ShadowHit {
                    rule_id: s.rule_id.as_deref().unwrap_or_default().to_owned(),
                    rule_hash: s.rule_hash.as_deref().unwrap_or_default().to_owned(),
                    decision: s.decision.as_str().to_owned(),
                    reason: s.reason.to_string(),
                })
                .collect(),
            counters: counters.to_owned(),
            tenant_concurrency: e.tenant_concurrency.unwrap_or(0),
            explanation: String::new(),
        }),
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
    fn the_control_plane_wins_over_the_client() {
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
        let input = CheckInput::new(&request);
        let input = input.to_policy_request();
        assert_eq!((input.tenant, input.actor_type), ("acme", "human"));
        assert_eq!(*input.labels, map(&[("env", "prod"), ("team", "x")]));
        request.tenant = " ".to_owned();
        request.labels.clear();
        let input = CheckInput::new(&request);
        assert_eq!(input.to_policy_request().tenant, "other");
        assert_eq!(
            *input.to_policy_request().labels,
            map(&[("env", "dev"), ("team", "x")])
        );
    }

    #[test]
    fn a_job_without_an_id_is_a_new_one_each_time() {
        let nameless = cap::PolicyCheckRequest::default();
        let (a, b) = (CheckInput::new(&nameless), CheckInput::new(&nameless));
        assert_ne!(a.job_id(), b.job_id());
    }

    #[test]
    fn an_input_that_was_not_sent_differs_from_an_empty_one() {
        let mut request = cap::PolicyCheckRequest::default();
        assert_eq!(input_content(&request).bytes, Some(&b""[..]));
        request.input_size_bytes = 3;
        assert_eq!(
            (input_content(&request).bytes, input_content(&request).size),
            (None, 3)
        );
        request.input_content = b"{}x".to_vec().into();
        assert_eq!(input_content(&request).bytes, Some(&b"{}x"[..]));
    }
}
