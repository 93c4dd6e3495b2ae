//! JSON of amounts and instants.

use std::fmt;

use serde::de::{Error as _, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{EpochMillis, MilliTokens, MilliTotal};

/// As a count.
impl Serialize for MilliTokens {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        MilliTotal::from(*self).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for MilliTokens {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let total = MilliTotal::deserialize(deserializer)?;
        let amount = i64::try_from(total.0).map(Self);
        amount.map_err(|_| D::Error::custom(format!("{}, got {total}", TokensVisitor::TAKES)))
    }
}

/// A number of tokens: an integer, or a decimal of at most three places. One that neither 64 bits
/// nor a float hold exactly is a string.
impl Serialize for MilliTotal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = self.to_string();
        match (text.parse(), exact_float(&text)) {
            (Ok(whole), _) => serializer.serialize_i64(whole),
            (_, Some(tokens)) => serializer.serialize_f64(tokens),
            _ => serializer.serialize_str(&text),
        }
    }
}

/// Returns the float whose shortest text is `text`: that of a short decimal.
fn exact_float(text: &str) -> Option<f64> {
    let tokens: f64 = text.parse().ok()?;
    (tokens.to_string() == text).then_some(tokens)
}

impl<'de> Deserialize<'de> for MilliTotal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TokensVisitor)
    }
}

struct TokensVisitor;

impl TokensVisitor {
    const TAKES: &str = "a number of tokens with three decimals at most";
}

impl Visitor<'_> for TokensVisitor {
    type Value = MilliTotal;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::TAKES)
    }

    fn visit_i64<E: serde::de::Error>(self, tokens: i64) -> Result<MilliTotal, E> {
        parse(&tokens.to_string())
            .ok_or_else(|| E::invalid_value(Unexpected::Signed(tokens), &self))
    }

    fn visit_u64<E: serde::de::Error>(self, tokens: u64) -> Result<MilliTotal, E> {
        parse(&tokens.to_string())
            .ok_or_else(|| E::invalid_value(Unexpected::Unsigned(tokens), &self))
    }

    fn visit_f64<E: serde::de::Error>(self, tokens: f64) -> Result<MilliTotal, E> {
        parse(&tokens.to_string()).ok_or_else(|| E::invalid_value(Unexpected::Float(tokens), &self))
    }

    fn visit_str<E: serde::de::Error>(self, tokens: &str) -> Result<MilliTotal, E> {
        let is_number = tokens.parse::<i64>().is_ok() || exact_float(tokens).is_some();
        let parsed = parse(tokens).filter(|parsed| !is_number && parsed.to_string() == tokens);
        parsed.ok_or_else(|| E::invalid_value(Unexpected::Str(tokens), &self))
    }
}

/// Reads a decimal without an exponent; `None` if it has more than three places, or is too large.
fn parse(tokens: &str) -> Option<MilliTotal> {
    let (whole, part) = tokens.split_once('.').unwrap_or((tokens, ""));
    let milli = format!("{whole}{part:0<3}");
    (part.len() <= 3).then(|| milli.parse().ok())?.map(MilliTotal)
}

/// Milliseconds since 1970.
impl Serialize for EpochMillis {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(self.0)
    }
}

impl<'de> Deserialize<'de> for EpochMillis {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        i64::deserialize(deserializer).map(Self).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn amounts_are_decimals_of_tokens() {
        for (milli, json) in [
            (0, "0"),
            (1_500_000, "1500"),
            (1_250, "1.25"),
            (-1, "-0.001"),
            (999_999_999_999_999, "999999999999.999"),
        ] {
            assert_eq!(serde_json::to_string(&MilliTokens(milli)).unwrap(), json);
        }
    }

    /// Ten years at the largest rate, whole and with a fraction.
    #[test]
    fn a_count_that_no_number_holds_is_a_string() {
        for (milli, json) in [
            (315_360_000_000_000_000_000_000, "3.1536e+20"),
            (9_223_372_036_854_775_807_000, "9223372036854775807"),
            (9_223_372_036_854_775_809_000, "\"9223372036854775809\""),
            (-315_360_000_000_000_000_000_001, "\"-315360000000000000000.001\""),
        ] {
            assert_eq!(serde_json::to_string(&MilliTotal(milli)).unwrap(), json);
            assert_eq!(serde_json::from_str::<MilliTotal>(json).unwrap(), MilliTotal(milli));
        }
        assert!(serde_json::from_str::<MilliTokens>("3.1536e20").is_err());
    }

    #[test]
    fn an_amount_that_is_no_whole_number_of_millitokens_is_refused() {
        for bad in ["0.0001", "1e300", "9223372036854775807", "\"1\"", "null"] {
            let refused = serde_json::from_str::<MilliTokens>(bad).unwrap_err();
            assert!(refused.to_string().contains("three decimals at most"), "{bad}: {refused}");
        }
        let exponent: MilliTokens = serde_json::from_str("1.5e3").unwrap();
        assert_eq!(exponent, MilliTokens::from_tokens(1_500));
    }

    proptest! {
        #[test]
        fn amounts_survive(milli in -1_000_000_000_000_000_i64..=1_000_000_000_000_000) {
            let json = serde_json::to_string(&MilliTokens(milli)).unwrap();
            prop_assert_eq!(&json, &MilliTokens(milli).to_string());
            prop_assert_eq!(serde_json::from_str::<MilliTokens>(&json).unwrap(), MilliTokens(milli));
        }

        #[test]
        fn counts_survive(milli in -10_i128.pow(26)..=10_i128.pow(26)) {
            let json = serde_json::to_string(&MilliTotal(milli)).unwrap();
            prop_assert_eq!(serde_json::from_str::<MilliTotal>(&json).unwrap(), MilliTotal(milli));
        }

        #[test]
        fn instants_survive(ms: i64) {
            let json = serde_json::to_string(&EpochMillis(ms)).unwrap();
            prop_assert_eq!(serde_json::from_str::<EpochMillis>(&json).unwrap(), EpochMillis(ms));
        }
    }
}
