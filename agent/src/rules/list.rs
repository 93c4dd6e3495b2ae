//! Rules in their order, as the agent's own format has them.

use std::collections::HashMap;
use std::sync::Arc;

use super::pattern::Pattern;
use super::template::Template;
use super::terms::{Bucket, Entry, Matched, Terms};

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
