//! Lengths of time in configuration files: `250ms`, `30s`, `5m`, `24h`.
//!
//! For `#[serde(with = "airlock_bus::duration")]`. A bare number is refused, because
//! nobody can tell whether it means seconds or milliseconds.

use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serializer};

const UNITS: [(&str, u64); 5] = [
    ("ms", 1),
    ("s", 1_000),
    ("m", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
];

pub fn parse(s: &str) -> Result<Duration, String> {
    let text = s.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let wrong = || format!("{s:?} is no length of time; write it as 250ms, 30s, 5m, 2h or 1d");
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let (_, millis) = UNITS
        .into_iter()
        .find(|(name, _)| *name == unit.trim())
        .ok_or_else(wrong)?;
    number
        .checked_mul(millis)
        .map(Duration::from_millis)
        .ok_or_else(|| format!("{s:?} is too long a time"))
}

pub fn format(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let (name, size) = UNITS
        .into_iter()
        .rev()
        .find(|(_, size)| millis != 0 && millis % size == 0)
        .unwrap_or(("ms", 1));
    format!("{}{name}", millis / size)
}

pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format(*duration))
}

pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    parse(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_the_same() {
        for text in ["250ms", "30s", "5m", "2h", "1d", "90s", "0ms"] {
            assert_eq!(format(parse(text).expect(text)), text);
        }
        assert_eq!(format(Duration::from_secs(600)), "10m");
        for bad in ["", "10", "s", "-1s", "1.5s", "1w", "99999999999999999d"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
