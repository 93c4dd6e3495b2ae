//! Items of the configuration: limits of one level, entities, the schema version.

use std::collections::BTreeMap;

use super::parse::{self, entries, integer, write_id};
use super::{Attr, ItemError};
use crate::attr::{self, Field};
use crate::limit::RefillRule;
use crate::limit::{MAX_PERIOD_MS, MAX_TOKENS};
use crate::write::Value;
use crate::{
    Class, ClassName, Config, ConfigStatus, Entity, EntityId, Limit, LimitMode, LimitName,
    MilliTokens, QuotaWindow, Schedule, Versioned, WindowCode, WriteId, ZONE_DATA, ZoneName,
};

/// Returns the attributes of a configuration.
#[must_use]
pub fn write_config(config: &Config) -> BTreeMap<String, Value> {
    let limits =
        config.limits.iter().map(|limit| (limit.name().to_string(), write_limit(limit))).collect();
    let class = config.class.as_ref();
    let class = class.map(|class| (attr::CLASS.to_owned(), Value::text(class.as_str())));
    BTreeMap::from([
        (attr::LIMITS.to_owned(), Value::Map(limits)),
        (attr::STATUS.to_owned(), Value::text(config.status.as_str())),
        (attr::SHADOW.to_owned(), Value::Bool(config.is_shadow)),
    ])
    .into_iter()
    .chain(class)
    .collect()
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
    let window = limit.window();
    let text = window.map(|window| (attr::WINDOW.to_owned(), Value::text(&window.to_string())));
    let schedule = limit.schedule();
    let scales = schedule.map(|text| (attr::SCHEDULE.to_owned(), Value::Text(text.to_string())));
    let of_window = window.and_then(|window| match window {
        QuotaWindow::Calendar(window) => Some(window.zone()),
        QuotaWindow::Session(_) => None,
    });
    let mut zones = [of_window, schedule.map(Schedule::zone_name)].into_iter().flatten();
    let has_zone = zones.any(|zone| zone != ZoneName::UTC);
    let zones = has_zone.then(|| (attr::ZONES.to_owned(), Value::text(ZONE_DATA)));
    let of_class = |class: &Class| (class.name().to_string(), Value::Text(class.to_string()));
    let classes = (!limit.classes().is_empty()).then(|| {
        let classes = limit.classes().iter().map(of_class).collect();
        (attr::CLASSES.to_owned(), Value::Map(classes))
    });
    let fields = numbers.into_iter().chain([mode]).chain(text);
    Value::Map(fields.chain(scales).chain(zones).chain(classes).collect())
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
    Ok(Versioned { version: integer(attr::VERSION, &version.1)?, value })
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
                config.limits.sort_by(|one, other| one.name().cmp(other.name()));
            }
            attr::STATUS => {
                config.status = word(attr::STATUS, value, ConfigStatus::parse, ConfigStatus::WORDS)?
            }
            attr::SHADOW => config.is_shadow = boolean(attr::SHADOW, value)?,
            attr::CLASS => {
                let class = match value {
                    Attr::S(text) => ClassName::new(*text).ok(),
                    _ => None,
                };
                let wrong = || ItemError::new(attr::CLASS, value, "the name of a class");
                config.class = Some(class.ok_or_else(wrong)?);
            }
            _ => {}
        }
    }
    Ok(config)
}

fn limit(name: &str, value: &Attr<'_>) -> Result<Limit, ItemError> {
    let name = LimitName::new(name)
        .map_err(|error| ItemError::new(attr::LIMITS, &Attr::S(name), error.rule))?;
    let (mut numbers, mut mode) = ([None; 3], LimitMode::default());
    let (mut window, mut schedule, mut zones) = (None, None, None);
    let mut classes = vec![];
    let map = format!("{}.{name}", attr::LIMITS);
    let place = |field: &str| format!("{map}.{field}");
    let of = [
        (Field::Capacity, 1, MAX_MILLI, "1 to 10^15 millitokens"),
        (Field::RefillAmount, 0, MAX_MILLI, "0 to 10^15 millitokens"),
        // A negative number is the code of a window.
        (Field::RefillPeriod, i64::MIN, MAX_PERIOD_MS, PERIOD),
    ];
    for (field, value) in entries(&map, value)? {
        match (*field, value) {
            (attr::MODE, _) => {
                mode = word(&place(field), value, LimitMode::parse, LimitMode::WORDS)?;
            }
            (attr::WINDOW, Attr::S(text)) => window = Some(*text),
            (attr::SCHEDULE, value) => schedule = Some(value),
            (attr::ZONES, Attr::S(text)) => zones = Some(*text),
            (attr::CLASSES, value) => {
                for (name, class) in entries(&place(attr::CLASSES), value)? {
                    let known = match class {
                        Attr::S(text) => text.parse::<Class>().ok(),
                        _ => None,
                    };
                    let wrong = || ItemError::new(&place(attr::CLASSES), class, CLASS);
                    let known = known.filter(|class| class.name().as_str() == *name);
                    classes.push(known.ok_or_else(wrong)?);
                }
            }
            _ => {}
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
    let rule = RefillRule { capacity, refill_amount, refill_period_ms: number(2)? };
    let period = place(Field::RefillPeriod.suffix());
    match rule.window_code() {
        Some(code) => known(&period, code, window, zones)?,
        None if rule.refill_period_ms < 1 => {
            let value = rule.refill_period_ms.to_string();
            return Err(ItemError::new(&period, &Attr::N(&value), PERIOD));
        }
        None => {}
    }
    let limit = Limit::of(name, rule).in_mode(mode);
    let limit = limit.with_classes(classes).map_err(|_| {
        let wrong = Attr::S("classes");
        ItemError::new(&place(attr::CLASSES), &wrong, CLASS)
    })?;
    match schedule {
        Some(text) => scheduled(limit, &place(attr::SCHEDULE), text, zones),
        None => Ok(limit),
    }
}

/// Reads the schedule of a limit. One that this release does not know is never guessed either.
fn scheduled(
    limit: Limit,
    attribute: &str,
    value: &Attr<'_>,
    zones: Option<&str>,
) -> Result<Limit, ItemError> {
    let schedule = match value {
        Attr::S(text) => Schedule::stored(text).ok(),
        _ => None,
    };
    let limit = schedule.and_then(|schedule| limit.with_schedule(schedule).ok());
    limit.ok_or_else(|| newer(attribute, value, NEWER_SCHEDULE, zones))
}

const CLASS: &str = "classes of a rate, such as batch:10%:30%, of at most 99% together";
const PERIOD: &str = "1 ms to 366 days, or the code of a window beside a refill of 0";

/// Requires that this release knows the window of a quota. A window that it does not know is never
/// guessed, because the processes that know it enforce another one.
fn known(
    attribute: &str,
    code: WindowCode,
    text: Option<&str>,
    zones: Option<&str>,
) -> Result<(), ItemError> {
    if code.decode().is_some() {
        return Ok(());
    }
    let window = text.map_or_else(|| code.0.to_string(), str::to_owned);
    Err(newer(attribute, &Attr::S(&window), NEWER, zones))
}

fn newer(attribute: &str, value: &Attr<'_>, takes: &'static str, zones: Option<&str>) -> ItemError {
    let mut error = ItemError::new(attribute, value, takes);
    error.value += &format!(
        " (its writer has zone data {}, this process {ZONE_DATA})",
        zones.unwrap_or("of an unknown release")
    );
    error
}

const NEWER: &str = "a window that this release knows: update Weirgate";
const NEWER_SCHEDULE: &str = "a schedule that this release knows: update Weirgate";

const MAX_MILLI: i64 = MAX_TOKENS * 1000;

/// Returns the attributes of an entity.
#[must_use]
pub fn write_entity(entity: &Entity) -> BTreeMap<String, Value> {
    let parent = entity
        .parent
        .iter()
        .map(|parent| (attr::PARENT_ID.to_owned(), Value::text(parent.as_str())));
    let plan = entity.plan.iter();
    let plan = plan.map(|plan| (attr::ENTITY_PLAN.to_owned(), Value::text(plan.as_str())));
    parent.chain(plan).chain([(attr::CASCADE.to_owned(), Value::Bool(entity.cascades))]).collect()
}

/// Reads an entity, or the remains of a deleted one, and the id of its last write.
///
/// # Errors
/// [`ItemError`] naming the attribute that is wrong or missing.
pub fn read_entity<'a>(
    id: EntityId,
    item: impl Iterator<Item = (&'a str, Attr<'a>)>,
) -> Result<(Versioned<Entity>, WriteId), ItemError> {
    let attributes: Vec<_> = item.collect();
    let find = |wanted: &str| attributes.iter().find(|(name, _)| *name == wanted);
    let op = find(attr::LAST_WRITE_ID);
    let op = op.ok_or_else(|| ItemError::missing(attr::LAST_WRITE_ID, "a string of a-z 0-9"))?;
    let version = find(attr::VERSION).map(|(name, value)| integer(name, value));
    // A deleted entity leaves its version, and nothing else.
    let is_deleted = version.is_some() && find(attr::CASCADE).is_none();
    let value = (!is_deleted).then(|| entity(id, &attributes));
    let versioned =
        Versioned { version: version.transpose()?.unwrap_or_default(), value: value.transpose()? };
    Ok((versioned, write_id(attr::LAST_WRITE_ID, &op.1)?))
}

pub(super) fn entity(id: EntityId, attributes: &[(&str, Attr<'_>)]) -> Result<Entity, ItemError> {
    let mut entity = Entity::new(id);
    for (name, value) in attributes {
        match *name {
            attr::PARENT_ID => entity.parent = Some(parse::name(attr::PARENT_ID, value)?),
            attr::ENTITY_PLAN => entity.plan = Some(parse::name(attr::ENTITY_PLAN, value)?),
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

/// How many entities and levels a plan has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlanCount {
    /// Number of entities that have it.
    pub entities: i64,
    /// Number of its levels that have a configuration. Without any, the plan does not exist.
    pub levels: i64,
}

/// Reads the item that counts for a plan. A missing item or attribute counts as 0.
///
/// # Errors
/// [`ItemError`] if a count is no whole number.
pub fn read_plan_count<'a>(
    item: impl Iterator<Item = (&'a str, Attr<'a>)>,
) -> Result<PlanCount, ItemError> {
    let mut count = PlanCount::default();
    for (name, value) in item {
        match name {
            attr::ENTITIES => count.entities = integer(name, &value)?,
            attr::LEVELS => count.levels = integer(name, &value)?,
            _ => {}
        }
    }
    Ok(count)
}

/// Returns whether the item of the deployed functions says that they know quotas.
#[must_use]
pub fn know_quotas<'a>(mut item: impl Iterator<Item = (&'a str, Attr<'a>)>) -> bool {
    item.any(|(name, value)| name == attr::QUOTAS && matches!(value, Attr::Bool(true)))
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
    let text = if let Attr::S(text) = value { parse(text) } else { None };
    text.ok_or_else(|| ItemError::new(name, value, takes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what is read from a configuration of one limit.
    fn read(fields: Vec<(&str, Attr<'_>)>) -> Result<Limit, ItemError> {
        let limits = Attr::M(vec![("tpm", Attr::M(fields))]);
        let config = config(&[(attr::LIMITS, limits)])?;
        Ok(config.limits[0].clone())
    }

    #[test]
    fn a_quota_is_stored_with_its_text_and_the_zone_data_if_it_has_a_zone() {
        for (text, stored) in [
            ("tpm=600/minute", (None, None)),
            ("tpm=quota:10/month", (Some("month"), None)),
            ("tpm=session:10/5h", (Some("5h"), None)),
            (
                "tpm=quota:10/month,day=15,tz=Europe/Berlin",
                (Some("month,day=15,tz=Europe/Berlin"), Some(ZONE_DATA)),
            ),
            ("tpm=600/minute,schedule=0 8 * * * for 1h scale 2/1", (None, None)),
            (
                "tpm=600/minute,schedule=0 8 * * * for 1h scale 2/1 tz Europe/Berlin",
                (None, Some(ZONE_DATA)),
            ),
        ] {
            let limit: Limit = text.parse().unwrap();
            let Value::Map(fields) = write_limit(&limit) else { panic!("{text}") };
            let field = |name: &str| fields.get(name).cloned();
            assert_eq!(field(attr::WINDOW), stored.0.map(Value::text), "{text}");
            assert_eq!(field(attr::ZONES), stored.1.map(Value::text), "{text}");
            let rule = limit.rule();
            let [cp, ra, rp] = [rule.capacity.0, rule.refill_amount.0, rule.refill_period_ms];
            let numbers =
                [("cp", cp), ("ra", ra), ("rp", rp)].map(|(name, n)| (name, n.to_string()));
            let numbers = numbers.iter().map(|(name, text)| (*name, Attr::N(text)));
            let schedule = limit.schedule().map(ToString::to_string);
            let schedule = schedule.iter().map(|text| (attr::SCHEDULE, Attr::S(text)));
            assert_eq!(read(numbers.chain(schedule).collect()), Ok(limit.clone()));
        }
    }

    #[test]
    fn a_window_that_this_release_does_not_know_is_named_with_both_releases() {
        let quota = |code: &'static str| {
            let numbers = [("cp", "1000"), ("ra", "0"), ("rp", code)];
            numbers.map(|(name, text)| (name, Attr::N(text))).to_vec()
        };
        let mut newer = quota("-18155139226293886");
        newer.extend([
            (attr::WINDOW, Attr::S("month,tz=Mars/Base")),
            (attr::ZONES, Attr::S("2041a")),
        ]);
        assert_eq!(
            read(newer).unwrap_err().to_string(),
            format!(
                "attribute limits.tpm.rp is \"month,tz=Mars/Base\" (its writer has zone data 2041a, this process \
                 {ZONE_DATA}), must be a window that this release knows: update Weirgate"
            )
        );
        for code in ["-1", "-9223372036854775808"] {
            let error = read(quota(code)).unwrap_err().to_string();
            assert!(
                error.contains(&format!("is \"{code}\" (its writer has zone data of an")),
                "{error}"
            );
        }
    }

    #[test]
    fn a_schedule_that_this_release_does_not_know_is_named_with_both_releases() {
        let rate = |schedule| {
            let numbers = [("cp", "1000"), ("ra", "1000"), ("rp", "1000")];
            let numbers = numbers.map(|(name, text)| (name, Attr::N(text)));
            read([numbers.to_vec(), vec![(attr::SCHEDULE, schedule)]].concat())
        };
        for text in
            ["0 8 * * * for 1h scale 2/1 tz Mars/Base", "0 8 * * * for 1h scale 1/2", "weekly"]
        {
            assert_eq!(
                rate(Attr::S(text)).unwrap_err().to_string(),
                format!(
                    "attribute limits.tpm.schedule is {text:?} (its writer has zone data of an unknown release, this \
                     process {ZONE_DATA}), must be a schedule that this release knows: update Weirgate"
                )
            );
        }
        assert!(rate(Attr::N("1")).is_err());
    }

    #[test]
    fn only_a_quota_has_a_negative_period() {
        for (refill, period) in [("1000", "-18155139226293885"), ("1000", "0"), ("0", "0")] {
            let numbers = [("cp", "1000"), ("ra", refill), ("rp", period)];
            let numbers = numbers.map(|(name, text)| (name, Attr::N(text))).to_vec();
            let error = read(numbers).unwrap_err().to_string();
            let start = format!("attribute limits.tpm.rp is {period:?}, must be 1 ms to 366 days");
            assert!(error.starts_with(&start), "{error}");
        }
    }

    #[test]
    fn a_schema_is_the_number_in_its_attribute() {
        let item = |value| [("at", Attr::N("9")), (attr::SCHEMA, value)].into_iter();
        assert_eq!(read_schema(item(Attr::N("3"))), Ok(3));
        assert_eq!(read_schema(item(Attr::S("3"))).unwrap_err().attribute, attr::SCHEMA);
        assert_eq!(read_schema([("at", Attr::N("9"))].into_iter()).unwrap_err().value, "missing");
    }
}
