//! Compiled rules, and what a descriptor is looked up as.

use std::collections::HashMap;
use std::sync::Arc;

use weirgate::Limit;

use super::envoy::Tree;
use super::pattern::Pattern;
use super::template::Template;

/// One entry of a descriptor: its key and its value. A value may come from a header, so it can be any
/// bytes.
pub type Entry<'e> = (&'e str, &'e [u8]);

/// The rules of all files.
#[derive(Debug, Default)]
pub struct Rules {
    pub(super) domains: HashMap<Box<str>, Domain>,
}

/// The rules of one domain, in one of the two formats.
#[derive(Debug)]
pub(super) enum Domain {
    Listed(List),
    Nested(Tree),
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

/// What a rule takes of its bucket.
#[derive(Debug, Default)]
pub struct Terms {
    /// Amounts, by limit.
    pub takes: Vec<Take>,
    /// Limits given in the call; `None` for those that are configured.
    pub limits: Option<Arc<[Limit]>>,
    /// Whether the amounts are debited after the fact: into debt, without asking.
    pub is_settle: bool,
    /// Whether a denial is only reported.
    pub is_shadow: bool,
    /// Name of the limit in a status; `None` for that of the limit.
    pub label: Option<Box<str>>,
}

/// An amount of one limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Take {
    /// Name of the limit.
    pub limit: Box<str>,
    /// How much.
    pub amount: Amount,
}

/// How much a descriptor takes of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// The hits of the descriptor or of the request.
    Hits,
    /// The same for each request.
    Tokens(i64),
}

/// What the rules say about one descriptor.
#[derive(Debug)]
pub enum Matched {
    /// It is limited.
    Limited(Bucket),
    /// It is known, and has no limit.
    Unlimited,
    /// It is known, and its rate is 0 requests: every one is denied.
    Blocked(Bucket),
}

/// The bucket of one descriptor.
#[derive(Debug, Clone)]
pub struct Bucket {
    /// Name of the entity.
    pub entity: String,
    /// Name of the resource.
    pub resource: String,
    /// What is taken.
    pub terms: Arc<Terms>,
}

impl Rules {
    /// Returns what the rules say about a descriptor; `None` if no rule matches.
    #[must_use]
    pub fn find(&self, domain: &str, entries: &[Entry<'_>]) -> Option<Matched> {
        match self.domains.get(domain)? {
            Domain::Listed(list) => list.find(entries),
            Domain::Nested(tree) => tree.find(entries),
        }
    }

    /// Returns the bucket of a descriptor that brings its own limit; `None` if the rules do not name
    /// one. In the format of envoyproxy/ratelimit no rule needs to match then.
    #[must_use]
    pub fn find_overridden(&self, domain: &str, entries: &[Entry<'_>]) -> Option<Bucket> {
        match self.domains.get(domain)? {
            Domain::Listed(list) => match list.find(entries)? {
                Matched::Limited(bucket) | Matched::Blocked(bucket) => Some(bucket),
                Matched::Unlimited => None,
            },
            Domain::Nested(tree) => Some(tree.bucket_of(entries)),
        }
    }

    /// Returns the number of domains.
    #[must_use]
    pub fn domains(&self) -> usize {
        self.domains.len()
    }
}

impl List {
    /// Adds a rule behind those before it. `entries` must not be empty.
    pub(super) fn push(&mut self, rule: Rule) {
        let first = rule.entries.first().map(|(key, _)| key.clone());
        let group = (rule.entries.len(), first.unwrap_or_default());
        self.0.entry(group).or_default().push(rule);
    }

    fn find(&self, entries: &[Entry<'_>]) -> Option<Matched> {
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
