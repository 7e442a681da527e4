use airlock_client::{Job, JobPage};
use jiff::tz::TimeZone;

use super::*;

fn render_context() -> RenderContext {
    RenderContext {
        now: Timestamp::parse_rfc3339("2026-01-02T03:05:00Z").unwrap(),
        zone: TimeZone::UTC,
        paint: Paint::Plain,
    }
}

fn succeeded() -> Job {
    serde_json::from_str(
        r#"{
            "job_id": "j-1", "state": "SUCCEEDED", "topic": "job.echo", "tenant_id": "default",
            "priority": "INTERACTIVE", "labels": {"team": "a"}, "attempts": 1, "max_attempts": 3,
            "worker_id": "w-1", "trace_id": "abc", "result": {"n":  12345678901234567890123},
            "decision": {"decision": "ALLOW", "rule_id": "r1", "reason": "no risk",
                         "policy_snapshot": "s", "decided_at": null},
            "created_at": "2026-01-02T03:04:00.000000Z",
            "finished_at": "2026-01-02T03:04:02.017000Z",
            "history": [
                {"state": "PENDING", "at": "2026-01-02T03:04:00.000000Z", "attempt": 0},
                {"state": "SCHEDULED", "at": "2026-01-02T03:04:00.004000Z", "attempt": 1, "worker_id": "w-1"},
                {"state": "DISPATCHED", "at": "2026-01-02T03:04:00.005000Z", "attempt": 1, "worker_id": "w-1"},
                {"state": "RUNNING", "at": "2026-01-02T03:04:00.007000Z", "attempt": 1, "worker_id": "w-1"},
                {"state": "SUCCEEDED", "at": "2026-01-02T03:04:02.017000Z", "attempt": 1, "worker_id": "w-1"}
            ]
        }"#,
    )
    .unwrap()
}

fn denied() -> Job {
    let mut job = succeeded();
    job.job_id = "j-2".to_owned();
    job.state = JobState::Denied;
    job.result = None;
    job.attempts = 0;
    job.failure_reason = Some("too\nrisky\u{1b}[2J".to_owned());
    job.error_code = Some("safety_denied".to_owned());
    job
}

#[test]
fn a_job_is_told_from_its_start_to_its_result() {
    let text = render_job(&succeeded(), &render_context());
    let expected = "\
j-1  SUCCEEDED  job.echo
  tenant     default
  created    2026-01-02 03:04:00.000 (1 min ago)
  ended      2026-01-02 03:04:02.017 (57 s ago), after 2.02 s
  priority   INTERACTIVE
  attempts   1 of 3
  worker     w-1
  labels     team=a
  decision   ALLOW by rule r1: no risk
  trace      abc
  history
    PENDING             03:04:00.000
    SCHEDULED           03:04:00.004  +4.0 ms     on w-1
    DISPATCHED          03:04:00.005  +1.0 ms
    RUNNING             03:04:00.007  +2.0 ms
    SUCCEEDED           03:04:02.017  +2.01 s
  result     {\"n\":  12345678901234567890123}";
    assert_eq!(text, expected);
}

#[test]
fn what_others_wrote_stays_on_its_line_and_moves_no_cursor() {
    let mut job = denied();
    let text = render_outcome(&job, &render_context());
    let expected = "  reason     too risky\u{fffd}[2J\n  code       safety_denied";
    assert_eq!(text, expected);

    // What the last line of the history said is not said again.
    if let Some(last) = job.history.last_mut() {
        last.reason.clone_from(&job.failure_reason);
    }
    assert_eq!(
        render_outcome(&job, &render_context()),
        "  code       safety_denied"
    );
}

#[test]
fn a_list_lines_up_with_and_without_colours() {
    let page = JobPage {
        items: vec![succeeded(), denied()],
        next_cursor: None,
    };
    let plain = render_job_table(&page, &render_context());
    let expected = "\
STATE      JOB  TOPIC     TENANT   ATTEMPTS  CREATED    DURATION
SUCCEEDED  j-1  job.echo  default  1         1 min ago  2.02 s
DENIED     j-2  job.echo  default  0         1 min ago  2.02 s";
    assert_eq!(plain, expected);

    let coloured = render_job_table(
        &page,
        &RenderContext {
            paint: Paint::Colours,
            ..render_context()
        },
    );
    assert!(coloured.contains('\u{1b}'));
    let mut bare = String::new();
    let mut inside = false;
    for letter in coloured.chars() {
        match (letter, inside) {
            ('\u{1b}', _) => inside = true,
            ('m', true) => inside = false,
            (_, true) => {}
            (letter, false) => bare.push(letter),
        }
    }
    assert_eq!(bare, plain);
}

#[test]
fn an_empty_list_says_so() {
    let page = JobPage {
        items: Vec::new(),
        next_cursor: None,
    };
    assert_eq!(render_job_table(&page, &render_context()), "no jobs");
}

#[test]
fn each_state_is_news_once_however_late_it_becomes_known() {
    let whole = succeeded();
    let mut seen = succeeded();
    let mut news = Updates::default();
    seen.history.truncate(1);
    seen.waiting_reason = Some("no worker in pool default".to_owned());
    let lines = news.new_lines(&seen, &render_context());
    assert_eq!(
        lines,
        [
            "  PENDING             03:04:00.000",
            "  waiting: no worker in pool default"
        ]
    );
    assert!(news.new_lines(&seen, &render_context()).is_empty());

    // The middle ones come together with the end.
    let lines = news.new_lines(&whole, &render_context());
    let states: Vec<&str> = lines
        .iter()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(states, ["SCHEDULED", "DISPATCHED", "RUNNING", "SUCCEEDED"]);
    assert!(lines[3].ends_with("+2.01 s"), "{}", lines[3]);
    assert!(news.new_lines(&whole, &render_context()).is_empty());
}

#[test]
fn a_second_attempt_is_news() {
    let mut job = succeeded();
    let mut again = job.history[1].clone();
    again.at = "2026-01-02T03:04:10Z".to_owned();
    again.attempt = 2;
    job.history.push(again);
    let mut news = Updates::default();
    let lines = news.new_lines(&job, &render_context());
    assert_eq!(lines.len(), 6);
    assert!(
        lines[5].ends_with("+7.98 s     on w-1, attempt 2"),
        "{}",
        lines[5]
    );
}

#[test]
fn results_that_are_no_json_or_are_gone_are_told() {
    let mut job = succeeded();
    job.result = None;
    job.result_base64 = Some("/w==".to_owned());
    assert_eq!(
        render_result(&job, &render_context()).unwrap(),
        "  result     /w== (base64)"
    );
    job.result_base64 = None;
    job.result_missing = true;
    assert!(
        render_result(&job, &render_context())
            .unwrap()
            .contains("lost")
    );
}

#[test]
fn what_the_worker_said_is_told_and_followed() {
    let mut job = succeeded();
    let said = r#"{
        "progress": {"percent": 40, "message": "resized\u001b[2J", "attempt": 1, "at": "x"},
        "partials": [
            {"percent": 10, "attempt": 1, "at": "p1", "pointer": "redis://p1", "size": 9},
            {"percent": 40, "attempt": 1, "at": "p2", "pointer": "redis://p2", "content": [1]}],
        "artifacts": [{"name": "page.png", "pointer": "redis://art:1", "media_type": "image/png",
                       "size": 12, "attempt": 1, "at": "x"}],
        "constraint_report": [
            {"constraint": "toolchain.allowed_tools", "outcome": "refused", "detail": "shell"}]
    }"#;
    let said: serde_json::Value = serde_json::from_str(said).unwrap();
    job.progress = serde_json::from_value(said["progress"].clone()).unwrap();
    job.partials = serde_json::from_str(&said["partials"].to_string()).unwrap();
    job.artifacts = serde_json::from_value(said["artifacts"].clone()).unwrap();
    job.constraint_report = serde_json::from_value(said["constraint_report"].clone()).unwrap();
    let text = super::render_job(&job, &render_context());
    for line in [
        "  progress   40 %  resized",
        "  partials   2, the last [1]",
        "  artifact   page.png, redis://art:1, image/png, 12 bytes",
        "  constraint toolchain.allowed_tools refused: shell",
    ] {
        assert!(text.contains(line), "{line:?} in\n{text}");
    }
    assert!(!text.contains('\u{1b}'));
    // Followed, it is shown once, before the end.
    let mut news = Updates::default();
    let lines = news.new_lines(&job, &render_context());
    assert!(lines[lines.len() - 1].contains("SUCCEEDED"), "{lines:?}");
    assert!(lines[lines.len() - 2].contains("so far: [1]"), "{lines:?}");
    assert!(lines[lines.len() - 3].contains("40 %"), "{lines:?}");
    assert!(news.new_lines(&job, &render_context()).is_empty());
}
