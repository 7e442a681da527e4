//! All that is wrong with a submission, not only the first of it.
//!
//! The plain reader stops at its first mistake. Only then is the body taken apart: what
//! was wrong is left out and the rest is read again, until it can be read, and then its
//! limits are checked. Good input pays nothing for this.

use airlock_model::JobSpec;
use bytes::Bytes;
use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::http::decode::decode_json_object;
use crate::http::problem::Problem;
use crate::submit::body::SubmitBody;

/// Enough for a person; beyond it a body is not a mistake but something else.
const MOST: usize = 32;
/// Put in the place of a topic that cannot be read, so that the rest can be.
const SOME_TOPIC: &str = r#""job.some""#;

/// What was found so far.
#[derive(Default)]
pub struct Mistakes(Option<Problem>);

impl Mistakes {
    pub fn add(&mut self, problem: Problem) {
        self.0 = Some(match self.0.take() {
            None => problem,
            Some(first) => first.with_errors_of(problem),
        });
    }

    /// The value, unless it is one more mistake.
    pub fn ok_or_add<T>(&mut self, read: Result<T, Problem>) -> Option<T> {
        match read {
            Ok(value) => Some(value),
            Err(problem) => {
                self.add(problem);
                None
            }
        }
    }

    /// Every limit that `spec` breaks.
    pub fn check_limits(&mut self, spec: &JobSpec) {
        let Err(mut error) = spec.validate() else {
            return;
        };
        let mut rest = spec.clone();
        for _ in 0..MOST {
            let known = remove_spec_field(&mut rest, &error.field);
            self.add(Problem::invalid_field(error.field, error.message));
            match rest.validate() {
                Err(next) if known => error = next,
                Ok(()) | Err(_) => return,
            }
        }
    }

    pub fn into_result(self) -> Result<(), Problem> {
        self.0.map_or(Ok(()), Err)
    }
}

/// Takes what `field` names out of the spec; `false` when that is not known here.
fn remove_spec_field(spec: &mut JobSpec, field: &str) -> bool {
    let (name, rest) = field
        .split_once(['.', '['])
        .map_or((field, None), |(name, rest)| (name, Some(rest)));
    match (name, rest) {
        ("labels", Some(key)) if spec.labels.contains_key(key) => {
            spec.labels.remove(key);
        }
        ("labels", _) => spec.labels.clear(),
        ("env", _) => spec.env.clear(),
        ("risk_tags", _) => spec.risk_tags.clear(),
        ("requires", _) => spec.requires.clear(),
        ("capability", _) => spec.capability = None,
        ("workflow_id", _) => spec.workflow_id = None,
        ("parent_job_id", _) => spec.parent_job_id = None,
        ("principal_id", _) => spec.principal_id = None,
        ("actor_id", _) => spec.actor_id = None,
        ("pack_id", _) => spec.pack_id = None,
        ("adapter_id", _) => spec.adapter_id = None,
        ("memory_id", _) => spec.memory_id = None,
        ("max_attempts", _) => spec.max_attempts = None,
        ("timeout_ms", _) => spec.timeout_ms = None,
        ("delay_ms" | "due_at", _) => spec.due = None,
        ("retry", _) => spec.retry = None,
        ("step_index", _) => spec.step_index = None,
        ("budget", _) => spec.budget = None,
        ("compensation", _) => spec.compensation = None,
        _ => return false,
    }
    true
}

/// `first` and all the others in `text`, which the plain reader refused with it. `check`
/// says what is wrong with what can be read.
pub fn collect_all_mistakes(
    text: &[u8],
    first: Problem,
    check: impl FnOnce(SubmitBody<'_>, &Bytes) -> Result<(), Problem>,
) -> Problem {
    let mut parts = match serde_json::from_slice::<Parts>(text) {
        Ok(parts) if first.field_name().is_some() => parts,
        Ok(_) | Err(_) => return first,
    };
    let mut mistakes = Mistakes::default();
    let mut problem = first;
    for _ in 0..MOST {
        let known = problem
            .field_name()
            .is_some_and(|field| parts.remove_field(field));
        mistakes.add(problem);
        if !known {
            break;
        }
        let rest = Bytes::from(parts.to_json());
        match decode_json_object::<SubmitBody<'_>>(&rest) {
            Err(next) => problem = next,
            Ok(body) => {
                mistakes.ok_or_add(check(body, &rest));
                break;
            }
        }
    }
    match mistakes.into_result() {
        Err(all) => all,
        Ok(()) => Problem::internal(),
    }
}

/// The fields of an object as they came, also those that came twice.
struct Parts(Vec<(String, Box<RawValue>)>);

impl Parts {
    /// Takes out what `field` names, as far as the rest can be told from it.
    fn remove_field(&mut self, field: &str) -> bool {
        let (name, below) = field
            .split_once(['.', '['])
            .map_or((field, None), |(name, below)| (name, Some(below)));
        let Some(at) = self.0.iter().rposition(|(key, _)| key == name) else {
            // The one field that must be there.
            let missing = name == "topic";
            if missing && let Ok(topic) = RawValue::from_string(SOME_TOPIC.to_owned()) {
                self.0.push((name.to_owned(), topic));
            }
            return missing;
        };
        let twice = self.0.iter().filter(|(key, _)| key == name).count() > 1;
        let text = if twice {
            None
        } else if name == "topic" {
            Some(SOME_TOPIC.to_owned())
        } else {
            below.and_then(|key| remove_key(self.0[at].1.get(), key))
        };
        match text.and_then(|text| RawValue::from_string(text).ok()) {
            Some(value) => self.0[at].1 = value,
            None => {
                self.0.remove(at);
            }
        }
        true
    }

    fn to_json(&self) -> String {
        let fields: Vec<String> = self
            .0
            .iter()
            .map(|(key, value)| {
                let key = serde_json::Value::from(key.as_str());
                format!("{key}:{}", value.get())
            })
            .collect();
        format!("{{{}}}", fields.join(","))
    }
}

/// An object without one of its keys; `None` when it is not one that has it.
fn remove_key(text: &str, key: &str) -> Option<String> {
    let mut object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text).ok()?;
    object.remove(key)?;
    serde_json::to_string(&object).ok()
}

impl<'de> Deserialize<'de> for Parts {
    fn deserialize<D: serde::Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Parts;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Parts, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Parts(fields))
            }
        }
        reader.deserialize_map(Fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields named, in their order, and the whole problem.
    fn refused(text: &str) -> (Vec<String>, serde_json::Value) {
        let whole = Bytes::copy_from_slice(text.as_bytes());
        let problem = SubmitBody::parse_submission(&whole, &whole, None, 64).unwrap_err();
        let json = serde_json::to_value(problem.into_body()).unwrap();
        let fields = json["errors"].as_array().into_iter().flatten();
        let fields = fields.map(|e| e["field"].as_str().unwrap_or_default().to_owned());
        (fields.collect(), json)
    }

    #[test]
    fn all_mistakes_are_named_at_once() {
        let (fields, json) = refused(
            r#"{"topic": 5, "priority": "URGENT", "delay_ms": "soon", "max_attempts": 1000,
                "labels": {"a": 1, "b": true, "approval_granted": "1"}, "colour": "red",
                "risk_tags": ["x", 7], "payload": 1e400}"#,
        );
        assert_eq!(
            fields,
            [
                "topic",
                "priority",
                "delay_ms",
                "labels.a",
                "labels.b",
                "colour",
                "risk_tags[1]",
                "labels.approval_granted",
                "max_attempts",
            ]
        );
        // The first is where it always was.
        assert_eq!(json["field"], "topic");
        assert_eq!(json["status"], 400);
        assert!(json["detail"].as_str().unwrap().starts_with("topic: "));
        assert!(!json.to_string().contains(" at line "), "{json}");
    }

    #[test]
    fn limits_are_all_checked_too() {
        let (fields, json) = refused(
            r#"{"topic": "job.a", "timeout_ms": 0, "max_attempts": 0, "due_at": "tomorrow",
                "labels": {"approval_granted": "1", "b": "\u0000"}, "workflow_id": "",
                "idempotency_key": "", "payload": 1, "prompt": "x"}"#,
        );
        assert_eq!(
            fields,
            [
                "idempotency_key",
                "prompt",
                "due_at",
                "labels.b",
                "labels.approval_granted",
                "workflow_id",
                "max_attempts",
                "timeout_ms",
            ]
        );
        assert_eq!(json["field"], "idempotency_key");
    }

    #[test]
    fn a_missing_topic_hides_nothing_and_a_hostile_body_is_bounded() {
        assert_eq!(refused(r#"{"delay_ms": -1}"#).0, ["delay_ms", "topic"]);
        assert_eq!(
            refused(r#"{"topic": "job.a", "topic": "job.b", "x": 1}"#).0,
            ["topic", "x"]
        );
        let many: Vec<String> = (0..500).map(|n| format!("\"f{n}\":1")).collect();
        let (fields, _) = refused(&format!("{{{}}}", many.join(",")));
        assert_eq!(fields.len(), MOST);
        let (fields, json) = refused("{");
        assert!(fields.is_empty() && json["detail"].as_str().unwrap().contains("line 1"));
    }
}
