//! How a job is shown.
//!
//! What must stay true: a result is shown only of a job that SUCCEEDED, so that what the
//! output policy holds back stays back. Payload and result are shown as the bytes they
//! are stored as; what is not JSON is shown in base64 under another name.

use std::collections::BTreeMap;

use airlock_ledger::{HistoryEntry, JobView};
use airlock_model::job::Cost;
use airlock_model::{Claim, JobState, Released, Timestamp};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;

mod report;

use report::ShownReport;

#[derive(Debug, Serialize)]
pub struct Shown<'a> {
    job_id: &'a str,
    state: JobState,
    topic: &'a str,
    tenant_id: &'a str,
    priority: &'static str,
    labels: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    capability: Option<&'a str>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    risk_tags: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    estimated_cost: Option<Cost>,
    #[serde(skip_serializing_if = "Option::is_none")]
    workflow_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    principal_id: Option<&'a str>,
    /// Whom the request named without the right to; it counts for nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    on_behalf_of: Option<&'a Claim>,
    #[serde(skip_serializing_if = "Option::is_none")]
    submitted_by: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    result: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result_base64: Option<String>,
    result_ptr: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    result_missing: bool,
    failure_reason: Option<&'a str>,
    error_code: Option<&'a str>,
    /// Why it has not ended, in plain words.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_reason: Option<String>,
    /// The same for a program, where the scheduler's leader said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_code: Option<String>,
    attempts: u32,
    max_attempts: Option<u32>,
    worker_id: Option<&'a str>,
    decision: Option<ShownDecision<'a>>,
    due_at: Option<String>,
    deadline_at: Option<String>,
    created_at: String,
    finished_at: Option<String>,
    trace_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<Vec<ShownStep<'a>>>,
    #[serde(flatten)]
    report: Option<ShownReport<'a>>,
}

#[derive(Debug, Serialize)]
struct ShownDecision<'a> {
    decision: &'static str,
    rule_id: Option<&'a str>,
    reason: Option<&'a str>,
    policy_snapshot: Option<&'a str>,
    decided_at: Option<String>,
}

#[derive(Debug, Serialize)]
struct ShownStep<'a> {
    state: JobState,
    at: String,
    attempt: u32,
    worker_id: Option<&'a str>,
    reason: Option<&'a str>,
}

/// How much of a job is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Everything.
    Full,
    /// Without its payload, for whoever just sent it.
    Outcome,
    /// A line of a list.
    Line,
}

pub fn show(job: &JobView, detail: Detail, now: Timestamp) -> Shown<'_> {
    let spec = &job.spec;
    let payload = job.payload.as_ref().filter(|_| detail == Detail::Full);
    let (payload, payload_base64) = embed(payload);
    let succeeded = job.state == JobState::Succeeded;
    let result = job.result.as_ref().map(Released::get);
    let (result, result_base64) = embed(result.filter(|_| succeeded));
    let has_result = result.is_some() || result_base64.is_some();
    let failed = job.state.is_final() && !succeeded;
    Shown {
        job_id: job.job_id.as_str(),
        state: job.state,
        topic: spec.topic.as_str(),
        tenant_id: job.tenant.as_str(),
        priority: spec.priority.as_str(),
        labels: &spec.labels,
        capability: spec.capability.as_deref(),
        risk_tags: &spec.risk_tags,
        estimated_cost: spec.estimated_cost,
        workflow_id: spec.workflow_id.as_deref(),
        principal_id: spec.principal_id.as_deref(),
        on_behalf_of: spec.on_behalf_of.as_deref(),
        submitted_by: job.submitted_by.as_deref(),
        idempotency_key: job.idempotency_key.as_deref(),
        payload,
        payload_base64,
        result,
        result_base64,
        // Clients of the agent protocol look for it to tell that there is a result.
        result_ptr: has_result.then(|| format!("redis://res:{}", job.job_id)),
        result_missing: job.result_missing,
        failure_reason: job.reason.as_deref().filter(|_| failed),
        error_code: job.reason_code.as_deref().filter(|_| failed),
        waiting_reason: waiting_reason(job, now),
        waiting_code: None,
        attempts: job.attempt,
        max_attempts: spec.max_attempts,
        worker_id: job.worker_id.as_deref(),
        decision: job.decision.map(|decision| ShownDecision {
            decision: decision.as_str(),
            rule_id: job.rule_id.as_deref(),
            reason: job.decision_reason.as_deref(),
            policy_snapshot: job.policy_snapshot.as_deref(),
            decided_at: job.decided_at.map(Timestamp::to_rfc3339),
        }),
        due_at: job.due_at.map(Timestamp::to_rfc3339),
        deadline_at: job.deadline_at.map(Timestamp::to_rfc3339),
        created_at: job.created_at.to_rfc3339(),
        finished_at: job.finished_at.map(Timestamp::to_rfc3339),
        trace_id: &job.trace_id,
        history: (detail != Detail::Line).then(|| job.history.iter().map(step).collect()),
        report: job.report.as_deref().map(|r| report::show(r, job.state)),
    }
}

impl Shown<'_> {
    /// What the leader says it waits for is newer than what the row says.
    pub fn waits_for(&mut self, code: String, words: String) {
        self.waiting_code = Some(code);
        self.waiting_reason = Some(words);
    }
}

fn step(entry: &HistoryEntry) -> ShownStep<'_> {
    ShownStep {
        state: entry.state,
        at: entry.at.to_rfc3339(),
        attempt: entry.attempt,
        worker_id: entry.worker_id.as_deref(),
        reason: entry.reason.as_deref(),
    }
}

pub(crate) fn embed(bytes: Option<&Bytes>) -> (Option<&RawValue>, Option<String>) {
    match bytes {
        None => (None, None),
        Some(bytes) => match serde_json::from_slice(bytes) {
            Ok(raw) => (Some(raw), None),
            Err(_) => (None, Some(STANDARD.encode(bytes))),
        },
    }
}

fn waiting_reason(job: &JobView, now: Timestamp) -> Option<String> {
    match job.state {
        JobState::Pending => {
            let later = |at: Option<Timestamp>| at.filter(|at| *at > now);
            if let Some(at) = later(job.due_at) {
                Some(format!("due at {at}"))
            } else if let Some(at) = later(job.not_before) {
                Some(format!("will be tried again at {at}"))
            } else {
                job.reason.clone()
            }
        }
        JobState::ApprovalRequired => Some(match &job.rule_id {
            Some(rule) => format!("held for approval by rule {rule}"),
            None => "held for approval".to_owned(),
        }),
        JobState::Scheduled
        | JobState::Dispatched
        | JobState::Running
        | JobState::Succeeded
        | JobState::Failed
        | JobState::Timeout
        | JobState::Cancelled
        | JobState::Denied
        | JobState::OutputQuarantined => None,
    }
}

#[cfg(test)]
mod tests {
    use airlock_model::{JobId, JobSpec, TenantId, Topic};

    use super::*;

    fn job(state: JobState, result: &'static [u8]) -> JobView {
        JobView {
            job_id: JobId::new("j").unwrap(),
            tenant: TenantId::new("t").unwrap(),
            spec: JobSpec::new(Topic::new("job.a").unwrap()),
            payload: Some(Bytes::from_static(b"[1e400]")),
            idempotency_key: None,
            submitted_by: None,
            trace_id: "x".to_owned(),
            created_at: Timestamp(1),
            state,
            attempt: 1,
            due_at: None,
            deadline_at: None,
            not_before: None,
            worker_id: None,
            decision: None,
            rule_id: None,
            policy_snapshot: None,
            decision_reason: None,
            decided_at: None,
            finished_at: None,
            reason_code: None,
            reason: None,
            result: Some(Released::from_ledger(Bytes::from_static(result))),
            result_ptr: None,
            result_missing: false,
            history: Vec::new(),
            report: None,
        }
    }

    fn text(job: &JobView) -> String {
        serde_json::to_string(&show(job, Detail::Full, Timestamp(0))).unwrap()
    }

    #[test]
    fn results_come_as_they_are_or_in_base64() {
        let json = text(&job(
            JobState::Succeeded,
            br#"{"n":1234567890123456789012}"#,
        ));
        assert!(
            json.contains(r#""result":{"n":1234567890123456789012}"#),
            "{json}"
        );
        assert!(json.contains(r#""payload":[1e400]"#), "{json}");
        let json = text(&job(JobState::Succeeded, b"\xff"));
        assert!(
            json.contains(r#""result":null,"result_base64":"/w==""#),
            "{json}"
        );
    }

    #[test]
    fn only_a_succeeded_jobs_result_is_shown() {
        for state in JobState::ALL {
            let shown = text(&job(state, b"\"secret\"")).contains("secret");
            assert_eq!(shown, state == JobState::Succeeded, "{state}");
        }
    }
}
