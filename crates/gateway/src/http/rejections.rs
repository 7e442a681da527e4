//! What the log has of callers that were turned away.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::extract::ConnectInfo;
use axum::http::{Extensions, StatusCode};
use tokio::time::Instant;

use crate::http::problem::Problem;

/// Lines in each window; the next one says how many were left out.
const LINES: u32 = 10;
const WINDOW: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Window {
    since: Instant,
    written: u32,
    left_out: u64,
}

/// Writes a line for each refused caller, but not so many that refusing becomes work.
#[derive(Debug)]
pub struct Refusals(Mutex<Window>);

impl Default for Refusals {
    fn default() -> Self {
        Self(Mutex::new(Window {
            since: Instant::now(),
            written: 0,
            left_out: 0,
        }))
    }
}

/// Where a request came from, as far as the server says.
pub fn remote(extensions: &Extensions) -> Option<SocketAddr> {
    extensions
        .get::<ConnectInfo<SocketAddr>>()
        .map(|ConnectInfo(address)| *address)
}

impl Refusals {
    /// Never says the key itself: a name only where the key is known.
    pub fn note(&self, problem: &Problem, remote: Option<SocketAddr>, path: &str) {
        let status = problem.status();
        if status != StatusCode::UNAUTHORIZED && status != StatusCode::FORBIDDEN {
            return;
        }
        let Some(left_out) = self.admit(Instant::now()) else {
            return;
        };
        tracing::warn!(
            status = status.as_u16(),
            remote = remote.map(tracing::field::display),
            key_name = problem.key_name(),
            path,
            left_out,
            "caller refused"
        );
    }

    /// How many were left out before this one; `None`: this one is left out, too.
    fn admit(&self, now: Instant) -> Option<u64> {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if now.duration_since(window.since) >= WINDOW {
            window.since = now;
            window.written = 0;
        }
        if window.written >= LINES {
            window.left_out += 1;
            return None;
        }
        window.written += 1;
        Some(std::mem::take(&mut window.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_flood_of_refusals_is_a_few_lines_and_a_number() {
        let log = Refusals::default();
        let start = Instant::now();
        let written = (0..1_000).filter(|_| log.admit(start).is_some()).count();
        assert_eq!(written, LINES as usize);
        assert_eq!(log.admit(start + WINDOW), Some(990));
        assert_eq!(log.admit(start + WINDOW), Some(0));
    }
}
