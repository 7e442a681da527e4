//! Many dead letters at once, against an API whose jobs all fail again.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::{airlock, stderr};

/// What the API was asked for, and the letters that it has.
#[derive(Default)]
struct Api {
    retries: Vec<Value>,
    deletes: Vec<Value>,
    left: u64,
    next_letter: i64,
    again: Vec<Value>,
}

/// The newest letter when the command is given.
const NEWEST: i64 = 1_000;

impl Api {
    fn answer(&mut self, path: &str, body: &Value) -> Value {
        let limit = body["limit"].as_u64().unwrap_or(1_000);
        match path {
            "/api/v1/dlq/retry" => {
                self.retries.push(body.clone());
                let matched = self.left;
                let many = limit.min(matched);
                self.left -= many;
                let jobs: Vec<Value> = (0..many).map(|_| self.retried()).collect();
                json!({"dry_run": false, "matched": matched, "retried": many, "skipped": 0,
                       "remaining": self.left, "up_to": NEWEST, "jobs": jobs})
            }
            "/api/v1/dlq/delete" => {
                self.deletes.push(body.clone());
                let dry = body["dry_run"] == true;
                let many = if dry { 0 } else { limit.min(self.left) };
                let matched = self.left;
                self.left -= many;
                json!({"dry_run": dry, "matched": matched, "deleted": many,
                       "remaining": self.left, "up_to": NEWEST})
            }
            _ => {
                let items: Vec<&Value> = self.again.iter().rev().collect();
                json!({"items": items, "next_cursor": null})
            }
        }
    }

    /// A letter becomes a job, which fails at once.
    fn retried(&mut self) -> Value {
        self.next_letter += 1;
        let (id, job) = (self.next_letter, format!("again-{}", self.next_letter));
        self.again.push(json!({
            "id": NEWEST + id, "job_id": job, "reason_code": "failed", "reason": "again",
            "attempts": 1, "created_at": "2030-01-01T00:00:00Z",
        }));
        json!({"id": id, "job_id": job})
    }
}

fn serve(api: Arc<Mutex<Api>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("it works");
    let url = format!("http://{}", listener.local_addr().expect("it works"));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            one(&api, stream.expect("it works"));
        }
    });
    url
}

fn one(api: &Mutex<Api>, stream: TcpStream) {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).expect("it works");
    let target = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let path = target.split('?').next().unwrap_or_default();
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).expect("it works");
        if header.trim().is_empty() {
            break;
        }
        if let Some(value) = header.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().expect("it works");
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("it works");
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let answer = api
        .lock()
        .expect("it works")
        .answer(path, &body)
        .to_string();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n",
        answer.len()
    );
    let mut stream = reader.into_inner();
    stream
        .write_all((head + &answer).as_bytes())
        .expect("it works");
}

fn api(left: u64) -> (Arc<Mutex<Api>>, String) {
    let api = Arc::new(Mutex::new(Api {
        left,
        ..Api::default()
    }));
    let url = serve(Arc::clone(&api));
    (api, url)
}

#[test]
fn a_retry_stops_when_what_was_retried_fails_again() {
    let folder = tempfile::tempdir().expect("it works");
    let (api, url) = api(300);
    let args = [
        "dlq",
        "retry",
        "--all",
        "--rate",
        "20/s",
        "--max-failures",
        "3",
        "--url",
        &url,
    ];
    let output = airlock(folder.path(), &args);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("20 of 300 retried"), "{text}");
    assert!(
        text.contains("20 of those that were retried have failed again"),
        "{text}"
    );
    let retries = &api.lock().expect("it works").retries;
    assert_eq!(retries.len(), 1, "{retries:?}");
    assert_eq!(retries[0]["limit"], 20);
}

#[test]
fn every_request_after_the_first_has_the_same_end() {
    let folder = tempfile::tempdir().expect("it works");
    let (retried, url) = api(30);
    let args = [
        "dlq",
        "retry",
        "--all",
        "--rate",
        "20/s",
        "--max-failures",
        "99",
        "--url",
        &url,
    ];
    let output = airlock(folder.path(), &args);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let retries = &retried.lock().expect("it works").retries;
    assert_eq!(retries.len(), 2, "{retries:?}");
    assert_eq!(retries[0]["up_to"], Value::Null);
    assert_eq!(retries[1]["up_to"], NEWEST);

    // Nobody is asked where there is no terminal.
    let (deleted, url) = api(1_500);
    let output = airlock(folder.path(), &["dlq", "delete", "--all", "--url", &url]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("1500 deleted"), "{said}");
    let deletes = &deleted.lock().expect("it works").deletes;
    assert_eq!(deletes[0]["dry_run"], true);
    assert!(
        deletes[1..].iter().all(|body| body["up_to"] == NEWEST),
        "{deletes:?}"
    );
}
