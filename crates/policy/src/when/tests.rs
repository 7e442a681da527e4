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
    let when = When::compile_untyped(source, INPUT_VARIABLES).map_err(|e| e.message)?;
    when.holds(&vars).map_err(|f| f.to_string())
}

fn refused(source: &str) -> WhenError {
    When::compile(source, INPUT_VARIABLES).expect_err(source)
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
        assert!(When::compile(source, INPUT_VARIABLES).is_ok(), "{source}");
    }
}

/// A value of each kind.
const VALUES: [&str; 14] = [
    "topic",
    "labels.env",
    "'x'",
    "7",
    "7u",
    "2.5",
    "estimated_cost",
    "budget.deadline_ms",
    "true",
    "null",
    "b'x'",
    "risk_tags",
    "labels",
    "[1]",
];

fn unfit(source: &str) -> bool {
    let refused = When::compile(source, INPUT_VARIABLES).err();
    refused.is_some_and(|e| {
        When::compile_untyped(source, INPUT_VARIABLES).is_ok() && !e.message.is_empty()
    })
}

/// Two values with each operator: what is refused fails when it is asked, and what fails
/// is refused. (Values that are never equal do not fail: they are refused for the author.)
#[test]
fn each_operator_is_refused_exactly_where_it_would_fail() {
    let mut seen = 0;
    for a in VALUES {
        for b in VALUES {
            for operator in ["<", "<=", ">", ">=", "+", "-", "*", "/", "%"] {
                let source = match operator {
                    "+" | "-" | "*" | "/" | "%" => format!("({a} {operator} {b}) != [1, 'a'][0]"),
                    _ => format!("{a} {operator} {b}"),
                };
                if When::compile_untyped(&source, INPUT_VARIABLES).is_err() {
                    continue; // Lists are not joined.
                }
                seen += 1;
                assert_eq!(
                    unfit(&source),
                    holds(&source).is_err(),
                    "{source}: {:?}",
                    holds(&source)
                );
            }
            for operator in ["==", "!="] {
                let source = format!("{a} {operator} {b}");
                let never = operator == "!=";
                assert!(!unfit(&source) || holds(&source) == Ok(never), "{source}");
            }
            // One side can decide alone, and then the other does not matter.
            for source in [format!("{a} && {b}"), format!("{a} || {b}")] {
                assert!(unfit(&source) || holds(&source).is_ok(), "{source}");
                assert_eq!(unfit(&source), a != "true" || b != "true", "{source}");
            }
            let within = format!("{a} in {b}");
            match holds(&within) {
                Ok(found) => assert!(!unfit(&within) || !found, "{within}"),
                Err(_) => assert!(unfit(&within), "{within}"),
            }
        }
    }
    assert!(seen > 1_500, "{seen}");
}

/// The same for functions, methods and macros.
#[test]
fn each_function_is_refused_exactly_where_it_would_fail() {
    let calls = [
        "size(#) == 1",
        "#.size() == 1",
        "#.startsWith('x')",
        "#.endsWith('x')",
        "#.contains('x')",
        "topic.contains(#)",
        "startsWith(#, 'x')",
        "#.matches('x')",
        "matches(#, 'x')",
        "string(#) == 'x'",
        "#.lowerAscii() == 'x'",
        "#.upperAscii() == 'x'",
        "#.trim() == 'x'",
        "lowerAscii(#) == 'x'",
        "!#",
        "-# == 1",
        "# ? true : false",
        "risk_tags[#] == 'x'",
        "labels[#] == 'x'",
        "risk_tags.all(t, t == 'network' || # == #)",
        "risk_tags.all(t, #)",
        "!risk_tags.exists(t, #)",
        "risk_tags.exists_one(t, #)",
        "size(risk_tags.filter(t, #)) == 0",
        "size(risk_tags.map(t, t + #)) == 2",
    ];
    for call in calls {
        for value in VALUES {
            let source = call.replace('#', value);
            if When::compile_untyped(&source, INPUT_VARIABLES).is_err() {
                continue; // Refused for another reason.
            }
            let failed = match holds(&source) {
                // A place that is not there, and a text that is no number, are no matter
                // of kinds.
                Err(why)
                    if why.contains("out of")
                        || why.contains("Float(2.5)")
                        || why.contains("no label")
                        || why.contains("o such key") =>
                {
                    continue;
                }
                other => other.is_err(),
            };
            assert_eq!(unfit(&source), failed, "{source}: {:?}", holds(&source));
        }
    }
    for fine in [
        "int(labels.n) > 3",
        "uint(labels.n) == 7u",
        "double(labels.n) > 2.0",
        "int(2.5) == 2",
        "double(3) > 2.0",
    ] {
        assert!(When::compile(fine, INPUT_VARIABLES).is_ok(), "{fine}");
    }
    for wrong in [
        "int(risk_tags) > 1",
        "double(true) > 1.0",
        "uint(labels) == 1u",
    ] {
        assert!(unfit(wrong) && holds(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn what_cannot_be_told_is_not_refused() {
    for source in [
        "[1, 'a'][0] == 'x'",
        "(topic == 'a' ? 1 : 'x') == 1",
        "[].all(x, x > 1)",
        "[1, 2.5, 'a'].exists(x, x == 'a')",
        "estimated_cost > 100",
        "estimated_cost == 100",
        "budget.deadline_ms > 2.5",
        "1 in [1, 2.5]",
        "labels.exists(k, labels[k] == 'prod')",
        "size(labels) > 0 && size(topic) > 0",
        "topic + tenant == 'x'",
        "risk_tags == ['a']",
        "risk_tags.exists(t, t in ['a', topic])",
    ] {
        assert!(
            When::compile(source, INPUT_VARIABLES).is_ok(),
            "{source}: {:?}",
            When::compile(source, INPUT_VARIABLES).err()
        );
    }
}

#[test]
fn kinds_that_do_not_fit_are_named_with_place_and_hint() {
    for (source, message, hint, offset) in [
        (
            "size(risk_tags) > \"2\"",
            "a whole number and a text cannot be compared with >",
            "write 2 without quotes",
            Some(18),
        ),
        (
            "topic == 1",
            "a text is never equal to a whole number",
            "makes a number of a text",
            Some(9),
        ),
        (
            "labels.amount > 100",
            "a text and a whole number",
            "int(…)",
            Some(16),
        ),
        (
            "estimated_cost * 2 > 1.0",
            "a decimal number and a whole number do not go together with *",
            "2.0",
            Some(17),
        ),
        (
            "labels.env == null",
            "never equal to null",
            "has(labels.x)",
            Some(14),
        ),
        (
            "risk_tags.contains('pii')",
            "contains cannot be called so with a list and a text",
            "'x' in risk_tags",
            Some(10),
        ),
        ("'a' in topic", "not into a text", "write contains", Some(7)),
        ("7 in risk_tags", "never in a list", "", Some(0)),
        (
            "risk_tags.exists(t, t)",
            "a text is neither true nor false",
            "compare it",
            None,
        ),
        (
            "topic && true",
            "a text is neither true nor false",
            "compare it",
            Some(0),
        ),
        (
            "topic.env == 'x'",
            "a text has no field \"env\"",
            "",
            Some(0),
        ),
        (
            "budget.deadline_ms.startsWith('x')",
            "startsWith cannot be called so",
            "as in topic.startsWith",
            Some(19),
        ),
    ] {
        let error = refused(source);
        assert!(error.message.contains(message), "{source}: {error:?}");
        assert!(
            error.hint.as_deref().unwrap_or("").contains(hint),
            "{source}: {error:?}"
        );
        if offset.is_some() {
            assert_eq!(error.offset, offset, "{source}: {error:?}");
        }
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
    let reads = |source: &str| {
        When::compile(source, INPUT_VARIABLES)
            .unwrap()
            .reads()
            .names()
    };
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
