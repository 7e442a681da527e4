//! Sagas on the command line: what is sent, what is printed, and the exit codes, against an
//! API that answers as it is told.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Output;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::{airlock, stderr};

/// A request: `GET /path?query`, its tenant, and its body.
type Asked = (String, Option<String>, Value);

/// Answers every request with the next of `answers`, and the last for ever.
fn serve(answers: Vec<(u16, String)>) -> (String, Arc<Mutex<Vec<Asked>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("its address"));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&asked);
    std::thread::spawn(move || {
        for (n, stream) in listener.incoming().enumerate() {
            let answer = answers.get(n).or(answers.last()).expect("an answer");
            let request = answer_one(stream.expect("a connection"), answer);
            heard.lock().expect("no panic").push(request);
        }
    });
    (url, asked)
}

fn answer_one(stream: TcpStream, (status, answer): &(u16, String)) -> Asked {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).expect("a request line");
    let (mut length, mut tenant) = (0, None);
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).expect("a header");
        let header = header.trim().to_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length");
        }
        if let Some(value) = header.strip_prefix("x-tenant-id:") {
            tenant = Some(value.trim().to_owned());
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("a body");
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{answer}",
        answer.len()
    );
    let mut stream = reader.into_inner();
    stream.write_all(head.as_bytes()).expect("an answer");
    let target = line.rsplit_once(' ').map_or(line.as_str(), |(t, _)| t);
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    (target.to_owned(), tenant, body)
}

fn saga(state: &str, complete: bool) -> Value {
    json!({
        "workflow_id": "trip-1", "tenant_id": "acme", "state": state, "complete": complete,
        "mode": "sequential", "trigger": "manual", "reason": "rain", "waiting_reason": null,
        "counts": {"recorded": 1, "done": 1, "denied": 0, "skipped": 0, "failed": 0, "pending": 0},
        "opened_at": "2026-01-01T00:00:00Z", "rollback_started_at": null, "ended_at": null,
        "compensations": [{
            "seq": 1, "for_job_id": "j-1", "step_index": 0, "topic": "job.hotel.cancel",
            "state": if complete { "DONE" } else { "RUNNING" }, "job_id": "comp-1", "tries": 1,
            "jobs": ["comp-1"], "idempotency_key": "k", "decision": "ALLOW", "rule_id": null,
            "reason": null, "recorded_at": "2026-01-01T00:00:00Z", "started_at": null,
            "ended_at": null,
        }],
    })
}

fn ok(body: &Value) -> (u16, String) {
    (200, body.to_string())
}

fn run(url: &str, args: &[&str]) -> Output {
    let folder = tempfile::tempdir().expect("a folder");
    let all: Vec<&str> = ["saga"].iter().chain(args).copied().collect();
    let all: Vec<&str> = all.into_iter().chain(["--url", url]).collect();
    airlock(folder.path(), &all)
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn each_action_sends_its_reason_and_prints_the_saga() {
    for (args, path, body) in [
        (
            &[
                "rollback", "trip-1", "--reason", "rain", "--mode", "parallel",
            ][..],
            "POST /api/v1/sagas/trip-1/rollback",
            json!({"reason": "rain", "mode": "parallel"}),
        ),
        (
            &["retry", "trip-1"],
            "POST /api/v1/sagas/trip-1/retry",
            json!({}),
        ),
        (
            &["skip", "trip-1", "--reason", "by hand"],
            "POST /api/v1/sagas/trip-1/skip",
            json!({"reason": "by hand"}),
        ),
        (
            &["resolve", "a/b", "--reason", "enough"],
            "POST /api/v1/sagas/a%2Fb/resolve",
            json!({"reason": "enough"}),
        ),
        (
            &["complete", "trip-1", "--tenant", "acme"],
            "POST /api/v1/sagas/trip-1/complete",
            json!({}),
        ),
    ] {
        let (url, asked) = serve(vec![(202, saga("ROLLING_BACK", false).to_string())]);
        let output = run(&url, args);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let text = stdout(&output);
        assert!(text.contains("trip-1  ROLLING_BACK"), "{text}");
        assert!(text.contains("job.hotel.cancel"), "{text}");
        let asked = asked.lock().expect("no panic");
        assert_eq!((asked[0].0.as_str(), &asked[0].2), (path, &body));
        let tenant = args.contains(&"--tenant").then_some("acme");
        assert_eq!(asked[0].1.as_deref(), tenant);
    }
}

#[test]
fn an_action_is_never_sent_twice_and_a_read_is() {
    let busy = json!({"type": "urn:airlock:problem:unavailable", "title": "Not available",
                      "status": 503, "detail": "away"});
    let answers = || vec![(503, busy.to_string()), ok(&saga("STUCK", false))];
    let (url, asked) = serve(answers());
    let output = run(&url, &["skip", "trip-1", "--reason", "r"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert_eq!(asked.lock().expect("no panic").len(), 1);
    let (url, asked) = serve(answers());
    let output = run(&url, &["show", "trip-1"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(asked.lock().expect("no panic").len(), 2);
}

#[test]
fn a_wrong_state_is_1_and_an_unknown_saga_2() {
    let conflict = json!({"type": "urn:airlock:problem:conflict", "title": "Conflict",
        "status": 409, "detail": "the saga is OPEN", "saga_state": "OPEN",
        "workflow_id": "trip-1"});
    let (url, _) = serve(vec![(409, conflict.to_string())]);
    let output = run(&url, &["retry", "trip-1"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("the saga is OPEN"));
    let unknown = json!({"type": "urn:airlock:problem:no-such-saga", "title": "No such saga",
        "status": 404, "detail": "there is no saga"});
    let (url, _) = serve(vec![(404, unknown.to_string())]);
    let output = run(&url, &["show", "nobody"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("airlock saga list"),
        "{}",
        stderr(&output)
    );
    let output = run(&url, &["skip", "trip-1"]);
    assert_eq!(output.status.code(), Some(2), "no reason was given");
}

#[test]
fn watching_ends_with_the_saga_and_tells_whether_all_was_undone() {
    for (state, complete, code) in [
        ("ROLLED_BACK", true, 0),
        ("ROLLED_BACK", false, 1),
        ("STUCK", false, 1),
        ("COMPLETED", false, 0),
    ] {
        let under_way = ok(&saga("ROLLING_BACK", false));
        let (url, asked) = serve(vec![under_way, ok(&saga(state, complete))]);
        let output = run(&url, &["watch", "trip-1"]);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{state}: {}",
            stderr(&output)
        );
        let text = stdout(&output);
        assert!(text.starts_with("trip-1  ROLLING_BACK"), "{text}");
        assert!(
            text.trim_end()
                .lines()
                .last()
                .is_some_and(|l| l.starts_with(state))
        );
        let asked = asked.lock().expect("no panic");
        assert!(asked[1].0.contains("?wait="), "{asked:?}");
    }
}

#[test]
fn lists_and_plans_are_tables_or_json() {
    let page = json!({"items": [saga("STUCK", false)], "next_cursor": "next"});
    let (url, asked) = serve(vec![ok(&page)]);
    let args = [
        "list",
        "--state",
        "stuck",
        "--after",
        "2026-01-01T00:00:00Z",
    ];
    let output = run(&url, &args);
    let text = stdout(&output);
    assert!(text.starts_with("WORKFLOW"), "{text}");
    assert!(text.contains("trip-1") && text.contains("STUCK"), "{text}");
    let target = asked.lock().expect("no panic")[0].0.clone();
    for part in ["state=STUCK", "created_after=2026-01-01", "limit=20"] {
        assert!(target.contains(part), "{target}");
    }
    let output = run(&url, &["list", "--json"]);
    let read: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(read["next_cursor"], "next");

    let plan = json!({"plan": [{"seq": 1, "for_job_id": "j-1", "topic": "job.hotel.cancel",
                                "decision": "DENY", "rule_id": "r", "reason": "never"}]});
    let (url, asked) = serve(vec![ok(&plan)]);
    let output = run(&url, &["rollback", "trip-1", "--dry-run"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("DENY") && text.contains("never"), "{text}");
    let body = asked.lock().expect("no panic")[0].2.clone();
    assert_eq!(body, json!({"dry_run": true}));
}

#[test]
fn a_receipt_is_checked_before_it_is_shown() {
    // The digest of exactly these bytes, spaces included.
    let document = r#"{"workflow_id":"trip-1","tenant_id":"acme","state":"ROLLED_BACK", "complete":true,"mode":"sequential","trigger":null,"reason":null,"counts":{},"opened_at":"2026-01-01T00:00:00Z","rollback_started_at":null,"ended_at":null,"compensations":[]}"#;
    let digest = "172e67b35fa70e84b4db0ac3ec54f3652f254773f1bb386f1d89ed421f48d02e";
    let answer = |sha256: &str| {
        let body = format!(r#"{{"document":{document},"sha256":"{sha256}"}}"#);
        serve(vec![(200, body)]).0
    };
    let url = answer(digest);
    let output = run(&url, &["receipt", "trip-1"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(
        text.contains("trip-1  ROLLED_BACK") && text.contains(digest),
        "{text}"
    );
    let output = run(&url, &["receipt", "trip-1", "--json"]);
    assert!(stdout(&output).contains(document), "{}", stdout(&output));
    let url = answer(&"0".repeat(64));
    let output = run(&url, &["receipt", "trip-1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    assert!(stderr(&output).contains("SHA-256"), "{}", stderr(&output));
}
