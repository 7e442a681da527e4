//! JSON to a type, with every mistake named.
//!
//! Good input is read once, by the plain reader. Only when that fails is it read again
//! by one that keeps track of the path, because keeping track costs a third of the time
//! and good input is what a busy gateway sees.

use serde::Deserialize;
use serde_json::error::Category;

use crate::http::problem::Problem;

/// Reads `text`, or says which field is wrong and where.
pub fn decode_json<'de, T: Deserialize<'de>>(text: &'de [u8]) -> Result<T, Problem> {
    serde_json::from_slice(text).map_err(|error| to_decode_problem::<T>(text, &error))
}

/// Like [`decode_json`], for what must be an object. The readers that serde derives take a
/// list of a struct's fields as well, which nobody means to send.
pub fn decode_json_object<'de, T: Deserialize<'de>>(text: &'de [u8]) -> Result<T, Problem> {
    if text.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'[') {
        return Err(Problem::invalid_field(
            "body",
            "must be an object, not a list",
        ));
    }
    decode_json(text)
}

fn to_decode_problem<'de, T: Deserialize<'de>>(
    text: &'de [u8],
    error: &serde_json::Error,
) -> Problem {
    match error.classify() {
        Category::Syntax | Category::Eof | Category::Io => {
            return Problem::malformed(error.to_string());
        }
        Category::Data => {}
    }
    let mut reader = serde_json::Deserializer::from_slice(text);
    let path = match serde_path_to_error::deserialize::<_, T>(&mut reader) {
        Ok(_) => String::new(),
        Err(error) => error.path().to_string(),
    };
    let message = error.to_string();
    match full_field_path(&path, &message) {
        Some(field) => Problem::invalid_field(field, strip_position(&message)),
        None => Problem::invalid_field("body", message),
    }
}

/// The message without the place in the text, which says less than the field does and
/// nothing to whoever did not write the text.
fn strip_position(message: &str) -> &str {
    message
        .rsplit_once(" at line ")
        .map_or(message, |(message, _)| message)
}

/// The path with the field that the message names at its end; `None` for the whole.
fn full_field_path(path: &str, message: &str) -> Option<String> {
    let path = path.trim_matches('.');
    let named = ["unknown field `", "missing field `", "duplicate field `"]
        .iter()
        .find_map(|start| message.strip_prefix(start))
        .and_then(|rest| rest.split_once('`'))
        .map(|(name, _)| name);
    match (path, named) {
        ("", None) => None,
        ("", Some(name)) => Some(name.to_owned()),
        (path, None) => Some(path.to_owned()),
        (path, Some(name)) if path == name || path.ends_with(&format!(".{name}")) => {
            Some(path.to_owned())
        }
        (path, Some(name)) => Some(format!("{path}.{name}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::submit::body::SubmitBody;

    fn refused(text: &str) -> serde_json::Value {
        let problem = decode_json_object::<SubmitBody<'_>>(text.as_bytes()).unwrap_err();
        serde_json::to_value(problem.into_body()).unwrap()
    }

    #[test]
    fn every_mistake_names_its_field() {
        let cases = [
            (r#"{"topic": 5}"#, "topic"),
            (r#"{"payload": 1}"#, "topic"),
            (r#"{"topic": "echo"}"#, "topic"),
            (r#"{"topic": "job.a", "topik": 1}"#, "topik"),
            (r#"{"topic": "job.a", "topic": "job.b"}"#, "topic"),
            (r#"{"topic": "job.a", "labels": {"a": 5}}"#, "labels.a"),
            (
                r#"{"topic": "job.a", "risk_tags": ["x", 1]}"#,
                "risk_tags[1]",
            ),
            (
                r#"{"topic": "job.a", "budget": {"deadline": 1}}"#,
                "budget.deadline",
            ),
            (
                r#"{"topic": "job.a", "budget": {"deadline_ms": "x"}}"#,
                "budget.deadline_ms",
            ),
            (
                r#"{"topic": "job.a", "compensation": {}}"#,
                "compensation.topic",
            ),
            (
                r#"{"topic": "job.a", "labels": {"a": "1", "a": "2"}}"#,
                "labels",
            ),
            (
                r#"{"topic": "job.a", "estimated_cost": -1}"#,
                "estimated_cost",
            ),
            (
                r#"{"topic": "job.a", "estimated_cost": "5"}"#,
                "estimated_cost",
            ),
            (r#"{"topic": "job.a", "delay_ms": -1}"#, "delay_ms"),
            (r#"{"topic": "job.a", "priority": "URGENT"}"#, "priority"),
            (r#"{"topic": "job.a", "actor_type": "robot"}"#, "actor_type"),
            (r#"[1]"#, "body"),
            (r#""text""#, "body"),
        ];
        for (text, field) in cases {
            let json = refused(text);
            assert_eq!(json["field"], field, "{text}: {json}");
            assert_eq!(json["status"], 400);
        }
    }

    #[test]
    fn malformed_json_tells_its_place() {
        for text in [
            "{",
            "",
            "{\"topic\": \"job.a\",}",
            "{\"topic\": \"job.a\"} x",
            "{\"topic\": \"\u{1}\"}",
        ] {
            let json = refused(text);
            assert_eq!(
                json["type"], "urn:airlock:problem:malformed-json",
                "{text}: {json}"
            );
            assert!(
                json["detail"].as_str().unwrap().contains("line 1"),
                "{json}"
            );
        }
    }
}
