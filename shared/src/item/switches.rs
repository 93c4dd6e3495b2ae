//! The item with the switches of a namespace.

use std::collections::BTreeMap;

use super::parse::{entries, integer};
use super::{Attr, ItemError};
use crate::switch::{level_name, parse_level};
use crate::write::Value;
use crate::{OnUnavailable, Switch, Switches, attr};

/// Returns the value of the attribute that has all switches.
#[must_use]
pub(crate) fn write_switches(switches: &Switches) -> Value {
    let levels = switches.levels.iter();
    let levels = levels.map(|(level, switch)| (level_name(level), Value::text(switch.as_str())));
    Value::Map(levels.collect())
}

/// Reads the switches of a namespace. A missing item is [`Switches::default`].
///
/// # Errors
/// [`ItemError`] naming the attribute that is wrong or missing.
pub fn read_switches<'a>(
    item: impl Iterator<Item = (&'a str, Attr<'a>)>,
) -> Result<Switches, ItemError> {
    let (mut version, mut levels, mut on_unavailable) = (None, BTreeMap::new(), None);
    for (name, value) in item {
        match name {
            attr::VERSION => version = Some(integer(attr::VERSION, &value)?),
            attr::ON_UNAVAILABLE => {
                let words = if let Attr::S(words) = value {
                    OnUnavailable::parse(words)
                } else {
                    None
                };
                let wrong = || ItemError::new(attr::ON_UNAVAILABLE, &value, OnUnavailable::WORDS);
                on_unavailable = Some(words.ok_or_else(wrong)?);
            }
            attr::SWITCHES => {
                for (level, switch) in entries(attr::SWITCHES, &value)? {
                    let place = format!("{}.{level}", attr::SWITCHES);
                    let known = parse_level(level)
                        .ok_or_else(|| ItemError::new(&place, switch, "the name of a level"))?;
                    let word = if let Attr::S(word) = switch {
                        Switch::parse(word)
                    } else {
                        None
                    };
                    let switch =
                        word.ok_or_else(|| ItemError::new(&place, switch, Switch::WORDS))?;
                    levels.insert(known, switch);
                }
            }
            _ => {}
        }
    }
    let version = version.ok_or_else(|| ItemError::missing(attr::VERSION, "a whole number"))?;
    Ok(Switches {
        version,
        levels,
        on_unavailable,
    })
}
