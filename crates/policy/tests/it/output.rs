//! Output rules: what is refused, with its place, and what is warned about.

use airlock_policy::Policy;

fn load(rules: &str) -> Result<Vec<String>, Vec<String>> {
    let text = format!("version: 1\nrules: []\noutput_rules:\n{rules}");
    match Policy::load(&text) {
        Ok(policy) => Ok(policy.warnings().iter().map(ToString::to_string).collect()),
        Err(error) => Err(error.problems.iter().map(ToString::to_string).collect()),
    }
}

#[test]
fn every_mistake_is_named_at_once_with_its_place() {
    let long = "x".repeat(257);
    let rules = format!(
        "  - id: a\n    match:\n      detectors: [secrets]\n      content_patterns: ['(', '{long}', '(?=x)']\n    decision: deny\n\
         \x20\x20- id: a\n    match: {{}}\n    decision: redact\n\
         \x20\x20- id: c\n    match: {{content_types: [json, 'text/html; q=1'], scanners: ['a b'], keywords: []}}\n    decision: allow\n\
         \x20\x20- id: d\n    match:\n      when: budget.deadline_ms > 2\n    decision: quarantine\n"
    );
    let problems = load(&rules).unwrap_err();
    for expected in [
        "line 6, column 19: output_rules[0].match.detectors[0]: there is no detector \"secrets\"",
        "line 7, column 26: output_rules[0].match.content_patterns[0]: the pattern cannot be used",
        "output_rules[0].match.content_patterns[1]: the pattern is 257 characters long; at most 256",
        "output_rules[0].match.content_patterns[2]: the pattern cannot be used",
        "output_rules[1].id: the id \"a\" is already used on line 4",
        "output_rules[1].match: the match has no condition",
        "output_rules[2].match.content_types[0]: this is no content type",
        "output_rules[2].match.content_types[1]: a content type has no parameters",
        "output_rules[2].match.scanners[0]: no scanner can have this name",
        "output_rules[2].match.keywords: the list is empty",
        "line 17, column 13: output_rules[3].match.when: there is no \"budget\"",
    ] {
        assert!(
            problems.iter().any(|p| p.contains(expected)),
            "{expected}\n{problems:#?}"
        );
    }
    assert_eq!(problems.len(), 11, "{problems:#?}");
}

#[test]
fn mistakes_of_form_are_named_too() {
    let problems = load(
        "  - id: a\n    match: {topic: [x], output_size_gt: -1}\n    decision: require_approval\n    severity: worst\n    fail_mode: shut\n",
    )
    .unwrap_err();
    for expected in [
        "line 5, column 13: output_rules[0].match.topic: there is no such field (did you mean topics?)",
        "output_rules[0].match.output_size_gt: this must be a whole number",
        "line 6, column 15: output_rules[0].decision: unknown word \"require_approval\"",
        "output_rules[0].severity: unknown word \"worst\"",
        "output_rules[0].fail_mode: unknown word \"shut\"",
    ] {
        assert!(
            problems.iter().any(|p| p.contains(expected)),
            "{expected}\n{problems:#?}"
        );
    }
    let wrong = load("  - {id: a, match: {topics: [x]}, decision: hold}\n").unwrap_err();
    assert!(
        wrong[0].contains("decision: unknown word \"hold\""),
        "{wrong:?}"
    );
}

#[test]
fn an_id_is_unique_over_both_kinds_of_rules() {
    let text = "version: 1\nrules: [{id: a, match: {topics: [x]}, decision: deny}]\noutput_rules: [{id: a, match: {topics: [x]}, decision: deny}]\n";
    let error = Policy::load(text).unwrap_err().to_string();
    assert!(error.contains("already used"), "{error}");
}

#[test]
fn more_rules_or_patterns_than_allowed_are_refused() {
    let rule =
        |i: usize| format!("  - {{id: r{i}, match: {{topics: [job.a{i}]}}, decision: deny}}\n");
    let many: String = (0..1_001).map(rule).collect();
    assert!(load(&many).unwrap_err()[0].contains("more than 1000 output rules"));
    let words: Vec<String> = (0..101).map(|i| format!("w{i}")).collect();
    let words = words.join(", ");
    let many = format!("  - {{id: r, match: {{keywords: [{words}]}}, decision: deny}}\n");
    assert!(load(&many).unwrap_err()[0].contains("101 entries; at most 100"));
}

#[test]
fn a_rule_that_never_decides_or_always_does_is_warned_about() {
    for (rules, expected) in [
        (
            "  - {id: a, match: {topics: ['*']}, decision: allow}\n  - {id: b, match: {detectors: [pii]}, decision: deny}\n",
            &[
                "output rule \"a\" allows every output",
                "output rule \"b\" can never match: rule \"a\" on line 4 matches first",
            ][..],
        ),
        (
            "  - {id: a, match: {topics: ['*']}, decision: quarantine}\n",
            &["output rule \"a\" lets no output through"],
        ),
        (
            "  - {id: a, match: {detectors: [pii, secret_leak]}, decision: deny}\n  - {id: b, match: {detectors: [pii], tenants: [x]}, decision: redact}\n",
            &["output rule \"b\" can never match"],
        ),
        (
            "  - {id: a, enabled: false, match: {topics: ['*']}, decision: deny}\n",
            &["no output rule is enabled"],
        ),
        (
            "  - {id: a, match: {tenants: [x]}, decision: allow, fail_mode: closed}\n",
            &["fail_mode: closed of output rule \"a\" has no effect"],
        ),
        // An unseen part of the output is met by the second alone.
        (
            "  - {id: a, match: {detectors: [pii]}, decision: allow}\n  - {id: b, match: {detectors: [pii]}, decision: deny}\n",
            &[],
        ),
        (
            "  - {id: a, match: {detectors: [pii]}, decision: deny}\n  - {id: b, match: {detectors: [pii, custom]}, decision: deny}\n",
            &[],
        ),
        (
            "  - {id: a, match: {output_size_gt: 10}, decision: deny}\n  - {id: b, match: {output_size_gt: 20}, decision: redact}\n",
            &["output rule \"b\" can never match"],
        ),
    ] {
        let warnings = load(rules).unwrap();
        assert_eq!(warnings.len(), expected.len(), "{rules}\n{warnings:#?}");
        for expected in expected {
            assert!(
                warnings.iter().any(|w| w.contains(expected)),
                "{expected}\n{warnings:#?}"
            );
        }
    }
}
