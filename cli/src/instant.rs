//! Instants: as arguments, and as text.

use std::time::Duration;

use time::format_description::well_known::Rfc3339;
use time::macros::format_description;
use time::{Date, OffsetDateTime, Time};
use weirgate::EpochMillis;
use weirgate_shared::{exact_span, parse_span};

use crate::failure::Failure;

/// Parses a date (`2026-11-23`), an instant (`2026-11-23T10:00:00Z`), `now`, or a span before now
/// (`90m`, `36h`, `1d12h`).
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
        parse_span(text).and_then(|span| now.checked_sub(span.try_into().ok()?))
    };
    at.and_then(millis).ok_or_else(|| {
        "must be a date (2026-11-23), an instant (2026-11-23T10:00:00Z), now, or a span before \
         now (90m, 36h, 1d12h)"
            .to_owned()
    })
}

/// An hour and a day, in ms.
pub const HOUR: u64 = 3_600_000;
pub const DAY: u64 = 24 * HOUR;

/// Parses a span as an argument, from `LEAST` to `MOST` ms.
pub fn span_within<const LEAST: u64, const MOST: u64>(text: &str) -> Result<Duration, String> {
    let [least, most] = [LEAST, MOST].map(Duration::from_millis);
    let span = parse_span(text).filter(|span| (least..=most).contains(span));
    span.ok_or_else(|| {
        format!(
            "must be a span from {} to {}, such as 30s, 10m, 1h30m",
            exact_span(least),
            exact_span(most)
        )
    })
}

/// Requires that a range of time is not empty, and has begun. Its options are --from and --to.
///
/// # Errors
/// [`Failure::Refused`] otherwise.
pub fn check_range(from: Option<EpochMillis>, to: Option<EpochMillis>) -> Result<(), Failure> {
    let now = millis(OffsetDateTime::now_utc()).unwrap_or(EpochMillis(i64::MAX));
    let Some(from) = from else {
        return Ok(());
    };
    let (end, name) = match to {
        Some(to) if to < now => (to, "--to"),
        // `now` as an argument is a little earlier than this one.
        _ => (EpochMillis(now.0.saturating_add(1)), "now"),
    };
    match from < end {
        true => Ok(()),
        false => Err(Failure::Refused(format!(
            "--from must be before {name} ({}), got {}; swap them, or give an earlier --from",
            self::text(end),
            self::text(from)
        ))),
    }
}

fn millis(at: OffsetDateTime) -> Option<EpochMillis> {
    i64::try_from(at.unix_timestamp_nanos() / 1_000_000).ok().map(EpochMillis)
}

/// Returns an instant as text, to the second, in UTC.
pub fn text(at: EpochMillis) -> String {
    let known = OffsetDateTime::from_unix_timestamp(at.0.div_euclid(1000)).ok();
    known.and_then(|at| at.format(&Rfc3339).ok()).unwrap_or_else(|| format!("{} ms", at.0))
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
            ("1h30m", 1_795_219_200 - 5_400),
        ] {
            assert_eq!(parse(text, now), Ok(EpochMillis(expected * 1000)), "{text}");
        }
        for text in ["", "7", "x", "2026-13-01", "ä", "99999999999999999999d"] {
            assert!(parse(text, now).is_err(), "{text}");
        }
    }

    #[test]
    fn a_range_begins_before_it_ends_and_before_now() {
        let now = OffsetDateTime::now_utc().unix_timestamp() * 1000;
        let at = |seconds: i64| Some(EpochMillis(now + seconds * 1000));
        for (from, to) in
            [(None, None), (None, at(-60)), (at(-60), None), (at(-60), at(-30)), (at(-60), at(60))]
        {
            assert!(check_range(from, to).is_ok(), "{from:?} {to:?}");
        }
        for (from, to) in
            [(at(60), None), (at(60), at(120)), (at(-30), at(-60)), (at(-30), at(-30))]
        {
            let refused = check_range(from, to);
            assert!(matches!(refused, Err(Failure::Refused(_))), "{from:?} {to:?}");
        }
    }

    #[test]
    fn texts_are_to_the_second() {
        assert_eq!(text(EpochMillis(86_400_000)), "1970-01-02T00:00:00Z");
    }
}
