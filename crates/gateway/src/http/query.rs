//! The query part of a URL. Unknown names are errors, as unknown fields are: a
//! misspelt filter that is ignored shows everything.

use std::str::FromStr;
use std::time::Duration;

use airlock_ledger::{JobFilter, QuarantineFilter};
use airlock_model::output::OutputStatus;
use airlock_model::{JobId, TenantId, Timestamp};
use airlock_service::config::duration;
use axum::extract::Query;
use axum::http::Uri;

use crate::http::cursor;
use crate::http::problem::{Problem, Problems};

pub(crate) const DEFAULT_LIMIT: u32 = 100;
const MAX_LIMIT: u32 = 1_000;

pub(crate) fn query_pairs(uri: &Uri) -> Result<Vec<(String, String)>, Problem> {
    let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(uri)
        .map_err(|e| Problem::invalid_field("query", e.body_text()))?;
    Ok(pairs)
}

/// Without those that have no value: a form field left blank.
pub(crate) fn non_empty_query_pairs(
    uri: &Uri,
) -> Result<impl Iterator<Item = (String, String)>, Problem> {
    let pairs = query_pairs(uri)?;
    Ok(pairs.into_iter().filter(|(_, value)| !value.is_empty()))
}

pub(crate) fn unknown_parameter(name: String, known: &str) -> Problem {
    Problem::invalid_field(name, format!("is not a parameter here; there are {known}"))
}

/// `?wait=30s`, or nothing.
pub fn parse_wait_parameter(uri: &Uri, most: Duration) -> Result<Option<Duration>, Problem> {
    if uri.query().is_none() {
        return Ok(None);
    }
    let mut wait = None;
    for (name, value) in query_pairs(uri)? {
        match name.as_str() {
            "wait" => wait = Some(parse_wait(&value, most)?),
            _ => return Err(unknown_parameter(name, "wait")),
        }
    }
    Ok(wait)
}

/// `30s`, `500ms`, or a bare number of seconds.
fn parse_wait(text: &str, most: Duration) -> Result<Duration, Problem> {
    let wait = match text.parse::<u32>() {
        Ok(seconds) => Duration::from_secs(u64::from(seconds)),
        Err(_) => {
            duration::parse(text).map_err(|e| Problem::invalid_field("wait", e.to_string()))?
        }
    };
    if wait > most {
        let most = duration::format(most);
        return Err(Problem::invalid_field(
            "wait",
            format!("{text} is more than {most}"),
        ));
    }
    Ok(wait)
}

/// What a list asks for.
#[derive(Debug)]
pub struct Listing {
    pub filter: JobFilter,
    pub after: Option<(Timestamp, JobId)>,
    pub limit: u32,
}

pub fn parse_job_listing(uri: &Uri, scope: Option<&TenantId>) -> Result<Listing, Problem> {
    let mut listing = Listing {
        filter: JobFilter {
            tenant: scope.cloned(),
            ..JobFilter::default()
        },
        after: None,
        limit: DEFAULT_LIMIT,
    };
    let filter = &mut listing.filter;
    for (name, value) in non_empty_query_pairs(uri)? {
        match name.as_str() {
            "state" => {
                for state in value.split(',') {
                    filter.states.push(parse_parameter("state", state.trim())?);
                }
            }
            "topic" => filter.topic = Some(parse_parameter("topic", &value)?),
            "workflow_id" if value.contains('\0') => {
                return Err(Problem::invalid_field(
                    "workflow_id",
                    "must not contain NUL",
                ));
            }
            "workflow_id" => filter.workflow_id = Some(value),
            "created_after" => filter.created_after = Some(parse_time("created_after", &value)?),
            "created_before" => filter.created_before = Some(parse_time("created_before", &value)?),
            "limit" => listing.limit = parse_limit(&value)?,
            "cursor" => listing.after = Some(require_cursor(cursor::decode_cursor(&value))?),
            _ => {
                let known = "state, topic, workflow_id, created_after, created_before, limit \
                             and cursor";
                return Err(unknown_parameter(name, known));
            }
        }
    }
    Ok(listing)
}

/// What a list of the quarantine asks for.
#[derive(Debug)]
pub struct QuarantineListing {
    pub filter: QuarantineFilter,
    pub after: Option<(Timestamp, JobId)>,
    pub limit: u32,
}

const SEVERITIES: [&str; 4] = ["low", "medium", "high", "critical"];

/// Without `status`, what nobody has reviewed; `status=all` is everything.
pub fn parse_quarantine_listing(
    uri: &Uri,
    scope: Option<&TenantId>,
) -> Result<QuarantineListing, Problem> {
    let mut listing = QuarantineListing {
        filter: QuarantineFilter {
            tenant: scope.cloned(),
            statuses: vec![OutputStatus::Quarantined],
            ..QuarantineFilter::default()
        },
        after: None,
        limit: DEFAULT_LIMIT,
    };
    let filter = &mut listing.filter;
    let mut problems = Problems::default();
    for (name, value) in non_empty_query_pairs(uri)? {
        let read = match name.as_str() {
            "status" => parse_output_statuses(&value).map(|found| filter.statuses = found),
            "topic" => parse_parameter("topic", &value).map(|found| filter.topic = Some(found)),
            "rule_id" if value.contains('\0') => {
                Err(Problem::invalid_field("rule_id", "must not contain NUL"))
            }
            "rule_id" => {
                filter.rule_id = Some(value);
                Ok(())
            }
            "severity" if !SEVERITIES.contains(&value.as_str()) => Err(Problem::invalid_field(
                "severity",
                format!("must be one of {}", SEVERITIES.join(", ")),
            )),
            "severity" => {
                filter.severity = Some(value);
                Ok(())
            }
            "decided_after" => {
                parse_time("decided_after", &value).map(|at| filter.decided_after = Some(at))
            }
            "decided_before" => {
                parse_time("decided_before", &value).map(|at| filter.decided_before = Some(at))
            }
            "limit" => parse_limit(&value).map(|limit| listing.limit = limit),
            "cursor" => {
                require_cursor(cursor::decode_cursor(&value)).map(|at| listing.after = Some(at))
            }
            _ => Err(unknown_parameter(
                name,
                "status, topic, rule_id, severity, decided_after, decided_before, limit and \
                 cursor",
            )),
        };
        if let Err(problem) = read {
            problems.add(problem);
        }
    }
    problems.check()?;
    Ok(listing)
}

fn parse_output_statuses(value: &str) -> Result<Vec<OutputStatus>, Problem> {
    const LISTED: [OutputStatus; 3] = [
        OutputStatus::Quarantined,
        OutputStatus::Released,
        OutputStatus::Rejected,
    ];
    if value.eq_ignore_ascii_case("all") {
        return Ok(Vec::new());
    }
    let parse = |text: &str| {
        let known = |status: &OutputStatus| status.as_str().eq_ignore_ascii_case(text.trim());
        LISTED.into_iter().find(known).ok_or_else(|| {
            let message = "must be quarantined, released, rejected, several separated by \
                           commas, or all";
            Problem::invalid_field("status", message)
        })
    };
    value.split(',').map(parse).collect()
}

/// How many lines a page may have.
pub(crate) fn parse_limit(value: &str) -> Result<u32, Problem> {
    value
        .parse()
        .ok()
        .filter(|n| (1..=MAX_LIMIT).contains(n))
        .ok_or_else(|| {
            Problem::invalid_field("limit", format!("must be between 1 and {MAX_LIMIT}"))
        })
}

/// Where a page begins, unless its text could not be read.
pub(crate) fn require_cursor<T>(read: Option<T>) -> Result<T, Problem> {
    read.ok_or_else(|| Problem::invalid_field("cursor", "is not a cursor that a list gave out"))
}

pub(crate) fn parse_parameter<T: FromStr<Err: ToString>>(
    field: &str,
    value: &str,
) -> Result<T, Problem> {
    value
        .parse()
        .map_err(|e: T::Err| Problem::invalid_field(field, e.to_string()))
}

pub(crate) fn parse_time(field: &str, value: &str) -> Result<Timestamp, Problem> {
    Timestamp::parse_rfc3339(value)
        .map_err(|e| Problem::invalid_field(field, format!("is not an RFC 3339 time: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(query: &str) -> Uri {
        format!("/x?{query}").parse().unwrap()
    }

    #[test]
    fn a_wait_is_a_time_of_at_most_a_minute() {
        let wait = |query: &str| {
            parse_wait_parameter(&uri(query), Duration::from_secs(60)).map_err(|_| ())
        };
        assert_eq!(wait("wait=30s"), Ok(Some(Duration::from_secs(30))));
        assert_eq!(wait("wait=30"), Ok(Some(Duration::from_secs(30))));
        assert_eq!(wait("wait=500ms"), Ok(Some(Duration::from_millis(500))));
        assert_eq!(wait(""), Ok(None));
        for bad in ["wait=61s", "wait=soon", "wait=-1", "wate=1"] {
            assert_eq!(wait(bad), Err(()), "{bad}");
        }
    }

    #[test]
    fn a_bad_filter_is_named() {
        let field = |query: &str| {
            let problem = parse_job_listing(&uri(query), None).unwrap_err();
            serde_json::to_value(problem.into_body()).unwrap()["field"]
                .as_str()
                .unwrap()
                .to_owned()
        };
        for (query, name) in [
            ("state=DONE", "state"),
            ("state=PENDING,NOPE", "state"),
            ("topic=x", "topic"),
            ("created_after=now", "created_after"),
            ("limit=0", "limit"),
            ("limit=1001", "limit"),
            ("cursor=zzz", "cursor"),
            ("workflow_id=%00", "workflow_id"),
            ("stat=PENDING", "stat"),
        ] {
            assert_eq!(field(query), name, "{query}");
        }
        let good = parse_job_listing(&uri("state=pending,RUNNING&limit=7&topic="), None).unwrap();
        assert_eq!((good.filter.states.len(), good.limit), (2, 7));
    }
    #[test]
    fn every_bad_filter_of_the_quarantine_is_named_at_once() {
        let query = "status=held&topic=x&rule_id=%00&severity=bad&decided_after=now&limit=0&\
                     cursor=zzz&tenant=acme";
        let problem = parse_quarantine_listing(&uri(query), None).unwrap_err();
        let errors = problem.into_body().errors;
        let fields: Vec<&str> = errors.iter().map(|e| e.field.as_str()).collect();
        let expected = [
            "status",
            "topic",
            "rule_id",
            "severity",
            "decided_after",
            "limit",
            "cursor",
            "tenant",
        ];
        assert_eq!(fields, expected);
        let statuses = |query: &str| {
            let listing = parse_quarantine_listing(&uri(query), None).unwrap();
            listing.filter.statuses
        };
        assert_eq!(statuses(""), [OutputStatus::Quarantined]);
        assert_eq!(statuses("status=all"), []);
        let both = [OutputStatus::Released, OutputStatus::Rejected];
        assert_eq!(statuses("status=released,REJECTED"), both);
    }
}
