//! What each field of a request must be.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use weirgate::{Limit, MilliTokens, OnUnavailable};

use super::json::{Json, parse, shown};

/// Largest amount, 10^12 tokens.
const MAX_TOKENS: i64 = 1_000_000_000_000;
/// Longest span that a request can ask for, a day, in ms.
pub(super) const DAY_MS: u64 = 86_400_000;

/// A request that cannot be read: which field, why, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invalid {
    /// Path of the field, or empty.
    path: String,
    what: String,
}

impl Invalid {
    /// Returns the error of a field.
    pub(super) fn of(field: &str, what: impl Into<String>) -> Self {
        Self {
            path: shown(field),
            what: what.into(),
        }
    }

    /// Returns the error as one inside of another field or element.
    pub(super) fn within(mut self, outer: &str) -> Self {
        let outer = shown(outer);
        self.path = match self.path.as_str() {
            "" => outer,
            inner if inner.starts_with('[') => format!("{outer}{inner}"),
            inner => format!("{outer}.{inner}"),
        };
        self
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => write!(f, "the body {}", self.what),
            path => write!(f, "{path} {}", self.what),
        }
    }
}

/// The fields of an object that were not read yet.
pub(super) struct Object<'a>(Vec<(std::borrow::Cow<'a, str>, Json<'a>)>);

impl<'a> Object<'a> {
    /// Reads a body.
    pub(super) fn parse(body: &'a [u8]) -> Result<Self, Invalid> {
        let json = parse(body).map_err(|error| {
            Invalid::of("", format!("is not JSON: {error}; send one JSON object"))
        })?;
        Self::of(json)
    }

    pub(super) fn of(json: Json<'a>) -> Result<Self, Invalid> {
        match json {
            Json::Object(fields) => Ok(Self(fields)),
            other => Err(wrong("a JSON object", &other)),
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(known, _)| known == name)
    }

    /// Reads a field, if it is there.
    pub(super) fn optional<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(Json<'a>) -> Result<T, Invalid>,
    ) -> Result<Option<T>, Invalid> {
        let Some(at) = self.0.iter().position(|(known, _)| known == name) else {
            return Ok(None);
        };
        let (_, value) = self.0.swap_remove(at);
        read(value).map(Some).map_err(|error| error.within(name))
    }

    /// Reads a field that must be there.
    pub(super) fn required<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(Json<'a>) -> Result<T, Invalid>,
    ) -> Result<T, Invalid> {
        self.optional(name, read)?.ok_or_else(|| {
            // One of them may be the same field, misspelled.
            let others: Vec<_> = self.0.iter().map(|(other, _)| shown(other)).collect();
            let others = match others.as_slice() {
                [] => String::new(),
                [first, ..] => format!(", there is {first:?}"),
            };
            Invalid::of(name, format!("is missing{others}: add it"))
        })
    }

    /// Reads every field, whatever its name, in the order of the text.
    pub(super) fn each<T>(
        self,
        mut read: impl FnMut(Json<'a>) -> Result<T, Invalid>,
    ) -> Result<Vec<(String, T)>, Invalid> {
        let each = self.0.into_iter().map(|(name, value)| match read(value) {
            Ok(value) => Ok((name.into_owned(), value)),
            Err(error) => Err(error.within(&name)),
        });
        each.collect()
    }

    /// Refuses fields that were not read.
    pub(super) fn end(self, allowed: &[&str]) -> Result<(), Invalid> {
        match self.0.first() {
            None => Ok(()),
            Some((name, _)) if allowed.contains(&&**name) => Err(Invalid::of(
                name,
                "cannot be combined with the other fields: leave it out",
            )),
            Some((name, _)) => Err(Invalid::of(
                name,
                format!(
                    "is unknown: remove it, or use one of {}",
                    allowed.join(", ")
                ),
            )),
        }
    }
}

/// Reads text.
pub(super) fn text(json: Json<'_>) -> Result<String, Invalid> {
    match json {
        Json::Text(text) => Ok(text.into_owned()),
        other => Err(wrong("text", &other)),
    }
}

/// Reads `true` or `false`.
pub(super) fn bool(json: Json<'_>) -> Result<bool, Invalid> {
    match json {
        Json::Bool(bool) => Ok(bool),
        other => Err(wrong("true or false", &other)),
    }
}

/// Reads a whole number of milliseconds.
pub(super) fn millis(range: RangeInclusive<u64>) -> impl Fn(Json<'_>) -> Result<Duration, Invalid> {
    move |json| {
        let ms = match &json {
            Json::Number(number) => number.as_u64(),
            _ => None,
        };
        let ms = ms.filter(|ms| range.contains(ms));
        ms.map(Duration::from_millis).ok_or_else(|| {
            let what = format!("{} to {} milliseconds, whole", range.start(), range.end());
            wrong(&what, &json)
        })
    }
}

/// Reads a whole number from 0.
pub(super) fn whole(json: Json<'_>) -> Result<i64, Invalid> {
    let number = match &json {
        Json::Number(number) => number.as_i64(),
        _ => None,
    };
    number
        .filter(|number| *number >= 0)
        .ok_or_else(|| wrong("a whole number from 0", &json))
}

/// Reads a whole number of tokens, up to 10^12.
pub(super) fn whole_tokens(json: Json<'_>) -> Result<i64, Invalid> {
    let tokens = match &json {
        Json::Number(number) => number.as_i64(),
        _ => None,
    };
    tokens
        .filter(|tokens| (0..=MAX_TOKENS).contains(tokens))
        .ok_or_else(|| wrong("whole tokens, 0 to 10^12", &json))
}

/// Reads an amount of tokens, up to 10^12, with at most three places.
pub(super) fn tokens(json: Json<'_>) -> Result<MilliTokens, Invalid> {
    if let Json::Number(number) = &json {
        let whole = number.as_i64().map(MilliTokens::from_tokens);
        let whole_or_not = whole.or_else(|| MilliTokens::deserialize(number).ok());
        let in_range = |tokens: &MilliTokens| {
            (MilliTokens(0)..=MilliTokens::from_tokens(MAX_TOKENS)).contains(tokens)
        };
        if let Some(tokens) = whole_or_not.filter(in_range) {
            return Ok(tokens);
        }
    }
    Err(wrong("0 to 10^12 tokens with at most three places", &json))
}

/// Reads a list.
pub(super) fn list<'a, T>(
    json: Json<'a>,
    most: usize,
    read: impl Fn(Json<'a>) -> Result<T, Invalid>,
) -> Result<Vec<T>, Invalid> {
    let elements = match json {
        Json::List(elements) => elements,
        other => return Err(wrong("a list", &other)),
    };
    if elements.len() > most {
        let what = format!(
            "must have at most {most} elements, got {}: send fewer",
            elements.len()
        );
        return Err(Invalid::of("", what));
    }
    let element =
        |(at, element)| read(element).map_err(|error: Invalid| error.within(&format!("[{at}]")));
    elements.into_iter().enumerate().map(element).collect()
}

/// Reads limits, as values have them in JSON.
pub(super) fn limits(json: Json<'_>) -> Result<Arc<[Limit]>, Invalid> {
    // More than a bucket can have, so the limiter names the bound.
    const MOST: usize = 100;
    let limit = |json: Json<'_>| {
        Limit::deserialize(json.into_value())
            .map_err(|error| Invalid::of("", format!("is no limit: {error}")))
    };
    list(json, MOST, limit).map(Into::into)
}

/// Reads a decision for outages.
pub(super) fn on_unavailable(json: Json<'_>) -> Result<OnUnavailable, Invalid> {
    let parsed = match &json {
        Json::Text(text) => OnUnavailable::parse(text),
        _ => None,
    };
    parsed.ok_or_else(|| {
        wrong(
            "\"error\", \"deny\", \"allow\", or \"local\" with 1 to 100, \"local 25\"",
            &json,
        )
    })
}

/// Returns the error of a value of another kind.
pub(super) fn wrong(what: &str, got: &Json<'_>) -> Invalid {
    Invalid::of("", format!("must be {what}, got {got}: correct it"))
}
