//! How a job is shown.
//!
//! What must stay true: a result is shown only of a job that SUCCEEDED, or whose output a
//! reviewer released, and only while the verdict on it lets it be read. Payload and result are shown as the bytes they
//! are stored as; what is not JSON is shown in base64 under another name.

use airlock_api::{Decision, HistoryEntry, Job};
use airlock_ledger::JobView;
use airlock_model::{JobState, Released, Timestamp};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::value::RawValue;

use super::{output, report};

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

/// The code of a job that waits for the verdict on its output.
pub const OUTPUT_HELD: &str = "output_held";

pub fn to_api_job(job: &JobView, detail: Detail, now: Timestamp) -> Job<&RawValue> {
    let spec = &job.spec;
    let payload = job.payload.as_ref().filter(|_| detail == Detail::Full);
    let (payload, payload_base64) = to_json_or_base64(payload);
    let succeeded = job.state == JobState::Succeeded;
    let readable = job.is_output_readable();
    // A quarantined output is readable once it was released.
    let shown = readable && (succeeded || job.state == JobState::OutputQuarantined);
    let result = job.result.as_ref().map(Released::get);
    let (result, result_base64) = to_json_or_base64(result.filter(|_| shown));
    let has_result = result.is_some() || result_base64.is_some();
    let failed = job.state.is_final() && !succeeded;
    let history = if detail == Detail::Line {
        &[]
    } else {
        job.history.as_slice()
    };
    let report = report::to_api_report(job.report.as_deref(), readable);
    Job {
        job_id: job.job_id.to_string(),
        state: job.state,
        topic: spec.topic.to_string(),
        tenant_id: job.tenant.to_string(),
        priority: spec.priority,
        labels: spec.labels.clone(),
        capability: spec.capability.clone(),
        risk_tags: spec.risk_tags.clone(),
        estimated_cost: spec.estimated_cost,
        workflow_id: spec.workflow_id.clone(),
        principal_id: spec.principal_id.clone(),
        on_behalf_of: spec.on_behalf_of.as_deref().cloned(),
        submitted_by: job.submitted_by.clone(),
        idempotency_key: job.idempotency_key.clone(),
        payload,
        payload_base64,
        result,
        result_base64,
        // Clients of the agent protocol look for it to tell that there is a result.
        result_ptr: has_result.then(|| format!("redis://res:{}", job.job_id)),
        result_missing: job.result_missing,
        failure_reason: job.reason.clone().filter(|_| failed),
        error_code: job.reason_code.clone().filter(|_| failed),
        waiting_reason: waiting_reason(job, now),
        waiting_code: job.is_output_held().then(|| OUTPUT_HELD.to_owned()),
        attempts: job.attempt,
        max_attempts: spec.max_attempts,
        worker_id: job.worker_id.clone(),
        decision: to_api_decision(job),
        output: output::to_api_output(job, detail),
        due_at: job.due_at.map(Timestamp::to_rfc3339),
        deadline_at: job.deadline_at.map(Timestamp::to_rfc3339),
        created_at: job.created_at.to_rfc3339(),
        finished_at: job.finished_at.map(Timestamp::to_rfc3339),
        trace_id: job.trace_id.clone(),
        history: history.iter().map(to_api_history_entry).collect(),
        progress: report.progress,
        partials: report.partials,
        artifacts: report.artifacts,
        constraint_report: report.constraints,
    }
}

fn to_api_decision(job: &JobView) -> Option<Decision> {
    job.decision.map(|decision| Decision {
        decision: decision.as_str().to_owned(),
        rule_id: job.rule_id.clone(),
        reason: job.decision_reason.clone(),
        policy_snapshot: job.policy_snapshot.clone(),
        decided_at: job.decided_at.map(Timestamp::to_rfc3339),
    })
}

fn to_api_history_entry(entry: &airlock_ledger::HistoryEntry) -> HistoryEntry {
    HistoryEntry {
        state: entry.state,
        at: entry.at.to_rfc3339(),
        attempt: entry.attempt,
        worker_id: entry.worker_id.clone(),
        reason: entry.reason.clone(),
    }
}

pub(crate) fn to_json_or_base64(bytes: Option<&Bytes>) -> (Option<&RawValue>, Option<String>) {
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
        JobState::Scheduled | JobState::Dispatched | JobState::Running => output::held_reason(job),
        JobState::Succeeded
        | JobState::Failed
        | JobState::Timeout
        | JobState::Cancelled
        | JobState::Denied
        | JobState::OutputQuarantined => None,
    }
}

#[cfg(test)]
mod tests {
    use airlock_ledger::JobOutput;
    use airlock_model::output::{OutputDecision, OutputFinding, OutputPhase, OutputStatus};
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
            output: None,
        }
    }

    fn text(job: &JobView) -> String {
        serde_json::to_string(&to_api_job(job, Detail::Full, Timestamp(0))).unwrap()
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

    #[test]
    fn a_verdict_opens_and_closes_the_result() {
        for state in JobState::ALL {
            for status in OutputStatus::ALL {
                let mut job = job(state, b"\"secret\"");
                job.output = Some(Box::new(output(status)));
                let expected = match (state, status) {
                    (JobState::OutputQuarantined, status) => status == OutputStatus::Released,
                    (JobState::Succeeded, status) => status.is_readable(),
                    _ => false,
                };
                let text = text(&job);
                assert_eq!(text.contains("\"secret\""), expected, "{state} {status:?}");
                assert_eq!(text.contains("result_ptr\":\"redis"), expected);
                let waits = text.contains(r#""waiting_code":"output_held""#);
                let held = status == OutputStatus::Held && !state.is_final();
                assert_eq!(waits, held, "{state} {status:?}");
            }
        }
    }

    /// A finding in a key names the key in its pointer.
    #[test]
    fn pointers_are_shown_only_where_none_can_be_what_was_found() {
        let mut job = job(JobState::OutputQuarantined, b"1");
        let mut quarantined = output(OutputStatus::Quarantined);
        assert!(!quarantined.maskable);
        job.output = Some(Box::new(quarantined.clone()));
        let json = text(&job);
        assert!(
            json.contains(r#""detector":"jwt""#) && !json.contains("marker"),
            "{json}"
        );
        quarantined.maskable = true;
        job.output = Some(Box::new(quarantined));
        assert!(text(&job).contains(r#""pointer":"/marker""#));
        let line = to_api_job(&job, Detail::Line, Timestamp(0));
        assert!(line.output.unwrap().findings.is_none());
    }

    fn output(status: OutputStatus) -> JobOutput {
        JobOutput {
            status,
            decision: Some(OutputDecision::Quarantine),
            rule_id: Some("no-tokens".to_owned()),
            reason: None,
            severity: None,
            phase: Some(OutputPhase::Sync),
            policy_snapshot: None,
            sha256: Some(vec![0xab; 32]),
            decided_at: None,
            held_since: Some(Timestamp(0)),
            review: None,
            maskable: false,
            findings: vec![OutputFinding {
                kind: "secret_leak".to_owned(),
                detector: "jwt".to_owned(),
                severity: "high".to_owned(),
                confidence: 0.9,
                pointer: Some("/marker".to_owned()),
                start: 1,
                end: 2,
                encoding: None,
                excerpt: "eyJ\u{2026}".to_owned(),
            }],
        }
    }

    /// A job with every field that can be set.
    fn full() -> JobView {
        let at = Timestamp(1_700_000_000_000_000);
        let mut full = job(JobState::Succeeded, b"[2]");
        full.spec.labels.insert("env".to_owned(), "prod".to_owned());
        full.spec.capability = Some("pay".to_owned());
        full.spec.risk_tags = vec!["money".to_owned()];
        full.spec.estimated_cost = airlock_model::job::Cost::new(1.5).ok();
        full.spec.workflow_id = Some("w".to_owned());
        full.spec.principal_id = Some("ann".to_owned());
        full.spec.max_attempts = Some(3);
        full.submitted_by = Some("key".to_owned());
        full.idempotency_key = Some("i".to_owned());
        full.result_missing = true;
        full.due_at = Some(at);
        full.deadline_at = Some(at);
        full.finished_at = Some(at);
        full.worker_id = Some("w1".to_owned());
        full.decision = Some(airlock_model::Decision::Allow);
        full.rule_id = Some("r".to_owned());
        full.history = vec![airlock_ledger::HistoryEntry {
            state: JobState::Pending,
            at,
            attempt: 0,
            worker_id: None,
            reason: None,
        }];
        full
    }

    #[test]
    fn the_json_of_a_job_does_not_change() {
        let json =
            |detail| serde_json::to_string(&to_api_job(&full(), detail, Timestamp(0))).unwrap();
        let head = r#"{"job_id":"j","state":"SUCCEEDED","topic":"job.a","tenant_id":"t","priority":"INTERACTIVE","labels":{"env":"prod"},"capability":"pay","risk_tags":["money"],"estimated_cost":1.5,"workflow_id":"w","principal_id":"ann","submitted_by":"key","idempotency_key":"i","#;
        let tail = r#""result":[2],"result_ptr":"redis://res:j","result_missing":true,"failure_reason":null,"error_code":null,"attempts":1,"max_attempts":3,"worker_id":"w1","decision":{"decision":"ALLOW","rule_id":"r","reason":null,"policy_snapshot":null,"decided_at":null},:output"due_at":"2023-11-14T22:13:20.000000Z","deadline_at":"2023-11-14T22:13:20.000000Z","created_at":"1970-01-01T00:00:00.000001Z","finished_at":"2023-11-14T22:13:20.000000Z","trace_id":"x""#;
        let tail = |output| tail.replace(":output", output);
        let (line, tail) = (tail(""), tail(r#""output":{"status":"skipped"},"#));
        let history = r#","history":[{"state":"PENDING","at":"2023-11-14T22:13:20.000000Z","attempt":0,"worker_id":null,"reason":null}]}"#;
        let payload = r#""payload":[1e400],"#;
        assert_eq!(
            json(Detail::Full),
            format!("{head}{payload}{tail}{history}")
        );
        assert_eq!(json(Detail::Outcome), format!("{head}{tail}{history}"));
        assert_eq!(json(Detail::Line), format!("{head}{line}}}"));
    }
}
