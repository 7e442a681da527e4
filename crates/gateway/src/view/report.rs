//! How what a worker said of its run is shown.
//!
//! What must stay true: of a job whose output is held back, nothing it made is shown: no
//! partial result and no artifact.

use airlock_ledger::{Artifact, ConstraintReport, JobReport, Partial};
use airlock_model::{JobState, Timestamp};
use serde::Serialize;
use serde_json::value::RawValue;

use super::job::embed;

#[derive(Debug, Serialize)]
pub struct ShownReport<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<ShownProgress<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    partials: Vec<ShownPartial<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    artifacts: Vec<ShownArtifact<'a>>,
    #[serde(skip_serializing_if = "<[ConstraintReport]>::is_empty")]
    constraint_report: &'a [ConstraintReport],
}

#[derive(Debug, Serialize)]
struct ShownProgress<'a> {
    percent: i16,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
    attempt: u32,
    at: String,
}

#[derive(Debug, Serialize)]
struct ShownPartial<'a> {
    percent: i16,
    attempt: u32,
    at: String,
    pointer: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_base64: Option<String>,
}

#[derive(Debug, Serialize)]
struct ShownArtifact<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    pointer: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    media_type: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
    attempt: u32,
    at: String,
}

pub fn show(report: &JobReport, state: JobState) -> ShownReport<'_> {
    let held_back = state == JobState::OutputQuarantined;
    let made = (!held_back).then_some(report);
    ShownReport {
        progress: report.progress.as_ref().map(|p| ShownProgress {
            percent: p.percent,
            step: p.step.as_deref(),
            message: p.message.as_deref(),
            attempt: report.attempt,
            at: p.at.to_rfc3339(),
        }),
        partials: made
            .map(|r| r.partials.iter().map(partial).collect())
            .unwrap_or_default(),
        artifacts: made
            .map(|r| r.artifacts.iter().map(artifact).collect())
            .unwrap_or_default(),
        constraint_report: &report.constraints,
    }
}

fn partial(p: &Partial) -> ShownPartial<'_> {
    let (content, content_base64) = embed(p.content.as_ref());
    ShownPartial {
        percent: p.percent,
        attempt: p.attempt,
        at: Timestamp::to_rfc3339(p.at),
        pointer: &p.pointer,
        size: p.size,
        content,
        content_base64,
    }
}

fn artifact(a: &Artifact) -> ShownArtifact<'_> {
    let hex = |bytes: &Vec<u8>| bytes.iter().map(|b| format!("{b:02x}")).collect();
    ShownArtifact {
        name: &a.name,
        pointer: &a.pointer,
        media_type: &a.media_type,
        size: a.size,
        sha256: a.sha256.as_ref().map(hex),
        attempt: a.attempt,
        at: a.at.to_rfc3339(),
    }
}

#[cfg(test)]
mod tests {
    use airlock_ledger::{ConstraintOutcome, Progress};
    use bytes::Bytes;

    use super::*;

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
            }],
            artifacts: vec![Artifact {
                attempt: 1,
                name: "made.png".to_owned(),
                pointer: "redis://art:1".to_owned(),
                media_type: String::new(),
                size: None,
                sha256: Some(vec![0xab; 32]),
                at,
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
        let json = serde_json::to_string(&show(&report(), JobState::Running)).unwrap();
        for part in [
            r#""progress":{"percent":40,"message":"resized","attempt":2,"#,
            r#""content":["made"]"#,
            r#""sha256":"abab"#,
            r#"[{"constraint":"budgets.max_runtime_ms","outcome":"enforced"}]"#,
        ] {
            assert!(json.contains(part), "{part} in {json}");
        }
    }

    #[test]
    fn of_a_quarantined_job_nothing_it_made_is_shown() {
        for state in JobState::ALL {
            let json = serde_json::to_string(&show(&report(), state)).unwrap();
            let shown = json.contains("made");
            assert_eq!(shown, state != JobState::OutputQuarantined, "{state}");
            assert!(json.contains("resized"), "{state}");
        }
    }
}
