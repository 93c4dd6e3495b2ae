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

/// Reads the switches of a namespace. A missing item is [`Switches::default`]. A switch that cannot
/// be read hides no other: see [`Switches::unreadable`].
///
/// # Errors
/// [`ItemError`] if no switch can be read.
pub fn read_switches<'a>(
    item: impl Iterator<Item = (&'a str, Attr<'a>)>,
) -> Result<Switches, ItemError> {
    let (mut version, mut levels, mut on_unavailable) = (0, BTreeMap::new(), None);
    let mut unreadable = vec![];
    for (name, value) in item {
        match name {
            attr::VERSION => match integer(attr::VERSION, &value) {
                Ok(number) => version = number,
                Err(error) => unreadable.push((None, error)),
            },
            attr::ON_UNAVAILABLE => {
                if let Attr::S(words) = value {
                    on_unavailable = OnUnavailable::parse(words);
                }
                if on_unavailable.is_none() {
                    let error = ItemError::new(attr::ON_UNAVAILABLE, &value, OnUnavailable::WORDS);
                    unreadable.push((None, error));
                }
            }
            attr::SWITCHES => {
                for (name, switch) in entries(attr::SWITCHES, &value)? {
                    let place = format!("{}.{name}", attr::SWITCHES);
                    let Some(level) = parse_level(name) else {
                        let error = ItemError::new(&place, switch, "the switch of a level");
                        unreadable.push((None, error));
                        continue;
                    };
                    let word = if let Attr::S(word) = switch { Switch::parse(word) } else { None };
                    if word.is_none() {
                        let error = ItemError::new(&place, switch, Switch::WORDS);
                        unreadable.push((Some(level.clone()), error));
                    }
                    levels.insert(level, word.unwrap_or(Switch::Stopped));
                }
            }
            _ => {}
        }
    }
    Ok(Switches { version, levels, on_unavailable, unreadable })
}
