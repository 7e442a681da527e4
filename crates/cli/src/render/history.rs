//! A job's states, one line each, with the time between them.

use std::collections::BTreeSet;

use airlock_client::{HistoryEntry, Job};
use airlock_model::{JobState, Timestamp};

use super::report::ReportUpdates;
use super::{RenderContext, time};
use crate::terminal::one_line;

/// `APPROVAL_REQUIRED` and `OUTPUT_QUARANTINED` are the longest.
const STATE_WIDTH: usize = 18;
const SPAN_WIDTH: usize = 12;

/// One state: when it was reached, how long after `before`, and what is known of it.
pub fn format_history_entry(
    entry: &HistoryEntry,
    before: Option<Timestamp>,
    ctx: &RenderContext,
) -> String {
    let state = ctx.paint.state(entry.state);
    let pad = " ".repeat(STATE_WIDTH.saturating_sub(entry.state.as_str().len()));
    let at = time::parse_timestamp(&entry.at);
    let clock = at.map_or_else(
        || one_line(&entry.at),
        |at| time::format_clock(at, &ctx.zone),
    );
    let clock = ctx.paint.dim(&clock);
    let span = match (before, at) {
        (Some(before), Some(at)) => format!("+{}", time::format_duration(at.since(before))),
        (None, _) | (_, None) => String::new(),
    };
    let line = format!(
        "  {state}{pad}  {clock}  {span:<SPAN_WIDTH$}{}",
        format_entry_remark(entry)
    );
    line.trim_end().to_owned()
}

fn format_entry_remark(entry: &HistoryEntry) -> String {
    let worker = match entry.state {
        // Where it runs is news once per attempt.
        JobState::Scheduled => entry.worker_id.as_deref(),
        JobState::Pending
        | JobState::ApprovalRequired
        | JobState::Dispatched
        | JobState::Running
        | JobState::Succeeded
        | JobState::Failed
        | JobState::Timeout
        | JobState::Cancelled
        | JobState::Denied
        | JobState::OutputQuarantined => None,
    };
    let worker = worker.map(|worker| {
        if entry.attempt > 1 {
            format!("on {}, attempt {}", one_line(worker), entry.attempt)
        } else {
            format!("on {}", one_line(worker))
        }
    });
    let parts = [worker, entry.reason.as_deref().map(one_line)];
    parts.into_iter().flatten().collect::<Vec<_>>().join(": ")
}

/// What of a job has not been shown yet.
///
/// States may become known late, two at a time, so that what was shown is remembered by
/// its content and not by its place in the history.
#[derive(Debug, Default)]
pub struct Updates {
    shown: BTreeSet<(String, &'static str, u32)>,
    last: Option<Timestamp>,
    waiting: Option<String>,
    report: ReportUpdates,
}

impl Updates {
    /// The lines to show now.
    pub fn new_lines(&mut self, job: &Job, ctx: &RenderContext) -> Vec<String> {
        let mut lines = Vec::new();
        for entry in &job.history {
            let key = (entry.at.clone(), entry.state.as_str(), entry.attempt);
            if self.shown.insert(key) {
                lines.push(format_history_entry(entry, self.last, ctx));
                self.last = time::parse_timestamp(&entry.at).or(self.last);
            }
        }
        // What a run reported comes before the state that it came to.
        let reported = self.report.new_lines(job, ctx);
        let place = lines.len() - usize::from(job.state.is_final() && !lines.is_empty());
        lines.splice(place..place, reported);
        if job.waiting_reason != self.waiting {
            self.waiting.clone_from(&job.waiting_reason);
            let reason = self.waiting.as_deref().map(one_line);
            lines.extend(reason.map(|reason| ctx.paint.dim(&format!("  waiting: {reason}"))));
        }
        lines
    }
}
