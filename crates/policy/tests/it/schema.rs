//! The schema for editors knows the fields that the loader knows, no more and no less.

use std::collections::BTreeSet;

use airlock_policy::{Policy, Problem};
use serde_json::Value;

fn schema() -> Value {
    serde_json::from_str(include_str!("../../../../config/safety.schema.json"))
        .expect("the schema is JSON")
}

/// The fields the loader would have taken where `probe` stands.
fn known(text: &str) -> BTreeSet<String> {
    let error = Policy::load(text).expect_err(text);
    let unknown = |p: &&Problem| p.message.contains("no such field");
    let problem = error.problems.iter().find(unknown).expect(text);
    let hint = problem.hint.as_deref().unwrap_or_default();
    let list = hint
        .strip_prefix("one of: ")
        .unwrap_or_else(|| panic!("{text}: {hint}"));
    list.split(", ").map(str::to_owned).collect()
}

#[test]
fn both_know_the_same_fields() {
    let schema = schema();
    let probe = "probe0123456789: 1";
    let rule = |inner: &str| {
        format!(
            "version: 1\nrules: [{{id: r, match: {{topics: ['*']}}, decision: allow, {inner}}}]\n"
        )
    };
    let part = |inner: &str| format!("version: 1\nrules: []\n{inner}\n");
    for (pointer, text) in [
        ("", format!("version: 1\nrules: []\n{probe}\n")),
        (
            "/properties/input_policy",
            part(&format!("input_policy: {{{probe}}}")),
        ),
        (
            "/$defs/content_rule",
            part(&format!("input_policy: {{content_rules: [{{{probe}}}]}}")),
        ),
        (
            "/properties/output_policy",
            part(&format!("output_policy: {{{probe}}}")),
        ),
        (
            "/$defs/output_rule",
            part(&format!("output_rules: [{{{probe}}}]")),
        ),
        (
            "/$defs/output_match",
            part(&format!(
                "output_rules: [{{id: r, match: {{{probe}}}, decision: allow}}]"
            )),
        ),
        (
            "/$defs/tenant",
            part(&format!("tenants: {{a: {{{probe}}}}}")),
        ),
        (
            "/$defs/mcp",
            part(&format!("tenants: {{a: {{mcp: {{{probe}}}}}}}")),
        ),
        ("/$defs/rule", rule(probe)),
        (
            "/$defs/match",
            format!("version: 1\nrules: [{{id: r, match: {{{probe}}}, decision: allow}}]\n"),
        ),
        ("/$defs/velocity", rule(&format!("velocity: {{{probe}}}"))),
        (
            "/$defs/constraints",
            rule(&format!("constraints: {{{probe}}}")),
        ),
        (
            "/$defs/constraints/properties/budgets",
            rule(&format!("constraints: {{budgets: {{{probe}}}}}")),
        ),
        (
            "/$defs/constraints/properties/sandbox",
            rule(&format!("constraints: {{sandbox: {{{probe}}}}}")),
        ),
        (
            "/$defs/constraints/properties/toolchain",
            rule(&format!("constraints: {{toolchain: {{{probe}}}}}")),
        ),
        (
            "/$defs/constraints/properties/diff",
            rule(&format!("constraints: {{diff: {{{probe}}}}}")),
        ),
        (
            "/$defs/remediations/items",
            rule(&format!("remediations: [{{{probe}}}]")),
        ),
        ("/$defs/approval", rule(&format!("approval: {{{probe}}}"))),
    ] {
        let object = schema
            .pointer(pointer)
            .unwrap_or_else(|| panic!("no {pointer}"));
        let fields: BTreeSet<String> = object["properties"]
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect();
        assert_eq!(fields, known(&text), "{pointer}");
        assert_eq!(
            object["additionalProperties"],
            Value::Bool(false),
            "{pointer}"
        );
    }
}

#[test]
fn both_know_the_same_words() {
    let words: Vec<String> = airlock_policy::Decision::ALL
        .iter()
        .map(ToString::to_string)
        .collect();
    let schema = schema();
    let known: Vec<&str> = schema["$defs"]["decision"]["enum"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    assert_eq!(known[..words.len()], words);
    // The others are other words for them.
    for word in known {
        let text = format!(
            "version: 1\nrules: [{{id: r, match: {{topics: [a]}}, decision: {word}, constraints: {{redaction_level: x}}}}]\n"
        );
        let refused = Policy::load(&text).err().map(|e| e.to_string());
        assert!(
            !refused.unwrap_or_default().contains("unknown word"),
            "{word}"
        );
    }
}
