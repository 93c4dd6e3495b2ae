//! JSON values that remember every field, and borrow their texts from the body.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt::{self, Write};

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Number;

/// Most fields of an object. No request needs nearly as many.
const MAX_FIELDS: usize = 100;

/// Most values of a body: a request of 100 buckets, each with 20 limits, has fewer.
const MAX_VALUES: usize = 20_000;

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

/// Reads a body. Its values are counted while they are read, so that a body of brackets takes no more
/// memory than one of requests.
///
/// # Errors
/// What is no JSON, or has too many values or fields.
pub(super) fn parse(body: &[u8]) -> Result<Json<'_>, serde_json::Error> {
    let left = Cell::new(MAX_VALUES);
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let value = Values { left: &left }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

/// Reads values, of which so many are left.
#[derive(Clone, Copy)]
struct Values<'c> {
    left: &'c Cell<usize>,
}

impl<'de> DeserializeSeed<'de> for Values<'_> {
    type Value = Json<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json<'de>, D::Error> {
        let Some(left) = self.left.get().checked_sub(1) else {
            let text = format!("there are more than {MAX_VALUES} values");
            return Err(D::Error::custom(text));
        };
        self.left.set(left);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Values<'_> {
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
        while let Some(element) = elements.next_element_seed(self)? {
            list.push(element);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut fields: Vec<(Cow<'de, str>, Json<'de>)> = vec![];
        while let Some(Name(name)) = entries.next_key_seed(NameOf(self))? {
            if fields.len() == MAX_FIELDS {
                let text = format!("an object has more than {MAX_FIELDS} fields");
                return Err(A::Error::custom(text));
            }
            if fields.iter().any(|(known, _)| *known == name) {
                let text = format!("field {:?} comes twice", shown(&name));
                return Err(A::Error::custom(text));
            }
            fields.push((name, entries.next_value_seed(self)?));
        }
        Ok(Json::Object(fields))
    }
}

/// The name of a field.
struct Name<'a>(Cow<'a, str>);

struct NameOf<'c>(Values<'c>);

impl<'de> DeserializeSeed<'de> for NameOf<'_> {
    type Value = Name<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Name<'de>, D::Error> {
        match deserializer.deserialize_any(self.0)? {
            Json::Text(text) => Ok(Name(text)),
            _ => Err(D::Error::custom("a field's name must be text")),
        }
    }
}

/// Writes the value as JSON, cut to what a line of an error can show. Nothing of the rest is copied.
impl fmt::Display for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if matches!(self, Self::List(list) if list.len() > SHOWN) {
            return f.write_str("a long list");
        }
        let mut beginning = Beginning::default();
        // An error means that there is more than can be shown.
        let _ = self.write(&mut beginning);
        f.write_str(&shown(&beginning.text))
    }
}

impl Json<'_> {
    fn write(&self, to: &mut Beginning) -> fmt::Result {
        match self {
            Self::Null => to.write_str("null"),
            Self::Bool(bool) => write!(to, "{bool}"),
            Self::Number(number) => write!(to, "{number}"),
            Self::Text(text) => write!(to, "{}", serde_json::Value::from(shown(text))),
            Self::List(list) => {
                to.write_char('[')?;
                for (at, element) in list.iter().enumerate() {
                    to.write_str(if at == 0 { "" } else { "," })?;
                    element.write(to)?;
                }
                to.write_char(']')
            }
            Self::Object(fields) => {
                to.write_char('{')?;
                for (at, (name, value)) in fields.iter().enumerate() {
                    to.write_str(if at == 0 { "" } else { "," })?;
                    write!(to, "{}:", serde_json::Value::from(shown(name)))?;
                    value.write(to)?;
                }
                to.write_char('}')
            }
        }
    }
}

/// The beginning of a text: a little more than is shown. What would follow is an error.
#[derive(Default)]
struct Beginning {
    text: String,
}

impl fmt::Write for Beginning {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        if self.text.chars().count() > SHOWN {
            return Err(fmt::Error);
        }
        self.text.push_str(more);
        Ok(())
    }
}

/// Returns the beginning of a text from a request.
pub(super) fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        None => text.to_owned(),
        Some((end, _)) => format!("{} ...", &text[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_of_brackets_or_numbers_has_no_more_values_than_one_of_requests() {
        for (open, each, close) in [("[", "0,", "0]"), ("[", "[],", "[]]"), ("[", "{},", "{}]")] {
            let body = format!("{open}{}{close}", each.repeat(600_000));
            let refused = parse(body.as_bytes()).unwrap_err().to_string();
            assert!(refused.contains("more than 20000 values"), "{refused}");
            let body = format!("{open}{}{close}", each.repeat(15_000));
            let value = parse(body.as_bytes()).unwrap();
            assert!(value.to_string().len() < 100, "{value}");
        }
        let fields: Vec<_> = (0..100)
            .map(|at| format!(r#""f{at}":[[0,1],[2,{{"x":null}}]]"#))
            .collect();
        let body = format!("{{{}}}", fields.join(","));
        let value = parse(body.as_bytes()).unwrap();
        assert!(
            value
                .to_string()
                .starts_with(r#"{"f0":[[0,1],[2,{"x":null}]],"f1""#),
            "{value}"
        );
        assert!(value.to_string().len() < 100, "{value}");
    }

    /// An error shows the beginning of the value as it was sent, whatever it is.
    #[test]
    fn an_error_shows_the_beginning_of_a_value() {
        let long = "x".repeat(100_000);
        let cut = format!("\"{} ...\"", "x".repeat(SHOWN));
        for (value, shows) in [
            ("null".to_owned(), "null".to_owned()),
            ("-1.5".to_owned(), "-1.5".to_owned()),
            (
                "[1,\"a\\nb\",true,{\"k\":[]}]".to_owned(),
                "[1,\"a\\nb\",true,{\"k\":[]}]".to_owned(),
            ),
            (
                format!("\"{long}\""),
                format!("{} ...", cut.chars().take(SHOWN).collect::<String>()),
            ),
        ] {
            assert_eq!(parse(value.as_bytes()).unwrap().to_string(), shows);
        }
    }
}
