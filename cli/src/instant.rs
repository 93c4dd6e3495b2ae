//! Instants: as arguments, and as text.

use std::time::Duration;

use time::format_description::well_known::Rfc3339;
use time::macros::format_description;
use time::{Date, OffsetDateTime, Time};
use weirgate::EpochMillis;

/// Parses a date (`2026-11-23`), an instant (`2026-11-23T10:00:00Z`), `now`, or a span before now
/// (`90m`, `36h`, `7d`).
pub fn instant(text: &str) -> Result<EpochMillis, String> {
    parse(text, OffsetDateTime::now_utc())
}

fn parse(text: &str, now: OffsetDateTime) -> Result<EpochMillis, String> {
    let at = if text == "now" {
        Some(now)
    } else if let Ok(at) = OffsetDateTime::parse(text, &Rfc3339) {
        Some(at)
    } else if let Ok(date) = Date::parse(text, format_description!("[year]-[month]-[day]")) {
        Some(date.with_time(Time::MIDNIGHT).assume_utc())
    } else {
        span(text).and_then(|span| now.checked_sub(span.try_into().ok()?))
    };
    at.and_then(millis).ok_or_else(|| {
        "must be a date (2026-11-23), an instant (2026-11-23T10:00:00Z), now, or a span before \
         now (90m, 36h, 7d)"
            .to_owned()
    })
}

/// Parses a span: `30s`, `5m`, `2h`, `7d`.
pub fn span(text: &str) -> Option<Duration> {
    let unit = text.chars().last()?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        _ => return None,
    };
    let number: u64 = text[..text.len() - 1].parse().ok()?;
    number.checked_mul(seconds).map(Duration::from_secs)
}

/// Parses a span as an argument.
pub fn span_argument(text: &str) -> Result<Duration, String> {
    span(text).ok_or_else(|| "must be a span: 30s, 5m, 2h, 7d".to_owned())
}

fn millis(at: OffsetDateTime) -> Option<EpochMillis> {
    i64::try_from(at.unix_timestamp_nanos() / 1_000_000)
        .ok()
        .map(EpochMillis)
}

/// Returns an instant as text, to the second, in UTC.
pub fn text(at: EpochMillis) -> String {
    let known = OffsetDateTime::from_unix_timestamp(at.0.div_euclid(1000)).ok();
    known
        .and_then(|at| at.format(&Rfc3339).ok())
        .unwrap_or_else(|| format!("{} ms", at.0))
}

/// Returns a span as text, in its two largest units.
pub fn span_text(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0 => format!("{} ms", span.as_millis()),
        1..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

/// Returns a period as text, exactly: in its largest unit without a remainder.
pub fn period_text(period: Duration) -> String {
    let ms = period.as_millis();
    let units = [
        (86_400_000, "d"),
        (3_600_000, "h"),
        (60_000, "min"),
        (1_000, "s"),
    ];
    let unit = units.into_iter().find(|(unit, _)| ms.is_multiple_of(*unit));
    let (unit, name) = unit.unwrap_or((1, "ms"));
    format!("{} {name}", ms / unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_dates_times_and_spans_before_now() {
        let now = OffsetDateTime::from_unix_timestamp(1_795_219_200).unwrap();
        for (text, expected) in [
            ("now", 1_795_219_200),
            ("1970-01-02", 86_400),
            ("1970-01-01T01:00:00+01:00", 0),
            ("7d", 1_795_219_200 - 7 * 86_400),
            ("90m", 1_795_219_200 - 5_400),
        ] {
            assert_eq!(parse(text, now), Ok(EpochMillis(expected * 1000)), "{text}");
        }
        for text in ["", "7", "x", "2026-13-01", "ä", "99999999999999999999d"] {
            assert!(parse(text, now).is_err(), "{text}");
        }
    }

    #[test]
    fn texts_are_short() {
        assert_eq!(text(EpochMillis(86_400_000)), "1970-01-02T00:00:00Z");
        assert_eq!(span_text(Duration::from_secs(3_725)), "1 h 2 min");
        assert_eq!(span_text(Duration::from_millis(20)), "20 ms");
        for (ms, expected) in [
            (86_400_000, "1 d"),
            (5_400_000, "90 min"),
            (1_000, "1 s"),
            (1_500, "1500 ms"),
        ] {
            assert_eq!(period_text(Duration::from_millis(ms)), expected);
        }
    }
}
