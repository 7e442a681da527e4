use airlock_scan::ScanReport;

use super::*;
use crate::Policy;

fn policy(rules: &str) -> Policy {
    let text = format!("version: 1\nrules: []\noutput_rules:\n{rules}");
    Policy::load(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn check(policy: &Policy, request: &OutputRequest<'_>, bytes: &[u8]) -> OutputRuling {
    let report = Scanner::builtin().scan(bytes);
    let content = OutputContent {
        bytes,
        report: &report,
        complete: true,
    };
    policy.output().check_content(request, &content)
}

fn rule_of(ruling: &OutputRuling) -> &str {
    ruling.rule_id.as_deref().unwrap_or("-")
}

/// Made at run time, so that no finished address of a person is in the repository.
fn address() -> String {
    ["jane.roe", "mail.acme.io"].join("@")
}

const REQUEST: OutputRequest<'static> = OutputRequest {
    topic: "job.mail.send",
    tenant: "acme",
    principal_id: "",
    labels: &NO_LABELS,
    capabilities: &[],
    risk_tags: &[],
    pack_id: "",
    content_type: "application/json",
    size: 100,
    has_error: false,
    error_code: "",
    execution_ms: 5,
    worker_id: "w1",
    workflow_id: "",
    step_id: "",
};
static NO_LABELS: std::collections::BTreeMap<String, String> = std::collections::BTreeMap::new();

#[test]
fn the_first_match_decides_and_without_one_the_output_is_allowed() {
    let p = policy(
        "- {id: a, match: {tenants: [other]}, decision: deny}\n\
         - {id: b, match: {topics: ['job.mail.*']}, decision: quarantine, severity: high, reason: mail}\n\
         - {id: c, match: {tenants: [acme]}, decision: allow}\n",
    );
    let MetadataCheck::Decided(ruling) = p.output().check_metadata(&REQUEST, None) else {
        panic!("no rule looks at the content");
    };
    assert_eq!(ruling.decision, OutputDecision::Quarantine);
    assert_eq!(&*ruling.reason, "quarantined by rule \"b\": mail");
    assert_eq!(ruling.severity, Some(Severity::High));
    assert_eq!(ruling, check(&p, &REQUEST, b"{}"));
    let other = OutputRequest {
        topic: "job.x",
        tenant: "nobody",
        ..REQUEST
    };
    let ruling = check(&p, &other, b"{}");
    assert_eq!(ruling.decision, OutputDecision::Allow);
    assert_eq!(ruling.rule_id, None);
}

#[test]
fn every_condition_on_metadata_is_held_to() {
    let tags = ["pii".to_owned()];
    let capabilities = ["mail".to_owned()];
    let request = OutputRequest {
        risk_tags: &tags,
        capabilities: &capabilities,
        has_error: true,
        error_code: "E1",
        ..REQUEST
    };
    for (condition, matches) in [
        ("topics: ['job.mail.*']", true),
        ("topics: ['job.x']", false),
        ("tenants: [ACME]", true),
        ("tenants: [x]", false),
        ("capabilities: [x, Mail]", true),
        ("capabilities: [x]", false),
        ("risk_tags: [PII]", true),
        ("risk_tags: [x]", false),
        ("content_types: ['application/*']", true),
        ("content_types: ['text/*']", false),
        ("output_size_gt: 99", true),
        ("output_size_gt: 100", false),
        ("has_error: true", true),
        ("has_error: false", false),
        (
            "when: \"output_size_bytes > 50 && has_error && error_code == 'E1'\"",
            true,
        ),
        ("when: has_error", true),
        ("when: '!has_error'", false),
        (
            "when: \"capabilities.exists(c, c == 'mail') && worker_id == 'w1'\"",
            true,
        ),
        ("when: \"execution_ms > 5\"", false),
        // It cannot be said, and the rule is a strict one.
        ("when: \"labels.absent == 'x'\"", true),
        ("topics: ['*'], tenants: [x]", false),
    ] {
        let p = policy(&format!(
            "- {{id: r, match: {{{condition}}}, decision: deny}}\n"
        ));
        let ruling = check(&p, &request, b"{}");
        assert_eq!(ruling.rule_id.is_some(), matches, "{condition}");
        let decided = p.output().check_metadata(&request, None);
        assert_eq!(decided, MetadataCheck::Decided(ruling), "{condition}");
    }
}

#[test]
fn what_cannot_be_judged_holds_for_strict_rules_alone() {
    let unknown = OutputRequest {
        content_type: "",
        ..REQUEST
    };
    for (decision, matches) in [("allow", false), ("deny", true), ("redact", true)] {
        let p = policy(&format!(
            "- {{id: r, match: {{content_types: ['text/*']}}, decision: {decision}}}\n"
        ));
        assert_eq!(
            check(&p, &unknown, b"{}").rule_id.is_some(),
            matches,
            "{decision}"
        );
    }
}

#[test]
fn content_conditions_wait_for_the_content() {
    let p = policy(
        "- {id: secrets, match: {detectors: [pii]}, decision: quarantine, severity: critical}\n\
         - {id: words, match: {keywords: [Confidential]}, decision: redact}\n\
         - {id: shape, match: {content_patterns: ['EMP-[0-9]{6}']}, decision: deny}\n\
         - {id: by-name, match: {scanners: [email], tenants: [never]}, decision: deny}\n",
    );
    let asked = p.output().check_metadata(&REQUEST, None);
    assert_eq!(asked, MetadataCheck::ContentNeeded { closed: false });
    let address = address();
    let cases = [
        (format!("{{\"to\":\"{address}\"}}"), "secrets"),
        ("{\"a\":\"CONFIDENTIAL\"}".to_owned(), "words"),
        ("{\"a\":\"\\u0043onfidential\"}".to_owned(), "words"),
        ("{\"a\":\"EMP-123456\"}".to_owned(), "shape"),
        ("{\"a\":\"fine\"}".to_owned(), "-"),
    ];
    for (content, rule) in &cases {
        let ruling = check(&p, &REQUEST, content.as_bytes());
        assert_eq!(rule_of(&ruling), *rule, "{content}");
        assert!(!ruling.reason.contains(&address), "{}", ruling.reason);
    }
    let ruling = check(&p, &REQUEST, cases[0].0.as_bytes());
    assert_eq!(
        &*ruling.reason,
        "quarantined by rule \"secrets\"; found: email"
    );
}

#[test]
fn conditions_on_the_content_must_all_hold() {
    let p = policy("- {id: r, match: {detectors: [pii], keywords: [internal]}, decision: deny}\n");
    let address = address();
    assert_eq!(rule_of(&check(&p, &REQUEST, address.as_bytes())), "-");
    assert_eq!(rule_of(&check(&p, &REQUEST, b"internal")), "-");
    let both = format!("internal: {address}");
    assert_eq!(rule_of(&check(&p, &REQUEST, both.as_bytes())), "r");
}

#[test]
fn scanners_name_a_section_or_a_detector() {
    let address = address();
    for (name, matches) in [
        ("pii", true),
        ("email", true),
        ("secret", false),
        ("iban", false),
    ] {
        let p = policy(&format!(
            "- {{id: r, match: {{scanners: [{name}]}}, decision: deny}}\n"
        ));
        let ruling = check(&p, &REQUEST, address.as_bytes());
        assert_eq!(ruling.rule_id.is_some(), matches, "{name}");
        let named: Vec<&str> = p.output().named_scanners().collect();
        assert_eq!(named.is_empty(), ["pii", "secret"].contains(&name));
    }
}

#[test]
fn what_nobody_looked_at_is_never_clean() {
    let rules = "- {id: r, match: {detectors: [pii]}, decision: deny}\n";
    let p = policy(rules);
    let allowing = policy(&rules.replace("deny", "allow"));
    let report = ScanReport::default();
    let partial = OutputContent {
        bytes: b"fine",
        report: &report,
        complete: false,
    };
    let ruling = p.output().check_content(&REQUEST, &partial);
    assert_eq!(rule_of(&ruling), "r");
    assert!(
        ruling.reason.contains("could not be looked at"),
        "{}",
        ruling.reason
    );
    let ruling = allowing.output().check_content(&REQUEST, &partial);
    assert_eq!(rule_of(&ruling), "-");
    let long = vec![b' '; airlock_scan::limits::INPUT_BYTES + 1];
    assert_eq!(rule_of(&check(&p, &REQUEST, &long)), "r");
}

#[test]
fn closed_is_the_rules_own_then_the_operators_then_the_files() {
    let rules = |mode: &str| {
        format!(
            "version: 1\nrules: []\noutput_policy: {{{mode}}}\noutput_rules:\n\
             - {{id: allow, match: {{tenants: [x]}}, decision: allow}}\n\
             - {{id: own, match: {{detectors: [pii], topics: ['job.*']}}, decision: deny, fail_mode: closed}}\n\
             - {{id: open, match: {{detectors: [pii]}}, decision: deny, fail_mode: open}}\n\
             - {{id: none, match: {{keywords: [x]}}, decision: redact}}\n"
        )
    };
    let closed = |mode: &str, over: Option<FailMode>| -> Vec<String> {
        let policy = Policy::load(&rules(mode)).unwrap();
        let ClosedRules(closed) = policy.output().closed_rules(over);
        closed.into_iter().map(|r| r.id).collect()
    };
    assert_eq!(closed("", None), ["own"]);
    assert_eq!(closed("fail_mode: closed", None), ["own", "none"]);
    assert_eq!(closed("fail_mode: closed", Some(FailMode::Open)), ["own"]);
    assert_eq!(closed("", Some(FailMode::Closed)), ["own", "none"]);
    let policy = Policy::load(&rules("")).unwrap();
    let needed = |topic: &'static str| {
        let request = OutputRequest { topic, ..REQUEST };
        policy.output().check_metadata(&request, None)
    };
    assert_eq!(
        needed("job.a"),
        MetadataCheck::ContentNeeded { closed: true }
    );
    assert_eq!(
        needed("other"),
        MetadataCheck::ContentNeeded { closed: false }
    );
}

#[test]
fn no_rule_below_one_that_decides_makes_an_output_closed() {
    let p = policy(
        "- {id: look, match: {detectors: [pii]}, decision: deny}\n\
         - {id: rest, match: {topics: ['*']}, decision: allow}\n\
         - {id: never, match: {detectors: [secret_leak]}, decision: deny, fail_mode: closed}\n",
    );
    let asked = p.output().check_metadata(&REQUEST, None);
    assert_eq!(asked, MetadataCheck::ContentNeeded { closed: false });
    // Without the scanner it is held all the same: that is the safe side.
    let met = p.output().closed_rules(None);
    assert_eq!(met.first_met(&REQUEST.metadata()), Some("never"));
}

#[test]
fn masking_reaches_the_rules_own_words_and_gives_up_where_it_cannot() {
    let p = policy(
        "- {id: words, match: {keywords: [bluebird], content_patterns: ['EMP-[0-9]{6}']}, decision: redact}\n",
    );
    let scanner = Scanner::builtin();
    let address = address();
    let text = format!("{{\"a\":\"Bluebird EMP-123456\",\"b\":\"{address}\",\"n\":1.50}}");
    let masked = p.output().mask(Some("words"), &scanner, text.as_bytes());
    let copy = String::from_utf8(masked.bytes.unwrap()).unwrap();
    assert_eq!(
        copy,
        "{\"a\":\"[REDACTED:custom] [REDACTED:custom]\",\"b\":\"[REDACTED:pii]\",\"n\":1.50}"
    );
    assert_eq!(masked.findings.len(), 2, "{:?}", masked.findings);
    for finding in &masked.findings {
        assert_eq!(finding.detector, "rule:words");
        let found = &text[finding.start..finding.end];
        assert!(["Bluebird", "EMP-123456"].contains(&found), "{found}");
    }
    // In a key nothing can be masked.
    let key = b"{\"bluebird\":1,\"x\":\"EMP-123456\"}";
    assert_eq!(p.output().mask(Some("words"), &scanner, key).bytes, None);
    // Another rule's words are not this one's.
    let other = p.output().mask(None, &scanner, b"bluebird");
    assert_eq!(other.bytes.as_deref(), Some(&b"bluebird"[..]));
}

#[test]
fn a_rule_that_redacts_needs_the_content_whatever_it_is_about() {
    let p = policy("- {id: r, match: {topics: ['*']}, decision: redact, fail_mode: closed}\n");
    let asked = p.output().check_metadata(&REQUEST, None);
    assert_eq!(asked, MetadataCheck::ContentNeeded { closed: true });
    assert_eq!(check(&p, &REQUEST, b"{}").decision, OutputDecision::Redact);
}

#[test]
fn a_request_over_the_limits_is_quarantined() {
    let p = policy("- {id: r, match: {topics: ['*']}, decision: allow}\n");
    let many = vec!["x".to_owned(); 257];
    let request = OutputRequest {
        risk_tags: &many,
        ..REQUEST
    };
    let ruling = check(&p, &request, b"{}");
    assert_eq!(ruling.decision, OutputDecision::Quarantine);
    assert!(ruling.reason.contains("257 risk tags"), "{}", ruling.reason);
    let long = "x".repeat(4_097);
    let request = OutputRequest {
        tenant: &long,
        ..REQUEST
    };
    assert!(matches!(
        p.output().check_metadata(&request, None),
        MetadataCheck::Decided(ruling) if ruling.decision == OutputDecision::Quarantine
    ));
}

#[test]
fn what_is_switched_off_decides_nothing() {
    let off = "version: 1\nrules: []\noutput_rules: [{id: r, enabled: false, match: {topics: ['*']}, decision: deny}]\n";
    let unenforced = "version: 1\nenforce: false\nrules: []\noutput_rules: [{id: r, match: {topics: ['*']}, decision: deny, fail_mode: closed}]\n";
    for text in [off, unenforced] {
        let p = Policy::load(text).unwrap();
        assert!(p.output().is_empty());
        assert_eq!(check(&p, &REQUEST, b"{}").decision, OutputDecision::Allow);
        assert_eq!(p.output().closed_rules(None), ClosedRules::default());
    }
}

#[test]
fn the_snapshot_is_of_the_output_rules_alone() {
    let with = |rules: &str, output: &str| {
        let text = format!("version: 1\nrules: {rules}\noutput_rules: {output}\n");
        let p = Policy::load(&text).unwrap();
        (p.snapshot().clone(), p.output().snapshot().clone())
    };
    let rule = "[{id: r, match: {topics: ['*']}, decision: deny}]";
    let other = "[{id: r, match: {topics: ['*']}, decision: redact}]";
    let (input, output) = with("[]", rule);
    assert_eq!(with("[]", other).0, input);
    assert_ne!(with("[]", other).1, output);
    let input_rule = "[{id: q, match: {topics: [job.a]}, decision: allow}]";
    assert_eq!(with(input_rule, rule).1, output);
    assert_ne!(with(input_rule, rule).0, input);
}
