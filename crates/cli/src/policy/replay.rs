//! A candidate policy on the jobs of the past.

use std::path::PathBuf;

use airlock_client::PastDecision;
use airlock_policy::replay::{Changes, PastJob, Replay};
use airlock_policy::{Decision, OwnedRequest};

use super::local;
use crate::exit::Exit;
use crate::explain::Explained;
use crate::render::render_table;
use crate::session::{CommandResult, Failure, Session};
use crate::terminal::one_line;

/// Jobs in one page.
const PAGE_SIZE: u32 = 500;

pub async fn replay_past_decisions(
    session: &Session,
    since: &str,
    show: usize,
    files: &[PathBuf],
) -> CommandResult {
    let candidate = local::load_policy(files).map_err(|unusable| {
        Failure::Explained(Explained {
            text: unusable.text,
            hint: None,
            exit: unusable.exit,
        })
    })?;
    let mut replay = Replay::default();
    let mut unread = 0_u64;
    let mut cursor: Option<String> = None;
    loop {
        // Inputs are fetched only for a policy that looks at them.
        let page = session
            .client
            .decisions(
                since,
                candidate.reads_content(),
                PAGE_SIZE,
                cursor.as_deref(),
            )
            .await?;
        for item in page.items {
            match to_past_job(item) {
                Some(past) => replay.compare_job(&candidate, &past),
                None => unread += 1,
            }
        }
        match page.next_cursor {
            Some(next) => cursor = Some(next),
            None => break,
        }
    }
    if session.json {
        return session.print_json(&replay);
    }
    let all = replay.changed_count() + replay.unchanged;
    session.terminal.print(&format!(
        "{all} jobs since {since}: {} newly denied, {} newly allowed, {} newly held, \
         {} newly throttled, {} unchanged",
        replay.newly_denied.count,
        replay.newly_allowed.count,
        replay.newly_held.count,
        replay.newly_throttled.count,
        replay.unchanged,
    ));
    if replay.uncertain > 0 {
        session.terminal.note(&format!(
            "{} answers depend on counts or inputs that are not known any more",
            replay.uncertain
        ));
    }
    if unread > 0 {
        session.terminal.note(&format!(
            "{unread} jobs could not be read and were left out"
        ));
    }
    for (title, changes) in [
        ("newly denied", &replay.newly_denied),
        ("newly allowed", &replay.newly_allowed),
        ("newly held", &replay.newly_held),
        ("newly throttled", &replay.newly_throttled),
    ] {
        if changes.count > 0 {
            session
                .terminal
                .print(&format_changes(title, changes, show));
        }
    }
    Ok(Exit::Done)
}

/// `None` for a job that this version cannot ask about.
fn to_past_job(item: PastDecision) -> Option<PastJob> {
    let request: OwnedRequest = serde_json::from_value(item.request).ok()?;
    Some(PastJob {
        job_id: item.job_id,
        request: request.hoist_meta_labels(),
        decision: Decision::parse(&item.decision)?,
        rule_id: item.rule_id,
    })
}

fn format_changes(title: &str, changes: &Changes, show: usize) -> String {
    let rows = changes.jobs.iter().take(show).map(|c| {
        [
            one_line(&c.job_id),
            one_line(&c.topic),
            one_line(&c.tenant),
            format!("{} → {}", c.before.as_str(), c.after.as_str()),
            one_line(c.rule_after.as_deref().unwrap_or("default")),
            one_line(&c.reason),
        ]
    });
    let header = ["JOB", "TOPIC", "TENANT", "DECISION", "RULE", "REASON"];
    let mut text = format!("\n{title}\n{}", render_table(header, rows));
    let shown = changes.jobs.len().min(show) as u64;
    if changes.count > shown {
        text.push_str(&format!("\n… and {} more", changes.count - shown));
    }
    text
}
