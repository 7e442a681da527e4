//! What a list of sagas asks for, and where its next page begins.

use airlock_ledger::{SagaCursor, SagaFilter};
use airlock_model::{TenantId, Timestamp};
use axum::http::Uri;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::http::problem::Problem;
use crate::http::query::{
    DEFAULT_LIMIT, non_empty_query_pairs, parse_limit, parse_parameter, parse_time, require_cursor,
    unknown_parameter,
};

/// Raise when the meaning changes, so that an old cursor is refused, not misread.
const VERSION: &str = "s1";

#[derive(Debug)]
pub struct SagaListing {
    pub filter: SagaFilter,
    pub after: Option<SagaCursor>,
    pub limit: u32,
}

pub fn parse_saga_listing(uri: &Uri, scope: Option<&TenantId>) -> Result<SagaListing, Problem> {
    let mut listing = SagaListing {
        filter: SagaFilter {
            tenant: scope.cloned(),
            ..SagaFilter::default()
        },
        after: None,
        limit: DEFAULT_LIMIT,
    };
    let filter = &mut listing.filter;
    for (name, value) in non_empty_query_pairs(uri)? {
        match name.as_str() {
            "state" => filter.state = Some(parse_parameter("state", &value)?),
            "created_after" => filter.created_after = Some(parse_time("created_after", &value)?),
            "created_before" => filter.created_before = Some(parse_time("created_before", &value)?),
            "limit" => listing.limit = parse_limit(&value)?,
            "cursor" => listing.after = Some(require_cursor(decode_cursor(&value))?),
            _ => {
                let known = "state, created_after, created_before, limit and cursor";
                return Err(unknown_parameter(name, known));
            }
        }
    }
    Ok(listing)
}

/// The tenant's length tells where the workflow's id begins: both may hold any character.
pub fn encode_cursor(cursor: &SagaCursor) -> String {
    let tenant = cursor.tenant.as_str();
    URL_SAFE_NO_PAD.encode(format!(
        "{VERSION}:{}:{}:{tenant}{}",
        cursor.opened_at.as_micros(),
        tenant.len(),
        cursor.workflow_id
    ))
}

fn decode_cursor(text: &str) -> Option<SagaCursor> {
    let text = String::from_utf8(URL_SAFE_NO_PAD.decode(text).ok()?).ok()?;
    let mut parts = text.splitn(4, ':');
    if parts.next()? != VERSION {
        return None;
    }
    let opened_at = Timestamp(parts.next()?.parse().ok()?);
    let (tenant, workflow_id) = {
        let length: usize = parts.next()?.parse().ok()?;
        parts.next()?.split_at_checked(length)?
    };
    // Postgres holds no NUL, so that no list gave one out.
    if workflow_id.is_empty() || workflow_id.contains('\0') {
        return None;
    }
    Some(SagaCursor {
        opened_at,
        tenant: TenantId::new(tenant).ok()?,
        workflow_id: workflow_id.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_was_written() {
        let cursor = SagaCursor {
            opened_at: Timestamp(1_768_910_400_123_456),
            tenant: TenantId::new("acme").unwrap(),
            workflow_id: "trip:1 ü".to_owned(),
        };
        assert_eq!(decode_cursor(&encode_cursor(&cursor)), Some(cursor));
        for bad in [
            "s1:1:99:acmex",
            "s1:1:4:acme",
            "s1:1:4:acmex\0",
            "1:1:4:acmex",
            "s1:1:",
        ] {
            let bad = URL_SAFE_NO_PAD.encode(bad);
            assert_eq!(decode_cursor(&bad), None, "{bad}");
        }
        assert_eq!(decode_cursor("%%%"), None);
    }

    #[test]
    fn a_bad_filter_is_named() {
        let parse = |query: &str| {
            let uri: Uri = format!("/x?{query}").parse().unwrap();
            let listing = parse_saga_listing(&uri, None);
            listing.map_err(|p| p.field_name().unwrap_or_default().to_owned())
        };
        for (query, name) in [
            ("state=UNDONE", "state"),
            ("created_after=now", "created_after"),
            ("created_before=x", "created_before"),
            ("limit=0", "limit"),
            ("cursor=zzz", "cursor"),
            ("stat=OPEN", "stat"),
        ] {
            assert_eq!(parse(query).unwrap_err(), name, "{query}");
        }
        let good = parse("state=stuck&limit=7&created_after=").unwrap();
        assert_eq!(good.filter.state, Some(airlock_model::SagaState::Stuck));
        assert_eq!(good.limit, 7);
    }
}
