//! The job that undoes another.

use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::ids::{IdError, JobId, TenantId};
use crate::job::{JobSpec, Priority};

/// The labels and the environment by which rules and workers know a compensation.
const COMPENSATION: &str = "saga_compensation";
const IS_COMPENSATION: &str = "is_compensation";
const WORKFLOW_ID: &str = "saga_workflow_id";

/// A compensation, ready to be submitted under the undone job's tenant and submitter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompensationJob {
    pub job_id: JobId,
    pub spec: JobSpec,
    pub payload: Option<Vec<u8>>,
    pub idempotency_key: String,
}

/// What of an undone job its compensation is made of.
#[derive(Debug, Clone, Copy)]
pub struct Undone<'a> {
    pub tenant: &'a TenantId,
    pub job_id: &'a JobId,
    pub spec: &'a JobSpec,
    pub payload: Option<&'a [u8]>,
    /// What may be handed out of its result: nothing when it is missing, held or quarantined.
    pub result: Option<&'a [u8]>,
}

/// Why a job cannot be undone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotUndoable {
    #[error("the job has no compensation")]
    NoCompensation,
    #[error("the job has no workflow_id")]
    NoWorkflow,
    #[error("its id: {0}")]
    Id(#[from] IdError),
}

/// Whether labels mark a compensation. They are reserved, so that only Airlock sets them.
pub fn is_compensation(spec: &JobSpec) -> bool {
    spec.labels.get(IS_COMPENSATION).map(String::as_str) == Some("true")
}

/// The id of a try, derived from the saga, the job it undoes and the try: whoever submits
/// it again submits the same job.
pub fn compensation_job_id(
    tenant: &TenantId,
    workflow_id: &str,
    undone: &JobId,
    try_number: u32,
) -> Result<JobId, IdError> {
    let mut hash = Sha256::new();
    hash.update(b"airlock.compensation.v1");
    for part in [tenant.as_str(), workflow_id, undone.as_str()] {
        // With its length, or two names could be read as one.
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    hash.update(try_number.to_be_bytes());
    let digest = hash.finalize();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    let uuid: Uuid = uuid::Builder::from_custom_bytes(bytes).into_uuid();
    JobId::new(format!("comp-{uuid}"))
}

/// The idempotency key of a try: the compensation's own, or one made of what it undoes.
pub fn compensation_key(
    workflow_id: &str,
    undone: &JobId,
    spec: &JobSpec,
    try_number: u32,
) -> String {
    let undo = spec.compensation.as_ref();
    let own = undo.and_then(|undo| undo.idempotency_key.clone());
    let key = own.unwrap_or_else(|| {
        let topic = undo.map_or("", |undo| undo.topic.as_str());
        let capability = undo.and_then(|undo| undo.capability.as_deref());
        let capability = capability.or(spec.capability.as_deref()).unwrap_or("");
        let step = spec.step_index.unwrap_or(0);
        let text = format!("{workflow_id}|{undone}|{topic}|{capability}|{step}");
        let digest = Sha256::digest(text.as_bytes());
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    });
    match try_number {
        0 | 1 => key,
        later => format!("{key}:{later}"),
    }
}

/// The job that undoes `of`.
pub fn compensation_job(of: Undone<'_>, try_number: u32) -> Result<CompensationJob, NotUndoable> {
    let spec = of.spec;
    let undo = spec
        .compensation
        .as_ref()
        .ok_or(NotUndoable::NoCompensation)?;
    let workflow_id = spec.workflow_id.as_deref().ok_or(NotUndoable::NoWorkflow)?;
    let mut labels = spec.labels.clone();
    labels.extend(undo.labels.clone());
    let mut env = spec.env.clone();
    env.extend(undo.env.clone());
    let yes = || "true".to_owned();
    labels.insert(COMPENSATION.to_owned(), yes());
    labels.insert(IS_COMPENSATION.to_owned(), yes());
    labels.insert(WORKFLOW_ID.to_owned(), workflow_id.to_owned());
    env.insert(COMPENSATION.to_owned(), yes());
    env.insert(WORKFLOW_ID.to_owned(), workflow_id.to_owned());
    let built = JobSpec {
        priority: Priority::Critical,
        labels,
        env,
        capability: undo.capability.clone().or_else(|| spec.capability.clone()),
        risk_tags: undo
            .risk_tags
            .clone()
            .unwrap_or_else(|| spec.risk_tags.clone()),
        requires: undo
            .requires
            .clone()
            .unwrap_or_else(|| spec.requires.clone()),
        budget: undo.budget.or(spec.budget),
        estimated_cost: spec.estimated_cost,
        // It is due now, whenever the undone job was.
        due: None,
        max_attempts: undo.max_attempts.or(spec.max_attempts),
        timeout_ms: undo.timeout_ms.or(spec.timeout_ms),
        retry: spec.retry.clone(),
        workflow_id: Some(workflow_id.to_owned()),
        parent_job_id: Some(of.job_id.to_string()),
        step_index: spec.step_index,
        // An undo is not undone.
        compensation: None,
        principal_id: spec.principal_id.clone(),
        actor_id: spec.actor_id.clone(),
        actor_type: spec.actor_type,
        pack_id: spec.pack_id.clone(),
        adapter_id: spec.adapter_id.clone(),
        memory_id: spec.memory_id.clone(),
        on_behalf_of: spec.on_behalf_of.clone(),
        topic: undo.topic.clone(),
    };
    let own = undo
        .payload
        .as_ref()
        .map(|value| value.to_string().into_bytes());
    let payload = own.or_else(|| of.payload.map(<[u8]>::to_vec));
    let payload = match undo.include_result {
        false => payload,
        true => Some(payload_with_result(payload.as_deref(), of.result)),
    };
    Ok(CompensationJob {
        job_id: compensation_job_id(of.tenant, workflow_id, of.job_id, try_number)?,
        idempotency_key: compensation_key(workflow_id, of.job_id, spec, try_number),
        spec: built,
        payload,
    })
}

fn payload_with_result(payload: Option<&[u8]>, result: Option<&[u8]>) -> Vec<u8> {
    let mut out = br#"{"payload":"#.to_vec();
    push_json(&mut out, payload);
    out.extend_from_slice(br#","result":"#);
    push_json(&mut out, result);
    out.push(b'}');
    out
}

/// As it is when it is JSON, else as a string: workers of other kinds give what they like.
fn push_json(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    let Some(bytes) = bytes else {
        return out.extend_from_slice(b"null");
    };
    match serde_json::from_slice::<&RawValue>(bytes) {
        Ok(raw) => out.extend_from_slice(raw.get().as_bytes()),
        Err(_) => {
            let text = String::from_utf8_lossy(bytes);
            let text = serde_json::Value::String(text.into_owned());
            out.extend_from_slice(text.to_string().as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Topic;
    use crate::job::Compensation;

    fn tenant() -> TenantId {
        TenantId::new("t").unwrap()
    }

    fn flight() -> JobSpec {
        let mut spec = JobSpec::new(Topic::new("job.flight.book").unwrap());
        spec.workflow_id = Some("trip-1".into());
        spec.step_index = Some(2);
        spec.capability = Some("book".into());
        spec.labels.insert("env".into(), "prod".into());
        spec.risk_tags = vec!["money".into()];
        spec.due = Some(crate::job::Due::After(5));
        spec.compensation = Some(Compensation::new(Topic::new("job.flight.cancel").unwrap()));
        spec
    }

    fn undo(spec: &JobSpec, try_number: u32) -> CompensationJob {
        let of = Undone {
            tenant: &tenant(),
            job_id: &JobId::new("j1").unwrap(),
            spec,
            payload: Some(br#"{"seat": 7}"#),
            result: Some(b"[1]"),
        };
        compensation_job(of, try_number).unwrap()
    }

    #[test]
    fn what_is_absent_comes_from_the_job_and_the_rest_is_ours() {
        let spec = flight();
        let made = undo(&spec, 1);
        assert_eq!(made.spec.topic.as_str(), "job.flight.cancel");
        assert_eq!(made.spec.priority, Priority::Critical);
        assert_eq!(made.spec.capability.as_deref(), Some("book"));
        assert_eq!(made.spec.risk_tags, ["money"]);
        assert_eq!(made.spec.parent_job_id.as_deref(), Some("j1"));
        assert_eq!(made.spec.step_index, Some(2));
        assert_eq!(made.spec.workflow_id.as_deref(), Some("trip-1"));
        assert_eq!(made.spec.compensation, None);
        assert_eq!(made.spec.due, None);
        let label = |k: &str| made.spec.labels[k].as_str();
        assert_eq!(label("env"), "prod");
        assert_eq!(label("saga_compensation"), "true");
        assert_eq!(label("is_compensation"), "true");
        assert_eq!(label("saga_workflow_id"), "trip-1");
        assert_eq!(made.spec.env["saga_compensation"], "true");
        assert_eq!(made.spec.env["saga_workflow_id"], "trip-1");
        assert_eq!(made.payload.as_deref(), Some(&br#"{"seat": 7}"#[..]));
        assert!(is_compensation(&made.spec) && !is_compensation(&spec));
    }

    #[test]
    fn priority_stays_critical_and_overrides_win() {
        let mut spec = flight();
        let c = spec.compensation.as_mut().unwrap();
        c.priority = Some(Priority::Batch);
        c.capability = Some("cancel".into());
        c.risk_tags = Some(Vec::new());
        c.labels.insert("env".into(), "stage".into());
        c.payload = Some(serde_json::json!({"a": 1}));
        c.include_result = true;
        let made = undo(&spec, 1);
        assert_eq!(made.spec.priority, Priority::Critical);
        assert_eq!(made.spec.capability.as_deref(), Some("cancel"));
        assert!(made.spec.risk_tags.is_empty());
        assert_eq!(made.spec.labels["env"], "stage");
        assert_eq!(
            made.payload.as_deref(),
            Some(&br#"{"payload":{"a":1},"result":[1]}"#[..])
        );
    }

    #[test]
    fn input_that_is_no_json_is_a_string_and_nothing_is_null() {
        let made = payload_with_result(Some(b"\xffx"), None);
        let text = String::from_utf8(made).unwrap();
        assert_eq!(text, "{\"payload\":\"\u{fffd}x\",\"result\":null}");
    }

    #[test]
    fn the_key_is_the_documents_and_an_own_one_wins() {
        let mut spec = flight();
        let of = |text: &str| -> String {
            let digest = Sha256::digest(text.as_bytes());
            digest.iter().map(|b| format!("{b:02x}")).collect()
        };
        let expected = of("trip-1|j1|job.flight.cancel|book|2");
        assert_eq!(undo(&spec, 1).idempotency_key, expected);
        assert_eq!(undo(&spec, 3).idempotency_key, format!("{expected}:3"));
        spec.capability = None;
        spec.step_index = None;
        let bare = of("trip-1|j1|job.flight.cancel||0");
        assert_eq!(undo(&spec, 1).idempotency_key, bare);
        spec.compensation.as_mut().unwrap().idempotency_key = Some("mine".into());
        assert_eq!(undo(&spec, 1).idempotency_key, "mine");
        assert_eq!(undo(&spec, 2).idempotency_key, "mine:2");
    }

    #[test]
    fn ids_fall_together_for_the_same_try_and_apart_otherwise() {
        let id = |tenant: &str, workflow: &str, job: &str, n| {
            let tenant = TenantId::new(tenant).unwrap();
            compensation_job_id(&tenant, workflow, &JobId::new(job).unwrap(), n).unwrap()
        };
        let one = id("t", "w", "j", 1);
        assert!(one.as_str().starts_with("comp-"));
        assert_eq!(one, id("t", "w", "j", 1));
        for other in [
            id("u", "w", "j", 1),
            id("t", "x", "j", 1),
            id("t", "w", "k", 1),
            id("t", "w", "j", 2),
            id("tw", "", "j", 1),
        ] {
            assert_ne!(one, other);
        }
    }
}
