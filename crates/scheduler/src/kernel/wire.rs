//! Between the engine's jobs and the kernel's messages.

use std::sync::Arc;

use airlock_model::Decision;
use airlock_model::engine::QueuedJob;
use airlock_proto::policy_check::CheckedJob;
use airlock_proto::{cap, own};

use super::cache::Answer;
use super::config::FailMode;

pub fn to_check_request(job: &QueuedJob) -> cap::PolicyCheckRequest {
    let spec = &job.spec;
    let text = |s: &Option<String>| s.clone().unwrap_or_default();
    let job = CheckedJob {
        job_id: job.id.to_string(),
        topic: spec.topic.as_str().to_owned(),
        tenant: job.tenant.to_string(),
        priority: spec.priority,
        budget: spec.budget,
        estimated_cost: spec.estimated_cost,
        principal_id: text(&spec.principal_id),
        labels: spec.labels.clone(),
        memory_id: text(&spec.memory_id),
        actor_id: text(&spec.actor_id),
        actor_type: spec.actor_type,
        capability: text(&spec.capability),
        risk_tags: spec.risk_tags.clone(),
        requires: spec.requires.clone(),
        pack_id: text(&spec.pack_id),
        input_size: job.payload_len,
    };
    job.into_request()
}

/// At least as much as [`to_check_request`] and its traceparent take on the wire, without making it.
pub fn max_encoded_len(job: &QueuedJob) -> usize {
    // A text has a tag and a length, an entry of a map three of each.
    const TEXT: usize = 8;
    const ENTRY: usize = 3 * TEXT;
    // Numbers, the fields that are one text each, and the traceparent.
    const REST: usize = 512;
    let spec = &job.spec;
    let names = job.id.as_str().len() + 2 * job.tenant.as_str().len();
    let tags = spec.risk_tags.len() + spec.requires.len();
    REST + names
        + job.traceparent.len()
        + spec.text_bytes()
        + ENTRY * spec.labels.len()
        + TEXT * tags
}

/// A decision this version does not know is a denial.
pub fn to_answer(r: cap::PolicyCheckResponse) -> Answer {
    use cap::DecisionType as D;
    let detail = r.airlock.unwrap_or_default();
    let (decision, reason) = match D::try_from(r.decision) {
        Ok(D::Allow) => (Decision::Allow, r.reason),
        Ok(D::AllowWithConstraints) => (Decision::AllowWithConstraints, r.reason),
        Ok(D::RequireHuman) => (Decision::RequireApproval, r.reason),
        Ok(D::Throttle) => (Decision::Throttle, r.reason),
        Ok(D::Deny) => (Decision::Deny, r.reason),
        Ok(D::Unspecified | D::Quarantine | D::Redact) | Err(_) => (
            Decision::Deny,
            format!(
                "the safety kernel answered with an unknown decision ({})",
                r.decision
            ),
        ),
    };
    let approval = match decision {
        Decision::RequireApproval => detail.approval.map(Into::into),
        Decision::Allow
        | Decision::Deny
        | Decision::Throttle
        | Decision::AllowWithConstraints
        | Decision::FailOpen
        | Decision::SagaSoft => None,
    };
    Answer {
        decision,
        reason,
        rule_id: r.rule_id,
        rule_hash: detail.rule_hash,
        snapshot: r.policy_snapshot,
        constraints: r.constraints.map(|c| Arc::new(c.into())),
        approval,
        tenant_concurrency: (detail.tenant_concurrency > 0).then_some(detail.tenant_concurrency),
    }
}

/// What the policy file says about an absent kernel; `None` when no policy is loaded.
pub fn to_fail_mode(mode: i32) -> Option<FailMode> {
    match own::FailMode::try_from(mode) {
        Ok(own::FailMode::Open) => Some(FailMode::Open),
        Ok(own::FailMode::Closed) => Some(FailMode::Closed),
        Ok(own::FailMode::Unspecified) | Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_question_takes_is_never_underestimated() {
        use prost::Message as _;
        let mut job = super::super::tests::bed::job("job.a");
        assert!(to_check_request(&job).encoded_len() <= max_encoded_len(&job));
        let spec = Arc::make_mut(&mut job.spec);
        let long = |n: usize| Some("x".repeat(n));
        spec.labels = (0..64)
            .map(|i| (format!("{i:0128}"), "v".repeat(1_024)))
            .collect();
        spec.risk_tags = vec!["t".repeat(128); 64];
        spec.requires = vec![String::new(); 64];
        (spec.principal_id, spec.actor_id) = (long(256), long(256));
        (spec.capability, spec.pack_id, spec.memory_id) = (long(256), long(256), long(256));
        spec.budget = Some(airlock_model::job::Budget {
            max_input_tokens: Some(i64::MAX),
            max_output_tokens: Some(i64::MAX),
            max_total_tokens: Some(i64::MAX),
            deadline_ms: Some(i64::MAX),
        });
        job.payload_len = u64::MAX;
        let (real, bound) = (to_check_request(&job).encoded_len(), max_encoded_len(&job));
        assert!(real <= bound && bound < real + 4_096, "{real} {bound}");
    }

    #[test]
    fn a_decision_nobody_knows_is_a_denial() {
        for decision in [0, 6, 7, 99, -1] {
            let answer = to_answer(cap::PolicyCheckResponse {
                decision,
                ..Default::default()
            });
            assert_eq!(answer.decision, Decision::Deny);
            assert!(answer.reason.contains("unknown decision"));
        }
    }

    #[test]
    fn constraints_and_terms_come_through() {
        let sent = cap::PolicyConstraints {
            budgets: Some(cap::BudgetConstraints {
                max_runtime_ms: 5,
                max_retries: 1,
                max_artifact_bytes: 2,
                max_concurrent_jobs: 3,
            }),
            sandbox: Some(cap::SandboxProfile {
                isolated: true,
                network_allowlist: vec!["a".to_owned()],
                ..Default::default()
            }),
            toolchain: Some(cap::ToolchainConstraints {
                allowed_tools: vec!["git".to_owned()],
                ..Default::default()
            }),
            diff: Some(cap::DiffConstraints {
                max_files: 4,
                ..Default::default()
            }),
            redaction_level: "strict".to_owned(),
        };
        let answer = to_answer(cap::PolicyCheckResponse {
            decision: cap::DecisionType::RequireHuman.into(),
            constraints: Some(sent.clone()),
            airlock: Some(own::PolicyDetail {
                rule_hash: "h".to_owned(),
                approval: Some(own::ApprovalTerms {
                    quorum: 2,
                    expires_seconds: 60,
                    approvers: vec!["ann".to_owned()],
                    approver_roles: Vec::new(),
                }),
                ..Default::default()
            }),
            ..Default::default()
        });
        assert_eq!(answer.rule_hash, "h");
        assert_eq!(answer.approval.unwrap().quorum, 2);
        let constraints = answer.constraints.unwrap();
        assert_eq!(cap::PolicyConstraints::from(&*constraints), sent);
    }
}
