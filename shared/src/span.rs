//! Durations as people write them: `5s`, `10m`, `1h30m`, `250ms`.

use std::time::Duration;

/// Units of a span, the largest first, in ms.
const UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Parses a span: numbers with their units, the largest unit first. A number may have `_`.
#[must_use]
pub fn parse_span(text: &str) -> Option<Duration> {
    let mut units = UNITS.into_iter();
    let (mut rest, mut sum) = (text, 0_u64);
    while !rest.is_empty() {
        let digits =
            rest.find(|character: char| !character.is_ascii_digit() && character != '_')?;
        let (number, after) = rest.split_at(digits);
        let end = after.find(|character: char| !character.is_ascii_alphabetic());
        let (name, after) = after.split_at(end.unwrap_or(after.len()));
        let (_, unit) = units.find(|(unit, _)| *unit == name)?;
        let number: u64 = number.replace('_', "").parse().ok()?;
        sum = sum.checked_add(number.checked_mul(unit)?)?;
        rest = after;
    }
    (!text.is_empty()).then(|| Duration::from_millis(sum))
}

/// Parses the time allowed for something, from 1 ms to 1 h.
///
/// # Errors
/// What it must be.
pub fn parse_timeout(text: &str) -> Result<Duration, String> {
    let allowed = Duration::from_millis(1)..=Duration::from_hours(1);
    parse_span(text)
        .filter(|span| allowed.contains(span))
        .ok_or_else(|| "must be a span from 1ms to 1h with its unit, for example 5s".to_owned())
}

/// Returns a span exactly, to the millisecond.
#[must_use]
pub fn exact_span(span: Duration) -> String {
    let mut left = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let mut text = String::new();
    for (name, unit) in UNITS {
        if left >= unit {
            text += &format!("{}{name}", left / unit);
            left %= unit;
        }
    }
    match text.is_empty() {
        true => "0s".to_owned(),
        false => text,
    }
}

/// Returns a span in its two largest units, rounded up: to wait so long is enough.
#[must_use]
pub fn rounded_span(span: Duration) -> String {
    let ms = span.as_nanos().div_ceil(1_000_000);
    let ms = u64::try_from(ms).unwrap_or(u64::MAX);
    let to = match ms {
        ..1_000 => 1,
        1_000..3_600_000 => 1_000,
        3_600_000..86_400_000 => 60_000,
        _ => 3_600_000,
    };
    exact_span(Duration::from_millis(ms.div_ceil(to).saturating_mul(to)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn spans_have_numbers_with_units_in_order() {
        for (text, ms) in [
            ("5s", 5_000),
            ("10m", 600_000),
            ("1h30m", 5_400_000),
            ("1d2h3m4s5ms", 93_784_005),
            ("1_500ms", 1_500),
            ("0s", 0),
        ] {
            assert_eq!(parse_span(text), Some(Duration::from_millis(ms)), "{text}");
        }
        for text in [
            "",
            "5",
            "s",
            "_s",
            "5 s",
            "-5s",
            "1.5h",
            "30m1h",
            "1h1h",
            "5min",
            "ä",
            "5sä",
            "99999999999999999999d",
            "18446744073709551615d",
        ] {
            assert_eq!(parse_span(text), None, "{text}");
        }
        for (text, ms) in [("5s", 5_000), ("250ms", 250), ("1h", 3_600_000)] {
            assert_eq!(parse_timeout(text), Ok(Duration::from_millis(ms)));
        }
        for text in ["0", "5", "0.5", "1h1ms", "x", "0s"] {
            assert!(parse_timeout(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_rounded_span_has_two_units_and_is_no_shorter() {
        for (ms, text) in [
            (0, "0s"),
            (20, "20ms"),
            (1_001, "2s"),
            (59_001, "1m"),
            (614_200, "10m15s"),
            (3_725_000, "1h3m"),
            (86_399_999, "1d"),
            (90_000_000, "1d1h"),
        ] {
            assert_eq!(rounded_span(Duration::from_millis(ms)), text);
        }
        assert_eq!(rounded_span(Duration::from_nanos(1)), "1ms");
    }

    proptest! {
        #[test]
        fn an_exact_span_is_read_as_it_was(ms in prop_oneof![0..10_000_u64, any::<u64>()]) {
            let span = Duration::from_millis(ms);
            prop_assert_eq!(parse_span(&exact_span(span)), Some(span));
            let rounded = parse_span(&rounded_span(span));
            prop_assert!(ms > u64::MAX - 3_600_000 || rounded.is_some_and(|rounded| rounded >= span));
        }
    }
}
