//! Redaction: the same bytes with marks in them.

use airlock_scan::Scanner;

use crate::corpus::{github_token, positives};

fn redact(text: &str) -> String {
    let redacted = Scanner::builtin().redact(text.as_bytes());
    assert_eq!(redacted.remaining, [], "in {text}");
    String::from_utf8(redacted.bytes).unwrap()
}

#[test]
fn only_the_finding_changes() {
    let token = github_token(1);
    let text = format!(
        "{{ \"n\" : 1.50e+3,\r\n\t\"b\":12345678901234567890123, \"a\":\"\\u00e9 {token}\\/\" , \"a\":null}}\n"
    );
    let expected = text.replace(&token, "[REDACTED:secret_leak]");
    assert_eq!(redact(&text), expected);
    let text = format!("line one\nmail anna7@web.de and {token}\n");
    assert_eq!(
        redact(&text),
        "line one\nmail [REDACTED:pii] and [REDACTED:secret_leak]\n"
    );
}

#[test]
fn every_positive_is_gone_and_twice_is_once() {
    let scanner = Scanner::builtin();
    for positive in positives(99) {
        let once = scanner.redact(positive.text.as_bytes());
        let secret = &positive.text[positive.range.clone()];
        let left = String::from_utf8_lossy(&once.bytes);
        let in_number = positive.kind == "card number";
        assert_eq!(
            in_number,
            !once.remaining.is_empty(),
            "{}: {left}",
            positive.text
        );
        if in_number || once.report.is_clean() {
            continue;
        }
        assert!(!left.contains(secret), "{}: {left}", positive.text);
        assert!(scanner.scan(&once.bytes).is_clean(), "{left}");
        assert_eq!(scanner.redact(&once.bytes).bytes, once.bytes, "{left}");
    }
}

#[test]
fn a_key_or_a_number_is_left_and_told() {
    let token = github_token(2);
    let text = format!(r#"{{"{token}":"{token}","ssn":536221234}}"#);
    let redacted = Scanner::builtin().redact(text.as_bytes());
    let expected = format!(r#"{{"{token}":"[REDACTED:secret_leak]","ssn":536221234}}"#);
    assert_eq!(String::from_utf8(redacted.bytes).unwrap(), expected);
    let left: Vec<&str> = redacted
        .remaining
        .iter()
        .map(|f| f.detector.as_str())
        .collect();
    assert_eq!(left, ["github_personal_token", "us_ssn"]);
    assert_eq!(redacted.report.findings.len(), 3);
}

#[test]
fn bytes_that_are_no_text_stay_as_they_are() {
    let token = github_token(3);
    let input = [b"\xff\x00\xfe ", token.as_bytes(), b"\n\x80"].concat();
    let redacted = Scanner::builtin().redact(&input);
    let expected = [&b"\xff\x00\xfe "[..], b"[REDACTED:secret_leak]", b"\n\x80"].concat();
    assert_eq!(redacted.bytes, expected);
}
