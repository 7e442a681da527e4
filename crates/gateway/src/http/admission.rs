//! How much is let in at once, and reading what was let in.
//!
//! Two bounds: requests, and bytes of their bodies. Both are taken before the body is
//! read and given back before a client waits for a job's end.

use std::sync::Arc;

use axum::body::Body;
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::LimitsConfig;
use crate::problem::Problem;

/// Bodies are counted in these, so that the counts fit a semaphore.
const UNIT: usize = 1 << 10;
/// How much of a body that is too large is read and thrown away, so that its sender
/// reads our answer instead of a reset connection.
const DISCARD: usize = 64 << 20;

pub struct Admission {
    requests: Arc<Semaphore>,
    units: Arc<Semaphore>,
}

/// Room for one request. Dropping it gives the room back.
pub struct Admitted {
    _request: OwnedSemaphorePermit,
    _units: OwnedSemaphorePermit,
}

impl Admission {
    pub fn new(limits: &LimitsConfig) -> Self {
        let units = (limits.max_inflight_bytes / UNIT).clamp(1, Semaphore::MAX_PERMITS);
        Self {
            requests: Arc::new(Semaphore::new(limits.max_inflight)),
            units: Arc::new(Semaphore::new(units)),
        }
    }

    /// Lets a request in whose body is at most `limit` long, or refuses at once.
    pub fn enter(&self, headers: &HeaderMap, limit: usize) -> Result<Admitted, Problem> {
        let size = content_length(headers).unwrap_or(limit).min(limit);
        let units = u32::try_from(size / UNIT + 1).unwrap_or(u32::MAX);
        let full = |_| Problem::overloaded("too many requests are being handled");
        let request = Arc::clone(&self.requests)
            .try_acquire_owned()
            .map_err(full)?;
        let units = Arc::clone(&self.units)
            .try_acquire_many_owned(units)
            .map_err(full)?;
        Ok(Admitted {
            _request: request,
            _units: units,
        })
    }
}

fn content_length(headers: &HeaderMap) -> Option<usize> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// JSON, or nothing said: what a body without a type is, its content tells.
pub fn check_content_type(headers: &HeaderMap) -> Result<(), Problem> {
    let Some(value) = headers.get(CONTENT_TYPE) else {
        return Ok(());
    };
    let essence = value
        .to_str()
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    if essence == "application/json"
        || (essence.starts_with("application/") && essence.ends_with("+json"))
    {
        Ok(())
    } else {
        Err(Problem::wrong_content_type())
    }
}

/// The whole body; `field` is what is most likely to blame when it is too long.
pub async fn read(
    headers: &HeaderMap,
    body: Body,
    limit: usize,
    field: &str,
) -> Result<Bytes, Problem> {
    let too_large = || {
        Problem::too_large(
            field,
            format!("the body is longer than the {limit} bytes allowed"),
        )
    };
    let expected = content_length(headers);
    if expected.is_some_and(|n| n > DISCARD.max(limit)) {
        return Err(too_large());
    }
    let mut stream = body.into_data_stream();
    let mut whole = BytesMut::with_capacity(expected.unwrap_or(0).min(limit));
    let mut seen = 0;
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|_| Problem::malformed("the body ended before its end"))?;
        seen += chunk.len();
        if seen <= limit {
            whole.extend_from_slice(&chunk);
        } else if seen > DISCARD.max(limit) {
            break;
        } else {
            whole = BytesMut::new();
        }
    }
    if seen > limit {
        Err(too_large())
    } else {
        Ok(whole.freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_that_is_too_long_is_refused_whole() {
        let headers = HeaderMap::new();
        let read = async |text: &'static str| {
            let whole = read(&headers, Body::from(text), 4, "payload").await;
            whole.map_err(|p| p.status().as_u16())
        };
        assert_eq!(read("1234").await, Ok(Bytes::from_static(b"1234")));
        assert_eq!(read("12345").await, Err(413));
    }

    #[test]
    fn room_is_bounded_in_requests_and_bytes() {
        let admission = Admission::new(&LimitsConfig {
            max_inflight: 2,
            max_inflight_bytes: 10 * UNIT,
            ..LimitsConfig::default()
        });
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_LENGTH, (6 * UNIT).into());
        let first = admission.enter(&headers, 8 * UNIT).ok();
        assert!(first.is_some());
        assert!(admission.enter(&headers, 8 * UNIT).is_err());
        headers.insert(CONTENT_LENGTH, 1.into());
        let second = admission.enter(&headers, 8 * UNIT).ok();
        assert!(second.is_some());
        assert!(admission.enter(&headers, 8 * UNIT).is_err());
        drop(first);
        assert!(admission.enter(&headers, 8 * UNIT).is_ok());
    }

    #[test]
    fn only_json_is_read() {
        let ok = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, value.parse().unwrap());
            check_content_type(&headers).is_ok()
        };
        assert!(ok("application/json; charset=utf-8") && ok("application/cloudevents+json"));
        assert!(!ok("text/plain") && !ok("application/x-www-form-urlencoded") && !ok("json"));
        assert!(check_content_type(&HeaderMap::new()).is_ok());
    }
}
