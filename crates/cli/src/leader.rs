//! `airlock leader …`: which scheduler leads, and asking it to hand over.

use airlock_client::LeaderStatus;
use clap::{Args, Subcommand};

use crate::args::Api;
use crate::exit::Exit;
use crate::render::{Facts, RenderContext, relative_to_now, render_table};
use crate::session::{self, CommandResult, Session};
use crate::terminal::{Terminal, one_line};

#[derive(Debug, Args)]
pub struct LeaderArgs {
    #[command(flatten)]
    pub api: Api,
    #[command(subcommand)]
    pub action: Action,
}

#[derive(Debug, Subcommand)]
pub enum Action {
    /// Show the leader, the standbys and how the last terms began
    Status,
    /// Ask the leader to hand over to a standby
    StepDown,
}

pub fn run(args: LeaderArgs, terminal: Terminal) -> Exit {
    session::run_with_session(args.api, terminal, |session| {
        run_action(session, args.action)
    })
}

async fn run_action(session: Session, action: Action) -> CommandResult {
    match action {
        Action::Status => {
            let status = session.client.leader().await?;
            if session.json {
                return session.print_json(&status);
            }
            let text = render_status(&status, &session.render_context());
            session.terminal.print(&text);
        }
        Action::StepDown => {
            let asked = session.client.step_down().await?;
            if session.json {
                return session.print_json(&asked);
            }
            let text = format!(
                "{} was asked to hand over (epoch {})",
                one_line(&asked.leader),
                asked.epoch
            );
            session.terminal.print(&text);
            session
                .terminal
                .hint("airlock leader status shows who leads next");
        }
    }
    Ok(Exit::Done)
}

fn render_status(status: &LeaderStatus, ctx: &RenderContext) -> String {
    let Some(leader) = &status.leader else {
        return "no scheduler has led yet".to_owned();
    };
    let ago = |text: &Option<String>| {
        text.as_deref()
            .map(|text| relative_to_now(text, ctx))
            .unwrap_or_default()
    };
    let mut facts = Facts::new(one_line(leader), ctx);
    facts.add("epoch", status.epoch.to_string());
    facts.add("since", ago(&status.since));
    facts.add("renewed", ago(&status.renewed_at));
    facts.add("backend", status.backend.clone().unwrap_or_default());
    let standbys = status.standbys.iter().map(|standby| {
        [
            one_line(&standby.instance),
            format!("{:.1} s ago", standby.seen_ms_ago as f64 / 1000.0),
            if standby.bus { "yes" } else { "no" }.to_owned(),
        ]
    });
    let changes = status.changes.iter().map(|change| {
        [
            change.epoch.to_string(),
            one_line(&change.leader),
            one_line(&change.cause),
            change
                .gap_ms
                .map(|ms| format!("{ms} ms"))
                .unwrap_or_default(),
            relative_to_now(&change.at, ctx),
        ]
    });
    let mut parts = vec![facts.into_text()];
    if status.standbys.is_empty() {
        parts.push("no standbys".to_owned());
    } else {
        parts.push(render_table(["STANDBY", "SEEN", "NATS"], standbys));
    }
    parts.push(render_table(
        ["EPOCH", "LEADER", "CAUSE", "GAP", "BEGAN"],
        changes,
    ));
    parts.join("\n\n")
}
