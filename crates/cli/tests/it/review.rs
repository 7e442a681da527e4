//! `airlock output list|show|evidence|release|reject|rescan` against an API that answers as
//! the test says.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::{airlock, stderr};

/// A request as it came: method and target, and the body.
type Asked = Arc<Mutex<Vec<(String, Value)>>>;

/// Answers each request with what `answer` says: a status and a body.
fn serve(answer: impl Fn(usize, &str) -> (u16, Vec<u8>) + Send + 'static) -> (Asked, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("its address"));
    let asked = Asked::default();
    let log = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            answer_one(stream.expect("a connection"), &log, &answer);
        }
    });
    (asked, url)
}

fn answer_one(stream: TcpStream, log: &Asked, answer: &impl Fn(usize, &str) -> (u16, Vec<u8>)) {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).expect("a request");
    let target = line.rsplit_once(' ').expect("a version").0.to_owned();
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).expect("a header");
        if header.trim().is_empty() {
            break;
        }
        if let Some(value) = header.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length");
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("a body");
    let number = {
        let mut log = log.lock().expect("nobody panicked");
        log.push((
            target.clone(),
            serde_json::from_slice(&body).unwrap_or_default(),
        ));
        log.len() - 1
    };
    let (status, body) = answer(number, &target);
    let head = format!(
        "HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = reader.into_inner();
    stream.write_all(head.as_bytes()).expect("the head");
    stream.write_all(&body).expect("the body");
}

fn entry(status: &str) -> Value {
    json!({
        "job_id": "j-1", "tenant_id": "acme", "topic": "job.mail",
        "job_state": "OUTPUT_QUARANTINED", "created_at": "2030-01-01T00:00:00Z",
        "status": status, "rule_id": "no-tokens", "severity": "critical", "redactable": true,
        "size": 27, "audit": [],
    })
}

fn run(url: &str, args: &[&str]) -> std::process::Output {
    let folder = tempfile::tempdir().expect("a folder");
    let all = [&["output"], args, &["--url", url]].concat();
    airlock(folder.path(), &all)
}

#[test]
fn the_quarantine_is_listed_and_shown() {
    let (asked, url) = serve(|_, target| {
        let body = match target.contains("/quarantine?") {
            true => json!({"items": [entry("quarantined")], "next_cursor": null}),
            false => entry("quarantined"),
        };
        (200, body.to_string().into_bytes())
    });
    let listed = run(&url, &["list", "--severity", "critical", "--limit", "5"]);
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert_eq!(listed.status.code(), Some(0), "{}", stderr(&listed));
    assert!(
        text.starts_with("JOB") && text.contains("no-tokens"),
        "{text}"
    );
    let shown = run(&url, &["show", "j-1", "--json"]);
    let json: Value = serde_json::from_slice(&shown.stdout).expect("JSON");
    assert_eq!(json["status"], "quarantined");
    let asked = asked.lock().expect("nobody panicked");
    assert!(
        asked[0].0.contains("severity=critical&limit=5"),
        "{asked:?}"
    );
    assert_eq!(asked[1].0, "GET /api/v1/quarantine/j-1");
}

#[test]
fn evidence_is_written_byte_for_byte() {
    let bytes = b"\x00\xff\x1b[2J{\"a\":1}".to_vec();
    let answer = bytes.clone();
    let (_, url) = serve(move |_, _| (200, answer.clone()));
    let written = run(&url, &["evidence", "j-1"]);
    assert_eq!(written.stdout, bytes, "{}", stderr(&written));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("original");
    let path = file.display().to_string();
    let written = run(&url, &["evidence", "j-1", "--out", &path]);
    assert!(written.stdout.is_empty(), "{}", stderr(&written));
    assert_eq!(std::fs::read(file).expect("the file"), bytes);
}

#[test]
fn a_review_has_a_mode_and_a_reason() {
    let (asked, url) = serve(|_, _| (200, entry("released").to_string().into_bytes()));
    for args in [
        &["release", "j-1", "--reason", "x"][..],
        &["release", "j-1", "--mode", "whole"],
        &["release", "j-1", "--mode", "half", "--reason", "x"],
        &["reject", "j-1"],
        &["rescan"],
        &["rescan", "--since", "yesterday"],
        &["rescan", "--follow", "1", "--since", "1h"],
    ] {
        let output = run(&url, args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
    }
    assert!(asked.lock().expect("nobody panicked").is_empty());
    let released = run(
        &url,
        &["release", "j-1", "--mode", "redacted", "--reason", "masked"],
    );
    assert_eq!(released.status.code(), Some(0), "{}", stderr(&released));
    let rejected = run(&url, &["reject", "j-1", "--reason", "real"]);
    assert_eq!(rejected.status.code(), Some(0), "{}", stderr(&rejected));
    let asked = asked.lock().expect("nobody panicked");
    assert_eq!(asked[0].0, "POST /api/v1/quarantine/j-1/release");
    assert_eq!(asked[0].1, json!({"mode": "redacted", "reason": "masked"}));
    assert_eq!(asked[1].0, "POST /api/v1/quarantine/j-1/reject");
    assert_eq!(asked[1].1, json!({"reason": "real"}));
}

#[test]
fn a_refusal_is_2_and_says_why() {
    let (_, url) = serve(|_, _| {
        let problem = json!({
            "type": "urn:airlock:problem:forbidden", "title": "Not allowed", "status": 403,
            "detail": "nobody reviews the output of their own job",
        });
        (403, problem.to_string().into_bytes())
    });
    for args in [
        &["evidence", "j-1"][..],
        &["reject", "j-1", "--reason", "x"],
    ] {
        let output = run(&url, args);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains("their own job"));
        assert!(output.stdout.is_empty());
    }
}

fn rescan(state: &str, scanned: u64, failed: u64) -> Vec<u8> {
    json!({
        "id": "r-1", "state": state, "since": "2030-01-01T00:00:00Z",
        "up_to": "2030-01-02T00:00:00Z", "dry_run": false, "requested_by": "rita",
        "total": 10, "scanned": scanned, "allowed": scanned, "quarantined": 0, "redacted": 0,
        "failed": failed, "created_at": "2030-01-02T00:00:00Z",
    })
    .to_string()
    .into_bytes()
}

#[test]
fn a_rescan_is_followed_to_its_end() {
    let (asked, url) = serve(|number, _| match number {
        0 => (202, rescan("running", 0, 0)),
        1 => (200, rescan("running", 5, 0)),
        _ => (200, rescan("done", 10, 0)),
    });
    let output = run(&url, &["rescan", "--since", "24h", "--topic", "job.mail"]);
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr(&output),
    );
    assert_eq!(output.status.code(), Some(0), "{err}");
    assert!(err.contains("5 of 10 scanned"), "{err}");
    assert!(out.contains("10 scanned: 10 allowed"), "{out}");
    let asked = asked.lock().expect("nobody panicked");
    assert_eq!(asked[0].1["topic"], "job.mail");
    assert!(asked[0].1["since"].is_string(), "{asked:?}");
    assert_eq!(asked[1].0, "GET /api/v1/output/rescans/r-1");

    let (_, url) = serve(|_, _| (200, rescan("done", 10, 2)));
    let output = run(&url, &["rescan", "--follow", "r-1"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let (_, url) = serve(|_, _| (202, rescan("running", 0, 0)));
    let output = run(&url, &["rescan", "--since", "1h", "--detach"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "r-1");
}
