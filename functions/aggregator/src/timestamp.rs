//! Instants in the format of a stream: seconds, whole or with a fraction or an exponent.

use weirgate_shared::EpochMillis;

/// First instant of the year 9999, the end of dates: a window of its last month would end after it.
const END_MS: i128 = 253_370_764_800_000;

/// Returns the instant of a JSON number of seconds, rounded down to the millisecond. Returns `None`
/// for other text, or for an instant not between 1970 (0 means a missing one) and 9998.
pub(crate) fn seconds(number: &str) -> Option<EpochMillis> {
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let mut digits: i128 = 0;
    for digit in whole.bytes().chain(fraction.bytes()) {
        if !digit.is_ascii_digit() {
            return None;
        }
        digits = digits
            .checked_mul(10)?
            .checked_add(i128::from(digit - b'0'))?;
    }
    let scale = exponent
        .parse::<i32>()
        .ok()?
        .checked_add(3)?
        .checked_sub(i32::try_from(fraction.len()).ok()?)?;
    let power = 10_i128.checked_pow(scale.unsigned_abs())?;
    let millis = if scale < 0 {
        digits / power
    } else {
        digits.checked_mul(power)?
    };
    (1..END_MS)
        .contains(&millis)
        .then(|| i64::try_from(millis).ok().map(EpochMillis))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_read_without_rounding() {
        for (text, millis) in [
            ("1795195341", 1_795_195_341_000),
            ("1795195341.0", 1_795_195_341_000),
            ("1795195341.026", 1_795_195_341_026),
            ("1795195341.0269999999999999999", 1_795_195_341_026),
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
            "\"1795195341\"",
            "1795195341000",
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
