//! The format of envoyproxy/ratelimit: nested descriptors.
//!
//! A descriptor is looked up level by level, as there: the node with its key and value, else the
//! first whose value has a `*` and matches, else the node with its key alone. There is no way back,
//! and a limit counts only at the descriptor's own depth.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use weirgate::{Every, FileError, Limit, Period};
use weirgate_shared::files::{Node, Source};

use super::matched::{Amount, Bucket, Entry, Matched, Take, Terms};
use super::pattern::Pattern;
use super::template::{Kind, Template, escaped};

const DESCRIPTOR: &str = "key, value, rate_limit, shadow_mode, descriptors";
const RATE_LIMIT: &str = "unit, requests_per_unit, unlimited, name";

/// The rules of one domain.
#[derive(Debug)]
pub(super) struct Tree {
    /// Name of the resource: that of the domain.
    resource: String,
    root: Level,
}

/// The descriptors of one list.
#[derive(Debug, Default)]
struct Level {
    exact: HashMap<Box<str>, HashMap<Box<[u8]>, Descriptor>>,
    wildcards: Vec<(Box<str>, Pattern, Descriptor)>,
    alone: HashMap<Box<str>, Descriptor>,
}

#[derive(Debug, Default)]
struct Descriptor {
    limit: Option<RateLimit>,
    below: Level,
}

#[derive(Debug)]
enum RateLimit {
    Unlimited,
    /// No request is allowed.
    Blocked(Arc<Terms>),
    Rate(Arc<Terms>),
}

impl Tree {
    pub(super) fn find(&self, entries: &[Entry<'_>]) -> Option<Matched> {
        let mut level = &self.root;
        let mut found = None;
        for entry in entries {
            let descriptor = level.find(*entry)?;
            (level, found) = (&descriptor.below, Some(descriptor));
        }
        Some(match found?.limit.as_ref()? {
            RateLimit::Unlimited => Matched::Unlimited,
            RateLimit::Blocked(terms) => Matched::Blocked(self.bucket(entries, terms)),
            RateLimit::Rate(terms) => Matched::Limited(self.bucket(entries, terms)),
        })
    }

    fn bucket(&self, entries: &[Entry<'_>], terms: &Arc<Terms>) -> Bucket {
        Bucket {
            entity: entity(entries),
            resource: self.resource.clone(),
            terms: Arc::clone(terms),
        }
    }
}

/// What a unit of a limit is.
#[derive(Debug, Clone, Copy, Default)]
enum Units {
    /// A rate of so much time.
    #[default]
    Rate,
    /// A quota of each hour, day, week, month or year in UTC; seconds and minutes are rates.
    Calendar,
}

/// Returns the bucket of a descriptor for which the rules of a domain name none: the one that this
/// format has.
pub(super) fn unnamed_bucket(domain: &str, entries: &[Entry<'_>]) -> Bucket {
    Bucket {
        entity: entity(entries),
        resource: escaped(Kind::Resource, domain),
        terms: Arc::default(),
    }
}

/// Returns the entity of a descriptor: `key:value:key:value`.
fn entity(entries: &[Entry<'_>]) -> String {
    let all = 0..entries.len() * 2;
    Template::of_values(Kind::Entity, all).render(|place| match entries.get(place / 2) {
        Some((key, _)) if place % 2 == 0 => key.as_bytes(),
        Some((_, value)) => value,
        None => b"",
    })
}

impl Level {
    fn find(&self, (key, value): Entry<'_>) -> Option<&Descriptor> {
        let exact = self.exact.get(key).and_then(|values| values.get(value));
        let wildcard = || {
            let mut all = self.wildcards.iter();
            all.find(|(of, pattern, _)| &**of == key && pattern.matches(value))
                .map(|(_, _, descriptor)| descriptor)
        };
        exact.or_else(wildcard).or_else(|| self.alone.get(key))
    }
}

/// Reads a file: its domain, and the rules. `is_known` returns whether another file has rules of a
/// domain.
pub(super) fn parse(
    source: &Source<'_>,
    file: &Node<'_>,
    is_known: impl Fn(&str) -> bool,
) -> Result<(Box<str>, Tree), FileError> {
    let (mut domain, mut root) = (None, None);
    let mut units = Units::default();
    for (key, node) in source.entries(file, "a map with domain and descriptors")? {
        match key.as_str() {
            "domain" => domain = Some((source.text(&node)?, node)),
            "descriptors" => root = Some(node),
            "units" => {
                units = match source.text(&node)?.as_str() {
                    "calendar" => Units::Calendar,
                    _ => return Err(source.refuse(&node, "calendar, or left out for rates")),
                }
            }
            _ => return Err(source.unknown(file, &key, "domain, descriptors, units")),
        }
    }
    let root = root.map(|node| level(source, &node, units)).transpose()?;
    let Some((domain, node)) = domain.filter(|(domain, _)| !domain.is_empty()) else {
        return Err(source.error(file, "domain is missing: the one that Envoy's filter has"));
    };
    if is_known(&domain) {
        let message = "the domain has rules already, in another file: put them together";
        return Err(source.error(&node, message));
    }
    let Some(root) = root.filter(|root| !root.is_empty()) else {
        let message = "descriptors is missing: without any, nothing of the domain is limited";
        return Err(source.error(file, message));
    };
    let resource = escaped(Kind::Resource, &domain);
    Ok((domain.into(), Tree { resource, root }))
}

fn level(source: &Source<'_>, node: &Node<'_>, units: Units) -> Result<Level, FileError> {
    let mut level = Level::default();
    for node in source.items(node, "a list of descriptors")? {
        let (mut key, mut value, mut descriptor) = (None, None, Descriptor::default());
        let (mut limit, mut is_shadow) = (None, false);
        for (name, part) in source.entries(&node, &format!("a map with {DESCRIPTOR}"))? {
            match name.as_str() {
                "key" => key = Some(source.text(&part)?),
                "value" => value = Some(source.text(&part)?),
                "rate_limit" => limit = Some(part),
                "shadow_mode" => is_shadow = source.boolean(&part)?,
                "descriptors" => descriptor.below = self::level(source, &part, units)?,
                "quota_mode" | "detailed_metric" | "value_to_metric" | "share_threshold"
                | "metadata" => return Err(unsupported(source, &part, &name)),
                _ => return Err(source.unknown(&node, &name, DESCRIPTOR)),
            }
        }
        let key = key.filter(|key| !key.is_empty());
        let key = key.ok_or_else(|| source.error(&node, "key is missing"))?;
        if let Some(limit) = limit {
            descriptor.limit = Some(rate_limit(source, &limit, is_shadow, units)?);
        }
        let is_new = level.insert(key, value, descriptor);
        if !is_new {
            return Err(source.error(
                &node,
                "the same key and value are in this list before: put the two together",
            ));
        }
    }
    Ok(level)
}

impl Level {
    fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.wildcards.is_empty() && self.alone.is_empty()
    }

    /// Adds a descriptor. Returns whether it is the first of its key and value.
    fn insert(&mut self, key: String, value: Option<String>, descriptor: Descriptor) -> bool {
        let key = Box::<str>::from(key);
        match value.filter(|value| !value.is_empty()) {
            None => self.alone.insert(key, descriptor).is_none(),
            Some(value) => match Pattern::new(&value) {
                Pattern::Exact(value) => {
                    let values = self.exact.entry(key).or_default();
                    values.insert(value, descriptor).is_none()
                }
                pattern => {
                    let mut known = self.wildcards.iter();
                    let is_new = !known.any(|(of, other, _)| *of == key && *other == pattern);
                    self.wildcards.push((key, pattern, descriptor));
                    is_new
                }
            },
        }
    }
}

fn rate_limit(
    source: &Source<'_>,
    node: &Node<'_>,
    is_shadow: bool,
    units: Units,
) -> Result<RateLimit, FileError> {
    let (mut unit, mut requests, mut is_unlimited, mut label) = (None, None, false, None);
    for (key, part) in source.entries(node, &format!("a map with {RATE_LIMIT}"))? {
        match key.as_str() {
            "unit" => unit = Some((source.text(&part)?.to_ascii_lowercase(), part)),
            "requests_per_unit" => requests = Some((source.integer(&part)?, part)),
            "unlimited" => is_unlimited = source.boolean(&part)?,
            "name" => label = Some(source.text(&part)?.into()),
            "replaces" | "algorithm" => return Err(unsupported(source, &part, &key)),
            _ => return Err(source.unknown(node, &key, RATE_LIMIT)),
        }
    }
    if is_unlimited {
        return match (unit, requests) {
            (None, None) => Ok(RateLimit::Unlimited),
            _ => Err(source
                .error(node, "unlimited has no unit and no requests_per_unit: leave them out")),
        };
    }
    let (Some((unit, unit_node)), Some((requests, node))) = (unit, requests) else {
        return Err(source.error(node, "a limit needs unit and requests_per_unit, or unlimited"));
    };
    let period = period_ms(&unit).ok_or_else(|| {
        source.refuse(&unit_node, "second, minute, hour, day, week, month or year")
    })?;
    let take = Take { limit: unit.as_str().into(), amount: Amount::Hits };
    let terms = Terms {
        takes: vec![take],
        is_shadow,
        label,
        period: Duration::from_millis(period.unsigned_abs()),
        ..Terms::default()
    };
    if requests == 0 {
        return Ok(RateLimit::Blocked(Arc::new(terms)));
    }
    let window = Period::ALL.into_iter().find(|period| period.as_str() == unit);
    let limit = match (units, window) {
        (Units::Calendar, Some(window)) => Limit::quota(&unit, requests, Every::period(window)),
        _ => Limit::custom(&unit, requests, requests, period),
    };
    let limit = limit.map_err(|error| source.error(&node, &error.to_string()))?;
    Ok(RateLimit::Rate(Arc::new(Terms { limits: Some([limit].into()), ..terms })))
}

/// Returns the length of a unit in ms: a month has 30 days and a year 365, as there.
fn period_ms(unit: &str) -> Option<i64> {
    const DAY: i64 = 86_400_000;
    Some(match unit {
        "second" => 1_000,
        "minute" => 60_000,
        "hour" => 3_600_000,
        "day" => DAY,
        "week" => 7 * DAY,
        "month" => 30 * DAY,
        "year" => 365 * DAY,
        _ => return None,
    })
}

fn unsupported(source: &Source<'_>, node: &Node<'_>, name: &str) -> FileError {
    let message = format!(
        "{name} of envoyproxy/ratelimit has no counterpart here: take it out, or write this rule in the agent's own format"
    );
    source.error(node, &message)
}
