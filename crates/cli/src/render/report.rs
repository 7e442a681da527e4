//! What a worker reported about its run, as a person reads it.

use airlock_client::{Job, Partial, Progress};

use super::RenderContext;
use crate::terminal::{one_line, strip_control_chars};

/// What stands for what the output policy does not let out.
const WITHHELD: &str = "withheld by the output policy";

/// Lines for everything there is, each with its name.
pub fn report_facts(job: &Job) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    facts.extend(
        job.progress
            .as_ref()
            .map(|p| ("progress", format_progress(p))),
    );
    if let Some(last) = job.partials.last() {
        let count = job.partials.len();
        facts.push((
            "partials",
            format!("{count}, the last {}", format_partial(last)),
        ));
    }
    for artifact in &job.artifacts {
        let mut parts = vec![match artifact.withheld {
            true => WITHHELD.to_owned(),
            false => one_line(&artifact.pointer),
        }];
        if !artifact.name.is_empty() {
            parts.insert(0, one_line(&artifact.name));
        }
        if !artifact.media_type.is_empty() {
            parts.push(one_line(&artifact.media_type));
        }
        parts.extend(artifact.size.map(|size| format!("{size} bytes")));
        facts.push(("artifact", parts.join(", ")));
    }
    for report in &job.constraint_report {
        let mut text = format!(
            "{} {}",
            one_line(&report.constraint),
            one_line(&report.outcome)
        );
        if !report.detail.is_empty() {
            text.push_str(&format!(": {}", one_line(&report.detail)));
        }
        facts.push(("constraint", text));
    }
    facts
}

fn format_progress(progress: &Progress) -> String {
    let mut text = format!("{} %", progress.percent);
    for parts in [&progress.step, &progress.message].into_iter().flatten() {
        text.push_str(&format!("  {}", one_line(parts)));
    }
    text
}

fn format_partial(partial: &Partial) -> String {
    if partial.withheld {
        return WITHHELD.to_owned();
    }
    match (&partial.content, &partial.content_base64, partial.size) {
        (Some(json), _, _) => strip_control_chars(json.get()).into_owned(),
        (None, Some(text), _) => format!("{} (base64)", strip_control_chars(text)),
        (None, None, Some(size)) => format!("{size} bytes at {}", one_line(&partial.pointer)),
        (None, None, None) => format!("at {}", one_line(&partial.pointer)),
    }
}

/// What of it has not been shown yet.
#[derive(Debug, Default)]
pub struct ReportUpdates {
    progress: Option<Progress>,
    partial: Option<String>,
}

impl ReportUpdates {
    pub fn new_lines(&mut self, job: &Job, ctx: &RenderContext) -> Vec<String> {
        let mut lines = Vec::new();
        if job.progress.is_some() && job.progress != self.progress {
            self.progress.clone_from(&job.progress);
            lines.extend(job.progress.as_ref().map(format_progress));
        }
        let last = job.partials.last();
        let at = last.map(|p| p.at.clone());
        if at.is_some() && at != self.partial {
            self.partial = at;
            lines.extend(last.map(|p| format!("so far: {}", format_partial(p))));
        }
        lines
            .into_iter()
            .map(|line| ctx.paint.dim(&format!("  {line}")))
            .collect()
    }
}
