//! The agent's own format of rules.

use std::collections::HashMap;
use std::sync::Arc;

use weirgate::{FileError, Limit, LimitKind, LimitName};
use weirgate_shared::files::{Node, Source, read_limit};

use super::matched::{Amount, Bucket, Entry, Matched, Take, Terms};
use super::pattern::Pattern;
use super::template::{Kind, Template};

/// Version of the format, 1.
const VERSION: i64 = 1;
/// Most entries that a rule can match: as deep as the other format nests.
const MAX_ENTRIES: usize = 16;
/// Most tokens that a rule can take of a limit at once.
const MAX_TOKENS: i64 = 1_000_000_000_000;

const RULE: &str = "match with unlimited alone, or match with entity, resource and take; beside these limits, settle, shadow, name";

/// Reads a file: the rules of each domain. `is_known` returns whether another file has rules of a
/// domain.
pub(super) fn parse(
    source: &Source<'_>,
    file: &Node<'_>,
    is_known: impl Fn(&str) -> bool,
) -> Result<Vec<(Box<str>, List)>, FileError> {
    let (mut version, mut domains, mut without_rules) = (None, vec![], None);
    for (key, node) in source.entries(file, "a map with weirgate and domains")? {
        match key.as_str() {
            "weirgate" => version = Some((source.integer(&node)?, node)),
            "domains" => {
                for (domain, node) in source.entries(&node, "a map of domains")? {
                    if domain.is_empty() {
                        let message = "a domain needs a name: Envoy sends none without";
                        return Err(source.error(&node, message));
                    }
                    if is_known(&domain) {
                        let message =
                            "the domain has rules already, in another file: put them together";
                        return Err(source.error(&node, message));
                    }
                    let list = domain_rules(source, &node)?;
                    if list.is_empty() {
                        without_rules = Some(node);
                    }
                    domains.push((domain.into(), list));
                }
            }
            _ => return Err(source.unknown(file, &key, "weirgate, domains")),
        }
    }
    match (version, without_rules) {
        (Some((VERSION, _)), None) if !domains.is_empty() => Ok(domains),
        (Some((VERSION, _)), None) => {
            Err(source.error(file, "domains is missing: without rules nothing is limited"))
        }
        (Some((VERSION, _)), Some(node)) => Err(source.error(
            &node,
            "the domain has no rules, so nothing of it is limited: add one, or remove the domain",
        )),
        (Some((_, node)), _) => Err(source.refuse(&node, "1, the version of this format")),
        (None, _) => Err(source.error(file, "weirgate: 1 is missing, the version of this format")),
    }
}

fn domain_rules(source: &Source<'_>, node: &Node<'_>) -> Result<List, FileError> {
    let mut list = List::default();
    for node in source.items(node, "a list of rules")? {
        let is_new = list.push(rule(source, &node)?);
        if !is_new {
            return Err(source.error(
                &node,
                "the same match is in this list before, so this rule never counts: put the two together",
            ));
        }
    }
    Ok(list)
}

/// The nodes of one rule.
#[derive(Default)]
struct Parts<'y> {
    entity: Option<Node<'y>>,
    resource: Option<Node<'y>>,
    take: Option<Node<'y>>,
    limits: Option<Node<'y>>,
    is_unlimited: bool,
}

fn rule(source: &Source<'_>, node: &Node<'_>) -> Result<Rule, FileError> {
    let (mut entries, mut parts, mut terms) = (vec![], Parts::default(), Terms::default());
    for (key, part) in source.entries(node, &format!("a map with {RULE}"))? {
        match key.as_str() {
            "match" => entries = matched(source, &part)?,
            "entity" => parts.entity = Some(part),
            "resource" => parts.resource = Some(part),
            "take" => parts.take = Some(part),
            "limits" => parts.limits = Some(part),
            "unlimited" => parts.is_unlimited = source.boolean(&part)?,
            "settle" => terms.is_settle = source.boolean(&part)?,
            "shadow" => terms.is_shadow = source.boolean(&part)?,
            "name" => terms.label = Some(source.text(&part)?.into()),
            _ => return Err(source.unknown(node, &key, RULE)),
        }
    }
    if entries.is_empty() {
        return Err(source.error(node, "match is missing: it lists the keys of a descriptor"));
    }
    let effect = match parts {
        // Nothing stands beside it that it would not heed.
        Parts { entity: None, resource: None, take: None, limits: None, is_unlimited: true }
            if terms == Terms::default() =>
        {
            Effect::Unlimited
        }
        Parts {
            entity: Some(entity),
            resource: Some(resource),
            take: Some(take),
            limits,
            is_unlimited: false,
        } => {
            terms.takes = takes(source, &take)?;
            if let Some(node) = limits {
                let limits = read_limits(source, &node)?;
                let is_given =
                    |name: &str| limits.iter().any(|limit| limit.name().as_str() == name);
                if let Some(missing) = terms.takes.iter().find(|take| !is_given(&take.limit)) {
                    let message = format!(
                        "limit {:?} is taken and not among these: add it, or leave limits out and configure it",
                        missing.limit
                    );
                    return Err(source.error(&node, &message));
                }
                terms.limits = Some(limits.into());
            }
            Effect::Limited(Box::new(Target {
                entity: template(source, Kind::Entity, &entity, &entries)?,
                resource: template(source, Kind::Resource, &resource, &entries)?,
                terms: Arc::new(terms),
            }))
        }
        _ => return Err(source.error(node, &format!("a rule needs {RULE}"))),
    };
    Ok(Rule { entries, effect })
}

/// Reads `[key, key: value]`.
fn matched(source: &Source<'_>, node: &Node<'_>) -> Result<Vec<(Box<str>, Pattern)>, FileError> {
    const TAKES: &str =
        "a list of keys, each with a value if it must have one: [tenant, path: /v1/*]";
    let mut entries: Vec<(Box<str>, Pattern)> = vec![];
    for item in source.items(node, TAKES)? {
        if !item.is_map() {
            entries.push((source.text(&item)?.into(), Pattern::Any));
            continue;
        }
        for (key, value) in source.entries(&item, TAKES)? {
            entries.push((key.into(), Pattern::new(&source.text(&value)?)));
        }
    }
    if entries.is_empty() || entries.len() > MAX_ENTRIES {
        let count = entries.len();
        let message = format!("has {count} entries, must have 1 to {MAX_ENTRIES}");
        return Err(source.error(node, &message));
    }
    Ok(entries)
}

fn takes(source: &Source<'_>, node: &Node<'_>) -> Result<Vec<Take>, FileError> {
    const TAKES: &str =
        "a map of limits with hits, or a number of tokens from 1 to 10^12: {rpm: 1, tpm: hits}";
    let mut takes = vec![];
    for (name, node) in source.entries(node, TAKES)? {
        LimitName::new(name.as_str()).map_err(|error| source.error(&node, &error.to_string()))?;
        let amount = match source.text(&node).as_deref() {
            Ok("hits") => Amount::Hits,
            _ => match source.integer(&node) {
                Ok(tokens @ 1..=MAX_TOKENS) => Amount::Tokens(tokens),
                _ => {
                    return Err(source.refuse(&node, "hits, or a number of tokens from 1 to 10^12"));
                }
            },
        };
        takes.push(Take { limit: name.into(), amount });
    }
    if takes.is_empty() {
        return Err(source.error(node, &format!("takes nothing, must be {TAKES}")));
    }
    Ok(takes)
}

fn template(
    source: &Source<'_>,
    kind: Kind,
    node: &Node<'_>,
    entries: &[(Box<str>, Pattern)],
) -> Result<Template, FileError> {
    let place = |name: &str| {
        let count = entries.len();
        if let Ok(number) = name.parse::<usize>() {
            return match number.checked_sub(1).filter(|at| *at < count) {
                Some(at) => Ok(at),
                None => Err(format!("{{{name}}} is no entry of match, which has {count}")),
            };
        }
        let mut found = entries.iter().enumerate().filter(|(_, (key, _))| &**key == name);
        match (found.next(), found.next()) {
            (Some((at, _)), None) => Ok(at),
            (Some(_), Some(_)) => Err(format!(
                "{{{name}}} is twice in match: write the number of the entry instead, from {{1}}"
            )),
            (None, _) => Err(format!("{{{name}}} is not in match: add the key there")),
        }
    };
    Template::parse(kind, &source.text(node)?, place)
        .map_err(|message| source.error(node, &message))
}

/// Rules by the number of entries and the key of the first; of each group the first that matches
/// counts.
#[derive(Debug, Default)]
pub(super) struct List(HashMap<(usize, Box<str>), Vec<Rule>>);

/// One rule: what a descriptor must have, and what then happens.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) entries: Vec<(Box<str>, Pattern)>,
    pub(super) effect: Effect,
}

#[derive(Debug)]
pub(super) enum Effect {
    Unlimited,
    Limited(Box<Target>),
}

/// The bucket of a rule, before the values are known.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) entity: Template,
    pub(super) resource: Template,
    pub(super) terms: Arc<Terms>,
}

impl List {
    /// Adds a rule behind those before it. `entries` must not be empty. Returns whether it is the first
    /// with these entries.
    pub(super) fn push(&mut self, rule: Rule) -> bool {
        let first = rule.entries.first().map(|(key, _)| key.clone());
        let group = (rule.entries.len(), first.unwrap_or_default());
        let group = self.0.entry(group).or_default();
        let is_new = !group.iter().any(|known| known.entries == rule.entries);
        group.push(rule);
        is_new
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns what the first rule that matches says.
    pub(super) fn find(&self, entries: &[Entry<'_>]) -> Option<Matched> {
        let (first, _) = entries.first()?;
        let group = self.0.get(&(entries.len(), Box::from(*first)))?;
        let rule = group.iter().find(|rule| rule.matches(entries))?;
        Some(match &rule.effect {
            Effect::Unlimited => Matched::Unlimited,
            Effect::Limited(target) => Matched::Limited(target.bucket(entries)),
        })
    }
}

impl Rule {
    fn matches(&self, entries: &[Entry<'_>]) -> bool {
        let mut both = self.entries.iter().zip(entries);
        both.all(|((key, pattern), (given, value))| &**key == *given && pattern.matches(value))
    }
}

impl Target {
    fn bucket(&self, entries: &[Entry<'_>]) -> Bucket {
        let value = |place: usize| entries.get(place).map_or(&b""[..], |(_, value)| *value);
        Bucket {
            entity: self.entity.render(value),
            resource: self.resource.render(value),
            terms: Arc::clone(&self.terms),
        }
    }
}

/// Most limits of one rule, as of one acquire.
const MAX_LIMITS: usize = 20;

/// Reads the limits that a rule brings: rates and quotas, because no call of Envoy gives a slot back.
fn read_limits(source: &Source<'_>, node: &Node<'_>) -> Result<Vec<Limit>, FileError> {
    let mut limits = vec![];
    for (name, node) in source.entries(node, "a map of limits")? {
        let limit = read_limit(source, &name, &node)?;
        if limit.rule().kind() == LimitKind::Slots {
            let message =
                "a rule must bring rates or quotas, got slots: no call of Envoy gives a slot back";
            return Err(source.error(&node, message));
        }
        if limit.schedule().is_some() {
            let message = "only a configured limit has a schedule: set it for a level ('weirgate limits set'), and \
                           leave the limits out of the rule";
            return Err(source.error(&node, message));
        }
        limits.push(limit);
    }
    if limits.is_empty() || limits.len() > MAX_LIMITS {
        let count = limits.len();
        let message = format!("a rule has 1 to {MAX_LIMITS} limits, got {count}");
        return Err(source.error(node, &message));
    }
    Ok(limits)
}
