//! What holds for every input.

use std::sync::LazyLock;

use airlock_scan::Scanner;
use proptest::prelude::*;
use serde_json::Value;

use crate::corpus::{Positive, positives};

static SCANNER: LazyLock<Scanner> = LazyLock::new(Scanner::builtin);
static POSITIVES: LazyLock<Vec<Positive>> = LazyLock::new(|| positives(4711));

/// Text with secrets, halves of secrets and marks in it.
fn text() -> impl Strategy<Value = String> {
    let secret = (0..POSITIVES.len()).prop_map(|i| POSITIVES[i].text.clone());
    let cut = (0..POSITIVES.len(), 0.0..1.0_f64).prop_map(|(i, at)| {
        let text = &POSITIVES[i].text;
        let len = (text.len() as f64 * at) as usize;
        let end = (0..=len)
            .rev()
            .find(|e| text.is_char_boundary(*e))
            .unwrap_or(0);
        text[..end].to_owned()
    });
    let mark = prop::sample::select(vec![
        "[REDACTED:pii]",
        "[REDACTED:secret_leak]",
        "[REDACTED:",
        "password=",
        "Bearer ",
        "\"",
        "%40",
        "\\u0040",
        "://a:",
        "\u{200b}",
        "@",
        "\n",
    ])
    .prop_map(str::to_owned);
    let piece = prop_oneof![3 => secret, 2 => cut, 2 => mark, 2 => ".{0,20}", 1 => "[ -~]{0,30}"];
    prop::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
}

fn json() -> impl Strategy<Value = Value> {
    let key = prop_oneof![
        prop::sample::select(vec![
            "password",
            "name",
            "value",
            "phone",
            "token",
            "a/b",
            "~",
            "card",
            "data",
            "next_page_token"
        ])
        .prop_map(str::to_owned),
        ".{0,6}",
    ];
    let leaf = prop_oneof![
        4 => text().prop_map(Value::String),
        1 => any::<i64>().prop_map(Value::from),
        1 => any::<bool>().prop_map(Value::from),
        1 => Just(Value::Null),
    ];
    leaf.prop_recursive(4, 24, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((key.clone(), inner), 0..5)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

/// The document with every string replaced by one word.
fn shape(value: &Value) -> Value {
    match value {
        Value::String(_) => Value::String("x".to_owned()),
        Value::Array(items) => items.iter().map(shape).collect(),
        Value::Object(members) => members.iter().map(|(k, v)| (k.clone(), shape(v))).collect(),
        other => other.clone(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_scanned_and_redacted(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        airlock_scan::fuzz::scan(&bytes);
    }

    #[test]
    fn secrets_among_any_bytes_are_scanned_and_redacted(
        before in prop::collection::vec(any::<u8>(), 0..40),
        text in text(),
        after in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        airlock_scan::fuzz::scan(&[before, text.into_bytes(), after].concat());
    }

    #[test]
    fn findings_lie_on_characters_of_the_text(text in text()) {
        let report = SCANNER.scan(text.as_bytes());
        for finding in &report.findings {
            prop_assert!(text.get(finding.start..finding.end).is_some(), "{finding:?}");
            prop_assert!(finding.start < finding.end, "{finding:?}");
            if finding.encoding.is_none() {
                // The excerpt is the match's own beginning and end.
                let place = &text[finding.start..finding.end];
                let (lead, trail) = finding.excerpt.split_once('…').unwrap();
                if !place.contains('\\') {
                    let clean: String = place.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
                    prop_assert!(clean.starts_with(lead) && clean.ends_with(trail), "{finding:?} in {place}");
                }
            }
        }
    }

    #[test]
    fn redacted_json_has_the_same_shape_and_clean_strings(value in json(), pretty in any::<bool>()) {
        let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
        let once = SCANNER.redact(text.as_bytes());
        let redacted: Value = serde_json::from_slice(&once.bytes).map_err(|e| TestCaseError::fail(format!("{e}: {text}")))?;
        prop_assert_eq!(shape(&redacted), shape(&value));
        let after = SCANNER.scan(&once.bytes);
        let left: Vec<_> = after.findings.iter().filter(|f| f.redactable).collect();
        prop_assert!(left.is_empty(), "{left:?} in {}", String::from_utf8_lossy(&once.bytes));
        prop_assert_eq!(&SCANNER.redact(&once.bytes).bytes, &once.bytes);
        if once.report.is_clean() {
            prop_assert_eq!(once.bytes, text.into_bytes());
        }
    }

    #[test]
    fn pointers_lead_to_the_string(value in json()) {
        let text = serde_json::to_string(&value).unwrap();
        for finding in SCANNER.scan(text.as_bytes()).findings {
            let pointer = finding.pointer.clone().unwrap();
            prop_assert!(value.pointer(&pointer).is_some(), "{finding:?} in {text}");
        }
    }
}
