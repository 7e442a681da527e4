//! How what a worker said of its run is shown.
//!
//! What must stay true: of a job whose output is held back, nothing it made is shown: no
//! partial result and no artifact.

use airlock_api::{Artifact, ConstraintReport, Partial, Progress};
use airlock_ledger::{ConstraintOutcome, JobReport};
use airlock_model::JobState;
use serde_json::value::RawValue;

use super::job::to_json_or_base64;

/// The part of a job that its worker reported.
#[derive(Debug, Default)]
pub struct ReportView<'a> {
    pub progress: Option<Progress>,
    pub partials: Vec<Partial<&'a RawValue>>,
    pub artifacts: Vec<Artifact>,
    pub constraints: Vec<ConstraintReport>,
}

pub fn to_api_report(report: Option<&JobReport>, state: JobState) -> ReportView<'_> {
    let Some(report) = report else {
        return ReportView::default();
    };
    let held_back = state == JobState::OutputQuarantined;
    let made = (!held_back).then_some(report);
    ReportView {
        progress: report.progress.as_ref().map(|p| Progress {
            percent: to_percent(p.percent),
            step: p.step.clone(),
            message: p.message.clone(),
            attempt: report.attempt,
            at: p.at.to_rfc3339(),
        }),
        partials: made
            .map(|r| r.partials.iter().map(to_api_partial).collect())
            .unwrap_or_default(),
        artifacts: made
            .map(|r| r.artifacts.iter().map(to_api_artifact).collect())
            .unwrap_or_default(),
        constraints: report.constraints.iter().map(to_api_constraint).collect(),
    }
}

/// The ledger stores 0 to 100 only.
fn to_percent(stored: i16) -> u8 {
    u8::try_from(stored.clamp(0, 100)).unwrap_or_default()
}

fn to_api_partial(p: &airlock_ledger::Partial) -> Partial<&RawValue> {
    let (content, content_base64) = to_json_or_base64(p.content.as_ref());
    Partial {
        percent: to_percent(p.percent),
        attempt: p.attempt,
        at: p.at.to_rfc3339(),
        pointer: p.pointer.clone(),
        size: p.size,
        content,
        content_base64,
    }
}

fn to_api_artifact(a: &airlock_ledger::Artifact) -> Artifact {
    let hex = |bytes: &Vec<u8>| bytes.iter().map(|b| format!("{b:02x}")).collect();
    Artifact {
        name: a.name.clone(),
        pointer: a.pointer.clone(),
        media_type: a.media_type.clone(),
        size: a.size,
        sha256: a.sha256.as_ref().map(hex),
        attempt: a.attempt,
        at: a.at.to_rfc3339(),
    }
}

fn to_api_constraint(c: &airlock_ledger::ConstraintReport) -> ConstraintReport {
    let outcome = match c.outcome {
        ConstraintOutcome::Enforced => "enforced",
        ConstraintOutcome::Refused => "refused",
        ConstraintOutcome::Unchecked => "unchecked",
    };
    ConstraintReport {
        constraint: c.constraint.clone(),
        outcome: outcome.to_owned(),
        detail: c.detail.clone(),
    }
}

#[cfg(test)]
mod tests {
    use airlock_ledger::{Artifact, ConstraintReport, Partial, Progress};
    use airlock_model::Timestamp;
    use bytes::Bytes;

    use super::{ConstraintOutcome, JobReport, JobState, to_api_report};

    fn report() -> JobReport {
        let at = Timestamp(0);
        JobReport {
            attempt: 2,
            progress: Some(Progress {
                percent: 40,
                step: None,
                message: Some("resized".to_owned()),
                at,
            }),
            partials: vec![Partial {
                attempt: 2,
                percent: 40,
                pointer: "redis://res:j:partial:1".to_owned(),
                size: Some(8),
                content: Some(Bytes::from_static(b"[\"made\"]")),
                at,
                output: None,
            }],
            artifacts: vec![Artifact {
                attempt: 1,
                name: "made.png".to_owned(),
                pointer: "redis://art:1".to_owned(),
                media_type: String::new(),
                size: None,
                sha256: Some(vec![0xab; 32]),
                at,
                output: None,
            }],
            constraints: vec![ConstraintReport {
                constraint: "budgets.max_runtime_ms".to_owned(),
                outcome: ConstraintOutcome::Enforced,
                detail: String::new(),
            }],
        }
    }

    #[test]
    fn everything_is_shown_with_the_run_it_is_of() {
        let report = report();
        let shown = to_api_report(Some(&report), JobState::Running);
        let json = serde_json::to_string(&shown.progress).unwrap();
        assert!(
            json.starts_with(r#"{"percent":40,"message":"resized","attempt":2,"#),
            "{json}"
        );
        let json = serde_json::to_string(&shown.partials).unwrap();
        assert!(json.contains(r#""content":["made"]"#), "{json}");
        let json = serde_json::to_string(&shown.artifacts).unwrap();
        assert!(json.contains(r#""sha256":"abab"#), "{json}");
        assert_eq!(
            serde_json::to_string(&shown.constraints).unwrap(),
            r#"[{"constraint":"budgets.max_runtime_ms","outcome":"enforced"}]"#
        );
    }

    #[test]
    fn of_a_quarantined_job_nothing_it_made_is_shown() {
        let report = report();
        for state in JobState::ALL {
            let shown = to_api_report(Some(&report), state);
            let made = !shown.partials.is_empty() || !shown.artifacts.is_empty();
            assert_eq!(made, state != JobState::OutputQuarantined, "{state}");
            assert!(shown.progress.is_some(), "{state}");
        }
    }
}
