//! Time as data. The shell asks a clock and passes the answer in.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Microseconds since the Unix epoch, which is what Postgres keeps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub i64);

impl Timestamp {
    pub const MAX: Self = Self(i64::MAX);

    pub fn from_millis(ms: i64) -> Self {
        Self(ms.saturating_mul(1000))
    }

    pub fn as_millis(self) -> i64 {
        self.0.div_euclid(1000)
    }

    pub fn as_micros(self) -> i64 {
        self.0
    }

    /// How long after `earlier` this is; zero when it is not after it.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// RFC 3339 in UTC with microseconds, as REST shows it.
    pub fn to_rfc3339(self) -> String {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(ts) => format!("{ts:.6}"),
            Err(_) => self.0.to_string(),
        }
    }

    /// Reads RFC 3339, with any offset.
    pub fn parse_rfc3339(s: &str) -> Result<Self, String> {
        s.parse::<jiff::Timestamp>()
            .map(|ts| Self(ts.as_microsecond()))
            .map_err(|e| e.to_string())
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_rfc3339())
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_rfc3339())
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;
    fn add(self, d: Duration) -> Self {
        Self(
            self.0
                .saturating_add(i64::try_from(d.as_micros()).unwrap_or(i64::MAX)),
        )
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Self;
    fn sub(self, d: Duration) -> Self {
        Self(
            self.0
                .saturating_sub(i64::try_from(d.as_micros()).unwrap_or(i64::MAX)),
        )
    }
}

/// A moment on the clock that runs only while workers can be heard, in microseconds. Its
/// beginning means nothing; it is no time of day and is compared with no other clock, which
/// is why it is a type of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct ListenTime(i64);

impl ListenTime {
    /// The time from `earlier` until this one; zero if it is not earlier.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl Add<Duration> for ListenTime {
    type Output = Self;
    fn add(self, d: Duration) -> Self {
        let us = i64::try_from(d.as_micros()).unwrap_or(i64::MAX);
        Self(self.0.saturating_add(us))
    }
}

impl Sub<Duration> for ListenTime {
    type Output = Self;
    fn sub(self, d: Duration) -> Self {
        let us = i64::try_from(d.as_micros()).unwrap_or(i64::MAX);
        Self(self.0.saturating_sub(us))
    }
}

/// A length of time in milliseconds, as requests state it.
pub type Millis = u64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc3339_round_trips() {
        let t = Timestamp(1_768_910_400_123_456);
        assert_eq!(t.to_rfc3339(), "2026-01-20T12:00:00.123456Z");
        assert_eq!(Timestamp::parse_rfc3339(&t.to_rfc3339()), Ok(t));
        assert_eq!(
            Timestamp::parse_rfc3339("2026-01-20T13:00:00.123456+01:00"),
            Ok(t)
        );
    }

    #[test]
    fn since_never_goes_negative() {
        assert_eq!(Timestamp(5).since(Timestamp(9)), Duration::ZERO);
        assert_eq!(Timestamp(9).since(Timestamp(5)), Duration::from_micros(4));
    }
}
