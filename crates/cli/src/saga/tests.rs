use clap::Parser;
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use super::*;
use crate::args::{Cli, Command};
use crate::render::RenderContext;
use crate::terminal::Paint;

fn action(args: &[&str]) -> Result<Action, clap::Error> {
    let all = ["airlock", "saga"].iter().chain(args);
    match Cli::try_parse_from(all)?.command {
        Command::Saga(saga) => Ok(saga.action),
        other => panic!("not about sagas: {other:?}"),
    }
}

fn render_context() -> RenderContext {
    RenderContext {
        now: Timestamp::parse_rfc3339("2030-01-01T00:05:00Z").unwrap(),
        zone: TimeZone::UTC,
        paint: Paint::Plain,
    }
}

fn saga(state: &str, complete: bool, compensations: Value) -> Saga {
    serde_json::from_value(json!({
        "workflow_id": "trip-1", "tenant_id": "acme", "state": state, "complete": complete,
        "mode": "sequential", "trigger": "failed_fatal", "reason": "seat\u{1b}[31m taken",
        "waiting_reason": null,
        "counts": {"recorded": 2, "done": 1, "failed": 1},
        "opened_at": "2030-01-01T00:00:00Z", "rollback_started_at": "2030-01-01T00:01:00Z",
        "ended_at": null, "compensations": compensations,
    }))
    .unwrap()
}

fn compensation(seq: u64, state: &str, tries: u32) -> Value {
    json!({
        "seq": seq, "for_job_id": format!("j-{seq}"), "step_index": seq, "topic": "job.undo",
        "state": state, "job_id": "comp-1", "tries": tries, "jobs": ["comp-1"],
        "idempotency_key": "k", "decision": "ALLOW", "rule_id": null, "reason": null,
        "recorded_at": "2030-01-01T00:00:30Z", "started_at": null, "ended_at": null,
    })
}

#[test]
fn whatever_gives_something_up_needs_a_reason() {
    for args in [
        &["skip", "w"][..],
        &["resolve", "w"],
        &["rollback", "w"],
        &["rollback", "w", "--reason", "r", "--mode", "sideways"],
        &["list", "--state", "UNDONE"],
        &["show"],
    ] {
        assert_eq!(action(args).unwrap_err().exit_code(), 2, "{args:?}");
    }
    for args in [
        &["retry", "w"][..],
        &["complete", "w"],
        &["rollback", "w", "--dry-run"],
        &["rollback", "w", "--reason", "r", "--mode", "Parallel"],
        &["list", "--state", "rolled-back"],
    ] {
        assert!(action(args).is_ok(), "{args:?}");
    }
}

#[test]
fn a_saga_is_shown_whole_and_nothing_in_it_is_obeyed() {
    let all = json!([compensation(2, "FAILED", 3), compensation(1, "RECORDED", 0)]);
    let text = render::render_saga(&saga("STUCK", false, all), &render_context());
    for part in [
        "trip-1  STUCK",
        "1 of 2 done, 1 failed",
        "failed_fatal",
        "5 min ago",
        "job.undo",
        "comp-1",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    assert!(!text.contains('\u{1b}'), "{text:?}");
    let newest_first = text.find("j-2") < text.find("j-1");
    assert!(newest_first, "{text}");
}

#[test]
fn only_what_changed_is_news() {
    let mut updates = SagaUpdates::default();
    let mut lines = |state: &str, first: (&str, u32), second: (&str, u32)| {
        let all = json!([
            compensation(2, first.0, first.1),
            compensation(1, second.0, second.1)
        ]);
        updates.new_lines(&saga(state, state == "ROLLED_BACK", all), Paint::Plain)
    };
    let begin = lines("ROLLING_BACK", ("RUNNING", 1), ("RECORDED", 0));
    assert_eq!(begin.len(), 2, "{begin:?}");
    assert!(begin[0].starts_with("trip-1  ROLLING_BACK"), "{begin:?}");
    assert!(begin[1].contains("RUNNING") && begin[1].contains("job.undo"));
    assert!(lines("ROLLING_BACK", ("RUNNING", 1), ("RECORDED", 0)).is_empty());
    let again = lines("ROLLING_BACK", ("RUNNING", 2), ("RECORDED", 0));
    assert!(again.len() == 1 && again[0].contains("try 2"), "{again:?}");
    let end = lines("ROLLED_BACK", ("DONE", 2), ("DONE", 1));
    assert_eq!(end.len(), 3, "{end:?}");
    assert_eq!(end[2], "ROLLED_BACK");
}

#[test]
fn only_a_whole_rollback_and_a_completed_saga_are_zero() {
    let exit = |state: &str, complete| exit_for(&saga(state, complete, Value::Null));
    assert_eq!(exit("ROLLED_BACK", true), Exit::Done);
    assert_eq!(exit("COMPLETED", false), Exit::Done);
    assert_eq!(exit("ROLLED_BACK", false), Exit::Failed);
    assert_eq!(exit("STUCK", false), Exit::Failed);
    assert_eq!(exit("OPEN", false), Exit::Unfinished);
}
