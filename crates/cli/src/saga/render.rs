//! Sagas as a person reads them.

use airlock_client::{ReceiptDocument, Saga, SagaCompensation, SagaCounts, SagaPage, SagaPlan};
use airlock_model::SagaState;

use crate::render::{Facts, RenderContext, relative_to_now, render_table};
use crate::terminal::{Paint, one_line};

/// The state; of one that was rolled back, also whether that undid everything.
pub fn format_saga_state(saga: &Saga, paint: Paint) -> String {
    let state = saga.state.as_str();
    match saga.state {
        SagaState::Stuck => paint.red(state),
        SagaState::RolledBack if !saga.complete => format!("{state} (not everything was undone)"),
        SagaState::RolledBack | SagaState::Open | SagaState::RollingBack | SagaState::Completed => {
            state.to_owned()
        }
    }
}

fn text_or_dash(value: Option<&str>) -> String {
    one_line(value.filter(|text| !text.is_empty()).unwrap_or("-"))
}

fn moment(at: Option<&str>, ctx: &RenderContext) -> String {
    at.map(|at| relative_to_now(at, ctx)).unwrap_or_default()
}

pub fn render_saga_table(page: &SagaPage, ctx: &RenderContext) -> String {
    if page.items.is_empty() {
        return "no sagas".to_owned();
    }
    let header = [
        "WORKFLOW", "STATE", "TENANT", "RECORDED", "DONE", "PENDING", "FAILED", "TRIGGER",
        "OPENED", "REASON",
    ];
    let rows = page.items.iter().map(|saga| {
        [
            one_line(&saga.workflow_id),
            saga.state.as_str().to_owned(),
            one_line(&saga.tenant_id),
            saga.counts.recorded.to_string(),
            saga.counts.done.to_string(),
            saga.counts.pending.to_string(),
            saga.counts.failed.to_string(),
            text_or_dash(saga.trigger.as_deref()),
            relative_to_now(&saga.opened_at, ctx),
            text_or_dash(saga.reason.as_deref()),
        ]
    });
    render_table(header, rows)
}

fn format_counts(counts: &SagaCounts) -> String {
    let mut text = format!("{} of {} done", counts.done, counts.recorded);
    for (n, name) in [
        (counts.pending, "pending"),
        (counts.failed, "failed"),
        (counts.denied, "denied"),
        (counts.skipped, "skipped"),
    ] {
        if n > 0 {
            text.push_str(&format!(", {n} {name}"));
        }
    }
    text
}

pub fn render_saga(saga: &Saga, ctx: &RenderContext) -> String {
    let heading = format!(
        "{}  {}",
        ctx.paint.bold(&one_line(&saga.workflow_id)),
        format_saga_state(saga, ctx.paint),
    );
    let mut facts = Facts::new(heading, ctx);
    facts.add("tenant", one_line(&saga.tenant_id));
    facts.add("compensations", format_counts(&saga.counts));
    facts.add("mode", saga.mode.as_str());
    facts.add("trigger", one_line(saga.trigger.as_deref().unwrap_or("")));
    facts.add("reason", one_line(saga.reason.as_deref().unwrap_or("")));
    facts.add(
        "waiting",
        one_line(saga.waiting_reason.as_deref().unwrap_or("")),
    );
    facts.add("opened", relative_to_now(&saga.opened_at, ctx));
    facts.add("began", moment(saga.rollback_started_at.as_deref(), ctx));
    facts.add("ended", moment(saga.ended_at.as_deref(), ctx));
    let text = facts.into_text();
    match saga.compensations.as_deref() {
        None | Some([]) => text,
        Some(all) => format!("{text}\n\n{}", render_compensations(all, ctx)),
    }
}

fn render_compensations(all: &[SagaCompensation], ctx: &RenderContext) -> String {
    let header = [
        "SEQ", "STATE", "TOPIC", "UNDOES", "TRIES", "LAST TRY", "DECISION", "ENDED", "REASON",
    ];
    let rows = all.iter().map(|one| {
        [
            one.seq.to_string(),
            one.state.as_str().to_owned(),
            text_or_dash(one.topic.as_deref()),
            one_line(&one.for_job_id),
            one.tries.to_string(),
            text_or_dash(one.job_id.as_deref()),
            text_or_dash(one.decision.as_deref()),
            moment(one.ended_at.as_deref(), ctx),
            text_or_dash(one.reason.as_deref()),
        ]
    });
    render_table(header, rows)
}

pub fn render_plan(plan: &SagaPlan) -> String {
    if plan.plan.is_empty() {
        return "nothing to undo".to_owned();
    }
    let header = ["SEQ", "TOPIC", "UNDOES", "DECISION", "RULE", "REASON"];
    let rows = plan.plan.iter().map(|one| {
        [
            one.seq.to_string(),
            text_or_dash(one.topic.as_deref()),
            one_line(&one.for_job_id),
            text_or_dash(one.decision.as_deref()),
            text_or_dash(one.rule_id.as_deref()),
            text_or_dash(one.reason.as_deref()),
        ]
    });
    render_table(header, rows)
}

pub fn render_receipt(document: &ReceiptDocument, digest: &str, ctx: &RenderContext) -> String {
    let heading = format!(
        "{}  {}",
        ctx.paint.bold(&one_line(&document.workflow_id)),
        document.state,
    );
    let mut facts = Facts::new(heading, ctx);
    let text = |value: &Option<String>| one_line(value.as_deref().unwrap_or(""));
    facts.add("sha256", digest);
    facts.add("tenant", one_line(&document.tenant_id));
    facts.add("complete", if document.complete { "yes" } else { "no" });
    facts.add("compensations", format_counts(&document.counts));
    facts.add("trigger", text(&document.trigger));
    facts.add("reason", text(&document.reason));
    facts.add("opened", one_line(&document.opened_at));
    facts.add("began", text(&document.rollback_started_at));
    facts.add("ended", text(&document.ended_at));
    let heading = facts.into_text();
    if document.compensations.is_empty() {
        return heading;
    }
    let header = [
        "SEQ", "STATE", "TOPIC", "JOB", "JOB HASH", "DECISION", "RULE", "SNAPSHOT", "WORKER",
        "RESULT", "ENDED",
    ];
    let rows = document.compensations.iter().map(|entry| {
        let one = &entry.compensation;
        [
            one.seq.to_string(),
            one.state.as_str().to_owned(),
            text_or_dash(one.topic.as_deref()),
            text_or_dash(one.job_id.as_deref()),
            text_or_dash(entry.job_hash.as_deref()),
            text_or_dash(one.decision.as_deref()),
            text_or_dash(one.rule_id.as_deref()),
            text_or_dash(entry.policy_snapshot.as_deref()),
            text_or_dash(entry.worker_id.as_deref()),
            text_or_dash(entry.result_sha256.as_deref()),
            text_or_dash(one.ended_at.as_deref()),
        ]
    });
    format!("{heading}\n\n{}", render_table(header, rows))
}
