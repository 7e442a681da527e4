//! `output_scanners.yaml`.

use airlock_scan::{Kind, ScanReport, Scanner, Severity};

fn scan(config: &str, text: &str) -> ScanReport {
    Scanner::from_yaml(config).unwrap().scan(text.as_bytes())
}

fn names(report: &ScanReport) -> Vec<&str> {
    report
        .findings
        .iter()
        .map(|f| f.detector.as_str())
        .collect()
}

#[test]
fn the_shipped_file_loads_and_changes_nothing() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../config/output_scanners.yaml"
    );
    let text = std::fs::read_to_string(path).unwrap();
    assert_eq!(names(&scan(&text, "mail anna7@web.de, 8.8.8.8")), ["email"]);
    // What its comments show must load too.
    let (_, example) = text.split_once("For example:").unwrap();
    let shown: String = example
        .lines()
        .filter_map(|l| l.strip_prefix("#   "))
        .map(|l| format!("{l}\n"))
        .collect();
    assert!(shown.contains("regex:"), "{shown}");
    Scanner::from_yaml(&shown).unwrap();
}

#[test]
fn a_pattern_of_ones_own_is_found() {
    let config = r"
scanners:
  custom:
    patterns:
      - name: ticket
        regex: '\bTICKET-[0-9]{4}\b'
        severity: low
        confidence: 0.6
        allow: ['0000$']
";
    let report = scan(config, "see TICKET-1234 and TICKET-0000");
    assert_eq!(names(&report), ["ticket"]);
    let finding = &report.findings[0];
    assert_eq!(
        (finding.kind, finding.severity),
        (Kind::Custom, Severity::Low)
    );
    assert!((finding.confidence - 0.6).abs() < 1e-9);
    assert_eq!((finding.start, finding.end), (4, 15));
}

#[test]
fn a_required_word_may_be_the_key_or_stand_before() {
    let config = r"
scanners:
  pii:
    patterns:
      - {name: badge, regex: '\b[0-9]{6}\b', context_required: true, keywords: [Badge]}
";
    assert_eq!(names(&scan(config, "his badge is 123456")), ["badge"]);
    assert_eq!(names(&scan(config, r#"{"badge_no":"123456"}"#)), ["badge"]);
    assert_eq!(
        names(&scan(config, r#"{"name":"badge","value":"123456"}"#)),
        ["badge"]
    );
    assert_eq!(names(&scan(config, "badge\nnext line 123456")), [""; 0]);
    assert_eq!(names(&scan(config, r#"{"other":"123456"}"#)), [""; 0]);
}

#[test]
fn built_in_detectors_are_switched_and_changed_by_name() {
    let config = r"
scanners:
  pii:
    patterns:
      - {name: email, enabled: false}
      - {name: ip_address, enabled: true, severity: high}
";
    let report = scan(config, "anna7@web.de came from 8.8.8.8 and 10.0.0.1");
    assert_eq!(names(&report), ["ip_address"]);
    assert_eq!(report.findings[0].severity, Severity::High);
    let config = r"
scanners:
  pii:
    patterns:
      - {name: email, regex: 'mail:\S+'}
";
    assert_eq!(names(&scan(config, "anna7@web.de mail:x")), ["email"]);
    let config = "scanners: {pii: {patterns: [{name: email, allow: ['@corp[.]io$']}]}}";
    assert_eq!(scan(config, "a@corp.io b@web.de").findings.len(), 1);
}

#[test]
fn mistakes_are_named_with_their_place() {
    let long = "a".repeat(257);
    for (config, place, text) in [
        (
            "scanners: {custom: {patterns: [{name: x, regex: '('}]}}".to_owned(),
            "scanners.custom.patterns[0].regex",
            "unclosed",
        ),
        (
            format!("scanners: {{custom: {{patterns: [{{name: x, regex: {long}}}]}}}}"),
            "scanners.custom.patterns[0].regex",
            "257",
        ),
        (
            "scanners: {custom: {patterns: [{name: x, regex: '(a{1000}){1000}'}]}}".to_owned(),
            "scanners.custom.patterns[0].regex",
            "memory",
        ),
        (
            "scanners: {custom: {patterns: [{name: x, regex: '(?=a)'}]}}".to_owned(),
            "scanners.custom.patterns[0].regex",
            "look-around",
        ),
        (
            "scanners: {pii: {patterns: [{name: emial, enabled: false}]}}".to_owned(),
            "scanners.pii.patterns[0]",
            "did you mean email?",
        ),
        (
            "scanners: {custom: {patterns: [{name: email, regex: x}]}}".to_owned(),
            "scanners.custom.patterns[0].name",
            "another section",
        ),
        (
            "scanners: {custom: {patterns: [{name: x, regex: a}, {name: x, regex: b}]}}".to_owned(),
            "scanners.custom.patterns[1].name",
            "this name",
        ),
        (
            "scanners: {custom: {patterns: [{name: x, regex: a, confidence: 2}]}}".to_owned(),
            "scanners.custom.patterns[0].confidence",
            "from 0 to 1",
        ),
        (
            "scanners: {custom: {patterns: [{name: x, regex: a, context_required: true}]}}"
                .to_owned(),
            "scanners.custom.patterns[0].context_required",
            "keywords",
        ),
        (
            "scanners: {custom: {patterns: [{name: x, regex: a, severity: huge}]}}".to_owned(),
            "line 1",
            "huge",
        ),
        (
            "scanners: {custom: {pattern: []}}".to_owned(),
            "line 1",
            "pattern",
        ),
        ("scaners: {}".to_owned(), "line 1", "scaners"),
        ("scanners: [".to_owned(), "line 1", ""),
    ] {
        let error = Scanner::from_yaml(&config).unwrap_err().to_string();
        assert!(
            error.contains(place) && error.contains(text),
            "{config}: {error}"
        );
    }
}

#[test]
fn an_empty_file_is_the_built_in_detectors() {
    for config in [
        "",
        "# nothing\n",
        "scanners:\n",
        "scanners:\n  pii:\n",
        "scanners: {pii: {patterns: []}}",
        "{}",
    ] {
        assert_eq!(
            names(&scan(config, "mail anna7@web.de")),
            ["email"],
            "{config:?}"
        );
    }
}

#[test]
fn a_pattern_that_matches_everything_ends() {
    let config = "scanners: {custom: {patterns: [{name: x, regex: '.*[^A-Z]|[A-Z]'}, {name: y, regex: 'a*'}]}}";
    let scanner = Scanner::from_yaml(config).unwrap();
    let report = scanner.scan("A".repeat(1 << 20).as_bytes());
    assert!(report.truncated);
    let redacted = scanner.redact(b"some text");
    assert_eq!(redacted.bytes, b"[REDACTED:custom]");
    assert_eq!(scanner.redact(&redacted.bytes).bytes, redacted.bytes);
}
