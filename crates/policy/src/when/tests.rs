use std::collections::BTreeMap;

use super::*;
use crate::request::{Budget, Request};

fn holds(source: &str) -> Result<bool, String> {
    let labels: BTreeMap<String, String> = [("env", "prod"), ("mcp.tool", "delete"), ("n", "7")]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .into();
    let tags = vec!["network".to_owned(), "pii".to_owned()];
    let request = Request {
        risk_tags: &tags,
        labels: &labels,
        priority: "batch",
        budget: Budget {
            deadline_ms: 5_000,
            ..Budget::default()
        },
        estimated_cost: 2.5,
        ..Request::new("job.a.b")
    };
    let vars = Vars::new(&request, "acme");
    let when = When::compile(source).expect(source);
    when.holds(&vars).map_err(|f| f.to_string())
}

fn refused(source: &str) -> WhenError {
    When::compile(source).expect_err(source)
}

#[test]
fn every_variable_can_be_asked_about() {
    for source in [
        "topic == 'job.a.b' && topic.startsWith('job.')",
        "tenant == 'acme'",
        "principal_id == ''",
        "priority == 'batch'",
        "labels.env == 'prod' && labels['mcp.tool'] == 'delete'",
        "'env' in labels && !('nope' in labels)",
        "has(labels.env) && !has(labels.nope)",
        "capability == '' && pack_id == '' && actor_id == '' && actor_type == ''",
        "'pii' in risk_tags && size(risk_tags) == 2",
        "risk_tags.exists(t, t.startsWith('net')) && !risk_tags.all(t, t == 'pii')",
        "size(risk_tags.filter(t, t.contains('i'))) == 1",
        "risk_tags.map(t, t.upperAscii()) == ['NETWORK', 'PII']",
        "requires.all(r, false)",
        "budget.deadline_ms > 1000 && budget.max_input_tokens == 0",
        "estimated_cost > 2.0",
        "mcp.tool == 'delete' && !has(mcp.server)",
        "labels.env.matches('^pr.d$') && !matches(labels.env, 'x')",
        "int(labels.n) + 1 == 8 && int(labels.n) % 2 == 1",
        "topic in ['job.a.b', 'job.c'] ? true : false",
    ] {
        assert_eq!(holds(source), Ok(true), "{source}");
    }
}

#[test]
fn what_is_missing_or_of_another_kind_fails() {
    for source in [
        "labels.nope == 'x'",
        "topic > 3",
        "int(labels.env) > 3",
        "mcp.server == 'x'",
    ] {
        assert!(holds(source).is_err(), "{source}");
    }
    assert_eq!(
        holds("labels.nope == 'x'"),
        Err("there is no label \"nope\"".to_owned())
    );
    // A failure beside something that decides does no harm.
    assert_eq!(holds("labels.nope == 'x' || true"), Ok(true));
    assert_eq!(holds("labels.nope == 'x' && false"), Ok(false));
}

#[test]
fn mistakes_are_named_with_their_place_and_a_hint() {
    for (source, message, hint, offset) in [
        (
            "topik == 'a'",
            "there is no \"topik\"",
            "did you mean topic?",
            Some(0),
        ),
        ("size(tag) == 1", "there is no \"tag\"", "one of", Some(5)),
        (
            "topic.startWith('a')",
            "no function \"startWith\"",
            "did you mean startsWith?",
            Some(6),
        ),
        ("topic = 'a'", "cannot be read", "write ==", Some(6)),
        ("topic", "neither true nor false", "compare", None),
        (
            "budget.deadline == 1",
            "budget has no field",
            "did you mean deadline_ms?",
            Some(7),
        ),
        (
            "mcp.servr == 'a'",
            "mcp has no field",
            "did you mean server?",
            Some(4),
        ),
        (
            "labels.env.matches(topic)",
            "must be written out",
            "as in",
            Some(11),
        ),
        ("   ", "empty", "leave it out", None),
    ] {
        let error = refused(source);
        assert!(error.message.contains(message), "{source}: {error:?}");
        assert!(
            error.hint.as_deref().unwrap_or("").contains(hint),
            "{source}: {error:?}"
        );
        assert_eq!(error.offset, offset, "{source}");
    }
    assert!(refused("topic ==").message.contains("cannot be read"));
    assert!(
        refused("labels.a.matches('(')")
            .message
            .contains("the pattern cannot be used")
    );
}

#[test]
fn what_could_be_expensive_is_refused() {
    let long = format!("topic in [{}]", vec!["'aaaaaaa'"; 300].join(","));
    let many = format!("size(topic) in [{}]", vec!["1"; 300].join(","));
    let deep = format!("1{} > 0", " + 1".repeat(60));
    let nots = format!("{}true", "!(".repeat(40)) + &")".repeat(40);
    for source in [
        long.as_str(),
        &many,
        &deep,
        &nots,
        "risk_tags.all(a, requires.all(b, a == b))",
        "(risk_tags + requires).all(a, a == 'x')",
        "risk_tags.exists(a, a in requires + requires)",
        "risk_tags.map(a, [a]).all(b, b == [])",
        "topic.split('.').all(a, a == 'x')",
        "topic.replace('a', topic) == 'b'",
        "risk_tags.all(topic, topic == 'x')",
        "{'a': 1}.a == 1",
        "labels.a.matches('((a{100}){100}){100}')",
    ] {
        let _ = refused(source);
    }
}

#[test]
fn it_knows_what_it_reads() {
    let reads = |source: &str| When::compile(source).unwrap().reads().words();
    assert_eq!(
        reads("topic == 'a' && labels.env == 'b'"),
        ["topic", "labels.env"]
    );
    assert_eq!(
        reads("labels['env'] == 'b' || 'x' in labels"),
        ["labels.env", "labels.x"]
    );
    assert_eq!(reads("labels[topic] == 'b'"), ["topic", "labels"]);
    assert_eq!(reads("labels.exists(l, l == 'x')"), ["labels"]);
    assert_eq!(reads("has(labels.env)"), ["labels.env"]);
    assert_eq!(reads("mcp.tool == 'x'"), ["labels.mcp.tool"]);
    assert_eq!(reads("budget.deadline_ms > 0"), ["budget"]);
    assert_eq!(
        reads("risk_tags.exists(t, t == tenant)"),
        ["tenant", "risk_tags"]
    );
}
