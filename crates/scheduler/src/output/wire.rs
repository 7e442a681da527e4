//! Between results and the messages of the output policy service.

use airlock_ledger::StoredOutputPolicy;
use airlock_model::engine::QueuedJob;
use airlock_model::output::{
    ClosedRules, OutputDecision, OutputFinding, OutputPhase, OutputVerdict,
};
use airlock_proto::{cap, own};
use bytes::Bytes;

use crate::kernel::FailMode;

/// What is known of a run and its output beside the job.
#[derive(Debug, Clone, Default)]
pub struct RunFacts {
    pub worker_id: String,
    pub execution_ms: i64,
    pub error_code: String,
    pub error_message: String,
    pub result_ptr: String,
    pub artifact_ptrs: Vec<String>,
}

/// An answer about one output.
#[derive(Debug, Clone)]
pub struct Answer {
    pub verdict: OutputVerdict,
    pub masked: Option<Bytes>,
    /// Where the masked copy is, when it does not come with the answer.
    pub masked_ptr: String,
    /// Metadata alone did not decide.
    pub content_needed: bool,
    /// A rule that fails closed may apply.
    pub closed: bool,
}

/// A request with the content is one for both phases, and one without for the first.
pub fn to_request(
    job: &QueuedJob,
    facts: &RunFacts,
    (size, sha256, content_type): (u64, &[u8], &str),
    content: Option<Bytes>,
) -> cap::OutputCheckRequest {
    let spec = &job.spec;
    let text = |s: &Option<String>| s.clone().unwrap_or_default();
    let phase = match content {
        Some(_) => own::OutputPhase::Unspecified,
        None => own::OutputPhase::Metadata,
    };
    cap::OutputCheckRequest {
        job_id: job.id.to_string(),
        topic: spec.topic.as_str().to_owned(),
        tenant: job.tenant.to_string(),
        labels: spec.labels.clone(),
        result_ptr: facts.result_ptr.clone(),
        artifact_ptrs: facts.artifact_ptrs.clone(),
        error_message: facts.error_message.clone(),
        error_code: facts.error_code.clone(),
        worker_id: facts.worker_id.clone(),
        execution_ms: facts.execution_ms,
        output_size_bytes: i64::try_from(size).unwrap_or(i64::MAX),
        content_hash: sha256.iter().map(|byte| format!("{byte:02x}")).collect(),
        workflow_id: text(&spec.workflow_id),
        step_id: spec.step_index.map(|n| n.to_string()).unwrap_or_default(),
        output_content: content.unwrap_or_default(),
        capabilities: spec.capability.iter().cloned().collect(),
        risk_tags: spec.risk_tags.clone(),
        principal_id: text(&spec.principal_id),
        pack_id: text(&spec.pack_id),
        content_type: content_type.to_owned(),
        phase: i32::from(phase),
    }
}

/// The type of an output by how it looks: workers do not name one.
pub fn content_type(content: &[u8]) -> &'static str {
    let text = content.trim_ascii();
    let ends = (text.first(), text.last());
    match ends {
        (Some(b'{'), Some(b'}')) | (Some(b'['), Some(b']')) | (Some(b'"'), Some(b'"')) => {
            "application/json"
        }
        (Some(b'0'..=b'9' | b'-'), Some(b'0'..=b'9')) => "application/json",
        _ if [&b"true"[..], b"false", b"null"].contains(&text) => "application/json",
        (None, None) => "",
        _ if std::str::from_utf8(content).is_ok() => "text/plain",
        _ => "application/octet-stream",
    }
}

/// One answer per request, or what is wrong with them.
pub fn parse_responses(
    responses: Vec<cap::OutputCheckResponse>,
    asked: usize,
) -> Result<Vec<Answer>, String> {
    if responses.len() != asked {
        return Err(format!("{} answers to {asked} requests", responses.len()));
    }
    responses.into_iter().map(parse_response).collect()
}

fn parse_response(r: cap::OutputCheckResponse) -> Result<Answer, String> {
    use cap::OutputDecision as D;
    let decision = match D::try_from(r.decision) {
        Ok(D::Allow) if r.deny => return Err("an answer that allows and denies".to_owned()),
        Ok(D::Allow) => OutputDecision::Allow,
        Ok(D::Quarantine) if r.deny => OutputDecision::Deny,
        Ok(D::Quarantine) => OutputDecision::Quarantine,
        Ok(D::Redact) => OutputDecision::Redact,
        Err(_) => return Err(format!("an unknown decision ({})", r.decision)),
    };
    Ok(Answer {
        verdict: OutputVerdict {
            decision,
            rule_id: r.rule_id,
            reason: r.reason,
            severity: r.severity,
            phase: OutputPhase::Sync,
            policy_snapshot: r.policy_snapshot,
            findings: r.findings.into_iter().map(to_finding).collect(),
        },
        masked: r.redacted_content,
        masked_ptr: r.redacted_ptr,
        content_needed: r.content_needed,
        closed: r.closed,
    })
}

fn to_finding(f: cap::OutputFinding) -> OutputFinding {
    let number = |n: i64| u64::try_from(n).unwrap_or(0);
    let text = |s: String| (!s.is_empty()).then_some(s);
    OutputFinding {
        kind: f.r#type,
        detector: match f.matched_pattern.is_empty() {
            true => f.scanner,
            false => f.matched_pattern,
        },
        severity: f.severity,
        confidence: f.confidence,
        pointer: text(f.pointer),
        start: number(f.offset),
        end: number(f.offset).saturating_add(number(f.length)),
        encoding: text(f.encoding),
        excerpt: f.detail,
    }
}

/// The policy that a scanner names, or what is wrong with its answer.
pub fn parse_policy(answer: &own::ConfirmOutputResponse) -> Result<StoredOutputPolicy, String> {
    let closed_rules: ClosedRules = match answer.closed_rules.as_str() {
        "" => ClosedRules::default(),
        json => serde_json::from_str(json).map_err(|e| format!("closed_rules: {e}"))?,
    };
    Ok(StoredOutputPolicy {
        snapshot: answer.snapshot.clone(),
        closed_rules,
        fail_closed: to_fail_mode(answer.fail_mode) == Some(FailMode::Closed),
    })
}

fn to_fail_mode(mode: i32) -> Option<FailMode> {
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
    fn answers_that_make_no_sense_are_no_answers() {
        let good = cap::OutputCheckResponse::default();
        let odd = |change: fn(&mut cap::OutputCheckResponse)| {
            let mut response = good.clone();
            change(&mut response);
            parse_responses(vec![response], 1)
        };
        assert!(parse_responses(vec![good.clone()], 1).is_ok());
        assert!(parse_responses(vec![good.clone()], 2).is_err());
        assert!(parse_responses(Vec::new(), 1).is_err());
        assert!(odd(|r| r.decision = 7).is_err());
        assert!(odd(|r| r.deny = true).is_err());
        let deny = odd(|r| {
            r.decision = i32::from(cap::OutputDecision::Quarantine);
            r.deny = true;
        });
        assert_eq!(deny.unwrap()[0].verdict.decision, OutputDecision::Deny);
    }

    #[test]
    fn a_policy_that_cannot_be_read_replaces_none() {
        let mut answer = own::ConfirmOutputResponse::default();
        assert_eq!(
            parse_policy(&answer).unwrap().closed_rules,
            ClosedRules::default()
        );
        answer.closed_rules = "[{\"id\":\"r\",\"topics\":[\"job.*\"]}]".to_owned();
        assert_eq!(parse_policy(&answer).unwrap().closed_rules.0.len(), 1);
        answer.closed_rules = "garbage".to_owned();
        assert!(parse_policy(&answer).is_err());
    }

    #[test]
    fn types_are_known_by_their_looks() {
        for (content, named) in [
            (&b" {\"a\":1}\n"[..], "application/json"),
            (b"[]", "application/json"),
            (b"12.5", "application/json"),
            (b"null", "application/json"),
            (b"hello", "text/plain"),
            (b"\xff\xfe", "application/octet-stream"),
            (b"", ""),
        ] {
            assert_eq!(content_type(content), named, "{content:?}");
        }
    }
}
