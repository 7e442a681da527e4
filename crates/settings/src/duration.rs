//! Durations: `250ms`, `30s`, `5m`, `2h`, `1d`, also joined as in `1m30s`. Use with
//! `#[serde(with = "airlock_settings::duration")]`.
//!
//! A bare number is refused. Whether it means seconds or milliseconds is exactly
//! the mistake that such fields see most. A field whose name says its unit (`_ms`,
//! `_seconds`) takes a bare number of it as well: see [`deserialize_millis`] and [`deserialize_seconds`].

use std::fmt;
use std::time::Duration;

use serde::de::Visitor;
use serde::{Deserializer, Serializer};

const UNITS: [(&str, u64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];

/// Why a text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    #[error("`{0}` has no unit: write it as in 250ms, 30s, 5m or 2h")]
    NoUnit(String),
    #[error("`{text}` has the unknown unit `{unit}`: use ms, s, m, h or d")]
    UnknownUnit { text: String, unit: String },
    #[error("`{0}` is not a duration: write it as in 250ms, 30s, 5m or 2h")]
    Malformed(String),
    #[error("`{0}` is too long")]
    TooLong(String),
}

/// Reads a duration.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let malformed = || DurationError::Malformed(text.to_owned());
    let mut rest = text.trim();
    let mut millis: u64 = 0;
    if rest.is_empty() {
        return Err(malformed());
    }
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        if number.is_empty() {
            return Err(malformed());
        }
        let end = tail
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let unit = unit.trim();
        if unit.is_empty() {
            return Err(DurationError::NoUnit(text.to_owned()));
        }
        let scale = UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .map(|(_, scale)| *scale)
            .ok_or_else(|| DurationError::UnknownUnit {
                text: text.to_owned(),
                unit: unit.to_owned(),
            })?;
        millis = number
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(scale))
            .and_then(|part| millis.checked_add(part))
            .ok_or_else(|| DurationError::TooLong(text.to_owned()))?;
        rest = tail;
    }
    Ok(Duration::from_millis(millis))
}

/// Writes a duration so that [`parse`] reads it back, to the millisecond.
pub fn format(duration: Duration) -> String {
    let mut millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if millis == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    for (unit, scale) in UNITS {
        let count = millis / scale;
        if count > 0 {
            text.push_str(&format!("{count}{unit}"));
            millis %= scale;
        }
    }
    text
}

struct DurationVisitor;

impl Visitor<'_> for DurationVisitor {
    type Value = Duration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration such as 250ms, 30s, 5m or 2h")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Duration, E> {
        parse(text).map_err(E::custom)
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Duration, E> {
        parse(&number.to_string()).map_err(E::custom)
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Duration, E> {
        parse(&number.to_string()).map_err(E::custom)
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Duration, E> {
        Err(E::custom(DurationError::Malformed(number.to_string())))
    }
}

/// For `#[serde(with = …)]`.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    deserializer.deserialize_any(DurationVisitor)
}

/// For `#[serde(with = …)]`.
pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format(*duration))
}

/// Reads a number of `unit`s, bare or as a duration.
struct CountVisitor {
    unit: Duration,
}

impl CountVisitor {
    fn parse_count<E: serde::de::Error>(&self, text: &str) -> Result<u64, E> {
        if let Ok(number) = text.trim().parse() {
            return Ok(number);
        }
        let (length, unit) = (parse(text).map_err(E::custom)?, self.unit.as_millis());
        match u64::try_from(length.as_millis() / unit) {
            Ok(number) if length.as_millis().is_multiple_of(unit) => Ok(number),
            Ok(_) | Err(_) => Err(E::custom(format!(
                "`{text}` is no whole number of {}",
                if unit == 1 { "milliseconds" } else { "seconds" }
            ))),
        }
    }
}

impl Visitor<'_> for CountVisitor {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, or a duration such as 250ms, 30s, 5m or 2h")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<u64, E> {
        self.parse_count(text)
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<u64, E> {
        Ok(number)
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<u64, E> {
        self.parse_count(&number.to_string())
    }
}

/// For `#[serde(deserialize_with = …)]` on a field that counts milliseconds: `1500`, and
/// `1s500ms` as well.
pub fn deserialize_millis<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let unit = Duration::from_millis(1);
    deserializer.deserialize_any(CountVisitor { unit })
}

/// For `#[serde(deserialize_with = …)]` on a field that counts seconds: `90`, and `1m30s`
/// as well.
pub fn deserialize_seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let unit = Duration::from_secs(1);
    deserializer.deserialize_any(CountVisitor { unit })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_that_names_its_unit_takes_a_bare_number_and_a_duration() {
        #[derive(Debug, PartialEq, serde::Deserialize)]
        struct Fields {
            #[serde(deserialize_with = "deserialize_millis")]
            pause_ms: u64,
            #[serde(deserialize_with = "deserialize_seconds")]
            grace_seconds: u64,
        }
        let read = |json: &str| serde_json::from_str::<Fields>(json);
        for json in [
            r#"{"pause_ms": 90000, "grace_seconds": 90}"#,
            r#"{"pause_ms": "90000", "grace_seconds": "90"}"#,
            r#"{"pause_ms": "1m30s", "grace_seconds": "1m30s"}"#,
        ] {
            let fields = read(json).expect(json);
            assert_eq!((fields.pause_ms, fields.grace_seconds), (90_000, 90));
        }
        for (json, what) in [
            (r#"{"pause_ms": -1, "grace_seconds": 1}"#, "not a duration"),
            (r#"{"pause_ms": "1w", "grace_seconds": 1}"#, "unknown unit"),
            (
                r#"{"pause_ms": 1, "grace_seconds": "1500ms"}"#,
                "no whole number of seconds",
            ),
        ] {
            let error = read(json).expect_err(json).to_string();
            assert!(error.contains(what), "{error}");
        }
    }

    #[test]
    fn reads_and_writes() {
        for (text, millis) in [
            ("250ms", 250),
            ("30s", 30_000),
            ("5m", 300_000),
            ("2h", 7_200_000),
            ("1d", 86_400_000),
            ("1m30s", 90_000),
            (" 10 s", 10_000),
            ("0", 0),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "for {text}");
            let written = format(Duration::from_millis(millis));
            assert_eq!(
                parse(&written),
                Ok(Duration::from_millis(millis)),
                "as {written}"
            );
        }
    }

    #[test]
    fn says_what_is_wrong() {
        assert_eq!(parse("30"), Err(DurationError::NoUnit("30".into())));
        assert!(matches!(
            parse("3 weeks"),
            Err(DurationError::UnknownUnit { .. })
        ));
        assert!(matches!(
            parse("1.5s"),
            Err(DurationError::UnknownUnit { .. })
        ));
        assert!(matches!(parse("soon"), Err(DurationError::Malformed(_))));
        assert!(matches!(parse("-5s"), Err(DurationError::Malformed(_))));
        assert!(matches!(parse(""), Err(DurationError::Malformed(_))));
        assert!(matches!(
            parse("99999999999999999999h"),
            Err(DurationError::TooLong(_))
        ));
    }
}
