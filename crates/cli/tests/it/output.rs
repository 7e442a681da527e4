//! `airlock output scan` and `redact`: exit codes, JSON and which stream says what.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::{airlock, stderr};

/// A password that no one uses, put together here.
fn password() -> String {
    ["Zq", "vktwx", "#", "417"].concat()
}

fn write(folder: &Path, name: &str, bytes: impl AsRef<[u8]>) -> String {
    let path = folder.join(name);
    std::fs::write(&path, bytes).expect("writing a file");
    path.display().to_string()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs the command with a text on standard input.
fn piped(args: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_airlock"))
        .args(args)
        .env_remove("OUTPUT_SCANNERS_PATH")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starting airlock");
    let mut stdin = child.stdin.take().expect("its input");
    stdin.write_all(input).expect("writing to it");
    drop(stdin);
    child.wait_with_output().expect("running airlock")
}

#[test]
fn the_exit_code_says_clean_found_or_unreadable() {
    let folder = tempfile::tempdir().unwrap();
    let clean = write(folder.path(), "clean.json", r#"{"frames": 12}"#);
    let found = write(folder.path(), "found.txt", "mail to anna7@web.de\n");
    let place = folder.path().display().to_string();
    let code = |args: &[&str]| airlock(folder.path(), args).status.code();
    assert_eq!(code(&["output", "scan", &clean]), Some(0));
    assert_eq!(code(&["output", "scan", &found]), Some(1));
    assert_eq!(code(&["output", "scan", "--json", &found]), Some(1));
    for action in ["scan", "redact"] {
        for unreadable in ["/no/such/file", &place] {
            let output = airlock(folder.path(), &["output", action, unreadable]);
            assert_eq!(output.status.code(), Some(2), "{action} {unreadable}");
            assert!(output.stdout.is_empty());
            assert!(stderr(&output).contains(unreadable), "{}", stderr(&output));
        }
        assert_eq!(code(&["output", action]), Some(2), "no file");
    }
    assert_eq!(code(&["output", "redact", &clean]), Some(0));
    assert_eq!(code(&["output", "redact", &found]), Some(0));
}

#[test]
fn json_has_the_promised_shape() {
    let folder = tempfile::tempdir().unwrap();
    let password = password();
    let text =
        format!(r#"{{"db": [{{"user/name": "app", "a~b": {{"password": "{password}"}}}}]}}"#);
    let file = write(folder.path(), "result.json", &text);
    let output = airlock(folder.path(), &["output", "scan", "--json", &file]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let start = text.find(&password).unwrap();
    let expected = serde_json::json!({
        "file": file,
        "bytes": text.len(),
        "truncated": false,
        "findings": [{
            "kind": "secret_leak",
            "detector": "named_password",
            "severity": "high",
            "confidence": 0.75,
            "pointer": "/db/0/a~0b/password",
            "start": start,
            "end": start + password.len(),
            "encoding": null,
            "excerpt": format!("{}…{}", &password[..2], &password[password.len() - 1..]),
        }],
    });
    assert_eq!(report, expected);
    let keys: Vec<&String> = report.as_object().unwrap().keys().collect();
    assert_eq!(keys.len(), 4);
}

#[test]
fn standard_input_is_a_file_called_dash() {
    let output = piped(&["output", "scan", "--json", "-"], b"call +49 30 2345678");
    assert_eq!(output.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["file"], "-");
    assert_eq!(report["findings"][0]["kind"], "pii");
    assert_eq!(report["findings"][0]["pointer"], serde_json::Value::Null);
    let output = piped(&["output", "scan", "-"], b"");
    assert_eq!(
        (output.status.code(), stdout(&output)),
        (Some(0), String::new())
    );
}

#[test]
fn for_people_a_finding_is_one_line_and_shows_little() {
    let password = password();
    let text = format!("DB_PASSWORD={password}\n");
    let output = piped(&["output", "scan", "-"], text.as_bytes());
    let said = stdout(&output);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(
        said.starts_with("-:12-23: high secret_leak named_password"),
        "{said}"
    );
    assert!(!said.contains(&password), "{said}");
    assert_eq!(stderr(&output), "1 finding in 24 bytes\n");
}

#[test]
fn redact_changes_the_findings_only_and_twice_is_once() {
    let password = password();
    let text = format!("{{\"n\": 1.0e2 ,\r\n \"password\":\"{password}\", \"x\":\"\\u00e4\"}}\n\n");
    let once = piped(&["output", "redact", "-"], text.as_bytes());
    assert_eq!(once.status.code(), Some(0), "{}", stderr(&once));
    assert_eq!(
        stdout(&once),
        text.replace(&password, "[REDACTED:secret_leak]")
    );
    assert!(once.stderr.is_empty());
    let twice = piped(&["output", "redact", "-"], &once.stdout);
    assert_eq!(twice.stdout, once.stdout);
    let clean = piped(&["output", "scan", "-"], &once.stdout);
    assert_eq!(clean.status.code(), Some(0));
}

#[test]
fn what_cannot_be_masked_is_told_and_fails() {
    let text = r#"{"anna7@web.de": "kurt8@web.de", "ssn": 536221234}"#;
    let output = piped(&["output", "redact", "-"], text.as_bytes());
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        stdout(&output),
        text.replace("kurt8@web.de", "[REDACTED:pii]")
    );
    let said = stderr(&output);
    assert!(said.contains("cannot be replaced"), "{said}");
    assert!(
        said.contains("email at \"/anna7@web.de\"") && said.contains("us_ssn at \"/ssn\""),
        "{said}"
    );
}

#[test]
fn an_input_over_the_limit_is_never_clean_and_never_printed() {
    let input = vec![b'a'; (8 << 20) + 1000];
    let output = piped(&["output", "scan", "--json", "-"], &input);
    assert_eq!(output.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["truncated"], true);
    assert_eq!(report["bytes"], input.len());
    let finding = &report["findings"][0];
    assert_eq!(
        (&finding["detector"], &finding["start"], &finding["end"]),
        (&"limit".into(), &(8 << 20).into(), &input.len().into())
    );
    let output = piped(&["output", "redact", "-"], &input);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
    assert!(stderr(&output).contains("8 MiB"));
}

#[test]
fn patterns_of_ones_own_come_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let good = write(
        folder.path(),
        "good.yaml",
        "scanners: {custom: {patterns: [{name: ticket, regex: 'T-[0-9]+'}]}}",
    );
    let bad = write(
        folder.path(),
        "bad.yaml",
        "scanners: {custom: {patterns: [{name: ticket, regex: '('}]}}",
    );
    let output = piped(
        &["output", "redact", "--scanners", &good, "-"],
        b"see T-77\n",
    );
    assert_eq!(stdout(&output), "see [REDACTED:custom]\n");
    for config in [bad.as_str(), "/no/such.yaml"] {
        let output = piped(&["output", "scan", "--scanners", config, "-"], b"");
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(config), "{}", stderr(&output));
    }
    let output = piped(&["output", "scan", "--scanners", &bad, "-"], b"");
    assert!(
        stderr(&output).contains("scanners.custom.patterns[0].regex"),
        "{}",
        stderr(&output)
    );
}
