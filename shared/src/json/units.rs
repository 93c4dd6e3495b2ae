//! JSON of amounts and instants.

use std::fmt;

use serde::de::{Error as _, Unexpected, Visitor};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{EpochMillis, MilliTokens};

/// A number of tokens: an integer, or a decimal of at most three places.
impl Serialize for MilliTokens {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0 % 1000 == 0 {
            return serializer.serialize_i64(self.0 / 1000);
        }
        // The float nearest to a decimal has that decimal as its shortest text.
        let tokens = self.to_string().parse().map_err(S::Error::custom)?;
        serializer.serialize_f64(tokens)
    }
}

impl<'de> Deserialize<'de> for MilliTokens {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TokensVisitor)
    }
}

struct TokensVisitor;

impl Visitor<'_> for TokensVisitor {
    type Value = MilliTokens;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of tokens with three decimals at most")
    }

    fn visit_i64<E: serde::de::Error>(self, tokens: i64) -> Result<MilliTokens, E> {
        parse(&tokens.to_string())
            .ok_or_else(|| E::invalid_value(Unexpected::Signed(tokens), &self))
    }

    fn visit_u64<E: serde::de::Error>(self, tokens: u64) -> Result<MilliTokens, E> {
        parse(&tokens.to_string())
            .ok_or_else(|| E::invalid_value(Unexpected::Unsigned(tokens), &self))
    }

    fn visit_f64<E: serde::de::Error>(self, tokens: f64) -> Result<MilliTokens, E> {
        parse(&tokens.to_string()).ok_or_else(|| E::invalid_value(Unexpected::Float(tokens), &self))
    }
}

/// Reads a decimal without an exponent; `None` if it has more than three places, or is too large.
fn parse(tokens: &str) -> Option<MilliTokens> {
    let (whole, part) = tokens.split_once('.').unwrap_or((tokens, ""));
    let milli = format!("{whole}{part:0<3}");
    (part.len() <= 3)
        .then(|| milli.parse().ok())?
        .map(MilliTokens)
}

/// Milliseconds since 1970.
impl Serialize for EpochMillis {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(self.0)
    }
}

impl<'de> Deserialize<'de> for EpochMillis {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        i64::deserialize(deserializer)
            .map(Self)
            .map_err(D::Error::custom)
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

    #[test]
    fn an_amount_that_is_no_whole_number_of_millitokens_is_refused() {
        for bad in ["0.0001", "1e300", "9223372036854775807", "\"1\"", "null"] {
            let refused = serde_json::from_str::<MilliTokens>(bad).unwrap_err();
            assert!(
                refused.to_string().contains("three decimals at most"),
                "{bad}: {refused}"
            );
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
        fn instants_survive(ms: i64) {
            let json = serde_json::to_string(&EpochMillis(ms)).unwrap();
            prop_assert_eq!(serde_json::from_str::<EpochMillis>(&json).unwrap(), EpochMillis(ms));
        }
    }
}
