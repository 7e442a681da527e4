//! `airlock dlq …`: what was given up, another try, and removing it.

mod bulk;

use std::num::NonZeroU32;

use airlock_client::{DeadLetterDetail, DeadLetterFilter, DeadLetterPage};
use airlock_model::Timestamp;
use clap::{Args, Subcommand};

use self::bulk::{Prompt, Rate};
use crate::args::{Api, parse_timestamp};
use crate::exit::Exit;
use crate::render::{Facts, RenderContext, relative_to_now, render_table};
use crate::session::{self, CommandResult, Failure, Session};
use crate::terminal::{Terminal, one_line, strip_control_chars};

#[derive(Debug, Args)]
pub struct DlqArgs {
    #[command(flatten)]
    pub api: Api,
    #[command(subcommand)]
    pub action: Action,
}

#[derive(Debug, Subcommand)]
pub enum Action {
    /// List dead letters, newest first
    List {
        #[command(flatten)]
        filter: Filter,
        /// Only dead letters that were retried (true) or were not (false)
        #[arg(long, value_name = "BOOL")]
        retried: Option<bool>,
        /// Maximum number of entries
        #[arg(long, value_name = "N", default_value = "20")]
        limit: NonZeroU32,
        /// Continue where an earlier list ended
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Show a dead letter with its request
    Show {
        #[arg(value_name = "ID")]
        id: i64,
    },
    /// Retry a dead letter, or all that match a filter, by submitting the request again
    Retry {
        #[command(flatten)]
        which: Selection,
        /// Rate of retries, as in 50/s or 10/m
        #[arg(long, value_name = "N/s", default_value = "50/s")]
        rate: Rate,
        /// Stop with exit code 1 when more retried jobs than this have failed again
        #[arg(long, value_name = "N", default_value = "10")]
        max_failures: usize,
    },
    /// Delete a dead letter, or all that match a filter
    Delete {
        #[command(flatten)]
        which: Selection,
        /// Delete more than one without asking
        #[arg(long, short)]
        yes: bool,
    },
}

/// Letters by what they are about.
#[derive(Debug, Args)]
pub struct Filter {
    /// Only dead letters of this job
    #[arg(long, value_name = "JOB")]
    pub job: Option<String>,
    /// Only dead letters of this topic
    #[arg(long)]
    pub topic: Option<String>,
    /// Only dead letters with this reason code
    #[arg(long, value_name = "CODE")]
    pub reason_code: Option<String>,
    /// Only dead letters written after this time, in RFC 3339
    #[arg(long, value_name = "TIMESTAMP", value_parser = parse_timestamp)]
    pub after: Option<Timestamp>,
    /// Only dead letters written before this time, in RFC 3339
    #[arg(long, value_name = "TIMESTAMP", value_parser = parse_timestamp)]
    pub before: Option<Timestamp>,
}

/// One letter, or many.
#[derive(Debug, Args)]
pub struct Selection {
    #[arg(value_name = "ID", conflicts_with_all = ["job", "topic", "reason_code", "after", "before", "all", "dry_run"])]
    pub id: Option<i64>,
    #[command(flatten)]
    pub filter: Filter,
    /// All dead letters
    #[arg(long)]
    pub all: bool,
    /// Only print how many there are
    #[arg(long)]
    pub dry_run: bool,
}

impl Filter {
    fn into_api_filter(self) -> DeadLetterFilter {
        DeadLetterFilter {
            job_id: self.job,
            topic: self.topic,
            reason_code: self.reason_code,
            created_after: self.after.map(Timestamp::to_rfc3339),
            created_before: self.before.map(Timestamp::to_rfc3339),
            ..DeadLetterFilter::default()
        }
    }

    fn is_empty(&self) -> bool {
        self.job.is_none()
            && self.topic.is_none()
            && self.reason_code.is_none()
            && self.after.is_none()
            && self.before.is_none()
    }
}

pub fn run(args: DlqArgs, terminal: Terminal) -> Exit {
    session::run_with_session(args.api, terminal, |session| {
        run_action(session, args.action)
    })
}

async fn run_action(session: Session, action: Action) -> CommandResult {
    match action {
        Action::List {
            filter,
            retried,
            limit,
            cursor,
        } => {
            let mut filter = filter.into_api_filter();
            filter.retried = retried;
            filter.limit = Some(limit.into());
            let page = session
                .client
                .dead_letters(&filter, cursor.as_deref())
                .await?;
            if session.json {
                return session.print_json(&page);
            }
            session
                .terminal
                .print(&render_dead_letter_table(&page, &session.render_context()));
            if let Some(cursor) = &page.next_cursor {
                let text = format!("more entries: --cursor {cursor}");
                session.terminal.hint(&text);
            }
            Ok(Exit::Done)
        }
        Action::Show { id } => {
            let letter = session.client.dead_letter(id).await?;
            if session.json {
                return session.print_json(&letter);
            }
            session
                .terminal
                .print(&render_dead_letter(&letter, &session.render_context()));
            Ok(Exit::Done)
        }
        Action::Retry {
            which,
            rate,
            max_failures,
        } => bulk::retry_selected(&session, which, rate, max_failures).await,
        Action::Delete { which, yes } => {
            bulk::delete_selected(&session, which, yes, &mut Prompt::from_terminal()).await
        }
    }
}

/// The filter, unless nothing at all was said.
fn require_filter(which: Selection) -> Result<(DeadLetterFilter, bool, bool), Failure> {
    if which.filter.is_empty() && !which.all {
        return Err(Failure::usage(
            "name a dead letter, a filter (--topic, --reason-code, --job, --after, --before) or --all",
        ));
    }
    Ok((which.filter.into_api_filter(), which.all, which.dry_run))
}

fn render_dead_letter_table(page: &DeadLetterPage, ctx: &RenderContext) -> String {
    if page.items.is_empty() {
        return "no dead letters".to_owned();
    }
    let text = |value: &Option<String>| one_line(value.as_deref().unwrap_or("-"));
    let header = [
        "ID",
        "CODE",
        "JOB",
        "TOPIC",
        "TENANT",
        "LAST STATE",
        "ATTEMPTS",
        "CREATED",
        "RETRIED AS",
        "REASON",
    ];
    let rows = page.items.iter().map(|letter| {
        [
            letter.id.to_string(),
            one_line(&letter.reason_code),
            text(&letter.job_id),
            text(&letter.topic),
            text(&letter.tenant_id),
            text(&letter.last_state),
            letter.attempts.to_string(),
            relative_to_now(&letter.created_at, ctx),
            text(&letter.retried_as),
            one_line(&letter.reason),
        ]
    });
    render_table(header, rows)
}

fn render_dead_letter(detail: &DeadLetterDetail, ctx: &RenderContext) -> String {
    let letter = &detail.letter;
    let heading = format!(
        "{}  {}",
        ctx.paint.bold(&format!("dead letter {}", letter.id)),
        one_line(&letter.reason_code),
    );
    let mut facts = Facts::new(heading, ctx);
    let mut fact = |name: &str, value: Option<String>| facts.add(name, value.unwrap_or_default());
    let text = |value: &Option<String>| value.as_deref().map(one_line);
    fact("reason", Some(one_line(&letter.reason)));
    fact("job", text(&letter.job_id));
    fact("topic", text(&letter.topic));
    fact("tenant", text(&letter.tenant_id));
    fact("last state", text(&letter.last_state));
    fact("attempts", Some(letter.attempts.to_string()));
    fact("subject", text(&letter.subject));
    fact("created", Some(relative_to_now(&letter.created_at, ctx)));
    let again = letter.retried_as.as_deref().map(|job| {
        let at = letter.retried_at.as_deref().unwrap_or_default();
        format!("as {} ({})", one_line(job), relative_to_now(at, ctx))
    });
    fact("retried", again);
    fact("trace", text(&detail.trace_id));
    let request = detail
        .request
        .as_ref()
        .map(|r| strip_control_chars(r.get()).into_owned());
    fact("request", request);
    fact("packet", text(&detail.packet_base64));
    facts.into_text()
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use jiff::tz::TimeZone;

    use super::*;
    use crate::args::{Cli, Command};
    use crate::terminal::Paint;

    fn action(args: &[&str]) -> Result<Action, clap::Error> {
        let all = ["airlock", "dlq"].iter().chain(args);
        match Cli::try_parse_from(all)?.command {
            Command::Dlq(dlq) => Ok(dlq.action),
            other => panic!("not about dead letters: {other:?}"),
        }
    }

    fn render_context() -> RenderContext {
        RenderContext {
            now: Timestamp::parse_rfc3339("2030-01-01T00:05:00Z").unwrap(),
            zone: TimeZone::UTC,
            paint: Paint::Plain,
        }
    }

    #[test]
    fn one_letter_or_many_but_never_all_by_accident() {
        assert!(action(&["retry", "7", "--topic", "job.a"]).is_err());
        assert!(action(&["delete", "7", "--all"]).is_err());
        let Ok(Action::Delete { which, yes: false }) = action(&["delete"]) else {
            panic!("not a deletion");
        };
        assert!(require_filter(which).is_err());
        let Ok(Action::Retry { which, .. }) = action(&["retry", "--reason-code", "x", "--dry-run"])
        else {
            panic!("not a retry");
        };
        let Ok((filter, all, dry_run)) = require_filter(which) else {
            panic!("refused");
        };
        assert_eq!(filter.reason_code.as_deref(), Some("x"));
        assert!(!all && dry_run);
    }

    #[test]
    fn letters_are_a_table_and_one_is_shown_whole() {
        let letter = serde_json::json!({
            "id": 7, "job_id": "j-1", "tenant_id": "acme", "topic": "job.pay",
            "reason_code": "failed", "reason": "boom\u{1b}[31m", "last_state": "RUNNING",
            "attempts": 3, "created_at": "2030-01-01T00:00:00Z", "retried_as": "j-2",
            "retried_at": "2030-01-01T00:04:00Z", "trace_id": "t",
            "request": {"topic": "job.pay", "payload": {"n": 1}},
        });
        let whole: DeadLetterDetail = serde_json::from_str(&letter.to_string()).unwrap();
        let text = render_dead_letter(&whole, &render_context());
        for part in [
            "dead letter 7  failed",
            "as j-2 (1 min ago)",
            r#""payload":{"n":1}"#,
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(!text.contains('\u{1b}'), "{text:?}");
        let page = DeadLetterPage {
            items: vec![serde_json::from_value(letter).unwrap()],
            next_cursor: None,
        };
        let text = render_dead_letter_table(&page, &render_context());
        assert!(text.starts_with("ID"), "{text}");
        assert!(
            text.contains("job.pay") && text.contains("5 min ago"),
            "{text}"
        );
    }
}
