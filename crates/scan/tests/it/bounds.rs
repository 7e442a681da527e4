//! Inputs at and over the limits: bounded work, and never called clean.

use airlock_scan::{LIMIT, Scanner, limits};

use crate::corpus::github_token;

fn has_limit(report: &airlock_scan::ScanReport) -> bool {
    let limit = report
        .findings
        .iter()
        .any(|f| f.detector == LIMIT && !f.redactable);
    assert_eq!(limit, report.truncated);
    limit
}

#[test]
fn what_is_larger_than_the_limit_is_a_finding() {
    let scanner = Scanner::builtin();
    let mut input = vec![b'a'; limits::INPUT_BYTES];
    let token = github_token(1);
    let at = input.len() - token.len() - 1;
    input[at - 1] = b' ';
    input[at..at + token.len()].copy_from_slice(token.as_bytes());
    input[at + token.len()] = b' ';
    let report = scanner.scan(&input);
    assert!(
        !has_limit(&report) && report.findings.len() == 1,
        "{report:?}"
    );
    input.push(b'x');
    let report = scanner.scan(&input);
    assert!(has_limit(&report));
    assert_eq!(report.bytes, limits::INPUT_BYTES + 1);
    let last = report.findings.last().unwrap();
    assert_eq!(
        (last.start, last.end),
        (limits::INPUT_BYTES, limits::INPUT_BYTES + 1)
    );
    let redacted = scanner.redact(&input);
    assert!(redacted.bytes.is_empty() && !redacted.remaining.is_empty());
}

#[test]
fn depth_is_walked_up_to_the_limit_and_told_beyond_it() {
    let scanner = Scanner::builtin();
    let token = github_token(2);
    let nested = |depth: usize| {
        let (open, close) = ("{\"a\":[".repeat(depth / 2), "]}".repeat(depth / 2));
        format!("{open}\"{token}\"{close}")
    };
    let report = scanner.scan(nested(limits::DEPTH).as_bytes());
    assert!(!has_limit(&report));
    assert_eq!(
        report.findings[0].pointer.as_deref().unwrap(),
        "/a/0".repeat(limits::DEPTH / 2)
    );
    let deep = nested(limits::DEPTH * 4);
    let report = scanner.scan(deep.as_bytes());
    assert!(has_limit(&report));
    assert_eq!(report.findings.len(), 2, "the limit and the token");
    let redacted = scanner.redact(deep.as_bytes());
    assert!(!String::from_utf8_lossy(&redacted.bytes).contains(&token));
    assert_eq!(redacted.remaining.len(), 1);
    let brackets = "[".repeat(1 << 20) + &"]".repeat(1 << 20);
    assert!(has_limit(&scanner.scan(brackets.as_bytes())));
}

#[test]
fn more_findings_than_are_reported_are_told_and_all_are_masked() {
    let scanner = Scanner::builtin();
    let many: Vec<String> = (0..limits::FINDINGS + 200)
        .map(|i| format!("anna{i}@web.de"))
        .collect();
    let input = serde_json::to_string(&many).unwrap();
    let report = scanner.scan(input.as_bytes());
    assert!(has_limit(&report));
    assert_eq!(report.findings.len(), limits::FINDINGS + 1);
    let redacted = scanner.redact(input.as_bytes());
    assert_eq!(redacted.remaining, []);
    assert!(!String::from_utf8_lossy(&redacted.bytes).contains("@web.de"));
}

/// Inputs that would make a careless scanner do the same work again and again. They
/// need no time limit here: quadratic work over this much would not end.
#[test]
fn repeated_beginnings_cost_no_more_than_their_length() {
    let scanner = Scanner::builtin();
    for piece in [
        "-eyJ",
        "/ops_eyJ",
        "-----BEGIN PRIVATE KEY-----",
        "token=",
        "password ",
        "a@",
        "1 ",
        "12 34 ",
        "%41",
        "\\u0041",
        "://a:",
        "ignore all ",
        "curl x ",
        "' or ",
        "QUtJQQ==",
        "[REDACTED:",
        "[REDACTED:pii]",
        "sk-",
        "4111 ",
        "{\"a\":",
        "[\"",
        "\"",
        "\\",
        "+1 ",
        "AKIA",
        ".atlasv1.",
        "hvs.",
        "Bearer ",
        "xoxp-1-",
        "eyJhbGciOiJIUzI1NiJ9.",
        "ghp_é",
        "\u{200b}",
    ] {
        let input = piece.repeat((256 << 10) / piece.len());
        let report = scanner.scan(input.as_bytes());
        assert_eq!(report.bytes, input.len());
    }
}
