//! Dead letters as they are asked for and shown.

use airlock_ledger::{DeadLetter, LetterFilter, WholeLetter};
use airlock_model::{JobId, JobSpec, TenantId, Timestamp, Topic};
use axum::http::Uri;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::http::problem::Problem;
use crate::http::query::{DEFAULT_LIMIT, filled, limit, parse, place, time, unknown};
use crate::view::job::embed;

const MAX_CODE: usize = 256;
/// Letters that one request about many may touch.
const MAX_BULK: u32 = 1_000;

/// One line of the list.
#[derive(Debug, Serialize)]
pub struct Shown<'a> {
    id: i64,
    job_id: Option<&'a str>,
    tenant_id: Option<&'a str>,
    topic: Option<&'a str>,
    reason_code: &'a str,
    reason: &'a str,
    last_state: Option<&'a str>,
    attempts: i32,
    /// Where a message came from that could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<&'a str>,
    created_at: String,
    retried_as: Option<&'a str>,
    retried_at: Option<String>,
}

impl<'a> Shown<'a> {
    pub fn of(letter: &'a DeadLetter) -> Self {
        Self {
            id: letter.id,
            job_id: letter.job_id.as_deref(),
            tenant_id: letter.tenant.as_deref(),
            topic: letter.topic.as_deref(),
            reason_code: &letter.reason_code,
            reason: &letter.reason,
            last_state: letter.last_state.as_deref(),
            attempts: letter.attempts,
            subject: letter.subject.as_deref(),
            created_at: letter.created_at.to_rfc3339(),
            retried_as: letter.retried_as.as_deref(),
            retried_at: letter.retried_at.map(Timestamp::to_rfc3339),
        }
    }
}

/// A letter with everything that was asked for.
#[derive(Debug, Serialize)]
pub struct ShownWhole<'a> {
    #[serde(flatten)]
    letter: Shown<'a>,
    trace_id: Option<&'a str>,
    request: Option<ShownRequest<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    packet_base64: Option<String>,
}

#[derive(Debug, Serialize)]
struct ShownRequest<'a> {
    #[serde(flatten)]
    spec: &'a JobSpec,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
}

impl<'a> ShownWhole<'a> {
    pub fn of(whole: &'a WholeLetter) -> Self {
        let (payload, payload_base64) = embed(whole.payload.as_ref());
        Self {
            letter: Shown::of(&whole.letter),
            trace_id: whole.trace_id.as_deref(),
            request: whole.spec.as_ref().map(|spec| ShownRequest {
                spec,
                payload,
                payload_base64,
            }),
            packet_base64: whole.packet.as_ref().map(|p| STANDARD.encode(p)),
        }
    }
}

/// What a list asks for.
#[derive(Debug)]
pub struct Listing {
    pub filter: LetterFilter,
    pub before: Option<i64>,
    pub limit: u32,
}

pub fn listing(uri: &Uri, scope: Option<&TenantId>) -> Result<Listing, Problem> {
    let mut listing = Listing {
        filter: LetterFilter {
            tenant: scope.cloned(),
            ..LetterFilter::default()
        },
        before: None,
        limit: DEFAULT_LIMIT,
    };
    let filter = &mut listing.filter;
    for (name, value) in filled(uri)? {
        match name.as_str() {
            "job_id" => filter.job_id = Some(parse("job_id", &value)?),
            "topic" => filter.topic = Some(parse("topic", &value)?),
            "reason_code" => filter.reason_code = Some(code(value)?),
            "created_after" => filter.created_after = Some(time("created_after", &value)?),
            "created_before" => filter.created_before = Some(time("created_before", &value)?),
            "retried" => filter.retried = Some(parse("retried", &value)?),
            "up_to" => filter.up_to = Some(parse("up_to", &value)?),
            "limit" => listing.limit = limit(&value)?,
            "cursor" => listing.before = Some(place(value.parse().ok())?),
            _ => {
                let known = "job_id, topic, reason_code, created_after, created_before, retried, \
                             up_to, limit and cursor";
                return Err(unknown(name, known));
            }
        }
    }
    Ok(listing)
}

fn code(text: String) -> Result<String, Problem> {
    if text.len() > MAX_CODE || text.chars().any(char::is_control) {
        return Err(Problem::field("reason_code", "is not a reason code"));
    }
    Ok(text)
}

/// A request about many letters, as it is sent.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BulkBody {
    job_id: Option<JobId>,
    topic: Option<Topic>,
    reason_code: Option<String>,
    created_after: Option<String>,
    created_before: Option<String>,
    retried: Option<bool>,
    /// The newest letter meant. The first answer says it, and whoever goes on repeats it.
    up_to: Option<i64>,
    /// Must be said when no filter is given.
    all: bool,
    dry_run: bool,
    limit: Option<u32>,
}

/// The same, checked.
#[derive(Debug)]
pub struct Bulk {
    pub filter: LetterFilter,
    pub dry_run: bool,
    pub limit: u32,
}

pub fn bulk(body: BulkBody, scope: Option<&TenantId>) -> Result<Bulk, Problem> {
    let time_of = |field: &str, text: Option<String>| -> Result<Option<Timestamp>, Problem> {
        text.map(|text| time(field, &text)).transpose()
    };
    let filter = LetterFilter {
        tenant: scope.cloned(),
        job_id: body.job_id,
        topic: body.topic,
        reason_code: body.reason_code.map(code).transpose()?,
        created_after: time_of("created_after", body.created_after)?,
        created_before: time_of("created_before", body.created_before)?,
        retried: body.retried,
        with_request: false,
        up_to: body.up_to,
    };
    let filtered = filter.job_id.is_some()
        || filter.topic.is_some()
        || filter.reason_code.is_some()
        || filter.created_after.is_some()
        || filter.created_before.is_some()
        || filter.retried.is_some();
    if !filtered && !body.all {
        return Err(Problem::field(
            "all",
            "without a filter every letter is meant; say so with \"all\": true",
        ));
    }
    let limit = body.limit.unwrap_or(MAX_BULK);
    if !(1..=MAX_BULK).contains(&limit) {
        let message = format!("must be between 1 and {MAX_BULK}");
        return Err(Problem::field("limit", message));
    }
    Ok(Bulk {
        filter,
        dry_run: body.dry_run,
        limit,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_about_everything_says_so() {
        let field = |json: &str| {
            let body: BulkBody = serde_json::from_str(json).unwrap();
            bulk(body, None)
                .map_err(|p| serde_json::to_value(p).unwrap()["field"].to_string())
                .map(|b| b.limit)
        };
        assert_eq!(field("{}"), Err("\"all\"".to_owned()));
        assert_eq!(field(r#"{"dry_run": true}"#), Err("\"all\"".to_owned()));
        assert_eq!(field(r#"{"all": true}"#), Ok(1000));
        assert_eq!(field(r#"{"topic": "job.a", "limit": 5}"#), Ok(5));
        assert_eq!(
            field(r#"{"all": true, "limit": 0}"#),
            Err("\"limit\"".to_owned())
        );
        assert_eq!(
            field(r#"{"created_after": "x"}"#),
            Err("\"created_after\"".to_owned())
        );
        assert_eq!(
            field(r#"{"reason_code": "a\u0000"}"#),
            Err("\"reason_code\"".to_owned())
        );
    }

    #[test]
    fn a_bad_filter_of_a_list_is_named() {
        let field = |query: &str| {
            let uri: Uri = format!("/x?{query}").parse().unwrap();
            let problem = listing(&uri, None).unwrap_err();
            let json = serde_json::to_value(problem).unwrap();
            json["field"].as_str().unwrap_or_default().to_owned()
        };
        for (query, name) in [
            ("topic=x", "topic"),
            ("retried=maybe", "retried"),
            ("created_before=now", "created_before"),
            ("limit=0", "limit"),
            ("cursor=x", "cursor"),
            ("reason=x", "reason"),
        ] {
            assert_eq!(field(query), name, "{query}");
        }
    }
}
