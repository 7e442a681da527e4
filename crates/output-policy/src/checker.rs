//! One request to one response.
//!
//! [`plan_check`] costs microseconds and runs where the call is received; what it leaves
//! open, [`scan_and_check`] decides on the pool. What must stay true: a panic on one output
//! quarantines that output and is no answer about any other.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use airlock_model::output::OutputDecision;
use airlock_policy::FailMode;
use airlock_policy::output::{MetadataCheck, OutputContent, OutputRuling};
use airlock_proto::{cap, own};

use crate::active::ActivePolicy;
use crate::metrics::OutputMetrics;
use crate::wire;

/// What the metadata of one request leads to.
#[derive(Debug)]
pub enum CheckPlan {
    Answer(cap::OutputCheckResponse),
    /// The content is scanned.
    Scan,
}

/// Decides by metadata, or that the content is needed and there.
pub fn plan_check(
    active: &ActivePolicy,
    over: Option<FailMode>,
    request: &cap::OutputCheckRequest,
) -> CheckPlan {
    let phase = request.phase();
    let checked = catch_unwind(AssertUnwindSafe(|| {
        let output = wire::to_policy_request(request);
        active.rules().check_metadata(&output, over)
    }));
    let Ok(checked) = checked else {
        return CheckPlan::Answer(wire::to_response(&panicked(), active.snapshot()));
    };
    let metadata_alone = match phase {
        own::OutputPhase::Metadata => true,
        own::OutputPhase::Content => false,
        own::OutputPhase::Unspecified => {
            request.output_content.is_empty() && wire::output_size(request) > 0
        }
    };
    match checked {
        // What is kept from its readers is scanned all the same, for whoever reviews it.
        MetadataCheck::Decided(ruling)
            if metadata_alone
                || ruling.decision == OutputDecision::Allow
                || request.output_content.is_empty() =>
        {
            CheckPlan::Answer(wire::to_response(&ruling, active.snapshot()))
        }
        MetadataCheck::ContentNeeded { closed } if metadata_alone => {
            CheckPlan::Answer(cap::OutputCheckResponse {
                decision: cap::OutputDecision::Allow.into(),
                reason: "the content decides".to_owned(),
                policy_snapshot: active.snapshot().to_owned(),
                content_needed: true,
                closed,
                ..Default::default()
            })
        }
        MetadataCheck::Decided(_) | MetadataCheck::ContentNeeded { .. } => CheckPlan::Scan,
    }
}

/// Scans the content and decides by it. Takes as long as the content is large.
pub fn scan_and_check(
    active: &ActivePolicy,
    metrics: &OutputMetrics,
    request: &cap::OutputCheckRequest,
) -> cap::OutputCheckResponse {
    let began = Instant::now();
    let scanned = catch_unwind(AssertUnwindSafe(|| scan_content(active, request)));
    metrics.record_scan(began.elapsed().as_secs_f64(), request.output_content.len());
    scanned.unwrap_or_else(|_| {
        tracing::error!(job_id = %request.job_id, "scanning an output panicked");
        wire::to_response(&panicked(), active.snapshot())
    })
}

fn scan_content(
    active: &ActivePolicy,
    request: &cap::OutputCheckRequest,
) -> cap::OutputCheckResponse {
    let bytes: &[u8] = &request.output_content;
    let report = active.scanner().scan(bytes);
    let complete = wire::is_complete(request);
    let content = OutputContent {
        bytes,
        report: &report,
        complete,
    };
    let output = wire::to_policy_request(request);
    let mut ruling = active.rules().check_content(&output, &content);
    let mut findings = report.findings;
    let mut copy = None;
    if ruling.decision != OutputDecision::Allow {
        let rule_id = ruling.rule_id.as_deref();
        let masked = active.rules().mask(rule_id, active.scanner(), bytes);
        findings.extend(masked.findings);
        findings.sort_by_key(|f| (f.start, f.end));
        // Of a part of an output there is no masked copy.
        copy = masked.bytes.filter(|_| complete);
    }
    if ruling.decision == OutputDecision::Redact {
        match &copy {
            Some(copy) if copy == bytes => {
                ruling.decision = OutputDecision::Allow;
                ruling.reason = format!("{}; nothing to mask", ruling.reason).into();
            }
            Some(_) => {}
            None => {
                ruling.reason =
                    format!("{}; what was found cannot be masked", ruling.reason).into();
            }
        }
    }
    let mut response = wire::to_response(&ruling, active.snapshot());
    response.findings = wire::to_wire_findings(&findings);
    if ruling.decision != OutputDecision::Allow {
        response.redacted_content = copy.map(Into::into);
    }
    response
}

fn panicked() -> OutputRuling {
    OutputRuling {
        decision: OutputDecision::Quarantine,
        rule_id: None,
        reason: "quarantined: checking the output failed".into(),
        severity: None,
    }
}
