//! A submission as clients send it, and the job it asks for.
//!
//! What must stay true: the payload is never read, only carried. It stays the very
//! bytes that came, so that big numbers, the order of keys and a `\u0000` survive, and
//! the job hash means what the client sent.

use std::collections::BTreeMap;

use airlock_model::job::{ActorType, Budget, Compensation, Cost, deserialize_unique_map, limits};
use airlock_model::{Due, JobSpec, Millis, Priority, Timestamp, Topic};
use bytes::Bytes;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::validation::{self, Mistakes};
use crate::http::decode::decode_json_object;
use crate::http::problem::Problem;

/// The fields a submission may have; any other is an error.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubmitBody<'a> {
    topic: Topic,
    #[serde(borrow, default, deserialize_with = "deserialize_present")]
    payload: Option<&'a RawValue>,
    #[serde(default, deserialize_with = "deserialize_priority")]
    priority: Option<Priority>,
    #[serde(default, deserialize_with = "deserialize_labels")]
    labels: Option<BTreeMap<String, String>>,
    capability: Option<String>,
    risk_tags: Option<Vec<String>>,
    requires: Option<Vec<String>>,
    budget: Option<Budget>,
    estimated_cost: Option<Cost>,
    due_at: Option<String>,
    delay_ms: Option<Millis>,
    max_attempts: Option<u32>,
    timeout_ms: Option<Millis>,
    workflow_id: Option<String>,
    step_index: Option<i32>,
    compensation: Option<Compensation>,
    idempotency_key: Option<String>,
    principal_id: Option<String>,
    // What clients of the agent protocol send.
    #[serde(borrow, default)]
    prompt: Option<&'a RawValue>,
    #[serde(borrow, default)]
    context: Option<&'a RawValue>,
    memory_id: Option<String>,
    actor_id: Option<String>,
    actor_type: Option<ActorType>,
    pack_id: Option<String>,
    adapter_id: Option<String>,
}

/// A `null` payload is the JSON value null, not the absence of one.
pub(crate) fn deserialize_present<'de, D: Deserializer<'de>>(
    reader: D,
) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(reader).map(Some)
}

/// A label that is given twice is a mistake, not the last of the two.
fn deserialize_labels<'de, D: Deserializer<'de>>(
    reader: D,
) -> Result<Option<BTreeMap<String, String>>, D::Error> {
    #[derive(Deserialize)]
    struct Labels(#[serde(deserialize_with = "deserialize_unique_map")] BTreeMap<String, String>);
    Ok(Option::<Labels>::deserialize(reader)?.map(|labels| labels.0))
}

/// In any case, because clients of the agent protocol write it small.
fn deserialize_priority<'de, D: Deserializer<'de>>(
    reader: D,
) -> Result<Option<Priority>, D::Error> {
    let text = Option::<String>::deserialize(reader)?;
    text.map(|text| text.parse().map_err(serde::de::Error::custom))
        .transpose()
}

/// What a submission asks for, checked.
#[derive(Debug)]
pub struct Submission {
    pub spec: JobSpec,
    pub payload: Option<Bytes>,
    pub idempotency_key: Option<String>,
}

impl<'a> SubmitBody<'a> {
    /// What the job `text` asks for. `whole` is the body it is part of, `header_key` the
    /// `Idempotency-Key` header. All mistakes are named, the first as the problem itself.
    pub fn parse_submission(
        text: &'a [u8],
        whole: &Bytes,
        header_key: Option<&str>,
        payload_limit: usize,
    ) -> Result<Submission, Problem> {
        match decode_json_object::<SubmitBody<'a>>(text) {
            Ok(body) => body.into_submission(whole, header_key, payload_limit),
            Err(first) => Err(validation::collect_all_mistakes(
                text,
                first,
                |body, rest| {
                    body.into_submission(rest, header_key, payload_limit)
                        .map(drop)
                },
            )),
        }
    }

    /// Checks everything the reader could not.
    fn into_submission(
        self,
        whole: &Bytes,
        header_key: Option<&str>,
        payload_limit: usize,
    ) -> Result<Submission, Problem> {
        let mut mistakes = Mistakes::default();
        let idempotency_key =
            mistakes.ok_or_add(choose_idempotency_key(self.idempotency_key, header_key));
        let payload = mistakes.ok_or_add(build_payload(
            self.payload,
            self.prompt,
            self.context,
            whole,
        ));
        let payload = payload.flatten();
        if let Some(payload) = &payload
            && payload.len() > payload_limit
        {
            mistakes.add(Problem::too_large(
                "payload",
                format!(
                    "is {} bytes long; at most {payload_limit} are allowed",
                    payload.len()
                ),
            ));
        }
        let due = mistakes.ok_or_add(parse_due(self.due_at.as_deref(), self.delay_ms));
        let spec = JobSpec {
            priority: self.priority.unwrap_or_default(),
            labels: self.labels.unwrap_or_default(),
            capability: self.capability,
            risk_tags: self.risk_tags.unwrap_or_default(),
            requires: self.requires.unwrap_or_default(),
            budget: self.budget,
            estimated_cost: self.estimated_cost,
            due: due.flatten(),
            max_attempts: self.max_attempts,
            timeout_ms: self.timeout_ms,
            workflow_id: self.workflow_id,
            step_index: self.step_index,
            compensation: self.compensation,
            principal_id: self.principal_id,
            actor_id: self.actor_id,
            actor_type: self.actor_type,
            pack_id: self.pack_id,
            adapter_id: self.adapter_id,
            memory_id: self.memory_id,
            ..JobSpec::new(self.topic)
        };
        mistakes.check_limits(&spec);
        mistakes.into_result()?;
        Ok(Submission {
            spec,
            payload,
            idempotency_key: idempotency_key.flatten(),
        })
    }
}

pub(crate) fn choose_idempotency_key(
    in_body: Option<String>,
    in_header: Option<&str>,
) -> Result<Option<String>, Problem> {
    let key = match (in_body, in_header) {
        (Some(body), Some(header)) if body != header => {
            return Err(Problem::invalid_field(
                "idempotency_key",
                "is not the same as the Idempotency-Key header",
            ));
        }
        (Some(body), _) => body,
        (None, Some(header)) => header.to_owned(),
        (None, None) => return Ok(None),
    };
    let wrong = if key.is_empty() {
        "must not be empty; leave it out instead".to_owned()
    } else if key.len() > limits::IDEMPOTENCY_KEY {
        let most = limits::IDEMPOTENCY_KEY;
        format!("is {} bytes long; at most {most} are allowed", key.len())
    } else if key.chars().any(char::is_control) {
        "must not contain control characters".to_owned()
    } else {
        return Ok(Some(key));
    };
    Err(Problem::invalid_field("idempotency_key", wrong))
}

pub(crate) fn parse_due(
    at: Option<&str>,
    delay_ms: Option<Millis>,
) -> Result<Option<Due>, Problem> {
    match (at, delay_ms) {
        (None, None) => Ok(None),
        (None, Some(ms)) => Ok(Some(Due::After(ms))),
        (Some(_), Some(_)) => Err(Problem::invalid_field(
            "delay_ms",
            "cannot be given together with due_at",
        )),
        (Some(at), None) => {
            let at = Timestamp::parse_rfc3339(at).map_err(|e| {
                Problem::invalid_field("due_at", format!("is not an RFC 3339 time: {e}"))
            })?;
            // Before 1970 is a mistake, and far before it is more than Postgres can hold.
            if at < Timestamp::default() {
                return Err(Problem::invalid_field("due_at", "lies before 1970"));
            }
            Ok(Some(Due::At(at)))
        }
    }
}

fn build_payload(
    payload: Option<&RawValue>,
    prompt: Option<&RawValue>,
    context: Option<&RawValue>,
    whole: &Bytes,
) -> Result<Option<Bytes>, Problem> {
    if let Some(payload) = payload {
        let other = match (prompt, context) {
            (Some(_), _) => "prompt",
            (None, Some(_)) => "context",
            (None, None) => return Ok(Some(whole.slice_ref(payload.get().as_bytes()))),
        };
        return Err(Problem::invalid_field(
            other,
            "cannot be given together with payload",
        ));
    }
    if let Some(prompt) = prompt
        && !prompt.get().starts_with('"')
    {
        return Err(Problem::invalid_field("prompt", "must be a string"));
    }
    let mut parts = Vec::new();
    for (name, value) in [("prompt", prompt), ("context", context)] {
        if let Some(value) = value {
            parts.push(format!("\"{name}\":{}", value.get()));
        }
    }
    Ok((!parts.is_empty()).then(|| Bytes::from(format!("{{{}}}", parts.join(",")))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn submission(text: &str, header: Option<&str>) -> Result<Submission, String> {
        let whole = Bytes::copy_from_slice(text.as_bytes());
        SubmitBody::parse_submission(&whole, &whole, header, 64).map_err(|p| {
            serde_json::to_value(p.into_body()).unwrap()["field"]
                .as_str()
                .unwrap_or("none")
                .to_owned()
        })
    }

    fn payload_of(text: &str) -> Option<String> {
        let payload = submission(text, None).unwrap().payload?;
        Some(String::from_utf8(payload.to_vec()).unwrap())
    }

    #[test]
    fn the_payload_is_kept_byte_for_byte() {
        for exact in [
            r#"{"b": 1,  "a":123456789012345678901234567890}"#,
            r#""nul \u0000 and \ud83d""#,
            "null",
            "[1.0e5, -0]",
        ] {
            let text = format!(r#"{{"payload": {exact} , "topic": "job.a"}}"#);
            assert_eq!(payload_of(&text).as_deref(), Some(exact));
        }
        assert_eq!(payload_of(r#"{"topic": "job.a"}"#), None);
    }

    #[test]
    fn a_prompt_becomes_the_payload() {
        let both = r#"{"topic":"job.a","prompt":"hi","context":{"k":1e400}}"#;
        assert_eq!(
            payload_of(both).unwrap(),
            r#"{"prompt":"hi","context":{"k":1e400}}"#
        );
        let wrong =
            |extra: &str| submission(&format!(r#"{{"topic":"job.a",{extra}}}"#), None).unwrap_err();
        assert_eq!(wrong(r#""payload":1,"prompt":"x""#), "prompt");
        assert_eq!(wrong(r#""payload":1,"context":2"#), "context");
        assert_eq!(wrong(r#""prompt":5"#), "prompt");
    }

    #[test]
    fn limits_and_contradictions_name_their_field() {
        let wrong = |extra: &str, header: Option<&str>| {
            submission(&format!(r#"{{"topic":"job.a",{extra}}}"#), header).unwrap_err()
        };
        assert_eq!(
            wrong(&format!(r#""payload":"{}""#, "x".repeat(64)), None),
            "payload"
        );
        assert_eq!(
            wrong(r#""due_at":"2030-01-01T00:00:00Z","delay_ms":5"#, None),
            "delay_ms"
        );
        assert_eq!(wrong(r#""due_at":"tomorrow""#, None), "due_at");
        assert_eq!(
            wrong(r#""due_at":"-004999-01-01T00:00:00Z""#, None),
            "due_at"
        );
        assert_eq!(
            wrong(r#""idempotency_key":"a""#, Some("b")),
            "idempotency_key"
        );
        assert_eq!(
            wrong(r#""idempotency_key":"a\u0000""#, None),
            "idempotency_key"
        );
        assert_eq!(
            wrong(r#""labels":{"approval_granted":"1"}"#, None),
            "labels.approval_granted"
        );
        assert_eq!(wrong(r#""labels":{"a":"\u0000"}"#, None), "labels.a");
        assert_eq!(
            wrong(r#""labels":{"Env":"a","env":"b"}"#, None),
            "labels.env"
        );
        assert_eq!(
            wrong(r#""risk_tags":["de\u200bstructive"]"#, None),
            "risk_tags[0]"
        );
        let same = submission(r#"{"topic":"job.a","idempotency_key":"a"}"#, Some("a")).unwrap();
        assert_eq!(same.idempotency_key.as_deref(), Some("a"));
    }
}
