//! `airlock output list|show|evidence|release|reject|rescan`: the quarantine and its review.

use std::io::{IsTerminal, Write};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use airlock_client::{
    OutputFinding, QuarantineDetail, QuarantineEntry, QuarantineListRequest, QuarantinePage,
    Rescan, RescanRequest,
};
use clap::{Args, Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};

use crate::args::Api;
use crate::exit::Exit;
use crate::render::{Facts, RenderContext, relative_to_now, render_table, time};
use crate::session::{self, CommandResult, Failure, Session};
use crate::terminal::{Terminal, one_line};

const RESCAN_EXIT_CODES: &str = "\
Exit codes:
  0  every stored result was scanned, or the rescan was started (--detach)
  1  the rescan failed, or results could not be scanned
  2  the request is invalid: arguments, key, unknown rescan
  3  the API cannot be reached or cannot answer now";

/// How often a rescan is looked at.
const POLL_EVERY: Duration = Duration::from_millis(500);

#[derive(Debug, Subcommand)]
pub enum Action {
    /// List quarantined outputs, the newest verdict first
    List(List),
    /// Show a quarantined output: the verdict, its findings and the audit trail
    Show {
        #[command(flatten)]
        api: Api,
        #[arg(value_name = "JOB")]
        id: String,
    },
    /// Write the original of a quarantined output to standard output; this is audited
    Evidence {
        #[command(flatten)]
        api: Api,
        #[arg(value_name = "JOB")]
        id: String,
        /// Write it to this file instead
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Release a quarantined output: the job then shows it
    Release {
        #[command(flatten)]
        api: Api,
        #[arg(value_name = "JOB")]
        id: String,
        /// What to release: the output as it is, or with its findings masked
        #[arg(long, value_enum)]
        mode: Mode,
        /// Reason; kept in the audit trail
        #[arg(long)]
        reason: String,
    },
    /// Reject a quarantined output: it stays quarantined for good
    Reject {
        #[command(flatten)]
        api: Api,
        #[arg(value_name = "JOB")]
        id: String,
        /// Reason; kept in the audit trail
        #[arg(long)]
        reason: String,
    },
    /// Scan stored results again, with today's output policy
    #[command(after_help = RESCAN_EXIT_CODES)]
    Rescan(RescanArgs),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    Whole,
    Redacted,
}

impl Mode {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Redacted => "redacted",
        }
    }
}

#[derive(Debug, Args)]
pub struct List {
    #[command(flatten)]
    pub api: Api,
    /// Only outputs in this status: quarantined (the default), released, rejected, several
    /// separated by commas, or all
    #[arg(long)]
    pub status: Option<String>,
    /// Only outputs of this topic
    #[arg(long)]
    pub topic: Option<String>,
    /// Only outputs that this rule quarantined
    #[arg(long, value_name = "RULE")]
    pub rule: Option<String>,
    /// Only verdicts of this severity: low, medium, high or critical
    #[arg(long)]
    pub severity: Option<String>,
    /// Maximum number of entries
    #[arg(long, value_name = "N", default_value = "20")]
    pub limit: NonZeroU32,
    /// Continue where an earlier list ended
    #[arg(long)]
    pub cursor: Option<String>,
}

#[derive(Debug, Args)]
pub struct RescanArgs {
    #[command(flatten)]
    pub api: Api,
    /// Scan results of jobs that ended since this time, in RFC 3339, or for this long, as in
    /// 24h or 7d
    #[arg(
        long,
        value_name = "TIME",
        required_unless_present = "follow",
        value_parser = parse_since
    )]
    pub since: Option<Since>,
    /// Only results of this tenant
    #[arg(long, conflicts_with = "follow")]
    pub tenant: Option<String>,
    /// Only results of this topic
    #[arg(long, conflicts_with = "follow")]
    pub topic: Option<String>,
    /// Count verdicts and change nothing
    #[arg(long, conflicts_with = "follow")]
    pub dry_run: bool,
    /// Start it and do not wait for its end
    #[arg(long, conflicts_with = "follow")]
    pub detach: bool,
    /// Follow a rescan that was started before
    #[arg(long, value_name = "ID", conflicts_with = "since")]
    pub follow: Option<String>,
}

/// From when on results are scanned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Since {
    At(airlock_model::Timestamp),
    Ago(Duration),
}

fn parse_since(text: &str) -> Result<Since, String> {
    if let Ok(ago) = crate::args::parse_duration(text) {
        return Ok(Since::Ago(ago));
    }
    crate::args::parse_timestamp(text)
        .map(Since::At)
        .map_err(|_| "write it as in 2030-01-31T12:00:00Z, 24h or 7d".to_owned())
}

impl Since {
    fn to_rfc3339(self) -> String {
        match self {
            Self::At(at) => at.to_rfc3339(),
            Self::Ago(ago) => (time::now() - ago).to_rfc3339(),
        }
    }
}

pub fn run(action: Action, terminal: Terminal) -> Exit {
    match action {
        Action::List(args) => {
            let List {
                api,
                status,
                topic,
                rule,
                severity,
                limit,
                cursor,
            } = args;
            let request = QuarantineListRequest {
                status,
                topic,
                rule_id: rule,
                severity,
                limit: Some(limit.into()),
                cursor,
                ..QuarantineListRequest::default()
            };
            session::run_with_session(api, terminal, |session| list(session, request))
        }
        Action::Show { api, id } => {
            session::run_with_session(api, terminal, |session| async move {
                let detail = session.client.quarantined_output(&id).await?;
                print_detail(&session, &detail)
            })
        }
        Action::Evidence { api, id, out } => {
            session::run_with_session(api, terminal, |session| async move {
                let original = session.client.evidence(&id).await?;
                write_evidence(&original, out.as_deref())
            })
        }
        Action::Release {
            api,
            id,
            mode,
            reason,
        } => session::run_with_session(api, terminal, |session| async move {
            let client = &session.client;
            let detail = client.release_output(&id, mode.as_str(), &reason).await?;
            print_detail(&session, &detail)
        }),
        Action::Reject { api, id, reason } => {
            session::run_with_session(api, terminal, |session| async move {
                let detail = session.client.reject_output(&id, &reason).await?;
                print_detail(&session, &detail)
            })
        }
        Action::Rescan(args) => {
            let RescanArgs {
                api,
                since,
                tenant,
                topic,
                dry_run,
                detach,
                follow,
            } = args;
            let request = RescanRequest {
                since: since.map(Since::to_rfc3339),
                tenant,
                topic,
                dry_run: Some(dry_run),
            };
            session::run_with_session(api, terminal, |session| {
                rescan(session, request, follow, detach)
            })
        }
    }
}

async fn list(session: Session, request: QuarantineListRequest) -> CommandResult {
    let page = session.client.quarantine(&request).await?;
    if session.json {
        return session.print_json(&page);
    }
    let text = render_quarantine_table(&page, &session.render_context());
    session.terminal.print(&text);
    if let Some(cursor) = &page.next_cursor {
        let text = format!("more entries: --cursor {cursor}");
        session.terminal.hint(&text);
    }
    Ok(Exit::Done)
}

fn print_detail(session: &Session, detail: &QuarantineDetail) -> CommandResult {
    if session.json {
        return session.print_json(detail);
    }
    let text = render_quarantined(detail, &session.render_context());
    session.terminal.print(&text);
    Ok(Exit::Done)
}

/// The bytes as they are: whoever asks for evidence wants nothing changed.
fn write_evidence(original: &[u8], out: Option<&Path>) -> CommandResult {
    let written = match out {
        Some(path) => std::fs::write(path, original)
            .map_err(|error| format!("writing {}: {error}", path.display())),
        None => {
            let mut stdout = std::io::stdout().lock();
            let written = stdout.write_all(original).and_then(|()| stdout.flush());
            written.map_err(|error| format!("writing the original: {error}"))
        }
    };
    match written {
        Ok(()) => Ok(Exit::Done),
        Err(message) => Err(Failure::usage(message)),
    }
}

fn render_quarantine_table(page: &QuarantinePage, ctx: &RenderContext) -> String {
    if page.items.is_empty() {
        return "nothing is quarantined".to_owned();
    }
    let header = [
        "JOB", "STATUS", "SEVERITY", "TOPIC", "TENANT", "RULE", "DECIDED", "REASON",
    ];
    let text = |text: &Option<String>| one_line(text.as_deref().unwrap_or_default());
    let rows = page.items.iter().map(|entry| {
        let verdict = &entry.verdict;
        [
            one_line(&entry.job_id),
            verdict.status.as_str().to_owned(),
            text(&verdict.severity),
            one_line(&entry.topic),
            one_line(&entry.tenant_id),
            text(&verdict.rule_id),
            relative_to_now(verdict.decided_at.as_deref().unwrap_or_default(), ctx),
            text(&verdict.reason),
        ]
    });
    render_table(header, rows)
}

fn render_quarantined(detail: &QuarantineDetail, ctx: &RenderContext) -> String {
    let QuarantineEntry { verdict, .. } = &detail.entry;
    let entry = &detail.entry;
    let heading = format!(
        "{}  {}  {}",
        ctx.paint.bold(&one_line(&entry.job_id)),
        verdict.status.as_str(),
        ctx.paint.state(entry.job_state),
    );
    let text = |text: &Option<String>| one_line(text.as_deref().unwrap_or_default());
    let mut facts = Facts::new(heading, ctx);
    facts.add("topic", one_line(&entry.topic));
    facts.add("tenant", one_line(&entry.tenant_id));
    facts.add("submitted by", text(&entry.submitted_by));
    facts.add("principal", text(&entry.principal_id));
    facts.add("worker", text(&entry.worker_id));
    facts.add("decision", text(&verdict.decision));
    facts.add("rule", text(&verdict.rule_id));
    facts.add("reason", text(&verdict.reason));
    facts.add("severity", text(&verdict.severity));
    facts.add("phase", text(&verdict.phase));
    facts.add("policy", text(&verdict.policy_snapshot));
    let moment = |at: &Option<String>| relative_to_now(at.as_deref().unwrap_or_default(), ctx);
    facts.add("decided", moment(&verdict.decided_at));
    facts.add("sha256", text(&verdict.sha256));
    match entry.size {
        Some(size) => facts.add("original", format!("{size} bytes")),
        None => facts.add("original", "no longer kept"),
    }
    facts.add("kept until", moment(&entry.evidence_until));
    let redactable = if entry.redactable { "yes" } else { "no" };
    facts.add("redactable", redactable);
    for finding in verdict.findings.iter().flatten() {
        facts.add("finding", format_finding(finding));
    }
    for (word, review) in [
        ("released", &verdict.released),
        ("rejected", &verdict.rejected),
    ] {
        let Some(review) = review else { continue };
        let mode = review.mode.as_deref().unwrap_or_default();
        let line = format!("{mode} by {}: {}", review.by, review.reason);
        facts.add(word, one_line(line.trim_start()));
    }
    for audit in &detail.audit {
        let at = relative_to_now(&audit.at, ctx);
        let line = format!(
            "{} by {} ({at})",
            one_line(&audit.kind),
            one_line(&audit.actor)
        );
        facts.add("audit", line);
    }
    facts.into_text()
}

fn format_finding(finding: &OutputFinding) -> String {
    let OutputFinding {
        kind,
        detector,
        severity,
        start,
        end,
        excerpt,
        ..
    } = finding;
    let mut line = format!("{severity} {kind} {detector} {start}-{end}");
    if let Some(pointer) = &finding.pointer {
        line.push_str(&format!(" at {pointer:?}"));
    }
    if let Some(encoding) = &finding.encoding {
        line.push_str(&format!(" in {encoding}"));
    }
    if !excerpt.is_empty() {
        line.push_str(&format!(": {excerpt}"));
    }
    one_line(&line)
}

async fn rescan(
    session: Session,
    request: RescanRequest,
    follow: Option<String>,
    detach: bool,
) -> CommandResult {
    let mut rescan = match follow {
        Some(id) => session.client.rescan(&id).await?,
        None => session.client.start_rescan(&request).await?,
    };
    if detach {
        return match session.json {
            true => session.print_json(&rescan),
            false => {
                session.terminal.print(&one_line(&rescan.id));
                Ok(Exit::Done)
            }
        };
    }
    let id = rescan.id.clone();
    let hint = format!(
        "rescan {}; it goes on when this command ends: airlock output rescan --follow {}",
        one_line(&id),
        one_line(&id)
    );
    session.terminal.note(&hint);
    let mut progress = RescanProgress::new(&rescan);
    while rescan.state == "running" {
        tokio::time::sleep(POLL_EVERY).await;
        rescan = session.client.rescan(&id).await?;
        progress.update(&rescan, session.terminal);
    }
    progress.finish();
    let exit = match rescan.state == "done" && rescan.failed == 0 {
        true => Exit::Done,
        false => Exit::Failed,
    };
    if session.json {
        session.print_json(&rescan)?;
    } else {
        session.terminal.print(&format_rescan(&rescan));
    }
    Ok(exit)
}

fn format_rescan(rescan: &Rescan) -> String {
    let mut text = format!(
        "{} scanned: {} allowed, {} redacted, {} quarantined",
        rescan.scanned, rescan.allowed, rescan.redacted, rescan.quarantined
    );
    if rescan.failed > 0 {
        text.push_str(&format!(", {} could not be scanned", rescan.failed));
    }
    if rescan.dry_run {
        text.push_str(" (dry run: nothing was changed)");
    }
    if let Some(error) = &rescan.error {
        text.push_str(&format!("\nfailed: {}", one_line(error)));
    }
    text
}

/// A bar on a terminal, a line with each tenth elsewhere.
enum RescanProgress {
    Bar(ProgressBar),
    Lines { shown: u64 },
}

impl RescanProgress {
    fn new(rescan: &Rescan) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::Lines { shown: 0 };
        }
        let bar = ProgressBar::new(rescan.total.max(1));
        let style =
            ProgressStyle::with_template("{bar:40} {human_pos}/{human_len} {msg} {eta_precise}");
        // The template is fixed; a wrong one would only look plainer.
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self::Bar(bar)
    }

    fn update(&mut self, rescan: &Rescan, terminal: Terminal) {
        match self {
            Self::Bar(bar) => {
                bar.set_length(rescan.total.max(rescan.scanned).max(1));
                bar.set_position(rescan.scanned);
                bar.set_message(format!("{} quarantined", rescan.quarantined));
            }
            Self::Lines { shown } => {
                let tenth = rescan.scanned.saturating_mul(10) / rescan.total.max(1);
                if tenth > *shown {
                    *shown = tenth;
                    let text = format!("{} of {} scanned", rescan.scanned, rescan.total);
                    terminal.note(&text);
                }
            }
        }
    }

    fn finish(&self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use airlock_model::Timestamp;
    use jiff::tz::TimeZone;

    use super::*;
    use crate::terminal::Paint;

    fn detail() -> QuarantineDetail {
        serde_json::from_value(serde_json::json!({
            "job_id": "j-1", "tenant_id": "acme", "topic": "job.mail", "job_state":
            "OUTPUT_QUARANTINED", "created_at": "2030-01-01T00:00:00Z", "status": "rejected",
            "decision": "QUARANTINE", "rule_id": "no-tokens", "reason": "a token\u{1b}[31m",
            "severity": "critical", "decided_at": "2030-01-01T00:00:00Z", "redactable": false,
            "rejected": {"by": "rita", "reason": "real", "at": "2030-01-01T00:01:00Z"},
            "findings": [{"kind": "secret_leak", "detector": "jwt", "severity": "high",
                          "confidence": 0.9, "pointer": "/a", "start": 1, "end": 9,
                          "encoding": "base64", "excerpt": "eyJ…"}],
            "audit": [{"at": "2030-01-01T00:01:00Z", "kind": "output.rejected", "actor": "rita"}],
        }))
        .unwrap()
    }

    fn context() -> RenderContext {
        RenderContext {
            now: Timestamp::parse_rfc3339("2030-01-01T00:05:00Z").unwrap(),
            zone: TimeZone::UTC,
            paint: Paint::Plain,
        }
    }

    #[test]
    fn a_reviewer_sees_what_was_found_and_who_decided() {
        let text = render_quarantined(&detail(), &context());
        for part in [
            "j-1  rejected  OUTPUT_QUARANTINED",
            "no-tokens",
            "high secret_leak jwt 1-9 at \"/a\" in base64: eyJ…",
            "by rita: real",
            "output.rejected by rita",
            "no longer kept",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }

    #[test]
    fn a_list_is_a_table_and_nothing_is_said_to_be_nothing() {
        let mut page = QuarantinePage {
            items: vec![detail().entry],
            next_cursor: None,
        };
        let text = render_quarantine_table(&page, &context());
        assert!(
            text.starts_with("JOB") && text.contains("critical"),
            "{text}"
        );
        page.items.clear();
        let text = render_quarantine_table(&page, &context());
        assert_eq!(text, "nothing is quarantined");
    }

    #[test]
    fn since_is_a_moment_or_how_long_ago() {
        assert_eq!(
            parse_since("7d"),
            Ok(Since::Ago(Duration::from_secs(7 * 86_400)))
        );
        assert!(matches!(
            parse_since("2030-01-01T00:00:00Z"),
            Ok(Since::At(_))
        ));
        assert!(parse_since("yesterday").is_err());
    }
}
