//! What a case found: an item against the one that the case has.

use std::collections::BTreeMap;

use weirgate_shared::Attr;
use weirgate_shared::write::Value;
use weirgate_store::{ErrorKind, Item, StoreError};

/// Attributes of an item, without its keys.
pub type Attributes = BTreeMap<String, Value>;

/// Why a case did not hold.
#[derive(Debug)]
pub enum Unheld {
    Differs(String),
    NotAllowed(String),
}

impl From<String> for Unheld {
    fn from(text: String) -> Self {
        Self::Differs(text)
    }
}

impl From<StoreError> for Unheld {
    fn from(error: StoreError) -> Self {
        match error.kind {
            ErrorKind::AccessDenied => Self::NotAllowed(error.to_string()),
            _ => Self::Differs(error.to_string()),
        }
    }
}

/// Requires that an item is the expected one.
pub fn compare(
    what: &str,
    found: Option<&Item>,
    expected: &Attributes,
    is_written: bool,
) -> Result<(), String> {
    let attributes = found.into_iter().flat_map(Item::attributes);
    let attributes = attributes.filter(|(name, _)| !matches!(*name, "PK" | "SK"));
    let mut found_all: BTreeMap<_, _> =
        attributes.map(|(name, value)| (name.to_owned(), shown(&value))).collect();
    for (name, value) in expected {
        let (value, here) = (shown_value(value), found_all.remove(name));
        if here.as_ref() != Some(&value) {
            let here = here.unwrap_or_else(|| "nothing".to_owned());
            return Err(format!("{what} has {here} as {name}, expected {value}"));
        }
    }
    match found_all.pop_first() {
        Some((name, value)) => Err(format!("{what} has {value} as {name}, expected nothing")),
        None if found.is_none() && is_written && expected.is_empty() => {
            Err(format!("{what} is missing"))
        }
        None => Ok(()),
    }
}

/// Returns parts in an order that does not depend on the source.
fn sorted(parts: impl Iterator<Item = String>) -> String {
    let mut parts: Vec<_> = parts.collect();
    parts.sort();
    parts.join(", ")
}

fn shown(value: &Attr<'_>) -> String {
    match value {
        Attr::N(number) => (*number).to_owned(),
        Attr::S(text) => format!("{text:?}"),
        Attr::Bool(is) => is.to_string(),
        Attr::M(map) => {
            let entry = |(name, value): &(&str, Attr<'_>)| format!("{name}: {}", shown(value));
            format!("{{{}}}", sorted(map.iter().map(entry)))
        }
        Attr::Numbers(numbers) => format!("<{}>", sorted(numbers.iter().map(ToString::to_string))),
        Attr::Other => "another type".to_owned(),
    }
}

fn shown_value(value: &Value) -> String {
    match value {
        Value::Int(number) => number.to_string(),
        Value::Count(count) => count.to_string(),
        Value::Tokens(tokens) => tokens.to_string(),
        Value::Text(text) => format!("{text:?}"),
        Value::Bool(is) => is.to_string(),
        Value::Map(map) => {
            let entry =
                |(name, value): (&String, &Value)| format!("{name}: {}", shown_value(value));
            format!("{{{}}}", sorted(map.iter().map(entry)))
        }
        Value::Numbers(numbers) => format!("<{}>", sorted(numbers.iter().map(ToString::to_string))),
    }
}
