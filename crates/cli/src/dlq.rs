//! `airlock dlq …`: what was given up, another try, and removing it.

mod bulk;

use std::num::NonZeroU32;

use airlock_client::{DeadLetterDetail, DeadLetterFilter, DeadLetterPage};
use airlock_model::Timestamp;
use clap::{Args, Subcommand};

use self::bulk::{Prompt, Rate};
use crate::args::{Api, moment};
use crate::exit::Exit;
use crate::render::{Facts, Scene, table, when};
use crate::session::{self, Answer, Failure, Session};
use crate::terminal::{Terminal, clean, one_line};

#[derive(Debug, Args)]
pub struct DlqArgs {
    #[command(flatten)]
    pub api: Api,
    #[command(subcommand)]
    pub action: Action,
}

#[derive(Debug, Subcommand)]
pub enum Action {
    /// Lists dead letters, newest first
    List {
        #[command(flatten)]
        filter: Filter,
        /// Only those that were tried again (true) or were not (false)
        #[arg(long, value_name = "BOOL")]
        retried: Option<bool>,
        /// How many
        #[arg(long, value_name = "N", default_value = "20")]
        limit: NonZeroU32,
        /// Goes on where an earlier list ended
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Shows a dead letter with its whole request
    Show {
        #[arg(value_name = "LETTER")]
        id: i64,
    },
    /// Submits the request of a dead letter again, or of all that a filter names
    Retry {
        #[command(flatten)]
        which: Which,
        /// How many at a time, as in 50/s or 10/m
        #[arg(long, value_name = "N/s", default_value = "50/s")]
        rate: Rate,
        /// Stops, with exit code 1, when more than so many of them have failed again
        #[arg(long, value_name = "N", default_value = "10")]
        max_failures: usize,
    },
    /// Removes a dead letter, or all that a filter names
    Delete {
        #[command(flatten)]
        which: Which,
        /// Does not ask before more than one is removed
        #[arg(long, short)]
        yes: bool,
    },
}

/// Letters by what they are about.
#[derive(Debug, Args)]
pub struct Filter {
    /// Only letters of this job
    #[arg(long, value_name = "JOB")]
    pub job: Option<String>,
    /// Only letters of this topic
    #[arg(long)]
    pub topic: Option<String>,
    /// Only letters with this reason code
    #[arg(long, value_name = "CODE")]
    pub reason_code: Option<String>,
    /// Only letters written after this moment, in RFC 3339
    #[arg(long, value_name = "MOMENT", value_parser = moment)]
    pub after: Option<Timestamp>,
    /// Only letters written before this moment
    #[arg(long, value_name = "MOMENT", value_parser = moment)]
    pub before: Option<Timestamp>,
}

/// One letter, or many.
#[derive(Debug, Args)]
pub struct Which {
    #[arg(value_name = "LETTER", conflicts_with_all = ["job", "topic", "reason_code", "after", "before", "all", "dry_run"])]
    pub id: Option<i64>,
    #[command(flatten)]
    pub filter: Filter,
    /// Every letter there is
    #[arg(long)]
    pub all: bool,
    /// Only says how many there are
    #[arg(long)]
    pub dry_run: bool,
}

impl Filter {
    fn request(self) -> DeadLetterFilter {
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
    session::run(args.api, terminal, |session| act(session, args.action))
}

async fn act(session: Session, action: Action) -> Answer {
    match action {
        Action::List {
            filter,
            retried,
            limit,
            cursor,
        } => {
            let mut filter = filter.request();
            filter.retried = retried;
            filter.limit = Some(limit.into());
            let page = session
                .client
                .dead_letters(&filter, cursor.as_deref())
                .await?;
            if session.json {
                return session.print(&page);
            }
            session.terminal.say(&list(&page, &session.scene()));
            if let Some(cursor) = &page.next_cursor {
                let text = format!("there are more: --cursor {cursor}");
                session.terminal.hint(&text);
            }
            Ok(Exit::Done)
        }
        Action::Show { id } => {
            let letter = session.client.dead_letter(id).await?;
            if session.json {
                return session.print(&letter);
            }
            session.terminal.say(&show(&letter, &session.scene()));
            Ok(Exit::Done)
        }
        Action::Retry {
            which,
            rate,
            max_failures,
        } => bulk::retry(&session, which, rate, max_failures).await,
        Action::Delete { which, yes } => {
            bulk::delete(&session, which, yes, &mut Prompt::terminal()).await
        }
    }
}

/// The filter, unless nothing at all was said.
fn meant(which: Which) -> Result<(DeadLetterFilter, bool, bool), Failure> {
    if which.filter.is_empty() && !which.all {
        return Err(Failure::usage(
            "name a letter, a filter (--topic, --reason-code, --job, --after, --before) or --all",
        ));
    }
    Ok((which.filter.request(), which.all, which.dry_run))
}

fn list(page: &DeadLetterPage, scene: &Scene) -> String {
    if page.items.is_empty() {
        return "no dead letters".to_owned();
    }
    let text = |value: &Option<String>| one_line(value.as_deref().unwrap_or("-"));
    let header = [
        "LETTER", "CODE", "JOB", "TOPIC", "TENANT", "LAST", "TRIES", "WRITTEN", "AGAIN", "REASON",
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
            when(&letter.created_at, scene),
            text(&letter.retried_as),
            one_line(&letter.reason),
        ]
    });
    table(header, rows)
}

fn show(detail: &DeadLetterDetail, scene: &Scene) -> String {
    let letter = &detail.letter;
    let heading = format!(
        "{}  {}",
        scene.paint.bold(&format!("letter {}", letter.id)),
        one_line(&letter.reason_code),
    );
    let mut facts = Facts::new(heading, scene);
    let mut fact = |name: &str, value: Option<String>| facts.add(name, value.unwrap_or_default());
    let text = |value: &Option<String>| value.as_deref().map(one_line);
    fact("reason", Some(one_line(&letter.reason)));
    fact("job", text(&letter.job_id));
    fact("topic", text(&letter.topic));
    fact("tenant", text(&letter.tenant_id));
    fact("last state", text(&letter.last_state));
    fact("attempts", Some(letter.attempts.to_string()));
    fact("subject", text(&letter.subject));
    fact("written", Some(when(&letter.created_at, scene)));
    let again = letter.retried_as.as_deref().map(|job| {
        let at = letter.retried_at.as_deref().unwrap_or_default();
        format!("as {} ({})", one_line(job), when(at, scene))
    });
    fact("again", again);
    fact("trace", text(&detail.trace_id));
    let request = detail.request.as_ref().map(|r| clean(r.get()).into_owned());
    fact("request", request);
    fact("packet", text(&detail.packet_base64));
    facts.text()
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

    fn scene() -> Scene {
        Scene {
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
        assert!(meant(which).is_err());
        let Ok(Action::Retry { which, .. }) = action(&["retry", "--reason-code", "x", "--dry-run"])
        else {
            panic!("not a retry");
        };
        let Ok((filter, all, dry_run)) = meant(which) else {
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
        let text = show(&whole, &scene());
        for part in [
            "letter 7  failed",
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
        let text = list(&page, &scene());
        assert!(text.starts_with("LETTER"), "{text}");
        assert!(
            text.contains("job.pay") && text.contains("5 min ago"),
            "{text}"
        );
    }
}
