//! Instants in the format of a stream: seconds, whole or with a fraction or an exponent.

use std::time::Duration;

use weirgate_shared::EpochMillis;

/// First instant of the year 9999, the end of dates: a window of its last month would end after it.
const END_MS: i64 = 253_370_764_800_000;

/// Returns the instant of a JSON number of seconds, to the nearest millisecond. Returns `None` for
/// other text, or for an instant not between 1970 (0 means a missing one) and 9998.
pub(crate) fn seconds(number: &str) -> Option<EpochMillis> {
    let seconds = Duration::try_from_secs_f64(number.parse().ok()?).ok()?;
    let rounded = seconds.checked_add(Duration::from_micros(500))?;
    let millis = i64::try_from(rounded.as_millis()).ok()?;
    (1..END_MS).contains(&millis).then_some(EpochMillis(millis))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_read_to_the_millisecond() {
        for (text, millis) in [
            ("1795195341", 1_795_195_341_000),
            ("1795195341.0", 1_795_195_341_000),
            ("1795195341.026", 1_795_195_341_026),
            ("1.795195341E9", 1_795_195_341_000),
            ("1795195341000e-3", 1_795_195_341_000),
            ("1.795195341026e+9", 1_795_195_341_026),
        ] {
            assert_eq!(seconds(text), Some(EpochMillis(millis)), "{text}");
        }
    }

    #[test]
    fn what_is_no_instant_is_none() {
        for text in [
            "253370764800",
            "253402300799.999",
            "0",
            "0.0",
            "-1",
            "null",
            "NaN",
            "inf",
            "\"1795195341\"",
            "1795195341000",
            "1e19",
            "1e999",
            "1e-999",
            "",
            ".",
            "e",
            "1e",
        ] {
            assert_eq!(seconds(text), None, "{text}");
        }
        let long = "9".repeat(200);
        assert_eq!(seconds(&long), None);
    }
}
