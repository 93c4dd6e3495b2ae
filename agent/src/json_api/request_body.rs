//! Bodies of requests: what each field must be.
//!
//! A value stays the text that was sent until its field is read, so a body of any shape takes no more
//! memory than one of requests, and an error shows the value as it was sent.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use weirgate::{Limit, LimitMode, MilliTokens, OnUnavailable};
use weirgate_shared::MAX_LIMITS;

/// Most fields of an object. No request needs nearly as many.
const MAX_FIELDS: usize = 100;
/// Largest amount, 10^12 tokens.
const MAX_TOKENS: i64 = 1_000_000_000_000;
/// Longest span that a request can ask for, a day, in ms.
pub(super) const DAY_MS: u64 = 86_400_000;
/// Most characters of a request that an error shows in one place.
const SHOWN: usize = 60;

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
        Self { path: shown(field), what: what.into() }
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

/// The fields of an object that were not read yet, in the order of the text.
pub(super) struct Object<'a>(Vec<(String, &'a RawValue)>);

impl<'a> Object<'a> {
    /// Reads a body.
    pub(super) fn parse(body: &'a [u8]) -> Result<Self, Invalid> {
        let json = serde_json::from_slice(body).map_err(|error| no_json(&error))?;
        Self::of(json)
    }

    pub(super) fn of(json: &'a RawValue) -> Result<Self, Invalid> {
        if !json.get().starts_with('{') {
            return Err(wrong("a JSON object", json));
        }
        let fields = serde_json::Deserializer::from_str(json.get()).deserialize_map(Fields);
        let fields = fields.map_err(|error| no_json(&error))?;
        if fields.len() > MAX_FIELDS {
            let what = format!("has more than {MAX_FIELDS} fields: send fewer");
            return Err(Invalid::of("", what));
        }
        for (at, (name, _)) in fields.iter().enumerate() {
            if fields[..at].iter().any(|(known, _)| known == name) {
                return Err(Invalid::of(name, "comes twice: leave one of them out"));
            }
        }
        Ok(Self(fields))
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(known, _)| known == name)
    }

    /// Reads a field, if it is there.
    pub(super) fn optional<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&'a RawValue) -> Result<T, Invalid>,
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
        read: impl FnOnce(&'a RawValue) -> Result<T, Invalid>,
    ) -> Result<T, Invalid> {
        self.optional(name, read)?.ok_or_else(|| {
            // One of them may be the same field, misspelled.
            let other = self.0.first().map(|(other, _)| shown(other));
            let other = other.map_or_else(String::new, |other| format!(", there is {other:?}"));
            Invalid::of(name, format!("is missing{other}: add it"))
        })
    }

    /// Reads every field, whatever its name, in the order of the text.
    pub(super) fn each<T>(
        self,
        mut read: impl FnMut(&'a RawValue) -> Result<T, Invalid>,
    ) -> Result<Vec<(String, T)>, Invalid> {
        let each = self.0.into_iter().map(|(name, value)| match read(value) {
            Ok(value) => Ok((name, value)),
            Err(error) => Err(error.within(&name)),
        });
        each.collect()
    }

    /// Refuses fields that were not read.
    pub(super) fn end(self, allowed: &[&str]) -> Result<(), Invalid> {
        let Some((name, _)) = self.0.first() else {
            return Ok(());
        };
        let what = match allowed.contains(&&**name) {
            true => "cannot be combined with the other fields: leave it out".to_owned(),
            false => {
                let allowed = allowed.join(", ");
                format!("is unknown: remove it, or use one of {allowed}")
            }
        };
        Err(Invalid::of(name, what))
    }
}

/// Reads the fields of an object. Of too many, one more than are allowed is kept.
struct Fields;

impl<'de> Visitor<'de> for Fields {
    type Value = Vec<(String, &'de RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut fields = vec![];
        while fields.len() <= MAX_FIELDS {
            match entries.next_entry()? {
                Some(field) => fields.push(field),
                None => return Ok(fields),
            }
        }
        while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(fields)
    }
}

/// Reads the elements of a list, and their number. Those above the most that are allowed are only
/// counted.
struct Elements(usize);

impl<'de> Visitor<'de> for Elements {
    type Value = (Vec<&'de RawValue>, usize);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut elements = vec![];
        while elements.len() < self.0 {
            match list.next_element()? {
                Some(element) => elements.push(element),
                None => break,
            }
        }
        let mut count = elements.len();
        while list.next_element::<IgnoredAny>()?.is_some() {
            count += 1;
        }
        Ok((elements, count))
    }
}

/// Reads a value that must be `what`.
fn read<'a, T: Deserialize<'a>>(
    json: &'a RawValue,
    what: &str,
    is_right: impl FnOnce(&T) -> bool,
) -> Result<T, Invalid> {
    let read = serde_json::from_str(json.get()).ok();
    read.filter(is_right).ok_or_else(|| wrong(what, json))
}

/// Reads text.
pub(super) fn text(json: &RawValue) -> Result<String, Invalid> {
    read(json, "text", |_| true)
}

/// Reads text where a list of texts could be.
pub(super) fn text_or_list(json: &RawValue) -> Result<String, Invalid> {
    read(json, "text, or a list of texts", |_| true)
}

/// Reads a status of HTTP.
pub(super) fn status(json: &RawValue) -> Result<u16, Invalid> {
    read(json, "a status of HTTP, 100 to 599", |status| (100..600).contains(status))
}

/// Reads `true` or `false`.
pub(super) fn bool(json: &RawValue) -> Result<bool, Invalid> {
    read(json, "true or false", |_| true)
}

/// Reads one of the words of `what`.
pub(super) fn word<T>(
    json: &RawValue,
    what: &str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<T, Invalid> {
    let text: Option<String> = serde_json::from_str(json.get()).ok();
    let parsed = text.and_then(|text| parse(&text));
    parsed.ok_or_else(|| wrong(what, json))
}

/// Reads a whole number of milliseconds.
pub(super) fn millis(
    range: RangeInclusive<u64>,
) -> impl Fn(&RawValue) -> Result<Duration, Invalid> {
    move |json| {
        let what = format!("{} to {} milliseconds, whole", range.start(), range.end());
        read(json, &what, |ms| range.contains(ms)).map(Duration::from_millis)
    }
}

/// Reads a whole number from 0.
pub(super) fn whole(json: &RawValue) -> Result<i64, Invalid> {
    read(json, "a whole number from 0", |number| *number >= 0)
}

/// Reads a whole number of tokens, up to 10^12.
pub(super) fn whole_tokens(json: &RawValue) -> Result<i64, Invalid> {
    let range = 0..=MAX_TOKENS;
    read(json, "whole tokens, 0 to 10^12", |tokens| range.contains(tokens))
}

/// Reads an amount of tokens, up to 10^12, with at most three places. `or` is what else it can be.
pub(super) fn tokens(json: &RawValue, or: &str) -> Result<MilliTokens, Invalid> {
    let range = MilliTokens(0)..=MilliTokens::from_tokens(MAX_TOKENS);
    let what = format!("0 to 10^12 tokens with at most three places{or}");
    let is_number = !json.get().starts_with('"');
    read(json, &what, |tokens| is_number && range.contains(tokens))
}

/// Reads a list.
pub(super) fn list<'a, T>(
    json: &'a RawValue,
    most: usize,
    each: impl Fn(&'a RawValue) -> Result<T, Invalid>,
) -> Result<Vec<T>, Invalid> {
    if !json.get().starts_with('[') {
        return Err(wrong("a list", json));
    }
    let elements = serde_json::Deserializer::from_str(json.get()).deserialize_seq(Elements(most));
    let (elements, count) = elements.map_err(|error| no_json(&error))?;
    if count > most {
        let what = format!("must have at most {most} elements, got {count}: send fewer");
        return Err(Invalid::of("", what));
    }
    let element =
        |(at, element)| each(element).map_err(|error: Invalid| error.within(&format!("[{at}]")));
    elements.into_iter().enumerate().map(element).collect()
}

/// Reads limits, as values have them in JSON.
pub(super) fn limits(json: &RawValue) -> Result<Arc<[Limit]>, Invalid> {
    // More than a bucket can have, so the limiter names the bound.
    const MOST: usize = 41;
    // Rules that might overlap are compared for years, so no more schedules are read than a level has. A
    // limit has one, and an escape may hide the word.
    let has_schedule =
        |limit: &&RawValue| ["schedule", "\\u"].iter().any(|word| limit.get().contains(word));
    let schedules = list(json, MOST, Ok)?.iter().filter(|limit| has_schedule(limit)).count();
    if schedules > MAX_LIMITS {
        let what = format!("must have at most {MAX_LIMITS} schedules, got {schedules}: send fewer");
        return Err(Invalid::of("", what));
    }
    list(json, MOST, limit).map(Into::into)
}

/// Reads a limit: its text, or its fields.
fn limit(json: &RawValue) -> Result<Limit, Invalid> {
    const FIELDS: [&str; 11] = [
        "name",
        "slots",
        "capacity_tokens",
        "refill_tokens",
        "quota_tokens",
        "refill_period_ms",
        "window",
        "mode",
        "classes",
        "schedule",
        "text",
    ];
    match json.get().as_bytes().first() {
        Some(b'"') => {}
        Some(b'{') => {
            let mut fields = Object::of(json)?;
            fields.required("name", text)?;
            for name in &FIELDS[1..5] {
                fields.optional(name, |json| tokens(json, ""))?;
            }
            fields.optional("refill_period_ms", whole)?;
            fields.optional("window", Object::of)?;
            fields.optional("classes", Object::of)?;
            fields.optional("schedule", |_| Ok(()))?;
            let modes = "\"enforced\", \"shadow\" or \"soft\"";
            fields.optional("mode", |json| word(json, modes, LimitMode::parse))?;
            fields.optional("text", text)?;
            fields.end(&FIELDS)?;
        }
        _ => {
            return Err(wrong("a text such as \"rpm=600/minute\", or an object", json));
        }
    }
    // What is left are rules of limits, whose errors have texts of their own, with a place behind them
    // that is one in this limit alone.
    serde_json::from_str(json.get()).map_err(|error| {
        let text = error.to_string();
        let end = text.rfind(" at line ").unwrap_or(text.len());
        Invalid::of("", format!("is no limit: {}", cut(&text[..end], 300)))
    })
}

/// Reads a decision for outages.
pub(super) fn on_unavailable(json: &RawValue) -> Result<OnUnavailable, Invalid> {
    const WHAT: &str = "\"error\", \"deny\", \"allow\", or \"local\" with 1 to 100, \"local 25\"";
    word(json, WHAT, OnUnavailable::parse)
}

/// Returns the error of a value of another kind.
fn wrong(what: &str, got: &RawValue) -> Invalid {
    let got = shown(got.get());
    Invalid::of("", format!("must be {what}, got {got}: correct it"))
}

fn no_json(error: &serde_json::Error) -> Invalid {
    Invalid::of("", format!("is not JSON: {error}; send one JSON object"))
}

/// Returns the beginning of a text from a request.
pub(super) fn shown(text: &str) -> String {
    cut(text, SHOWN)
}

fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some((end, _)) => format!("{} ...", &text[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_schedules_are_read_than_a_level_has() {
        let limit = |at| format!("schedule{at}=6/minute,schedule=0 8 * * * for 1h scale 2/1");
        let text = |at| format!("{:?}", limit(at));
        // As the agent answers it.
        let fields = |at| {
            let limit: Limit = limit(at).parse().unwrap();
            serde_json::to_string(&limit).unwrap()
        };
        let forms: [&dyn Fn(usize) -> String; 2] = [&text, &fields];
        for form in forms {
            let limits = |count| {
                let all: Vec<_> = (0..count).map(form).collect();
                RawValue::from_string(format!("[{}]", all.join(","))).unwrap()
            };
            let most = super::limits(&limits(MAX_LIMITS)).unwrap();
            assert_eq!(most.len(), MAX_LIMITS);
            let refused = super::limits(&limits(MAX_LIMITS + 1)).unwrap_err();
            let text = refused.to_string();
            assert!(text.contains("at most 20 schedules, got 21"), "{text}");
        }
    }

    #[test]
    fn a_limit_is_read_as_it_is_written() {
        for text in [
            "rpm=600/minute,burst=800,mode=shadow",
            "slots=20",
            "tpm=quota:10000/month",
            "tpm=session:200/5h",
            "tpm=1000/minute,class=batch:10%:30%,class=night:5%",
            "tpm=1000/minute,class=batch:10%,schedule=0 8 * * * for 1h scale 1/2",
        ] {
            let given: Limit = text.parse().unwrap();
            let json = serde_json::value::to_raw_value(&given).unwrap();
            assert_eq!(limit(&json).unwrap(), given, "{json}");
        }
        for (field, part) in [
            (r#""classes":[]"#, "classes must be a JSON object, got []"),
            (r#""classes":{"a":1}"#, "is no limit: invalid type: integer"),
            (r#""schedule":5"#, "is no limit: invalid type: integer"),
            (r#""klass":{}"#, "klass is unknown"),
        ] {
            let json = format!(r#"{{"name":"a","slots":1,{field}}}"#);
            let refused = limit(&RawValue::from_string(json).unwrap()).unwrap_err();
            let text = refused.to_string();
            assert!(text.contains(part), "{field}: {text}");
        }
    }

    #[test]
    fn a_list_keeps_no_more_elements_than_it_may_have_and_counts_the_others() {
        for (text, expected) in [
            ("[]", Ok(0)),
            ("[0, [1]]", Ok(2)),
            ("[0, [1], 2, {}]", Err("must have at most 2 elements, got 4")),
        ] {
            let json: &RawValue = serde_json::from_str(text).unwrap();
            let elements = serde_json::Deserializer::from_str(text).deserialize_seq(Elements(2));
            assert!(elements.unwrap().0.len() <= 2, "{text}");
            match (list(json, 2, |_| Ok(())), expected) {
                (Ok(read), Ok(count)) => assert_eq!(read.len(), count, "{text}"),
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
                (read, _) => panic!("{text}: {read:?}"),
            }
        }
    }
}
