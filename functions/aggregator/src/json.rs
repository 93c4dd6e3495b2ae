//! JSON read in one pass, borrowed and tolerant: a value of an unexpected shape is skipped, not an
//! error.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// A value built from an object's fields, in any order.
pub(crate) trait Fields<'de> {
    /// Reads the value of the field `name` from `object`.
    fn field<A: MapAccess<'de>>(
        &mut self,
        name: Cow<'de, str>,
        object: &mut A,
    ) -> Result<(), A::Error>;
}

/// Reads an object into its [`Fields`]. Returns whether it was an object.
pub(crate) struct Object<'f, F>(pub(crate) &'f mut F);

/// Reads a string; `None` for another shape.
pub(crate) struct Text;

/// An attribute of an item, as far as the aggregator reads it.
#[derive(Debug, PartialEq)]
pub(crate) enum Attribute<'de> {
    N(Cow<'de, str>),
    S(Cow<'de, str>),
    Bool(bool),
    Other,
}

/// Reads an attribute such as `{"N": "12"}`.
pub(crate) struct Typed;

/// The entries of a map, read from an attribute such as `{"M": {}}`. Nested maps are skipped.
#[derive(Default)]
pub(crate) struct Map<'a>(pub(crate) Vec<(Cow<'a, str>, Attribute<'a>)>);

impl<'a> Fields<'a> for Map<'a> {
    fn field<A: MapAccess<'a>>(
        &mut self,
        name: Cow<'a, str>,
        object: &mut A,
    ) -> Result<(), A::Error> {
        if name != "M" {
            return skip(object);
        }
        let mut entries = InMap(self);
        object.next_value_seed(Object(&mut entries)).map(drop)
    }
}

struct InMap<'m, 'a>(&'m mut Map<'a>);

impl<'a> Fields<'a> for InMap<'_, 'a> {
    fn field<A: MapAccess<'a>>(
        &mut self,
        name: Cow<'a, str>,
        object: &mut A,
    ) -> Result<(), A::Error> {
        let value = object.next_value_seed(Typed)?;
        self.0.0.push((name, value));
        Ok(())
    }
}

/// Reads only the size in bytes of an attribute's value, as the shard's decoder counts it.
pub(crate) struct Size;

/// Skips the value of an unused field.
pub(crate) fn skip<'de, A: MapAccess<'de>>(object: &mut A) -> Result<(), A::Error> {
    object.next_value::<IgnoredAny>().map(drop)
}

/// Returns the value of a field as raw text.
pub(crate) fn raw<'de, A: MapAccess<'de>>(object: &mut A) -> Result<&'de str, A::Error> {
    object.next_value::<&'de RawValue>().map(RawValue::get)
}

struct Name;

/// Reads the size of a map's entries.
struct Entries;

/// The visitor methods for unexpected shapes.
macro_rules! otherwise {
    ($value:expr) => {
        otherwise!(@scalar $value);
        fn visit_borrowed_str<E: Error>(self, _: &'de str) -> Result<Self::Value, E> {
            Ok($value)
        }
        fn visit_str<E: Error>(self, _: &str) -> Result<Self::Value, E> {
            Ok($value)
        }
    };
    (@scalar $value:expr) => {
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("any JSON")
        }
        fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
            Ok($value)
        }
        fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
            Ok($value)
        }
        fn visit_i64<E: Error>(self, _: i64) -> Result<Self::Value, E> {
            Ok($value)
        }
        fn visit_u64<E: Error>(self, _: u64) -> Result<Self::Value, E> {
            Ok($value)
        }
        fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
            Ok($value)
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Self::Value, A::Error> {
            while array.next_element::<IgnoredAny>()?.is_some() {}
            Ok($value)
        }
    };
}

impl<'de, F: Fields<'de>> Visitor<'de> for Object<'_, F> {
    type Value = bool;
    otherwise!(false);
    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<bool, A::Error> {
        while let Some(name) = object.next_key_seed(Name)? {
            self.0.field(name, &mut object)?;
        }
        Ok(true)
    }
}

impl<'de> Visitor<'de> for Text {
    type Value = Option<Cow<'de, str>>;
    otherwise!(@scalar None);
    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Some(Cow::Borrowed(text)))
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Some(Cow::Owned(text.to_owned())))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
        while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(None)
    }
}

impl<'de> Visitor<'de> for Typed {
    type Value = Attribute<'de>;
    otherwise!(Attribute::Other);
    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
        let mut attribute = Attribute::Other;
        while let Some(kind) = object.next_key_seed(Name)? {
            attribute = match &*kind {
                "N" => object.next_value_seed(Text)?.map_or(Attribute::Other, Attribute::N),
                "S" => object.next_value_seed(Text)?.map_or(Attribute::Other, Attribute::S),
                "BOOL" => Attribute::Bool(raw(&mut object)? == "true"),
                _ => {
                    skip(&mut object)?;
                    Attribute::Other
                }
            };
        }
        Ok(attribute)
    }
}

impl<'de> Visitor<'de> for Size {
    type Value = usize;
    otherwise!(1);
    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<usize, A::Error> {
        let mut bytes = 1;
        while let Some(kind) = object.next_key_seed(Name)? {
            bytes = match &*kind {
                "N" => {
                    object.next_value_seed(Text)?.map_or(1, |number| number.len().div_ceil(2) + 1)
                }
                "S" => object.next_value_seed(Text)?.map_or(1, |text| text.len()),
                "M" => object.next_value_seed(Entries)?,
                _ => {
                    skip(&mut object)?;
                    1
                }
            };
        }
        Ok(bytes)
    }
}

impl<'de> Visitor<'de> for Entries {
    type Value = usize;
    otherwise!(1);
    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<usize, A::Error> {
        let mut bytes = 3;
        while let Some(name) = object.next_key_seed(Name)? {
            bytes += 1 + name.len() + object.next_value_seed(Size)?;
        }
        Ok(bytes)
    }
}

impl<'de> Visitor<'de> for Name {
    type Value = Cow<'de, str>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }
    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

macro_rules! seed {
    ($($type:ty => $value:ty),*) => {$(
        impl<'de> DeserializeSeed<'de> for $type {
            type Value = $value;
            fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<Self::Value, D::Error> {
                value.deserialize_any(self)
            }
        }
    )*};
}
seed!(
    Text => Option<Cow<'de, str>>, Typed => Attribute<'de>, Name => Cow<'de, str>, Size => usize, Entries => usize
);

impl<'de, F: Fields<'de>> DeserializeSeed<'de> for Object<'_, F> {
    type Value = bool;
    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<bool, D::Error> {
        value.deserialize_any(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(json: &str) -> Attribute<'_> {
        Typed.deserialize(&mut serde_json::Deserializer::from_str(json)).unwrap()
    }

    #[test]
    fn an_attribute_of_any_other_shape_is_passed_over() {
        assert_eq!(typed(r#"{"N": "12"}"#), Attribute::N("12".into()));
        assert_eq!(typed(r#"{"S": "a\u0062"}"#), Attribute::S("ab".into()));
        assert_eq!(typed(r#"{"BOOL": true}"#), Attribute::Bool(true));
        assert_eq!(typed(r#"{"BOOL": false}"#), Attribute::Bool(false));
        assert_eq!(typed(r#"{"BOOL": {"a": []}}"#), Attribute::Bool(false));
        for other in [
            "1",
            "-1",
            "1.5",
            "null",
            "true",
            "\"N\"",
            "[{\"N\": \"1\"}]",
            "{}",
            r#"{"N": 1}"#,
            r#"{"N": {"a": []}}"#,
        ] {
            assert_eq!(typed(other), Attribute::Other, "{other}");
        }
    }

    #[test]
    fn a_size_is_what_the_item_grows_by() {
        let size =
            |json: &str| Size.deserialize(&mut serde_json::Deserializer::from_str(json)).unwrap();
        for (json, bytes) in [
            (r#"{"N": "123"}"#, 3),
            (r#"{"S": "abc"}"#, 3),
            (r#"{"BOOL": true}"#, 1),
            (r#"{"M": {}}"#, 3),
            (
                r#"{"M": {"ab": {"N": "12"}, "c": {"M": {"d": {"S": "e"}}}}}"#,
                3 + 3 + 2 + 2 + 3 + 2 + 1,
            ),
            ("null", 1),
            ("[1, {}]", 1),
            (r#"{"M": 7}"#, 1),
            (r#"{"L": [{"N": "1"}]}"#, 1),
        ] {
            assert_eq!(size(json), bytes, "{json}");
        }
    }
}
