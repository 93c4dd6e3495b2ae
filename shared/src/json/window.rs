//! JSON of the window of a quota: the fields that differ from their defaults.

use std::fmt;
use std::time::Duration;

use serde::de::{Error as _, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Every, Millis, QuotaWindow, SessionWindow, WindowCode, WindowError};

/// A window as JSON: `every` with the fields of a calendar, or `session_ms`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WindowFields {
    every: Option<Text>,
    month: Option<Text>,
    day: Option<Text>,
    at: Option<Text>,
    tz: Option<Text>,
    session_ms: Option<u64>,
}

/// A text, or a whole number as its digits.
#[derive(Debug)]
struct Text(String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrNumber;

        impl Visitor<'_> for TextOrNumber {
            type Value = Text;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a whole number")
            }

            fn visit_str<E>(self, text: &str) -> Result<Text, E> {
                Ok(Text(text.to_owned()))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Text, E> {
                Ok(Text(number.to_string()))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Text, E> {
                Ok(Text(number.to_string()))
            }
        }

        deserializer.deserialize_any(TextOrNumber)
    }
}

impl TryFrom<WindowFields> for QuotaWindow {
    type Error = WindowError;

    fn try_from(fields: WindowFields) -> Result<Self, WindowError> {
        let WindowFields { every, month, day, at, tz, session_ms } = fields;
        let fields = [("month", month), ("day", day), ("at", at), ("tz", tz)];
        let fields = fields.into_iter().filter_map(|(field, value)| Some((field, value?)));
        let Some(Text(every)) = every else {
            let mut fields = fields;
            return match (session_ms, fields.next()) {
                (Some(ms), None) => {
                    SessionWindow::new(Duration::from_millis(ms)).map(Self::Session)
                }
                (Some(_), Some((field, Text(value)))) => Err(WindowError::Field {
                    field,
                    value,
                    takes: "left out of a session",
                    remedy: "remove it, or replace session_ms by every",
                }),
                (None, _) => Err(WindowError::Field {
                    field: "window",
                    value: "neither".to_owned(),
                    takes: "a map with every, or with session_ms",
                    remedy: r#"write for example {"every": "month"}"#,
                }),
            };
        };
        if let Some(ms) = session_ms {
            return Err(WindowError::Field {
                field: "session_ms",
                value: ms.to_string(),
                takes: "left out beside every",
                remedy: "remove one of them",
            });
        }
        let mut window = Every::parse(&every)?;
        for (field, Text(value)) in fields {
            window = window.set(field, &value)?;
        }
        window.try_into()
    }
}

impl Serialize for QuotaWindow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        match self {
            Self::Session(session) => {
                let Millis(length) = session.length();
                map.serialize_entry("session_ms", &length)?;
            }
            Self::Calendar(window) => {
                map.serialize_entry("every", window.period().as_str())?;
                for (field, value) in window.fields() {
                    match value.parse::<u8>() {
                        Ok(number) => map.serialize_entry(field, &number)?,
                        Err(_) => map.serialize_entry(field, &value)?,
                    }
                }
            }
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for QuotaWindow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = WindowFields::deserialize(deserializer)?;
        Self::try_from(fields).map_err(D::Error::custom)
    }
}

/// As its window; one that this release does not know as `{"code": -123}`.
impl Serialize for WindowCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.decode() {
            Some(window) => window.serialize(serializer),
            None => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("code", &self.0)?;
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for WindowCode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        QuotaWindow::deserialize(deserializer).map(QuotaWindow::code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_that_this_release_does_not_know_is_written_and_not_read() {
        let json = serde_json::to_string(&WindowCode(-1)).unwrap();
        assert_eq!(json, r#"{"code":-1}"#);
        assert!(serde_json::from_str::<WindowCode>(&json).is_err());
    }
}
