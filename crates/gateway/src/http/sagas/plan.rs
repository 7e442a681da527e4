//! What a rollback would do: each compensation as the scheduler would ask about it, answered
//! by the kernel's simulation.

use airlock_api::PlannedCompensation;
use airlock_kernel_client::batch;
use airlock_model::job::{ActorType, Cost};
use airlock_model::{JobId, JobSpec, TenantId};
use airlock_proto::cap;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};

use crate::http::policy::decision_name;
use crate::http::problem::Problem;
use crate::policy::kernel::{Kernel, Question};

/// Questions that are under way at once.
const AT_ONCE: usize = 16;

/// What the policy would decide about each, in the order given. Without an answer to one
/// there is none at all.
pub async fn plan_rollback(
    kernel: &Kernel,
    tenant: &TenantId,
    planned: Vec<airlock_ledger::PlannedCompensation>,
) -> Result<Vec<PlannedCompensation>, Problem> {
    let questions = planned.into_iter().map(|one| ask(kernel, tenant, one));
    futures::stream::iter(questions)
        .buffered(AT_ONCE)
        .try_collect()
        .await
}

async fn ask(
    kernel: &Kernel,
    tenant: &TenantId,
    planned: airlock_ledger::PlannedCompensation,
) -> Result<PlannedCompensation, Problem> {
    let mut plan = PlannedCompensation {
        seq: planned.seq,
        for_job_id: planned.for_job_id.to_string(),
        topic: None,
        decision: None,
        rule_id: None,
        reason: None,
    };
    match planned.job {
        Ok((id, spec, payload)) => {
            let request = to_check_request(tenant, &id, &spec, payload);
            let answer = kernel.query_policy(Question::Verdict, request).await?;
            plan.topic = Some(spec.topic.to_string());
            plan.decision = Some(decision_name(answer.decision).to_owned());
            plan.rule_id = Some(answer.rule_id).filter(|id| !id.is_empty());
            plan.reason = Some(answer.reason).filter(|reason| !reason.is_empty());
        }
        Err(why) => plan.reason = Some(format!("the compensation cannot be built: {why}")),
    }
    Ok(plan)
}

/// The question that the scheduler asks about such a job.
fn to_check_request(
    tenant: &TenantId,
    id: &JobId,
    spec: &JobSpec,
    payload: Option<Bytes>,
) -> cap::PolicyCheckRequest {
    let text = |s: &Option<String>| s.clone().unwrap_or_default();
    let payload = payload.unwrap_or_default();
    let input_size_bytes = i64::try_from(payload.len()).unwrap_or(i64::MAX);
    let shown = !payload.is_empty() && payload.len() <= batch::MAX_BYTES;
    let (input_content, input_content_type) = match shown {
        true => (payload, "application/json".to_owned()),
        false => (Bytes::new(), String::new()),
    };
    cap::PolicyCheckRequest {
        job_id: id.to_string(),
        topic: spec.topic.to_string(),
        tenant: tenant.to_string(),
        priority: i32::from(spec.priority.code()),
        budget: spec.budget.as_ref().map(|b| cap::Budget {
            max_input_tokens: b.max_input_tokens.unwrap_or(0),
            max_output_tokens: b.max_output_tokens.unwrap_or(0),
            max_total_tokens: b.max_total_tokens.unwrap_or(0),
            deadline_ms: b.deadline_ms.unwrap_or(0),
        }),
        estimated_cost: spec.estimated_cost.map_or(0.0, Cost::get),
        principal_id: text(&spec.principal_id),
        labels: spec.labels.clone(),
        memory_id: text(&spec.memory_id),
        meta: Some(cap::JobMetadata {
            tenant_id: tenant.to_string(),
            actor_id: text(&spec.actor_id),
            actor_type: match spec.actor_type {
                None => 0,
                Some(ActorType::Human) => 1,
                Some(ActorType::Service) => 2,
            },
            capability: text(&spec.capability),
            risk_tags: spec.risk_tags.clone(),
            requires: spec.requires.clone(),
            pack_id: text(&spec.pack_id),
            ..cap::JobMetadata::default()
        }),
        input_size_bytes,
        input_content,
        input_content_type,
        ..cap::PolicyCheckRequest::default()
    }
}
