//! Times as a person reads them.

use std::time::Duration;

use airlock_model::Timestamp;
use jiff::tz::TimeZone;

/// How long something took: `4.2 ms`, `1.25 s`, `2 min 5 s`, `3 h 4 min`, `2 d 3 h`.
pub fn format_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    let seconds = duration.as_secs();
    match seconds {
        0 if duration.is_zero() => "0 ms".to_owned(),
        0 if millis < 10 => format!("{:.1} ms", duration.as_secs_f64() * 1_000.0),
        0 => format!("{millis} ms"),
        1..10 => format!("{:.2} s", duration.as_secs_f64()),
        10..60 => format!("{:.1} s", duration.as_secs_f64()),
        60..3_600 => format_two_units(seconds / 60, "min", seconds % 60, "s"),
        3_600..86_400 => format_two_units(seconds / 3_600, "h", seconds / 60 % 60, "min"),
        86_400.. => format_two_units(seconds / 86_400, "d", seconds / 3_600 % 24, "h"),
    }
}

fn format_two_units(large: u64, large_unit: &str, small: u64, small_unit: &str) -> String {
    if small == 0 {
        format!("{large} {large_unit}")
    } else {
        format!("{large} {large_unit} {small} {small_unit}")
    }
}

/// Where `then` lies from `now`, roughly: `5 s ago`, `in 3 min`.
pub fn format_relative(then: Timestamp, now: Timestamp) -> String {
    let rough = |duration: Duration| {
        let seconds = duration.as_secs();
        match seconds {
            0..60 => format!("{seconds} s"),
            60..3_600 => format!("{} min", seconds / 60),
            3_600..86_400 => format!("{} h", seconds / 3_600),
            86_400.. => format!("{} d", seconds / 86_400),
        }
    };
    if then > now {
        format!("in {}", rough(then.since(now)))
    } else if now.since(then) < Duration::from_secs(1) {
        "just now".to_owned()
    } else {
        format!("{} ago", rough(now.since(then)))
    }
}

/// The moment on the reader's clock.
pub fn format_clock(at: Timestamp, zone: &TimeZone) -> String {
    format_in(at, zone, "%H:%M:%S%.3f")
}

/// The moment with its date.
pub fn format_date(at: Timestamp, zone: &TimeZone) -> String {
    format_in(at, zone, "%Y-%m-%d %H:%M:%S%.3f")
}

fn format_in(at: Timestamp, zone: &TimeZone, format: &str) -> String {
    match jiff::Timestamp::from_microsecond(at.as_micros()) {
        Ok(moment) => moment.to_zoned(zone.clone()).strftime(format).to_string(),
        // Beyond the calendar; as it is kept then.
        Err(_) => at.to_rfc3339(),
    }
}

/// A moment as the API writes it.
pub fn parse_timestamp(text: &str) -> Option<Timestamp> {
    Timestamp::parse_rfc3339(text).ok()
}

pub fn now() -> Timestamp {
    Timestamp(jiff::Timestamp::now().as_microsecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_about_three_digits() {
        for (micros, text) in [
            (0, "0 ms"),
            (300, "0.3 ms"),
            (4_200, "4.2 ms"),
            (42_000, "42 ms"),
            (999_999, "999 ms"),
            (1_250_000, "1.25 s"),
            (12_340_000, "12.3 s"),
            (60_000_000, "1 min"),
            (125_000_000, "2 min 5 s"),
            (11_040_000_000, "3 h 4 min"),
            (183_600_000_000, "2 d 3 h"),
        ] {
            assert_eq!(format_duration(Duration::from_micros(micros)), text);
        }
    }

    #[test]
    fn past_and_future_are_told_apart() {
        let now = Timestamp::from_millis(1_000_000_000);
        let at = |seconds: i64| Timestamp::from_millis(1_000_000_000 + seconds * 1_000);
        assert_eq!(format_relative(at(0), now), "just now");
        assert_eq!(format_relative(at(-5), now), "5 s ago");
        assert_eq!(format_relative(at(-7_200), now), "2 h ago");
        assert_eq!(format_relative(at(180), now), "in 3 min");
    }

    #[test]
    fn the_clock_is_the_readers() {
        let at = Timestamp::parse_rfc3339("2026-01-02T03:04:05.678901Z").unwrap();
        assert_eq!(format_clock(at, &TimeZone::UTC), "03:04:05.678");
        assert_eq!(format_date(at, &TimeZone::UTC), "2026-01-02 03:04:05.678");
    }
}
