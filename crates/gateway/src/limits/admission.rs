//! How much is let in at once, and reading what was let in.
//!
//! Requests that write and the bytes of their bodies are one room, reads another; both
//! are shared between keys. A place is given back before a client waits for a job's end.
//! What must stay true: only bytes that came are counted, so announcing many costs the
//! others nothing, and a body that does not come on is given up.

use std::time::Duration;

use axum::body::Body;
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;

use crate::config::LimitsConfig;
use crate::http::problem::Problem;
use crate::limits::quota::{Capacity, Permit, QuotaOwner, QuotaPool};

/// How much of a body that is too large is read and thrown away, so that its sender
/// reads our answer instead of a reset connection.
const DISCARD: usize = 64 << 20;
/// What is set aside for a body on the word of its length alone.
const EXPECTED: usize = 64 << 10;

pub struct Admission {
    writes: QuotaPool,
    reads: QuotaPool,
    body_timeout: Duration,
}

/// Room for one request. Dropping it gives the room back.
pub struct Admitted {
    place: Permit,
    body_timeout: Duration,
}

impl Admission {
    pub fn new(limits: &LimitsConfig) -> Self {
        let room = |bytes: usize| {
            let places = limits.max_inflight;
            QuotaPool::new(Capacity { places, bytes }, limits.admin_reserve_percent)
        };
        Self {
            writes: room(limits.max_inflight_bytes),
            reads: room(0),
            body_timeout: limits.body_timeout,
        }
    }

    /// Lets a request in that may write, or refuses at once.
    pub fn begin_write<'a>(&self, who: impl Into<QuotaOwner<'a>>) -> Result<Admitted, Problem> {
        let place = self
            .writes
            .acquire(who.into())
            .ok_or_else(overloaded_problem)?;
        Ok(Admitted {
            place,
            body_timeout: self.body_timeout,
        })
    }

    /// Lets a request in that only reads, or refuses at once.
    pub fn begin_read<'a>(&self, who: impl Into<QuotaOwner<'a>>) -> Result<Permit, Problem> {
        self.reads
            .acquire(who.into())
            .ok_or_else(overloaded_problem)
    }
}

fn overloaded_problem() -> Problem {
    Problem::overloaded("too many requests are being handled")
}

impl Admitted {
    /// The whole body; `field` is what is most likely to blame when it is too long.
    pub async fn read_body(
        &mut self,
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
        let mut whole = BytesMut::with_capacity(expected.unwrap_or(0).min(limit).min(EXPECTED));
        let mut seen = 0;
        loop {
            let next = tokio::time::timeout(self.body_timeout, stream.next()).await;
            let Some(chunk) = next.map_err(|_| Problem::body_timeout(self.body_timeout))? else {
                break;
            };
            let chunk = chunk.map_err(|_| Problem::malformed("the body ended before its end"))?;
            seen += chunk.len();
            if seen <= limit {
                if !self.place.hold_bytes(chunk.len()) {
                    return Err(overloaded_problem());
                }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn admission() -> Admission {
        Admission::new(&LimitsConfig {
            max_inflight: 10,
            max_inflight_bytes: 100,
            body_timeout: Duration::from_millis(20),
            ..LimitsConfig::default()
        })
    }

    async fn read(admission: &Admission, body: Body, limit: usize) -> Result<Bytes, u16> {
        let mut admitted = admission.begin_write(QuotaOwner::new_user("eve")).unwrap();
        let whole = admitted
            .read_body(&HeaderMap::new(), body, limit, "payload")
            .await;
        whole.map_err(|p| p.status().as_u16())
    }

    #[tokio::test]
    async fn a_body_that_is_too_long_is_refused_whole() {
        let admission = admission();
        let whole = read(&admission, Body::from("1234"), 4).await;
        assert_eq!(whole, Ok(Bytes::from_static(b"1234")));
        assert_eq!(read(&admission, Body::from("12345"), 4).await, Err(413));
    }

    #[tokio::test]
    async fn a_body_that_does_not_come_on_is_given_up() {
        let begun = futures::stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"{"))]);
        let body = Body::from_stream(begun.chain(futures::stream::pending()));
        assert_eq!(read(&admission(), body, 50).await, Err(408));
    }

    #[tokio::test]
    async fn only_bytes_that_came_are_counted() {
        let admission = admission();
        let mut held = admission.begin_write(QuotaOwner::new_user("bob")).unwrap();
        let headers = HeaderMap::new();
        let whole = held.read_body(&headers, Body::from(vec![0; 60]), 90, "payload");
        assert_eq!(whole.await.unwrap().len(), 60);
        // Of 100 bytes 10 are kept for administrators and 60 are held.
        assert_eq!(
            read(&admission, Body::from(vec![0; 31]), 90).await,
            Err(503)
        );
        assert_eq!(
            read(&admission, Body::from(vec![0; 30]), 90)
                .await
                .unwrap()
                .len(),
            30
        );
        // Reads do not need that room.
        assert!(admission.begin_read(QuotaOwner::new_user("bob")).is_ok());
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
