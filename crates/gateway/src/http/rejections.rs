//! The log of callers that were rejected: without a key, or without the permission.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::extract::ConnectInfo;
use axum::http::{Extensions, StatusCode};
use tokio::time::Instant;

use crate::http::problem::Problem;

/// Lines in each window; the next one says how many were suppressed.
const LINES: u32 = 10;
const WINDOW: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Window {
    since: Instant,
    written: u32,
    suppressed: u64,
}

/// Writes a line for each rejected caller, at most [`LINES`] in a [`WINDOW`].
#[derive(Debug)]
pub struct RejectionLog(Mutex<Window>);

impl Default for RejectionLog {
    fn default() -> Self {
        Self(Mutex::new(Window {
            since: Instant::now(),
            written: 0,
            suppressed: 0,
        }))
    }
}

/// Where a request came from, as far as the server says.
pub fn remote_addr(extensions: &Extensions) -> Option<SocketAddr> {
    extensions
        .get::<ConnectInfo<SocketAddr>>()
        .map(|ConnectInfo(address)| *address)
}

impl RejectionLog {
    /// Never logs the key itself; its name only where the key is known.
    pub fn log_rejection(&self, problem: &Problem, remote: Option<SocketAddr>, path: &str) {
        let status = problem.status();
        if status != StatusCode::UNAUTHORIZED && status != StatusCode::FORBIDDEN {
            return;
        }
        let Some(suppressed) = self.admit_line(Instant::now()) else {
            return;
        };
        tracing::warn!(
            status = status.as_u16(),
            remote = remote.map(tracing::field::display),
            key_name = problem.key_name(),
            reason = problem.detail(),
            path,
            suppressed,
            "caller rejected"
        );
    }

    /// How many lines were suppressed before this one; `None`: this one is suppressed, too.
    fn admit_line(&self, now: Instant) -> Option<u64> {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if now.duration_since(window.since) >= WINDOW {
            window.since = now;
            window.written = 0;
        }
        if window.written >= LINES {
            window.suppressed += 1;
            return None;
        }
        window.written += 1;
        Some(std::mem::take(&mut window.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_flood_of_rejections_is_a_few_lines_and_a_number() {
        let log = RejectionLog::default();
        let start = Instant::now();
        let written = (0..1_000)
            .filter(|_| log.admit_line(start).is_some())
            .count();
        assert_eq!(written, LINES as usize);
        assert_eq!(log.admit_line(start + WINDOW), Some(990));
        assert_eq!(log.admit_line(start + WINDOW), Some(0));
    }
}
