//! The query parts of lists about approvals, past decisions and policy bundles.

use std::time::Duration;

use airlock_ledger::{ApprovalFilter, ApprovalStatus};
use airlock_model::{JobId, TenantId, Timestamp};
use airlock_service::config::duration;
use axum::http::Uri;

use crate::http::cursor;
use crate::http::problem::Problem;
use crate::http::query::{
    DEFAULT_LIMIT, non_empty_query_pairs, parse_limit, parse_parameter, require_cursor,
    unknown_parameter,
};

/// What a list of approvals asks for.
#[derive(Debug)]
pub struct ApprovalListing {
    pub filter: ApprovalFilter,
    pub after: Option<(Timestamp, JobId)>,
    pub limit: u32,
}

/// Without `status`, what waits for somebody; `status=all` is everything.
pub fn parse_approval_listing(
    uri: &Uri,
    scope: Option<&TenantId>,
) -> Result<ApprovalListing, Problem> {
    let mut listing = ApprovalListing {
        filter: ApprovalFilter {
            tenant: scope.cloned(),
            statuses: vec![ApprovalStatus::Pending],
            ..ApprovalFilter::default()
        },
        after: None,
        limit: DEFAULT_LIMIT,
    };
    for (name, value) in non_empty_query_pairs(uri)? {
        match name.as_str() {
            "status" if value.eq_ignore_ascii_case("all") => listing.filter.statuses.clear(),
            "status" => {
                listing.filter.statuses = value
                    .split(',')
                    .map(|status| parse_parameter("status", status.trim()))
                    .collect::<Result<_, _>>()?;
            }
            "topic" => listing.filter.topic = Some(parse_parameter("topic", &value)?),
            "rule_id" if value.contains('\0') => {
                return Err(Problem::invalid_field("rule_id", "must not contain NUL"));
            }
            "rule_id" => listing.filter.rule_id = Some(value),
            "limit" => listing.limit = parse_limit(&value)?,
            "cursor" => listing.after = Some(require_cursor(cursor::decode_cursor(&value))?),
            _ => {
                return Err(unknown_parameter(
                    name,
                    "status, topic, rule_id, limit and cursor",
                ));
            }
        }
    }
    Ok(listing)
}

/// What a list of past decisions asks for.
#[derive(Debug)]
pub struct DecisionListing {
    pub since: Timestamp,
    /// Whether the jobs' inputs are wanted too.
    pub input: bool,
    pub after: Option<(Timestamp, JobId)>,
    pub limit: u32,
}

/// `since` is a time, or how long ago: `7d`, `12h`.
pub fn parse_decision_listing(uri: &Uri, now: Timestamp) -> Result<DecisionListing, Problem> {
    const DAY: Duration = Duration::from_secs(24 * 3_600);
    let mut listing = DecisionListing {
        since: now - DAY,
        input: false,
        after: None,
        limit: DEFAULT_LIMIT,
    };
    for (name, value) in non_empty_query_pairs(uri)? {
        match name.as_str() {
            "since" => {
                listing.since = match Timestamp::parse_rfc3339(&value) {
                    Ok(at) => at,
                    Err(_) => now - parse_ago(&value)?,
                };
            }
            "input" => listing.input = parse_parameter("input", &value)?,
            "limit" => listing.limit = parse_limit(&value)?,
            "cursor" => listing.after = Some(require_cursor(cursor::decode_cursor(&value))?),
            _ => return Err(unknown_parameter(name, "since, input, limit and cursor")),
        }
    }
    Ok(listing)
}

fn parse_ago(value: &str) -> Result<Duration, Problem> {
    let days = value.strip_suffix('d').and_then(|n| n.parse::<u32>().ok());
    match days {
        Some(days) => Ok(Duration::from_secs(u64::from(days) * 24 * 3_600)),
        None => duration::parse(value).map_err(|_| {
            Problem::invalid_field(
                "since",
                "must be an RFC 3339 time, or how long ago: 7d, 12h",
            )
        }),
    }
}

/// What a list of bundles asks for.
#[derive(Debug, Default)]
pub struct BundleListing {
    pub name: Option<String>,
    /// Whether the bundles themselves are wanted.
    pub content: bool,
}

pub fn parse_bundle_listing(uri: &Uri) -> Result<BundleListing, Problem> {
    let mut listing = BundleListing::default();
    for (name, value) in non_empty_query_pairs(uri)? {
        match name.as_str() {
            "name" if value.contains('\0') => {
                return Err(Problem::invalid_field("name", "must not contain NUL"));
            }
            "name" => listing.name = Some(value),
            "content" => listing.content = parse_parameter("content", &value)?,
            _ => return Err(unknown_parameter(name, "name and content")),
        }
    }
    Ok(listing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(query: &str) -> Uri {
        format!("/x?{query}").parse().unwrap()
    }

    #[test]
    fn a_list_of_approvals_is_of_what_waits_unless_it_says_otherwise() {
        let statuses = |query: &str| {
            parse_approval_listing(&uri(query), None)
                .unwrap()
                .filter
                .statuses
        };
        assert_eq!(statuses(""), [ApprovalStatus::Pending]);
        assert_eq!(statuses("status=all"), []);
        assert_eq!(
            statuses("status=approved,REJECTED"),
            [ApprovalStatus::Approved, ApprovalStatus::Rejected]
        );
        for bad in [
            "status=done",
            "topic=x",
            "limit=0",
            "cursor=zz",
            "statsu=all",
        ] {
            assert!(parse_approval_listing(&uri(bad), None).is_err(), "{bad}");
        }
    }

    #[test]
    fn since_is_a_time_or_how_long_ago() {
        let now = Timestamp::parse_rfc3339("2030-01-10T00:00:00Z").unwrap();
        let since = |query: &str| {
            parse_decision_listing(&uri(query), now)
                .map(|d| d.since.to_rfc3339())
                .map_err(|_| ())
        };
        assert_eq!(
            since("since=7d").as_deref(),
            Ok("2030-01-03T00:00:00.000000Z")
        );
        assert_eq!(
            since("since=12h").as_deref(),
            Ok("2030-01-09T12:00:00.000000Z")
        );
        assert_eq!(
            since("since=2030-01-01T00:00:00Z").as_deref(),
            Ok("2030-01-01T00:00:00.000000Z")
        );
        assert_eq!(since("").as_deref(), Ok("2030-01-09T00:00:00.000000Z"));
        assert_eq!(since("since=yesterday"), Err(()));
    }
}
