//! Jobs as a person reads them. Pure: the moment, the time zone and the colours are
//! given, so that what is shown can be tested.

mod history;
mod report;
mod table;
pub mod time;

pub use history::{Updates, format_history_entry};
pub use table::{Facts, relative_to_now, render_table};

use airlock_client::{Job, JobPage, OutputStatus, OutputVerdict};
use airlock_model::{JobState, Timestamp};
use jiff::tz::TimeZone;

use crate::terminal::{Paint, one_line, strip_control_chars};

/// What rendering depends on.
#[derive(Debug, Clone)]
pub struct RenderContext {
    pub now: Timestamp,
    pub zone: TimeZone,
    pub paint: Paint,
}

impl RenderContext {
    pub fn from_system(paint: Paint) -> Self {
        Self {
            now: time::now(),
            zone: TimeZone::system(),
            paint,
        }
    }
}

/// Everything about one job.
pub fn render_job(job: &Job, ctx: &RenderContext) -> String {
    let mut lines = vec![format!(
        "{}  {}  {}",
        ctx.paint.bold(&one_line(&job.job_id)),
        ctx.paint.state(job.state),
        one_line(&job.topic),
    )];
    for (name, value) in job_facts(job, ctx) {
        lines.push(format!(
            "  {} {value}",
            ctx.paint.dim(&format!("{name:<10}"))
        ));
    }
    if !job.history.is_empty() {
        lines.push(ctx.paint.dim("  history"));
        let mut before = None;
        for entry in &job.history {
            lines.push(format!("  {}", format_history_entry(entry, before, ctx)));
            before = time::parse_timestamp(&entry.at);
        }
    }
    lines.extend(render_result(job, ctx));
    lines.join("\n")
}

fn job_facts(job: &Job, ctx: &RenderContext) -> Vec<(&'static str, String)> {
    let moment = |text: &str| match time::parse_timestamp(text) {
        Some(at) => {
            let date = time::format_date(at, &ctx.zone);
            format!("{date} ({})", time::format_relative(at, ctx.now))
        }
        None => one_line(text),
    };
    let mut facts = vec![
        ("tenant", one_line(&job.tenant_id)),
        ("created", moment(&job.created_at)),
    ];
    let mut add = |name, value: Option<String>| facts.extend(value.map(|value| (name, value)));
    add("due", job.due_at.as_deref().map(moment));
    let took = format_time_taken(job)
        .map(|took| format!(", after {took}"))
        .unwrap_or_default();
    add(
        "ended",
        job.finished_at.as_deref().map(|at| moment(at) + &took),
    );
    add("priority", Some(job.priority.as_str().to_owned()));
    add("attempts", format_attempts(job));
    add("worker", job.worker_id.as_deref().map(one_line));
    add(
        "labels",
        join_non_empty(
            job.labels
                .iter()
                .map(|(key, value)| format!("{key}={value}")),
        ),
    );
    add("risk tags", join_non_empty(job.risk_tags.iter().cloned()));
    add("cost", job.estimated_cost.map(|cost| cost.to_string()));
    add("workflow", job.workflow_id.as_deref().map(one_line));
    add("decision", job.decision.as_ref().map(format_decision));
    add("output", job.output.as_ref().and_then(format_output));
    add("waiting", job.waiting_reason.as_deref().map(one_line));
    add("reason", format_failure(job));
    add("trace", Some(one_line(&job.trace_id)));
    facts.extend(report::report_facts(job));
    facts
}

/// From acceptance to the end.
fn format_time_taken(job: &Job) -> Option<String> {
    let end = time::parse_timestamp(job.finished_at.as_deref()?)?;
    Some(time::format_duration(
        end.since(time::parse_timestamp(&job.created_at)?),
    ))
}

fn format_attempts(job: &Job) -> Option<String> {
    (job.attempts > 0).then(|| match job.max_attempts {
        Some(most) => format!("{} of {most}", job.attempts),
        None => job.attempts.to_string(),
    })
}

fn join_non_empty(texts: impl Iterator<Item = String>) -> Option<String> {
    let text = texts.collect::<Vec<_>>().join(", ");
    (!text.is_empty()).then(|| one_line(&text))
}

fn format_decision(decision: &airlock_client::Decision) -> String {
    let mut text = one_line(&decision.decision);
    if let Some(rule) = &decision.rule_id {
        text.push_str(&format!(" by rule {}", one_line(rule)));
    }
    if let Some(reason) = &decision.reason {
        text.push_str(&format!(": {}", one_line(reason)));
    }
    text
}

/// The verdict on the output, where there is one.
fn format_output(output: &OutputVerdict) -> Option<String> {
    if output.status == OutputStatus::Skipped {
        return None;
    }
    let mut text = output.status.as_str().to_owned();
    if let Some(rule) = &output.rule_id {
        text.push_str(&format!(" by rule {}", one_line(rule)));
    }
    if let Some(reason) = &output.reason {
        text.push_str(&format!(": {}", one_line(reason)));
    }
    let count = output.findings.as_ref().map_or(0, Vec::len);
    if count > 0 {
        text.push_str(&format!(" ({count} findings)"));
    }
    Some(text)
}

fn format_failure(job: &Job) -> Option<String> {
    match (&job.error_code, &job.failure_reason) {
        (Some(code), Some(reason)) => Some(format!("{} ({})", one_line(reason), one_line(code))),
        (Some(only), None) | (None, Some(only)) => Some(one_line(only)),
        (None, None) => None,
    }
}

/// The result exactly as the worker wrote it: reading it as numbers and writing it
/// again would change large ones.
pub fn render_result(job: &Job, ctx: &RenderContext) -> Option<String> {
    let title = |name: &str| ctx.paint.dim(&format!("  {name:<10}"));
    if let Some(result) = &job.result {
        Some(format!(
            "{} {}",
            title("result"),
            strip_control_chars(result.get())
        ))
    } else if let Some(result) = &job.result_base64 {
        Some(format!(
            "{} {} (base64)",
            title("result"),
            strip_control_chars(result)
        ))
    } else if job.result_missing {
        Some(format!("{} lost before it could be kept", title("result")))
    } else {
        None
    }
}

/// How a job came out, after its states were shown: what they did not show yet.
pub fn render_outcome(job: &Job, ctx: &RenderContext) -> String {
    let mut lines = Vec::new();
    if job.state != JobState::Succeeded {
        let shown = job.history.last().and_then(|last| last.reason.as_ref());
        let reason = job
            .failure_reason
            .as_ref()
            .filter(|reason| shown != Some(reason));
        for (name, text) in [("reason", reason), ("code", job.error_code.as_ref())] {
            let name = ctx.paint.dim(&format!("  {name:<10}"));
            lines.extend(text.map(|text| format!("{name} {}", one_line(text))));
        }
    }
    lines.extend(render_result(job, ctx));
    lines.join("\n")
}

/// A page of jobs as a table. The state stands first, so that colours do not disturb
/// the widths.
pub fn render_job_table(page: &JobPage, ctx: &RenderContext) -> String {
    if page.items.is_empty() {
        return "no jobs".to_owned();
    }
    let rows = page.items.iter().map(|job| {
        [
            job.state.as_str().to_owned(),
            one_line(&job.job_id),
            one_line(&job.topic),
            one_line(&job.tenant_id),
            job.attempts.to_string(),
            relative_to_now(&job.created_at, ctx),
            format_time_taken(job).unwrap_or_default(),
        ]
    });
    let header = [
        "STATE", "JOB", "TOPIC", "TENANT", "ATTEMPTS", "CREATED", "DURATION",
    ];
    let text = render_table(header, rows);
    let states = page.items.iter().map(|job| job.state);
    let mut lines = text.lines();
    let header = lines.next().map(|line| ctx.paint.dim(line));
    let rows = lines
        .zip(states)
        .map(|(line, state)| match line.strip_prefix(state.as_str()) {
            Some(rest) => format!("{}{rest}", ctx.paint.state(state)),
            None => line.to_owned(),
        });
    header
        .into_iter()
        .chain(rows)
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests;
