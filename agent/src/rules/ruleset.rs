//! The rules of all files.

use std::collections::HashMap;

use super::envoy::{Tree, unnamed_bucket};
use super::list::List;
use super::terms::{Bucket, Entry, Matched};

/// The rules of all files.
#[derive(Debug, Default)]
pub struct Rules {
    domains: HashMap<Box<str>, Domain>,
}

/// The rules of one domain, in one of the two formats.
#[derive(Debug)]
pub(super) enum Domain {
    Listed(List),
    Nested(Tree),
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

    /// Returns the bucket of a descriptor that brings its own limit, which also limits what is
    /// unlimited otherwise; `None` if no rule matches. In the format of envoyproxy/ratelimit none needs
    /// to.
    #[must_use]
    pub fn find_overridden(&self, domain: &str, entries: &[Entry<'_>]) -> Option<Bucket> {
        let is_nested = matches!(self.domains.get(domain)?, Domain::Nested(_));
        match self.find(domain, entries) {
            Some(Matched::Limited(bucket) | Matched::Blocked(bucket)) => Some(bucket),
            Some(Matched::Unlimited) => Some(unnamed_bucket(domain, entries)),
            None => is_nested.then(|| unnamed_bucket(domain, entries)),
        }
    }

    /// Returns whether a domain has rules.
    pub(super) fn has(&self, domain: &str) -> bool {
        self.domains.contains_key(domain)
    }

    /// Adds the rules of a domain, which has none before.
    pub(super) fn insert(&mut self, domain: Box<str>, rules: Domain) {
        self.domains.insert(domain, rules);
    }

    /// Returns the number of domains.
    #[must_use]
    pub fn domains(&self) -> usize {
        self.domains.len()
    }
}
