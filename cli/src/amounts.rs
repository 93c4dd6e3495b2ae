//! Amounts and limits as arguments: `tpm=500`, `tpm=100000/minute,burst=200000`, `slots=20`.

use std::fmt::Display;
use std::str::FromStr;

use weirgate::{Limit, LimitError, LimitMode};
use weirgate_shared::parse_span;

/// An amount of a limit: `tpm=500`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Amount {
    /// Name of the limit.
    pub limit: String,
    /// Number of tokens.
    pub tokens: i64,
}

/// Parses `NAME=TOKENS`.
pub fn amount(text: &str) -> Result<Amount, String> {
    let (limit, tokens) = text
        .split_once('=')
        .ok_or("must be NAME=TOKENS, for example tpm=500")?;
    let tokens = whole(tokens)?;
    Ok(Amount {
        limit: limit.to_owned(),
        tokens,
    })
}

/// Parses `NAME=TOKENS/PERIOD` or `NAME=SLOTS`, with `,burst=TOKENS` and `,mode=MODE` after it.
pub fn limit(text: &str) -> Result<Limit, String> {
    const SYNTAX: &str = "must be NAME=TOKENS/second, /minute, /hour, /day or a span such as \
                          /1h30m, or NAME=SLOTS; behind it ,burst=TOKENS and ,mode=enforced, \
                          shadow or soft";
    let mut parts = text.split(',');
    let (name, rate) = parts
        .next()
        .and_then(|part| part.split_once('='))
        .ok_or(SYNTAX)?;
    let refused = |error: LimitError| error.to_string();
    let mut limit = match rate.split_once('/') {
        None => Limit::concurrent(name, whole(rate)?),
        Some((rate, period)) => {
            let rate = whole(rate)?;
            match period {
                "s" | "second" => Limit::per_second(name, rate),
                "m" | "minute" => Limit::per_minute(name, rate),
                "h" | "hour" => Limit::per_hour(name, rate),
                "d" | "day" => Limit::per_day(name, rate),
                span => {
                    let period = parse_span(span).ok_or(SYNTAX)?;
                    let period = i64::try_from(period.as_millis()).map_err(|_| SYNTAX)?;
                    Limit::custom(name, rate, rate, period)
                }
            }
        }
    }
    .map_err(refused)?;
    let mut seen = vec![];
    for part in parts {
        let option = part.split_once('=');
        if let Some((name, _)) = option {
            if seen.contains(&name) {
                return Err(format!("{name} is given twice: give it once"));
            }
            seen.push(name);
        }
        limit = match option {
            Some(("burst", burst)) => limit.with_burst(whole(burst)?).map_err(refused)?,
            Some(("mode", mode)) => limit.in_mode(LimitMode::parse(mode).ok_or(SYNTAX)?),
            _ => return Err(SYNTAX.to_owned()),
        };
    }
    Ok(limit)
}

fn whole(text: &str) -> Result<i64, String> {
    number(text).map_err(|_| format!("{text:?} is no whole number of tokens"))
}

/// Parses a whole number, which may have `_`.
pub fn number<T: FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    let number = text.replace('_', "").parse();
    number.map_err(|error: T::Err| format!("must be a whole number: {error}"))
}

/// Parses a whole number from `LEAST` to `MOST`.
pub fn within<const LEAST: i64, const MOST: i64, T: TryFrom<i64>>(text: &str) -> Result<T, String> {
    let number = number(text).ok();
    let number = number.filter(|number| (LEAST..=MOST).contains(number));
    let number = number.and_then(|number| number.try_into().ok());
    number.ok_or_else(|| format!("must be a whole number from {LEAST} to {MOST}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_have_rates_slots_bursts_and_modes() {
        for (text, expected) in [
            ("rpm=100/minute", Limit::per_minute("rpm", 100).unwrap()),
            ("rps=5/s", Limit::per_second("rps", 5).unwrap()),
            ("slots=20", Limit::concurrent("slots", 20).unwrap()),
            ("rpm=9/1m30s", Limit::custom("rpm", 9, 9, 90_000).unwrap()),
            (
                "tpm=100_000/m,burst=200000,mode=soft",
                Limit::per_minute("tpm", 100_000)
                    .unwrap()
                    .with_burst(200_000)
                    .unwrap()
                    .in_mode(LimitMode::Soft),
            ),
        ] {
            assert_eq!(limit(text), Ok(expected), "{text}");
        }
        for text in [
            "rpm",
            "rpm=x/m",
            "rpm=1/week",
            "rpm=1/m,mode=off",
            "rpm=1/m,burst",
            "rpm=0/m",
            "rpm=1/m,burst=2,burst=3",
            "rpm=1/m,mode=soft,burst=2,mode=soft",
        ] {
            assert!(limit(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_amount_is_a_whole_number_of_a_limit() {
        let expected = Amount {
            limit: "tpm".to_owned(),
            tokens: 500,
        };
        assert_eq!(amount("tpm=500"), Ok(expected));
        for text in ["tpm", "tpm=", "tpm=1.5", "tpm=x"] {
            assert!(amount(text).is_err(), "{text}");
        }
    }
}
