//! How what a worker said of its run is shown.
//!
//! What must stay true: of a job whose output nobody may read, nothing is shown that its
//! worker wrote: neither pointers and contents of what it made nor its words. The ledger
//! withholds what the output policy objects to in other jobs, and leaves its pointer empty.

use airlock_api::{Artifact, ConstraintReport, Partial, Progress};
use airlock_ledger::{ConstraintOutcome, JobReport};
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

/// `readable`: whoever may see the job may read its output.
pub fn to_api_report(report: Option<&JobReport>, readable: bool) -> ReportView<'_> {
    let Some(report) = report else {
        return ReportView::default();
    };
    ReportView {
        progress: report.progress.as_ref().map(|p| Progress {
            percent: to_percent(p.percent),
            step: p.step.clone().filter(|_| readable),
            message: p.message.clone().filter(|_| readable),
            attempt: report.attempt,
            at: p.at.to_rfc3339(),
        }),
        partials: report
            .partials
            .iter()
            .map(|p| to_api_partial(p, readable))
            .collect(),
        artifacts: report
            .artifacts
            .iter()
            .map(|a| to_api_artifact(a, readable))
            .collect(),
        constraints: report
            .constraints
            .iter()
            .map(|c| to_api_constraint(c, readable))
            .collect(),
    }
}

/// The ledger stores 0 to 100 only.
fn to_percent(stored: i16) -> u8 {
    u8::try_from(stored.clamp(0, 100)).unwrap_or_default()
}

fn to_api_partial(p: &airlock_ledger::Partial, readable: bool) -> Partial<&RawValue> {
    let withheld = !readable || p.pointer.is_empty();
    let (content, content_base64) = to_json_or_base64(p.content.as_ref().filter(|_| !withheld));
    Partial {
        percent: to_percent(p.percent),
        attempt: p.attempt,
        at: p.at.to_rfc3339(),
        pointer: unless(withheld, &p.pointer),
        withheld,
        size: p.size,
        content,
        content_base64,
    }
}

/// A text, or nothing where it is withheld.
fn unless(withheld: bool, text: &str) -> String {
    if withheld {
        String::new()
    } else {
        text.to_owned()
    }
}

fn to_api_artifact(a: &airlock_ledger::Artifact, readable: bool) -> Artifact {
    let withheld = !readable || a.pointer.is_empty();
    let hex = |bytes: &Vec<u8>| bytes.iter().map(|b| format!("{b:02x}")).collect();
    Artifact {
        name: unless(!readable, &a.name),
        pointer: unless(withheld, &a.pointer),
        withheld,
        media_type: unless(!readable, &a.media_type),
        size: a.size,
        sha256: a.sha256.as_ref().filter(|_| !withheld).map(hex),
        attempt: a.attempt,
        at: a.at.to_rfc3339(),
    }
}

fn to_api_constraint(c: &airlock_ledger::ConstraintReport, readable: bool) -> ConstraintReport {
    let outcome = match c.outcome {
        ConstraintOutcome::Enforced => "enforced",
        ConstraintOutcome::Refused => "refused",
        ConstraintOutcome::Unchecked => "unchecked",
    };
    ConstraintReport {
        constraint: c.constraint.clone(),
        outcome: outcome.to_owned(),
        detail: unless(!readable, &c.detail),
    }
}

#[cfg(test)]
mod tests {
    use airlock_ledger::{Artifact, ConstraintReport, Partial, Progress};
    use airlock_model::Timestamp;
    use bytes::Bytes;

    use super::{ConstraintOutcome, JobReport, to_api_report};

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
        let shown = to_api_report(Some(&report), true);
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

    fn json(report: &JobReport, readable: bool) -> String {
        let shown = to_api_report(Some(report), readable);
        let parts = (
            &shown.progress,
            &shown.partials,
            &shown.artifacts,
            &shown.constraints,
        );
        serde_json::to_string(&parts).unwrap()
    }

    #[test]
    fn of_an_output_that_nobody_may_read_nothing_its_worker_wrote_is_shown() {
        let mut report = report();
        report.constraints[0].detail = "made".to_owned();
        let text = json(&report, false);
        for secret in ["made", "resized", "redis:", "abab"] {
            assert!(json(&report, true).contains(secret), "{secret}");
            assert!(!text.contains(secret), "{secret} in {text}");
        }
        assert!(text.contains(r#""percent":40"#), "{text}");
        assert_eq!(text.matches(r#""withheld":true"#).count(), 2, "{text}");
    }

    #[test]
    fn what_the_ledger_withholds_is_marked_and_keeps_its_name() {
        let mut report = report();
        report.partials[0].pointer.clear();
        report.partials[0].content = None;
        report.artifacts[0].pointer.clear();
        let text = json(&report, true);
        assert_eq!(text.matches(r#""withheld":true"#).count(), 2, "{text}");
        assert!(
            !text.contains("pointer") && text.contains("made.png"),
            "{text}"
        );
    }
}
