//! `airlock approval …`: what waits for somebody, and saying yes or no.

use std::num::NonZeroU32;

use airlock_client::{Approval, ApprovalDetail, ApprovalListRequest, ApprovalPage, Vote};
use clap::{Args, Subcommand};

use crate::args::Api;
use crate::exit::Exit;
use crate::payload;
use crate::render::{Facts, RenderContext, relative_to_now, render_table};
use crate::session::{self, CommandResult, Failure, Session};
use crate::terminal::{Terminal, one_line};

#[derive(Debug, Args)]
pub struct ApprovalArgs {
    #[command(flatten)]
    pub api: Api,
    #[command(subcommand)]
    pub action: Action,
}

#[derive(Debug, Subcommand)]
pub enum Action {
    /// List jobs that are held for approval, newest first
    List {
        /// Only approvals in this status: PENDING (the default), APPROVED, REJECTED, EXPIRED,
        /// DENIED, SUPERSEDED, WITHDRAWN, RELEASED, several separated by commas, or all
        #[arg(long)]
        status: Option<String>,
        /// Only jobs of this topic
        #[arg(long)]
        topic: Option<String>,
        /// Only jobs held by this rule
        #[arg(long, value_name = "RULE")]
        rule: Option<String>,
        /// Maximum number of entries
        #[arg(long, value_name = "N", default_value = "20")]
        limit: NonZeroU32,
        /// Continue where an earlier list ended
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Show the approval of a job: its approvers, the votes and the audit trail
    Show {
        #[arg(value_name = "JOB")]
        id: String,
    },
    /// Approve a held job
    Approve {
        #[arg(value_name = "JOB")]
        id: String,
        /// Reason; kept in the audit trail
        #[arg(long)]
        reason: Option<String>,
        /// Constraints that narrow what the job may do, as in a rule: JSON, @FILE, or - for
        /// standard input
        #[arg(long, value_name = "JSON|@FILE|-")]
        constraints: Option<String>,
    },
    /// Reject a held job, which denies it
    Reject {
        #[arg(value_name = "JOB")]
        id: String,
        /// Reason; kept in the audit trail
        #[arg(long)]
        reason: Option<String>,
    },
}

pub fn run(args: ApprovalArgs, terminal: Terminal) -> Exit {
    session::run_with_session(args.api, terminal, |session| {
        run_action(session, args.action)
    })
}

async fn run_action(session: Session, action: Action) -> CommandResult {
    match action {
        Action::List {
            status,
            topic,
            rule,
            limit,
            cursor,
        } => {
            let request = ApprovalListRequest {
                status,
                topic,
                rule_id: rule,
                limit: Some(limit.into()),
                cursor,
            };
            let page = session.client.approvals(&request).await?;
            if session.json {
                return session.print_json(&page);
            }
            session
                .terminal
                .print(&render_approval_table(&page, &session.render_context()));
            if let Some(cursor) = &page.next_cursor {
                let text = format!("more entries: --cursor {cursor}");
                session.terminal.hint(&text);
            }
            Ok(Exit::Done)
        }
        Action::Show { id } => {
            let detail = session.client.approval(&id).await?;
            if session.json {
                return session.print_json(&detail);
            }
            let text = render_approval(&detail.approval, Some(&detail), &session.render_context());
            session.terminal.print(&text);
            Ok(Exit::Done)
        }
        Action::Approve {
            id,
            reason,
            constraints,
        } => {
            let narrowed = constraints
                .as_deref()
                .map(payload::read_payload)
                .transpose()?;
            let narrowed = narrowed
                .map(|raw| serde_json::from_str(raw.get()))
                .transpose()
                .map_err(|e| Failure::usage(format!("--constraints: {e}")))?;
            let approval = session
                .client
                .approve(&id, reason.as_deref(), narrowed.as_ref())
                .await?;
            print_vote(&session, &approval)
        }
        Action::Reject { id, reason } => {
            let approval = session.client.reject(&id, reason.as_deref()).await?;
            print_vote(&session, &approval)
        }
    }
}

fn print_vote(session: &Session, approval: &Approval) -> CommandResult {
    if session.json {
        return session.print_json(approval);
    }
    session
        .terminal
        .print(&render_approval(approval, None, &session.render_context()));
    Ok(Exit::Done)
}

fn render_approval_table(page: &ApprovalPage, ctx: &RenderContext) -> String {
    if page.items.is_empty() {
        return "nothing waits for an approval".to_owned();
    }
    let header = [
        "JOB", "STATUS", "VOTES", "TOPIC", "TENANT", "RULE", "CREATED", "EXPIRES", "REASON",
    ];
    let rows = page.items.iter().map(|a| {
        [
            one_line(&a.job_id),
            one_line(&a.status),
            format!("{}/{}", a.approvals, a.quorum),
            one_line(&a.topic),
            one_line(&a.tenant_id),
            one_line(&a.rule_id),
            relative_to_now(&a.created_at, ctx),
            relative_to_now(&a.expires_at, ctx),
            one_line(&a.reason),
        ]
    });
    render_table(header, rows)
}

fn render_approval(a: &Approval, detail: Option<&ApprovalDetail>, ctx: &RenderContext) -> String {
    let heading = format!(
        "{}  {}  {}",
        ctx.paint.bold(&one_line(&a.job_id)),
        one_line(&a.status),
        ctx.paint.state(a.job_state),
    );
    let mut facts = Facts::new(heading, ctx);
    let mut fact = |name: &str, value: String| facts.add(name, value);
    fact("topic", one_line(&a.topic));
    fact("tenant", one_line(&a.tenant_id));
    fact(
        "submitted by",
        one_line(a.submitted_by.as_deref().unwrap_or_default()),
    );
    let principal = a.principal_id.as_deref().unwrap_or_default();
    fact("principal", one_line(principal));
    fact(
        "capability",
        one_line(a.capability.as_deref().unwrap_or_default()),
    );
    fact("risk tags", one_line(&a.risk_tags.join(", ")));
    for (name, value) in &a.labels {
        fact("label", format!("{}={}", one_line(name), one_line(value)));
    }
    if let Some(claim) = &a.on_behalf_of {
        let names = [&claim.principal_id, &claim.actor_id];
        let names: Vec<&str> = names.into_iter().flatten().map(String::as_str).collect();
        fact("on behalf of", one_line(&names.join(", ")));
    }
    fact("authors", one_line(&a.authors.join(", ")));
    for (name, value) in detail.map(request_facts).unwrap_or_default() {
        fact(name, value);
    }
    fact("rule", one_line(&a.rule_id));
    fact("reason", one_line(&a.reason));
    fact("policy", one_line(&a.policy_snapshot));
    fact("votes", format!("{} of {}", a.approvals, a.quorum));
    let may: Vec<String> = a
        .approvers
        .iter()
        .cloned()
        .chain(a.approver_roles.iter().map(|r| format!("role {r}")))
        .collect();
    fact("approvers", one_line(&may.join(", ")));
    fact("created", relative_to_now(&a.created_at, ctx));
    fact("expires", relative_to_now(&a.expires_at, ctx));
    fact(
        "decided",
        one_line(a.decided_reason.as_deref().unwrap_or_default()),
    );
    for vote in &a.votes {
        fact("vote", format_vote(vote));
    }
    for entry in detail.iter().flat_map(|d| &d.audit) {
        let at = relative_to_now(&entry.at, ctx);
        let line = format!(
            "{} by {} ({at})",
            one_line(&entry.kind),
            one_line(&entry.actor)
        );
        fact("audit", line);
    }
    facts.into_text()
}

fn format_vote(vote: &Vote) -> String {
    let word = if vote.approve { "approved" } else { "rejected" };
    let mut line = format!("{word} by {}", one_line(&vote.voter));
    if !vote.reason.is_empty() {
        line.push_str(&format!(": {}", one_line(&vote.reason)));
    }
    if let Some(narrowed) = &vote.constraints {
        line.push_str(&format!(
            ", narrowed to {}",
            one_line(&narrowed.to_string())
        ));
    }
    line
}

/// What the job would do, and what is new about it.
fn request_facts(a: &ApprovalDetail) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    if let Some(payload) = &a.payload {
        let mut text = one_line(payload.get());
        if a.payload_truncated {
            text.push_str(&format!(" (the beginning of {} bytes)", a.payload_bytes));
        }
        facts.push(("payload", text));
    }
    if let Some(cost) = &a.estimated_cost {
        facts.push(("estimated cost", one_line(&cost.to_string())));
    }
    if let Some(constraints) = &a.constraints {
        facts.push(("constraints", one_line(&constraints.to_string())));
    }
    let Some(last) = &a.last_approved else {
        return facts;
    };
    let what = match last.changes.len() {
        0 if !last.changes_truncated => "the same".to_owned(),
        n => format!(
            "{n}{} changes since",
            if last.changes_truncated { "+" } else { "" }
        ),
    };
    facts.push((
        "last approved",
        format!("{}, {what}", one_line(&last.job_id)),
    ));
    for change in &last.changes {
        let side = |value: &Option<Box<serde_json::value::RawValue>>| match value {
            Some(value) => one_line(value.get()),
            None => "nothing".to_owned(),
        };
        let (old, new) = (side(&change.old), side(&change.new));
        facts.push((
            "changed",
            format!("{}: {old} -> {new}", one_line(&change.path)),
        ));
    }
    facts
}

#[cfg(test)]
mod tests {
    use airlock_model::{JobState, Timestamp};
    use jiff::tz::TimeZone;

    use super::*;
    use crate::terminal::Paint;

    fn detail() -> ApprovalDetail {
        serde_json::from_value(serde_json::json!({
            "job_id": "j-1", "round": 1, "status": "PENDING", "job_state": "APPROVAL_REQUIRED",
            "topic": "job.pay", "tenant_id": "acme", "reason": "money\u{1b}[31m moves",
            "rule_id": "pay", "policy_snapshot": "sha256:1", "quorum": 2, "approvals": 1,
            "approver_roles": ["treasury"], "created_at": "2030-01-01T00:00:00Z",
            "expires_at": "2030-01-02T00:00:00Z",
            "votes": [{"voter": "bob", "approve": true, "reason": "fine",
                       "constraints": {"budgets": {"max_retries": 1}}, "at": "2030-01-01T00:00:00Z"}],
        }))
        .unwrap()
    }

    fn render_context() -> RenderContext {
        RenderContext {
            now: Timestamp::parse_rfc3339("2030-01-01T00:05:00Z").unwrap(),
            zone: TimeZone::UTC,
            paint: Paint::Plain,
        }
    }

    #[test]
    fn a_request_says_who_is_asked_and_who_spoke() {
        let text = render_approval(&detail().approval, None, &render_context());
        for part in [
            "j-1  PENDING  APPROVAL_REQUIRED",
            "1 of 2",
            "role treasury",
            "approved by bob: fine, narrowed to",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }

    #[test]
    fn an_approver_sees_what_the_job_would_do_and_what_is_new() {
        let mut held = detail();
        held.approval
            .labels
            .insert("env".to_owned(), "prod".to_owned());
        held.payload = Some(serde_json::from_str(r#"{"to": "eve"}"#).unwrap());
        held.payload_truncated = true;
        held.payload_bytes = 99_999;
        held.estimated_cost = Some(serde_json::json!(12.5));
        held.constraints = Some(serde_json::json!({"budgets": {"max_retries": 1}}));
        held.last_approved = serde_json::from_value(serde_json::json!({
            "job_id": "j-0", "approved_at": "2030-01-01T00:00:00Z",
            "changes": [{"path": "payload.to", "old": "ann", "new": "eve\u{1b}[31m"},
                        {"path": "labels.env", "new": "prod"}],
        }))
        .unwrap();
        let text = render_approval(&held.approval, Some(&held), &render_context());
        for part in [
            "env=prod",
            r#"{"to": "eve"} (the beginning of 99999 bytes)"#,
            "12.5",
            "max_retries",
            "j-0, 2 changes since",
            r#"payload.to: "ann" -> "eve"#,
            r#"labels.env: nothing -> "prod""#,
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }

    #[test]
    fn a_list_is_a_table_and_nothing_is_said_to_be_nothing() {
        let mut page = ApprovalPage {
            items: vec![detail().approval],
            next_cursor: None,
        };
        let text = render_approval_table(&page, &render_context());
        assert!(text.starts_with("JOB"), "{text}");
        assert!(text.contains("1/2") && text.contains("job.pay"), "{text}");
        assert_eq!(page.items[0].job_state, JobState::ApprovalRequired);
        page.items.clear();
        assert_eq!(
            render_approval_table(&page, &render_context()),
            "nothing waits for an approval"
        );
    }
}
