//! The messages as the policy's types, and verdicts as messages.

use airlock_model::output::OutputDecision;
use airlock_policy::output::{OutputRequest, OutputRuling};
use airlock_proto::cap;
use airlock_scan::{Finding, LIMIT};

/// Findings of one response; a scan may have ten times as many.
pub const MAX_FINDINGS: usize = 100;
/// Bytes of a JSON pointer; a longer one is left out.
const MAX_POINTER_BYTES: usize = 1_024;

/// Bytes of the whole output, as far as anybody says.
pub fn output_size(request: &cap::OutputCheckRequest) -> u64 {
    let claimed = u64::try_from(request.output_size_bytes).unwrap_or(0);
    claimed.max(request.output_content.len() as u64)
}

/// Whether the content in the request is all of the output.
pub fn is_complete(request: &cap::OutputCheckRequest) -> bool {
    request.output_content.len() as u64 >= output_size(request)
}

pub fn to_policy_request(request: &cap::OutputCheckRequest) -> OutputRequest<'_> {
    OutputRequest {
        topic: &request.topic,
        tenant: &request.tenant,
        principal_id: &request.principal_id,
        labels: &request.labels,
        capabilities: &request.capabilities,
        risk_tags: &request.risk_tags,
        pack_id: &request.pack_id,
        content_type: &request.content_type,
        size: output_size(request),
        has_error: !request.error_message.is_empty() || !request.error_code.is_empty(),
        error_code: &request.error_code,
        execution_ms: request.execution_ms,
        worker_id: &request.worker_id,
        workflow_id: &request.workflow_id,
        step_id: &request.step_id,
    }
}

/// A response with neither findings nor a masked copy.
pub fn to_response(ruling: &OutputRuling, snapshot: &str) -> cap::OutputCheckResponse {
    let decision = match ruling.decision {
        OutputDecision::Allow => cap::OutputDecision::Allow,
        OutputDecision::Quarantine | OutputDecision::Deny => cap::OutputDecision::Quarantine,
        OutputDecision::Redact => cap::OutputDecision::Redact,
    };
    cap::OutputCheckResponse {
        decision: decision.into(),
        reason: ruling.reason.to_string(),
        rule_id: ruling.rule_id.as_deref().unwrap_or_default().to_owned(),
        policy_snapshot: snapshot.to_owned(),
        deny: ruling.decision == OutputDecision::Deny,
        severity: ruling.severity.map(|s| s.to_string()).unwrap_or_default(),
        ..Default::default()
    }
}

/// The first [`MAX_FINDINGS`]. One that says that something was not looked at is kept.
pub fn to_wire_findings(findings: &[Finding]) -> Vec<cap::OutputFinding> {
    let mut kept: Vec<&Finding> = findings.iter().take(MAX_FINDINGS).collect();
    let mut rest = findings.iter().skip(MAX_FINDINGS);
    if let Some(limit) = rest.find(|f| f.detector == LIMIT) {
        kept.pop();
        kept.push(limit);
    }
    kept.into_iter().map(to_wire_finding).collect()
}

fn to_wire_finding(finding: &Finding) -> cap::OutputFinding {
    let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    let pointer = finding.pointer.clone().unwrap_or_default();
    cap::OutputFinding {
        r#type: finding.kind.to_string(),
        severity: finding.severity.to_string(),
        detail: finding.excerpt.clone(),
        offset: number(finding.start),
        length: number(finding.end.saturating_sub(finding.start)),
        scanner: finding.detector.clone(),
        confidence: finding.confidence,
        matched_pattern: finding.detector.clone(),
        pointer: if pointer.len() > MAX_POINTER_BYTES {
            String::new()
        } else {
            pointer
        },
        encoding: finding.encoding.map(|e| e.to_string()).unwrap_or_default(),
    }
}
