//! Parses the values of attributes: numbers, names, ids and maps.

use std::str::FromStr;

use super::attribute::Attr;
use super::error::ItemError;
use crate::{NameError, WriteId};

pub(super) fn integer(name: &str, value: &Attr<'_>) -> Result<i64, ItemError> {
    parse(name, value, "a whole number within 64 bits")
}

/// Parses a counter.
pub(super) fn count(name: &str, value: &Attr<'_>) -> Result<i128, ItemError> {
    parse(name, value, "a whole number within 128 bits")
}

fn parse<T: FromStr>(name: &str, value: &Attr<'_>, takes: &'static str) -> Result<T, ItemError> {
    match value {
        Attr::N(text) => text.parse().ok(),
        _ => None,
    }
    .ok_or_else(|| ItemError::new(name, value, takes))
}

/// Parses a name that an attribute has.
pub(super) fn name<'a, T: TryFrom<&'a str, Error = NameError>>(
    name: &str,
    value: &Attr<'a>,
) -> Result<T, ItemError> {
    match value {
        Attr::S(text) => T::try_from(text).map_err(|error| ItemError::new(name, value, error.rule)),
        other => Err(ItemError::new(name, other, "a name")),
    }
}

pub(super) fn entries<'v, 'a>(
    name: &str,
    value: &'v Attr<'a>,
) -> Result<&'v [(&'a str, Attr<'a>)], ItemError> {
    match value {
        Attr::M(entries) => Ok(entries),
        other => Err(ItemError::new(name, other, "a map")),
    }
}

pub(super) fn write_id(name: &str, value: &Attr<'_>) -> Result<WriteId, ItemError> {
    match value {
        Attr::S(text) => {
            WriteId::new(*text).map_err(|error| ItemError::new(name, value, error.rule))
        }
        other => Err(ItemError::new(name, other, "a string of a-z 0-9")),
    }
}
