//! Dead letters as they are asked for and shown.

use airlock_api::{DeadLetter, DeadLetterDetail};
use airlock_bus::subjects;
use airlock_ledger::DeadLetterFilter;
use airlock_model::{JobId, JobSpec, TenantId, Timestamp, Topic};
use axum::http::Uri;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::http::problem::Problem;
use crate::http::query::{
    DEFAULT_LIMIT, non_empty_query_pairs, parse_limit, parse_parameter, parse_time, require_cursor,
    unknown_parameter,
};
use crate::view::job::to_json_or_base64;

const MAX_CODE: usize = 256;
/// Letters that one request about many may touch.
const MAX_BULK: u32 = 1_000;

/// One line of the list.
pub fn to_api_dead_letter(letter: &airlock_ledger::DeadLetter) -> DeadLetter {
    DeadLetter {
        id: letter.id,
        job_id: letter.job_id.clone(),
        tenant_id: letter.tenant.clone(),
        topic: letter.topic.clone(),
        reason_code: letter.reason_code.clone(),
        reason: letter.reason.clone(),
        last_state: letter.last_state.clone(),
        attempts: u32::try_from(letter.attempts).unwrap_or_default(),
        subject: letter.subject.clone(),
        created_at: letter.created_at.to_rfc3339(),
        retried_as: letter.retried_as.clone(),
        retried_at: letter.retried_at.map(Timestamp::to_rfc3339),
    }
}

/// The submission that a dead letter is about.
#[derive(Debug, Serialize)]
pub struct RequestView<'a> {
    #[serde(flatten)]
    spec: &'a JobSpec,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
}

/// Whether a message is a worker's: what it wrote may stand in it, and nothing has judged it.
fn is_from_worker(letter: &airlock_ledger::DeadLetter) -> bool {
    // What is sent to schedulers for jobs to come is from clients.
    letter
        .subject
        .as_deref()
        .is_some_and(|subject| !subject.ends_with(subjects::JOB_SUBMIT))
}

/// A dead letter with the request it is about. `judged`: an output policy is applied, and
/// what it has not seen is not shown.
pub fn to_api_dead_letter_detail(
    whole: &airlock_ledger::DeadLetterDetail,
    judged: bool,
) -> DeadLetterDetail<RequestView<'_>> {
    let packet = whole.packet.as_ref();
    let withheld = packet.is_some() && judged && is_from_worker(&whole.letter);
    let (payload, payload_base64) = to_json_or_base64(whole.payload.as_ref());
    DeadLetterDetail {
        letter: to_api_dead_letter(&whole.letter),
        trace_id: whole.trace_id.clone(),
        request: whole.spec.as_ref().map(|spec| RequestView {
            spec,
            payload,
            payload_base64,
        }),
        packet_base64: packet.filter(|_| !withheld).map(|p| STANDARD.encode(p)),
        packet_withheld: withheld,
    }
}

/// What a list asks for.
#[derive(Debug)]
pub struct Listing {
    pub filter: DeadLetterFilter,
    pub before: Option<i64>,
    pub limit: u32,
}

pub fn parse_dead_letter_listing(uri: &Uri, scope: Option<&TenantId>) -> Result<Listing, Problem> {
    let mut listing = Listing {
        filter: DeadLetterFilter {
            tenant: scope.cloned(),
            ..DeadLetterFilter::default()
        },
        before: None,
        limit: DEFAULT_LIMIT,
    };
    let filter = &mut listing.filter;
    for (name, value) in non_empty_query_pairs(uri)? {
        match name.as_str() {
            "job_id" => filter.job_id = Some(parse_parameter("job_id", &value)?),
            "topic" => filter.topic = Some(parse_parameter("topic", &value)?),
            "reason_code" => filter.reason_code = Some(validate_reason_code(value)?),
            "created_after" => filter.created_after = Some(parse_time("created_after", &value)?),
            "created_before" => filter.created_before = Some(parse_time("created_before", &value)?),
            "retried" => filter.retried = Some(parse_parameter("retried", &value)?),
            "up_to" => filter.up_to = Some(parse_parameter("up_to", &value)?),
            "limit" => listing.limit = parse_limit(&value)?,
            "cursor" => listing.before = Some(require_cursor(value.parse().ok())?),
            _ => {
                let known = "job_id, topic, reason_code, created_after, created_before, retried, \
                             up_to, limit and cursor";
                return Err(unknown_parameter(name, known));
            }
        }
    }
    Ok(listing)
}

fn validate_reason_code(text: String) -> Result<String, Problem> {
    if text.len() > MAX_CODE || text.chars().any(char::is_control) {
        return Err(Problem::invalid_field(
            "reason_code",
            "is not a reason code",
        ));
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
    pub filter: DeadLetterFilter,
    pub dry_run: bool,
    pub limit: u32,
}

pub fn validate_bulk(body: BulkBody, scope: Option<&TenantId>) -> Result<Bulk, Problem> {
    let time_of = |field: &str, text: Option<String>| -> Result<Option<Timestamp>, Problem> {
        text.map(|text| parse_time(field, &text)).transpose()
    };
    let filter = DeadLetterFilter {
        tenant: scope.cloned(),
        job_id: body.job_id,
        topic: body.topic,
        reason_code: body.reason_code.map(validate_reason_code).transpose()?,
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
        return Err(Problem::invalid_field(
            "all",
            "without a filter every letter is meant; say so with \"all\": true",
        ));
    }
    let limit = body.limit.unwrap_or(MAX_BULK);
    if !(1..=MAX_BULK).contains(&limit) {
        let message = format!("must be between 1 and {MAX_BULK}");
        return Err(Problem::invalid_field("limit", message));
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
            validate_bulk(body, None)
                .map_err(|p| serde_json::to_value(p.into_body()).unwrap()["field"].to_string())
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
            let problem = parse_dead_letter_listing(&uri, None).unwrap_err();
            let json = serde_json::to_value(problem.into_body()).unwrap();
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

    fn letter() -> airlock_ledger::DeadLetterDetail {
        let at = Timestamp(1_700_000_000_000_000);
        airlock_ledger::DeadLetterDetail {
            letter: airlock_ledger::DeadLetter {
                id: 7,
                job_id: Some("j".to_owned()),
                tenant: Some("acme".to_owned()),
                topic: Some("job.a".to_owned()),
                reason_code: "failed".to_owned(),
                reason: "boom".to_owned(),
                last_state: None,
                attempts: 2,
                subject: None,
                created_at: at,
                retried_as: None,
                retried_at: None,
            },
            spec: Some(JobSpec::new(Topic::new("job.a").unwrap())),
            payload: Some(bytes::Bytes::from_static(b"[1e400]")),
            due_at: None,
            trace_id: Some("t".to_owned()),
            packet: None,
            submitted_principal: None,
        }
    }

    #[test]
    fn the_json_of_a_dead_letter_does_not_change() {
        let mut l = letter();
        let json = |l: &airlock_ledger::DeadLetterDetail| {
            serde_json::to_string(&to_api_dead_letter_detail(l, false)).unwrap()
        };
        let head = r#"{"id":7,"job_id":"j","tenant_id":"acme","topic":"job.a","reason_code":"failed","reason":"boom","last_state":null,"attempts":2,"#;
        let tail =
            r#""created_at":"2023-11-14T22:13:20.000000Z","retried_as":null,"retried_at":null"#;
        let request = r#","trace_id":"t","request":{"topic":"job.a","priority":"INTERACTIVE","payload":[1e400]}}"#;
        assert_eq!(json(&l), format!("{head}{tail}{request}"));
        let line = serde_json::to_string(&to_api_dead_letter(&l.letter)).unwrap();
        assert_eq!(line, format!("{head}{tail}}}"));
        l.spec = None;
        l.letter.subject = Some("s".to_owned());
        l.packet = Some(bytes::Bytes::from_static(b"x"));
        let unreadable = r#","trace_id":"t","request":null,"packet_base64":"eA=="}"#;
        assert_eq!(
            json(&l),
            format!(r#"{head}"subject":"s",{tail}{unreadable}"#)
        );
    }
    #[test]
    fn a_workers_message_is_withheld_where_outputs_are_judged() {
        let mut l = letter();
        l.packet = Some(bytes::Bytes::from_static(b"x"));
        let mut shown = |subject: &str, judged| {
            l.letter.subject = Some(subject.to_owned());
            let detail = to_api_dead_letter_detail(&l, judged);
            assert_eq!(detail.packet_withheld, detail.packet_base64.is_none());
            detail.packet_base64.is_some()
        };
        assert!(shown(subjects::JOB_RESULT, false));
        assert!(!shown(subjects::JOB_RESULT, true));
        assert!(!shown(subjects::JOB_PROGRESS, true));
        assert!(shown(subjects::JOB_SUBMIT, true));
    }
}
