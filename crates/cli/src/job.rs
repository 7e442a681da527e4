//! `airlock job …`: what each action asks and how it is answered.

use std::time::Duration;

use airlock_client::{Job, JobPage, ListRequest, SubmitRequest};
use airlock_model::JobState;
use serde::Serialize;

use crate::args::{self, Action};
use crate::exit::Exit;
use crate::follow::{Seen, follow_job};
use crate::payload;
use crate::render::{self, Updates};
use crate::session::{self, CommandResult, Failure, Session};
use crate::terminal::{Terminal, one_line};

pub fn run(args: args::Job, terminal: Terminal) -> Exit {
    session::run_with_session(args.api, terminal, |session| {
        run_action(session, args.action)
    })
}

async fn run_action(session: Session, action: Action) -> CommandResult {
    match action {
        Action::Submit(submit) => session.submit_job(*submit).await,
        Action::Get { id } => session.print_job(&id).await,
        Action::List(list) => session.list_jobs(list).await,
        Action::Watch { id } => session.watch_job(&id, None).await,
        Action::Cancel { id, reason } => session.cancel_job(&id, reason.as_deref()).await,
        Action::Explain { id } => session.explain_job(&id).await,
    }
}

/// The API's page of jobs, to be written out again.
#[derive(Serialize)]
struct PageJson<'a> {
    items: &'a [Job],
    next_cursor: Option<&'a str>,
}

impl Session {
    async fn submit_job(mut self, submit: args::Submit) -> CommandResult {
        if let Some(tenant) = &submit.tenant {
            self.client = self.client.for_tenant(tenant)?;
        }
        let wait = submit.wait;
        let accepted = self.client.submit(&to_submit_request(submit)?).await?;
        let id = &accepted.job_id;
        let Some(bound) = wait else {
            if self.json {
                return self.print_json(&accepted);
            }
            self.terminal.print(&format!(
                "{id}  {}",
                self.terminal.out.state(accepted.state)
            ));
            self.terminal
                .hint(&format!("airlock job watch {id} follows it"));
            return Ok(Exit::Done);
        };
        if !self.json {
            self.terminal.print(&self.terminal.out.bold(id));
        }
        self.watch_job(id, Some(bound)).await
    }

    async fn print_job(&self, id: &str) -> CommandResult {
        let job = self.client.get(id).await?;
        if self.json {
            return self.print_json(&job);
        }
        self.terminal
            .print(&render::render_job(&job, &self.render_context()));
        Ok(Exit::Done)
    }

    async fn list_jobs(&self, list: args::List) -> CommandResult {
        let page = self.client.list(&to_list_request(&list)).await?;
        if self.json {
            return self.print_json(&PageJson {
                items: &page.items,
                next_cursor: page.next_cursor.as_deref(),
            });
        }
        self.print_page(&page);
        Ok(Exit::Done)
    }

    fn print_page(&self, page: &JobPage) {
        self.terminal
            .print(&render::render_job_table(page, &self.render_context()));
        if let Some(cursor) = &page.next_cursor {
            self.terminal
                .hint(&format!("more entries: --cursor {cursor}"));
        }
    }

    /// Shows each state as it is reached, then how it came out.
    async fn watch_job(&self, id: &str, bound: Option<Duration>) -> CommandResult {
        let mut news = Updates::default();
        let job = follow_job(&self.client, id, bound, |job| {
            let lines = news.new_lines(job, &self.render_context());
            if lines.is_empty() {
                return Seen::Unchanged;
            }
            if !self.json {
                self.terminal.print(&lines.join("\n"));
            }
            Seen::New
        })
        .await?;
        let exit = Exit::from_job_state(job.state);
        if self.json {
            self.print_json(&job)?;
            return Ok(exit);
        }
        let outcome = render::render_outcome(&job, &self.render_context());
        if !outcome.is_empty() {
            self.terminal.print(&outcome);
        }
        if exit == Exit::Unfinished {
            self.note_why_unfinished(&job).await;
        }
        Ok(exit)
    }

    /// What the job waits for, for a caller whose wait ended before the job.
    async fn note_why_unfinished(&self, job: &Job) {
        let (id, state) = (one_line(&job.job_id), job.state);
        match self.client.explain(&job.job_id).await {
            Ok(explanation) => {
                let text = format!(
                    "still {}: {}",
                    explanation.state,
                    one_line(&explanation.explanation)
                );
                self.terminal.note(&text);
            }
            Err(_) => self.terminal.note(&format!("still {state}")),
        }
        if state == JobState::ApprovalRequired {
            let text = format!("airlock approval approve {id} lets it go on, with another's key");
            self.terminal.note(&text);
        }
        self.terminal
            .note(&format!("airlock job watch {id} follows it"));
    }

    async fn explain_job(&self, id: &str) -> CommandResult {
        let explanation = self.client.explain(id).await?;
        if self.json {
            return self.print_json(&explanation);
        }
        let state = self.terminal.out.state(explanation.state);
        self.terminal
            .print(&format!("{}  {state}", one_line(&explanation.job_id)));
        self.terminal.print(&one_line(&explanation.explanation));
        let when = |text: &str| render::time::parse_timestamp(text);
        let now = self.render_context().now;
        for (name, at) in [("since", &explanation.since), ("until", &explanation.until)] {
            if let Some(at) = at.as_deref().and_then(when) {
                let text = format!("{name} {}", render::time::format_relative(at, now));
                self.terminal.print(&self.terminal.out.dim(&text));
            }
        }
        Ok(Exit::Done)
    }

    async fn cancel_job(&self, id: &str, reason: Option<&str>) -> CommandResult {
        let cancelled = self.client.cancel(id, reason).await?;
        if self.json {
            return self.print_json(&cancelled);
        }
        let state = self.terminal.out.state(cancelled.state);
        self.terminal
            .print(&format!("{}  {state}", cancelled.job_id));
        Ok(Exit::Done)
    }
}

fn to_submit_request(submit: args::Submit) -> Result<SubmitRequest, Failure> {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    Ok(SubmitRequest {
        topic: submit.topic,
        payload: submit
            .payload
            .as_deref()
            .map(payload::read_payload)
            .transpose()?,
        priority: submit.priority,
        labels: submit.labels.into_iter().collect(),
        capability: submit.capability,
        risk_tags: submit.risk_tags,
        requires: submit.requires,
        estimated_cost: submit.estimated_cost,
        due_at: submit.due_at.map(|at| at.to_rfc3339()),
        delay_ms: submit.delay.map(millis),
        max_attempts: submit.max_attempts.map(Into::into),
        timeout_ms: submit.timeout.map(millis),
        workflow_id: submit.workflow_id,
        idempotency_key: submit.idempotency_key,
        ..SubmitRequest::default()
    })
}

fn to_list_request(list: &args::List) -> ListRequest {
    let states: Vec<&str> = list.states.iter().copied().map(JobState::as_str).collect();
    ListRequest {
        state: (!states.is_empty()).then(|| states.join(",")),
        topic: list.topic.clone(),
        workflow_id: list.workflow_id.clone(),
        limit: Some(list.limit.into()),
        cursor: list.cursor.clone(),
        ..ListRequest::default()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    fn action(args: &[&str]) -> Action {
        let all = ["airlock", "job"].iter().chain(args);
        match Cli::try_parse_from(all).unwrap().command {
            Command::Job(job) => job.action,
            other => panic!("not a job: {other:?}"),
        }
    }

    #[test]
    fn a_submission_says_what_was_asked_and_nothing_else() {
        let Action::Submit(plain) = action(&["submit", "job.echo"]) else {
            panic!("not a submission");
        };
        let json = serde_json::to_string(&to_submit_request(*plain).ok().unwrap()).unwrap();
        assert_eq!(json, r#"{"topic":"job.echo"}"#);

        let Action::Submit(full) = action(&[
            "submit",
            "job.echo",
            "--payload",
            r#"{"n": 1e400}"#,
            "--priority",
            "critical",
            "--label",
            "a=b",
            "--risk-tag",
            "r",
            "--estimated-cost",
            "12.5",
            "--delay",
            "5s",
            "--timeout",
            "1m",
        ]) else {
            panic!("not a submission");
        };
        let json = serde_json::to_string(&to_submit_request(*full).ok().unwrap()).unwrap();
        for part in [
            r#""payload":{"n": 1e400}"#,
            r#""priority":"CRITICAL""#,
            r#""labels":{"a":"b"}"#,
            r#""risk_tags":["r"]"#,
            r#""estimated_cost":12.5"#,
            r#""delay_ms":5000"#,
            r#""timeout_ms":60000"#,
        ] {
            assert!(json.contains(part), "{part} is missing in {json}");
        }
    }

    #[test]
    fn several_states_are_one_filter() {
        let Action::List(list) = action(&["list", "--state", "failed", "--state", "DENIED"]) else {
            panic!("not a list");
        };
        let request = to_list_request(&list);
        assert_eq!(request.state.as_deref(), Some("FAILED,DENIED"));
        assert_eq!(request.limit, Some(20));
    }
}
