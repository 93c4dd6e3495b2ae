//! JSON values that remember every field, and borrow their texts from the body.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Number;

/// Most fields of an object. No request needs nearly as many.
const MAX_FIELDS: usize = 100;

/// Most characters of a request that an error shows in one place.
const SHOWN: usize = 60;

/// A JSON value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Json<'a> {
    Null,
    Bool(bool),
    Number(Number),
    Text(Cow<'a, str>),
    List(Vec<Self>),
    Object(Vec<(Cow<'a, str>, Self)>),
}

impl Json<'_> {
    /// Returns the value as the JSON library has it.
    pub(super) fn into_value(self) -> serde_json::Value {
        match self {
            Self::Null => serde_json::Value::Null,
            Self::Bool(bool) => bool.into(),
            Self::Number(number) => number.into(),
            Self::Text(text) => text.into_owned().into(),
            Self::List(list) => list.into_iter().map(Self::into_value).collect(),
            Self::Object(fields) => {
                let field =
                    |(name, value): (Cow<'_, str>, Self)| (name.into_owned(), value.into_value());
                fields.into_iter().map(field).collect()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Json<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E: Error>(self, bool: bool) -> Result<Self::Value, E> {
        Ok(Json::Bool(bool))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        Ok(Json::Number(number.into()))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        Ok(Json::Number(number.into()))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Self::Value, E> {
        Ok(Number::from_f64(number).map_or(Json::Null, Json::Number))
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Json::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Json::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Self::Value, A::Error> {
        let mut list = vec![];
        while let Some(element) = elements.next_element()? {
            list.push(element);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut fields: Vec<(Cow<'de, str>, Json<'de>)> = vec![];
        while let Some(Name(name)) = entries.next_key()? {
            if fields.len() == MAX_FIELDS {
                let text = format!("an object has more than {MAX_FIELDS} fields");
                return Err(A::Error::custom(text));
            }
            if fields.iter().any(|(known, _)| *known == name) {
                let text = format!("field {:?} comes twice", shown(&name));
                return Err(A::Error::custom(text));
            }
            fields.push((name, entries.next_value()?));
        }
        Ok(Json::Object(fields))
    }
}

/// The name of a field.
struct Name<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Json::deserialize(deserializer)? {
            Json::Text(text) => Ok(Self(text)),
            _ => Err(D::Error::custom("a field's name must be text")),
        }
    }
}

/// Writes the value as JSON, cut to what a line of an error can show.
impl fmt::Display for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            // Longer than a line can show, and not worth a copy.
            Self::List(list) if list.len() > SHOWN => "a long list".to_owned(),
            Self::Text(text) => serde_json::Value::from(shown(text)).to_string(),
            other => other.clone().into_value().to_string(),
        };
        f.write_str(&shown(&text))
    }
}

/// Returns the beginning of a text from a request.
pub(super) fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        None => text.to_owned(),
        Some((end, _)) => format!("{} ...", &text[..end]),
    }
}
