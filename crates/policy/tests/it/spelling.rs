//! No way of writing an input changes what the rules about content find in it.

use airlock_policy::{Decision, OwnedRequest, Policy};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::Value;

use crate::asking::{ask, decision, job, policy};

/// A policy that denies what contains one of these, and allows the rest.
fn looking_for(entries: &str) -> Policy {
    policy(&format!(
        "version: 1
input_policy:
  content_rules:
    - {{id: c, {entries}, decision: deny}}
rules:
  - {{id: base, match: {{topics: ['*']}}, decision: allow}}
"
    ))
}

fn input(text: impl Into<String>) -> OwnedRequest {
    OwnedRequest {
        input: Some(text.into()),
        ..job("job.a")
    }
}

#[test]
fn escapes_hide_nothing() {
    let policy = looking_for("keywords: [confidential], patterns: ['AKIA[0-9A-Z]{16}']");
    for hidden in [
        r#"{"m":"\u0063onfidential"}"#,
        r#"{"\u0043ONFIDENTIAL":1}"#,
        r#"["x",{"deep":["\u0041KIAABCDEFGHIJKLMNOP"]}]"#,
        "{\"m\":\"con\u{ad}fidential\"}",
        r#"{"m":"con\u200bfidential"}"#,
        r#"{"m":"con\u0000fidential"}"#,
        "{\"m\":\"ｃｏｎｆｉｄｅｎｔｉａｌ\"}",
        r#"{"m":"\uff43onfidential"}"#,
        // A string that holds JSON.
        r#"{"arguments":"{\"m\":\"\\u0063onfidential\"}"}"#,
        // No JSON, and still read by somebody.
        r#"{'m':'\u0063onfidential'}"#,
        r#"{"m":"\u0063onfidential","#,
        "{\"a\":1}\n{\"m\":\"\\u0063onfidential\"}\n",
        "con\u{200b}fidential",
    ] {
        assert_eq!(
            decision(&policy, &input(hidden)),
            Decision::Deny,
            "{hidden}"
        );
    }
    for fine in [
        r#"{"m":"confident"}"#,
        r#"["con","fidential"]"#,
        "con fidential",
        "",
    ] {
        assert_eq!(decision(&policy, &input(fine)), Decision::Allow, "{fine}");
    }
}

#[test]
fn bytes_in_another_encoding_hide_nothing() {
    use airlock_policy::{Content, NoCounters, Request};
    let policy = looking_for("keywords: [confidential]");
    let wide: Vec<u8> = "{\"m\":\"confidential\"}"
        .encode_utf16()
        .flat_map(u16::to_le_bytes)
        .collect();
    let request = Request {
        content: Some(Content {
            bytes: Some(&wide),
            content_type: "application/json",
            size: wide.len() as u64,
        }),
        ..Request::new("job.a")
    };
    let answer = policy.evaluate(&request, &mut NoCounters);
    assert_eq!(answer.decision, Decision::Deny);
}

#[test]
fn a_pattern_may_be_about_structure_or_about_one_string() {
    let structure = looking_for(r#"patterns: ['"password":"[^"]']"#);
    for text in [
        r#"{"password":"x"}"#,
        "{ \"password\"\n: \"x\" }",
        r#"{"pass\u0077ord": "x"}"#,
    ] {
        assert_eq!(decision(&structure, &input(text)), Decision::Deny, "{text}");
    }
    let empty = input(r#"{"password": ""}"#);
    assert_eq!(decision(&structure, &empty), Decision::Allow);
    // The ends are those of each string.
    let whole = looking_for("patterns: ['^secret$']");
    let denied = |text: &str| decision(&whole, &input(text)) == Decision::Deny;
    assert!(denied(r#"{"a":["b","\u0073ecret"]}"#));
    assert!(!denied(r#"{"a":"no secret"}"#));
    // And a pattern for an escaped newline finds it however it is escaped.
    let newline = looking_for(r"patterns: ['KEY-----\\n']");
    for text in [r#"["KEY-----\n"]"#, r#"["KEY-----\u000a"]"#] {
        assert_eq!(decision(&newline, &input(text)), Decision::Deny, "{text}");
    }
}

#[test]
fn the_reason_names_the_same_entry_in_every_spelling() {
    let policy = looking_for("keywords: [zebra, apple]");
    let plain = ask(&policy, &input(r#"{"a":"apple","z":"zebra"}"#));
    let hidden = ask(&policy, &input(r#"{"a":"apple","z":"\u007aebra"}"#));
    assert_eq!(plain.reason, hidden.reason);
}

/// Letters that no escape is made of, so that a keyword of them is about the text and
/// not about its spelling; among them what takes two escapes, and what folds.
const LETTERS: [&str; 12] = ["k", "K", "x", "ö", "😀", "日", "ﬁ", "é", "Z", "m", "w", "Å"];

fn text() -> impl Strategy<Value = String> {
    vec(prop::sample::select(LETTERS.to_vec()), 0..5).prop_map(|parts| parts.concat())
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        4 => text().prop_map(Value::String),
        1 => any::<i32>().prop_map(Value::from),
        1 => Just(Value::Null),
        1 => Just(Value::Bool(true)),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::Array),
            vec((text(), inner), 0..4).prop_map(|pairs| pairs.into_iter().collect::<Value>()),
        ]
    })
}

/// Writes JSON in one of its many spellings, as the bits say.
struct Writer<'a> {
    bits: &'a [u8],
    at: usize,
    out: String,
}

impl Writer<'_> {
    fn bit(&mut self, of: u8) -> u8 {
        self.at += 1;
        self.bits[self.at % self.bits.len()] % of
    }

    fn space(&mut self) {
        let space = ["", "", " ", "\n", "\t ", "\r\n"][usize::from(self.bit(6))];
        self.out.push_str(space);
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            if self.bit(2) == 0 && c >= ' ' && c != '"' && c != '\\' {
                self.out.push(c);
                continue;
            }
            for unit in c.encode_utf16(&mut [0; 2]) {
                let upper = self.bit(2) == 0;
                self.out += &if upper {
                    format!("\\u{unit:04X}")
                } else {
                    format!("\\u{unit:04x}")
                };
            }
        }
        self.out.push('"');
    }

    fn value(&mut self, value: &Value) {
        self.space();
        match value {
            Value::String(text) => self.string(text),
            Value::Array(list) => {
                self.out.push('[');
                for (i, value) in list.iter().enumerate() {
                    if i > 0 {
                        self.out.push(',');
                    }
                    self.value(value);
                }
                self.out.push(']');
            }
            Value::Object(map) => {
                self.out.push('{');
                for (i, (key, value)) in map.iter().enumerate() {
                    if i > 0 {
                        self.out.push(',');
                    }
                    self.space();
                    self.string(key);
                    self.space();
                    self.out.push(':');
                    self.value(value);
                }
                self.out.push('}');
            }
            plain => self.out += &plain.to_string(),
        }
        self.space();
    }
}

fn spelt(value: &Value, bits: &[u8]) -> String {
    let mut writer = Writer {
        bits,
        at: 0,
        out: String::new(),
    };
    writer.value(value);
    writer.out
}

fn strings(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) => vec![text],
        Value::Array(list) => list.iter().flat_map(strings).collect(),
        Value::Object(map) => map
            .iter()
            .flat_map(|(k, v)| std::iter::once(k.as_str()).chain(strings(v)))
            .collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) => Vec::new(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// Both ways: nothing is hidden, and nothing is found that is not there.
    #[test]
    fn no_spelling_of_a_text_changes_a_verdict(
        value in json(),
        word in text().prop_filter("a keyword", |w| !w.is_empty()),
        one in vec(any::<u8>(), 1..64),
        other in vec(any::<u8>(), 1..64),
    ) {
        let (one, other) = (spelt(&value, &one), spelt(&value, &other));
        prop_assert_eq!(serde_json::from_str::<Value>(&one).ok(), Some(value));
        let keyword = looking_for(&format!("keywords: ['{word}']"));
        let first = ask(&keyword, &input(one.as_str()));
        let second = ask(&keyword, &input(other.as_str()));
        prop_assert_eq!(first, second, "{} and {}", one, other);
        let whole = looking_for(&format!("patterns: ['^{word}$', '{word}.*x', 'nothing']"));
        let first = ask(&whole, &input(one.as_str()));
        let second = ask(&whole, &input(other.as_str()));
        prop_assert_eq!(first, second, "{} and {}", one, other);
    }

    #[test]
    fn whatever_a_string_contains_is_found(value in json(), bits in vec(any::<u8>(), 1..64)) {
        let text = spelt(&value, &bits);
        for word in strings(&value).into_iter().filter(|w| !w.is_empty()) {
            let policy = looking_for(&format!("keywords: ['{word}']"));
            prop_assert_eq!(decision(&policy, &input(text.as_str())), Decision::Deny, "{} in {}", word, text);
        }
    }

    /// Whatever bytes come, looking at them ends and breaks nothing.
    #[test]
    fn no_bytes_break_a_scan(bytes in "[\\[\\]{}\":,\\\\u0-9a-fx \u{200b}é😀]{0,60}") {
        let policy = looking_for("keywords: [zzz]");
        let verdict = decision(&policy, &input(bytes.as_str()));
        prop_assert_eq!(verdict, Decision::Allow);
    }
}
