//! Names of entities and resources, made of the values of a descriptor.
//!
//! A value can have any bytes, a name only some. So a value is escaped, and two different
//! descriptors never have the same name:
//!
//! | in an entity | in a resource | is |
//! |---|---|---|
//! | `A-Z a-z 0-9 _ . -` | the same | as they are |
//! | `@3a` | `:3a` | any other byte, in hexadecimal: here `:` |
//! | `@z` | `:z` | an empty value |
//! | `0@@` | `x::` | before a value that begins a name and does not begin as one must |
//! | `@h` and 32 digits | `:h` and 32 digits | the end of a name that would be too long: its SHA-256, cut |
//!
//! Between two values of a template stands a `:` in an entity and a `/` in a resource, which no
//! escaped value contains.

use std::fmt::Write;

use sha2::{Digest, Sha256};
use weirgate::{EntityId, NameError, Resource};

/// Digits of the hash in a name that is too long: 128 bits.
const HASH_DIGITS: usize = 32;

/// What a template makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Name of an entity.
    Entity,
    /// Name of a resource.
    Resource,
}

impl Kind {
    /// Returns the character that begins an escape.
    const fn escape(self) -> char {
        match self {
            Self::Entity => '@',
            Self::Resource => ':',
        }
    }

    /// Returns the character that keeps two values apart.
    pub(super) const fn separator(self) -> char {
        match self {
            Self::Entity => ':',
            Self::Resource => '/',
        }
    }

    /// Returns what stands before a value that cannot begin a name.
    const fn beginning(self) -> &'static str {
        match self {
            Self::Entity => "0@@",
            Self::Resource => "x::",
        }
    }

    const fn begins(self, byte: u8) -> bool {
        match self {
            Self::Entity => byte.is_ascii_alphanumeric(),
            Self::Resource => byte.is_ascii_alphabetic(),
        }
    }

    const fn longest(self) -> usize {
        match self {
            Self::Entity => 256,
            Self::Resource => 64,
        }
    }

    fn check(self, name: &str) -> Result<(), NameError> {
        match self {
            Self::Entity => EntityId::new(name).map(drop),
            Self::Resource => Resource::new(name).map(drop),
        }
    }
}

/// A name with places for values: `tenant:{tenant}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    kind: Kind,
    pieces: Vec<Piece>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(Box<str>),
    /// The value of the entry at this place.
    Value(usize),
}

impl Template {
    /// Reads a template. `place` returns the place of the entry that a name in braces means.
    ///
    /// # Errors
    /// The reason that the text makes no name, or not a different one for different values.
    pub fn parse(
        kind: Kind,
        text: &str,
        place: impl Fn(&str) -> Result<usize, String>,
    ) -> Result<Self, String> {
        let (mut pieces, mut rest) = (vec![], text);
        while !rest.is_empty() {
            let (before, after) = rest.split_once('{').unwrap_or((rest, ""));
            if !before.is_empty() {
                pieces.push(Piece::Text(before.into()));
            }
            if before.len() == rest.len() {
                break;
            }
            let (name, after) = after
                .split_once('}')
                .ok_or_else(|| format!("{text:?} has a {{ without a }}: close it"))?;
            pieces.push(Piece::Value(place(name)?));
            rest = after;
        }
        Self::of(kind, pieces, text)
    }

    /// Returns the template of values alone, with the separator between them.
    pub(super) fn of_values(kind: Kind, places: impl IntoIterator<Item = usize>) -> Self {
        let mut pieces = vec![];
        for place in places {
            if !pieces.is_empty() {
                pieces.push(Piece::Text(kind.separator().to_string().into()));
            }
            pieces.push(Piece::Value(place));
        }
        Self { kind, pieces }
    }

    fn of(kind: Kind, pieces: Vec<Piece>, text: &str) -> Result<Self, String> {
        let separator = kind.separator();
        let mut is_apart = true;
        for piece in &pieces {
            match piece {
                Piece::Text(text) => is_apart |= text.contains(separator),
                Piece::Value(_) if is_apart => is_apart = false,
                Piece::Value(_) => {
                    return Err(format!(
                        "{text:?} has two values without a {separator:?} between them, so different values could make the same name: put one there"
                    ));
                }
            }
        }
        let template = Self { kind, pieces };
        // The texts alone must be of characters that a name can have, and fit.
        let sample = template.render(|_| b"a");
        kind.check(&sample).map_err(|error| error.to_string()).map(|()| template)
    }

    /// Returns the name for these values.
    pub fn render<'v>(&self, value: impl Fn(usize) -> &'v [u8]) -> String {
        let mut name = String::with_capacity(32);
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => name.push_str(text),
                Piece::Value(place) => push_escaped(&mut name, self.kind, value(*place)),
            }
        }
        if name.len() > self.kind.longest() {
            shorten(&mut name, self.kind);
        }
        name
    }
}

/// Returns a text as the name of one value.
pub(super) fn escaped(kind: Kind, value: &str) -> String {
    Template::of_values(kind, [0]).render(|_| value.as_bytes())
}

fn push_escaped(name: &mut String, kind: Kind, value: &[u8]) {
    let is_first = name.is_empty();
    if is_first && !value.first().is_some_and(|byte| kind.begins(*byte)) {
        name.push_str(kind.beginning());
    }
    if value.is_empty() {
        name.push(kind.escape());
        name.push('z');
    }
    for &byte in value {
        if byte.is_ascii_alphanumeric() || b"_.-".contains(&byte) {
            name.push(char::from(byte));
        } else {
            name.push(kind.escape());
            name.push(digit(byte >> 4));
            name.push(digit(byte & 15));
        }
    }
}

fn digit(nibble: u8) -> char {
    char::from_digit(u32::from(nibble), 16).unwrap_or('0')
}

/// Cuts a name that is too long, and ends it with its hash.
fn shorten(name: &mut String, kind: Kind) {
    let hash = Sha256::digest(name.as_bytes());
    let mut end = format!("{}h", kind.escape());
    for byte in &hash[..HASH_DIGITS / 2] {
        // Writing to a string does not fail.
        let _ = write!(end, "{byte:02x}");
    }
    // Names are ASCII, so every place is one of a character.
    name.truncate(kind.longest() - end.len());
    name.push_str(&end);
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn pair(kind: Kind) -> Template {
        let text = format!("{{a}}{}{{b}}", kind.separator());
        Template::parse(kind, &text, |name| Ok(usize::from(name == "b"))).unwrap()
    }

    #[test]
    fn a_value_is_escaped_as_the_table_says() {
        let entity = |value| escaped(Kind::Entity, value);
        assert_eq!(entity("user-1_a.b"), "user-1_a.b");
        assert_eq!(entity("a@b.c"), "a@40b.c");
        assert_eq!(entity("::1"), "0@@@3a@3a1");
        assert_eq!(entity(""), "0@@@z");
        assert_eq!(entity("_x"), "0@@_x");
        assert_eq!(entity("é"), "0@@@c3@a9");
        let resource = |value| escaped(Kind::Resource, value);
        assert_eq!(resource("/v1/chat"), "x:::2fv1:2fchat");
        assert_eq!(resource("1"), "x::1");
    }

    #[test]
    fn a_template_that_could_mix_two_values_up_is_refused() {
        let parse = |kind, text| Template::parse(kind, text, |_| Ok(0));
        let refused = parse(Kind::Entity, "{a}-{b}").unwrap_err();
        assert!(refused.contains("':'"), "{refused}");
        assert!(parse(Kind::Resource, "r:{a}:{b}").is_err());
        assert!(parse(Kind::Resource, "r/{a}/{b}").is_ok());
        assert!(parse(Kind::Entity, "{a").is_err());
        assert!(parse(Kind::Entity, "a b").unwrap_err().contains("entity"));
        assert!(parse(Kind::Entity, "").is_err());
        assert!(parse(Kind::Resource, "1{a}").is_err());
    }

    #[test]
    fn a_name_that_is_too_long_keeps_its_beginning_and_ends_with_its_hash() {
        let long = "a".repeat(300);
        let (one, other) = (format!("{long}b"), format!("{long}c"));
        let names = [&one, &other].map(|value| escaped(Kind::Entity, value));
        assert_ne!(names[0], names[1]);
        assert!(names.iter().all(|name| EntityId::new(&**name).is_ok()));
        assert_eq!(names[0].len(), 256);
    }

    proptest! {
        #[test]
        fn different_values_make_different_names_that_are_valid(
            one in prop::collection::vec((any::<String>(), "[0-9a-fz@:_.x-]{0,5}"), 2..40),
        ) {
            for kind in [Kind::Entity, Kind::Resource] {
                let mut known = HashMap::new();
                let template = pair(kind);
                for (any, close) in &one {
                    for values in [[any, close], [close, any], [close, close]] {
                        let name = template.render(|place| values[place].as_bytes());
                        prop_assert!(kind.check(&name).is_ok(), "{:?}", name);
                        if let Some(before) = known.insert(name, values) {
                            prop_assert_eq!(before, values);
                        }
                    }
                }
            }
        }
    }
}
