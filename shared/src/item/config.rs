//! Items of the configuration: limits of one level, entities, the schema version.

use std::collections::BTreeMap;

use super::parse::{self, entries, integer, write_id};
use super::{Attr, ItemError};
use crate::attr::{self, Field};
use crate::limit::{MAX_PERIOD_MS, MAX_TOKENS, RefillRule};
use crate::write::Value;
use crate::{
    Config, ConfigStatus, Entity, EntityId, Limit, LimitMode, LimitName, MilliTokens, Versioned,
    WriteId,
};

/// Returns the attributes of a configuration.
#[must_use]
pub fn write_config(config: &Config) -> BTreeMap<String, Value> {
    let limits = config
        .limits
        .iter()
        .map(|limit| (limit.name().to_string(), write_limit(limit)))
        .collect();
    BTreeMap::from([
        (attr::LIMITS.to_owned(), Value::Map(limits)),
        (attr::STATUS.to_owned(), Value::text(config.status.as_str())),
        (attr::SHADOW.to_owned(), Value::Bool(config.is_shadow)),
    ])
}

fn write_limit(limit: &Limit) -> Value {
    let rule = limit.rule();
    let numbers = [
        (Field::Capacity, rule.capacity.0),
        (Field::RefillAmount, rule.refill_amount.0),
        (Field::RefillPeriod, rule.refill_period_ms),
    ];
    let numbers = numbers.map(|(field, number)| (field.suffix().to_owned(), Value::Int(number)));
    let mode = (attr::MODE.to_owned(), Value::text(limit.mode().as_str()));
    Value::Map(numbers.into_iter().chain([mode]).collect())
}

/// Reads the configuration of a level, or the remains of a deleted one. A missing item is
/// [`Versioned::default`].
///
/// # Errors
/// [`ItemError`] naming the attribute that is wrong or missing.
pub fn read_config<'a>(
    item: impl Iterator<Item = (&'a str, Attr<'a>)>,
) -> Result<Versioned<Config>, ItemError> {
    let attributes: Vec<_> = item.collect();
    let version = attributes.iter().find(|(name, _)| *name == attr::VERSION);
    let version = version.ok_or_else(|| ItemError::missing(attr::VERSION, "a whole number"))?;
    let value = if attributes.iter().any(|(name, _)| *name == attr::LIMITS) {
        Some(config(&attributes)?)
    } else {
        None
    };
    Ok(Versioned {
        version: integer(attr::VERSION, &version.1)?,
        value,
    })
}

pub(super) fn config(attributes: &[(&str, Attr<'_>)]) -> Result<Config, ItemError> {
    let mut config = Config::default();
    for (name, value) in attributes {
        match *name {
            attr::LIMITS => {
                let limits = entries(attr::LIMITS, value)?;
                config.limits = limits
                    .iter()
                    .map(|(name, value)| limit(name, value))
                    .collect::<Result<_, _>>()?;
                // Sorts the limits, because a map has no order, and this one shows in errors and
                // lists.
                config
                    .limits
                    .sort_by(|one, other| one.name().cmp(other.name()));
            }
            attr::STATUS => {
                config.status = word(
                    attr::STATUS,
                    value,
                    ConfigStatus::parse,
                    ConfigStatus::WORDS,
                )?
            }
            attr::SHADOW => config.is_shadow = boolean(attr::SHADOW, value)?,
            _ => {}
        }
    }
    Ok(config)
}

fn limit(name: &str, value: &Attr<'_>) -> Result<Limit, ItemError> {
    let name = LimitName::new(name)
        .map_err(|error| ItemError::new(attr::LIMITS, &Attr::S(name), error.rule))?;
    let (mut numbers, mut mode) = ([None; 3], LimitMode::default());
    let map = format!("{}.{name}", attr::LIMITS);
    let place = |field: &str| format!("{map}.{field}");
    let of = [
        (Field::Capacity, 1, MAX_MILLI, "1 to 10^15 millitokens"),
        (Field::RefillAmount, 0, MAX_MILLI, "0 to 10^15 millitokens"),
        (Field::RefillPeriod, 1, MAX_PERIOD_MS, "1 ms to 366 days"),
    ];
    for (field, value) in entries(&map, value)? {
        if *field == attr::MODE {
            mode = word(&place(field), value, LimitMode::parse, LimitMode::WORDS)?;
        }
        if let Some(at) = of.iter().position(|(known, ..)| known.suffix() == *field) {
            let (_, least, most, takes) = of[at];
            let number = integer(&place(field), value)?;
            if !(least..=most).contains(&number) {
                return Err(ItemError::new(&place(field), value, takes));
            }
            numbers[at] = Some(number);
        }
    }
    let number = |at: usize| {
        let (field, _, _, takes) = of[at];
        numbers[at].ok_or_else(|| ItemError::missing(&place(field.suffix()), takes))
    };
    let (capacity, refill_amount) = (MilliTokens(number(0)?), MilliTokens(number(1)?));
    Ok(Limit::of(
        name,
        RefillRule {
            capacity,
            refill_amount,
            refill_period_ms: number(2)?,
        },
    )
    .in_mode(mode))
}

const MAX_MILLI: i64 = MAX_TOKENS * 1000;

/// Returns the attributes of an entity.
#[must_use]
pub fn write_entity(entity: &Entity) -> BTreeMap<String, Value> {
    let parent = entity
        .parent
        .iter()
        .map(|parent| (attr::PARENT_ID.to_owned(), Value::text(parent.as_str())));
    parent
        .chain([(attr::CASCADE.to_owned(), Value::Bool(entity.cascades))])
        .collect()
}

/// Reads an entity, and the id of its last write.
///
/// # Errors
/// [`ItemError`] naming the attribute that is wrong or missing.
pub fn read_entity<'a>(
    id: EntityId,
    item: impl Iterator<Item = (&'a str, Attr<'a>)>,
) -> Result<(Entity, WriteId), ItemError> {
    let attributes: Vec<_> = item.collect();
    let op = attributes
        .iter()
        .find(|(name, _)| *name == attr::LAST_WRITE_ID);
    let op = op.ok_or_else(|| ItemError::missing(attr::LAST_WRITE_ID, "a string of a-z 0-9"))?;
    Ok((
        entity(id, &attributes)?,
        write_id(attr::LAST_WRITE_ID, &op.1)?,
    ))
}

pub(super) fn entity(id: EntityId, attributes: &[(&str, Attr<'_>)]) -> Result<Entity, ItemError> {
    let mut entity = Entity {
        id,
        parent: None,
        cascades: false,
    };
    for (name, value) in attributes {
        match *name {
            attr::PARENT_ID => entity.parent = Some(parse::name(attr::PARENT_ID, value)?),
            attr::CASCADE => entity.cascades = boolean(attr::CASCADE, value)?,
            _ => {}
        }
    }
    Ok(entity)
}

/// Reads the schema version of a namespace.
///
/// # Errors
/// [`ItemError`] if it is missing or no whole number.
pub fn read_schema<'a>(
    mut item: impl Iterator<Item = (&'a str, Attr<'a>)>,
) -> Result<i64, ItemError> {
    let found = item.find(|(name, _)| *name == attr::SCHEMA);
    let (name, value) = found.ok_or_else(|| ItemError::missing(attr::SCHEMA, "a whole number"))?;
    integer(name, &value)
}

fn boolean(name: &str, value: &Attr<'_>) -> Result<bool, ItemError> {
    match value {
        Attr::Bool(is) => Ok(*is),
        other => Err(ItemError::new(name, other, "true or false")),
    }
}

fn word<T>(
    name: &str,
    value: &Attr<'_>,
    parse: fn(&str) -> Option<T>,
    takes: &'static str,
) -> Result<T, ItemError> {
    let text = if let Attr::S(text) = value {
        parse(text)
    } else {
        None
    };
    text.ok_or_else(|| ItemError::new(name, value, takes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_is_the_number_in_its_attribute() {
        let item = |value| [("at", Attr::N("9")), (attr::SCHEMA, value)].into_iter();
        assert_eq!(read_schema(item(Attr::N("3"))), Ok(3));
        assert_eq!(
            read_schema(item(Attr::S("3"))).unwrap_err().attribute,
            attr::SCHEMA
        );
        assert_eq!(
            read_schema([("at", Attr::N("9"))].into_iter())
                .unwrap_err()
                .value,
            "missing"
        );
    }
}
