//! Queries to the active policy.

use airlock_client::{Evaluation, EvaluationRequest};
use serde_json::Value;

use super::{Job, local};
use crate::exit::Exit;
use crate::render::render_table;
use crate::session::{CommandResult, Failure, Session};
use crate::terminal::{one_line, strip_control_chars};

/// The request that these arguments describe.
fn to_evaluation_request(job: &Job) -> Result<EvaluationRequest, Failure> {
    let request = local::to_policy_request(job)?;
    let whole = serde_json::to_value(&request).map_err(|e| Failure::usage(e.to_string()))?;
    let some = |text: String| (!text.is_empty()).then_some(text);
    let meta = match whole.get("meta") {
        Some(Value::Object(meta)) => meta.clone().into_iter().collect(),
        Some(_) | None => std::collections::BTreeMap::new(),
    };
    Ok(EvaluationRequest {
        topic: request.topic,
        tenant: some(request.tenant),
        principal_id: some(request.principal_id),
        priority: some(request.priority),
        labels: request.labels,
        estimated_cost: request.estimated_cost,
        meta,
        input: request.input.map(Value::String),
    })
}

pub async fn print_simulation(session: &Session, job: &Job) -> CommandResult {
    let answer = session
        .client
        .simulate(&to_evaluation_request(job)?)
        .await?;
    if session.json {
        return session.print_json(&answer);
    }
    session.terminal.print(&format_evaluation(&answer));
    Ok(Exit::Done)
}

pub async fn print_explanation(session: &Session, job: &Job) -> CommandResult {
    let answer = session
        .client
        .explain_policy(&to_evaluation_request(job)?)
        .await?;
    if session.json {
        return session.print_json(&answer);
    }
    session.terminal.print(&format_evaluation(&answer));
    if let Some(explanation) = &answer.explanation {
        session.terminal.print(&format_explanation(explanation));
    }
    Ok(Exit::Done)
}

fn format_evaluation(answer: &Evaluation) -> String {
    let rule = answer.rule_id.as_deref().unwrap_or("default");
    let mut lines = vec![one_line(&format!(
        "{} by {rule}: {}",
        answer.decision, answer.reason
    ))];
    let mut add = |name: &str, value: String| {
        lines.push(one_line(&format!("  {name:<12} {value}")));
    };
    add("policy", answer.policy_snapshot.clone());
    if let Some(constraints) = &answer.constraints {
        add("constraints", constraints.to_string());
    }
    if let Some(approval) = &answer.approval {
        add("approval", approval.to_string());
    }
    for shadow in &answer.shadows {
        let reason = shadow["reason"].as_str().unwrap_or_default();
        add("shadow", reason.to_owned());
    }
    for remedy in &answer.remediations {
        let title = remedy["title"].as_str().unwrap_or_default();
        let summary = remedy["summary"].as_str().unwrap_or_default();
        add("remedy", format!("{title} {summary}"));
    }
    lines.join("\n")
}

/// Each rule that was evaluated, with the conditions that decided about it.
fn format_explanation(explanation: &Value) -> String {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut lines = Vec::new();
    for step in list(&explanation["steps"]) {
        lines.push(format!(
            "  {:<8} {} ({})",
            text(&step["outcome"]),
            text(&step["rule_id"]),
            text(&step["decision"])
        ));
        for condition in list(&step["conditions"]) {
            let held = if condition["held"] == true {
                "yes"
            } else {
                "no "
            };
            lines.push(format!(
                "    {held} {}: wants {}, has {}",
                text(&condition["field"]),
                text(&condition["wanted"]),
                text(&condition["value"])
            ));
        }
    }
    if let Some(more) = explanation["more_steps"].as_u64().filter(|n| *n > 0) {
        lines.push(format!("  and {more} more rules that do not match"));
    }
    for change in list(&explanation["changes"]) {
        lines.push(format!("  {}", text(&change["text"])));
    }
    strip_control_chars(&lines.join("\n")).into_owned()
}

pub async fn print_rules(session: &Session) -> CommandResult {
    let rules = session.client.policy_rules().await?;
    if session.json {
        return session.print_json(&rules);
    }
    let text = |value: &Value| one_line(value.as_str().unwrap_or_default());
    let rows = rules.items.iter().map(|rule| {
        let mode = if rule["enforced"] == false {
            "shadow"
        } else {
            "enforced"
        };
        [
            text(&rule["id"]),
            text(&rule["decision"]),
            mode.to_owned(),
            text(&rule["file"]),
            rule["line"].to_string(),
            text(&rule["reason"]),
        ]
    });
    let header = ["RULE", "DECISION", "MODE", "FILE", "LINE", "REASON"];
    session.terminal.print(&render_table(header, rows));
    for warning in &rules.warnings {
        session
            .terminal
            .note(&one_line(&format!("warning: {warning}")));
    }
    let line = format!("snapshot {}", rules.policy_snapshot);
    session.terminal.hint(&one_line(&line));
    Ok(Exit::Done)
}

pub async fn print_snapshots(session: &Session) -> CommandResult {
    let page = session.client.policy_snapshots().await?;
    if session.json {
        return session.print_json(&page);
    }
    for item in &page.items {
        let mark = if item.in_force { "in force" } else { "" };
        let id = &item.policy_snapshot;
        session
            .terminal
            .print(one_line(&format!("{id}  {mark}")).trim_end());
    }
    Ok(Exit::Done)
}
