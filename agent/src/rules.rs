//! Rules: which descriptors of a rate limit request are which entity, resource and amounts.
//!
//! # Layout
//!
//! - [`RulesSource`]: the files, read again when they change; [`Rules`]: what they say
//! - `native`: the agent's own format, and its rules in their order
//! - `envoy`: the format of envoyproxy/ratelimit
//! - `matched`: [`Matched`]: what the rules say about a descriptor
//! - `template`: names made of a descriptor's values
//! - `pattern`: a value that an entry must have

mod envoy;
mod matched;
mod native;
mod pattern;
mod template;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use weirgate::FileError;
use weirgate_shared::files::{Format, TextFile, Watched, What, with_document};

use envoy::{Tree, unnamed_bucket};
use native::List;

pub use matched::{Amount, Bucket, Entry, Matched, Take, Terms};

/// Rules from files. Clones share them.
///
/// The files are read once a second, by [`watch`](Self::watch) or while there are requests. A change
/// counts once two reads found the same. A broken file changes nothing: the last good rules stay, and
/// [`error`](Self::error) and the log report the problem with line and column.
#[derive(Debug, Clone)]
pub struct RulesSource(Watched<Rules>);

const WHAT: What<Rules> = What { name: "rules", takes_folders: true, parse: rules };

impl RulesSource {
    /// Reads the files. A folder stands for its files that end in `.yaml` or `.yml`.
    ///
    /// # Errors
    /// [`FileError`] with line and column, or the reason that a file cannot be read. A folder without
    /// files is one.
    pub fn open(paths: Vec<PathBuf>) -> Result<Self, FileError> {
        Watched::open(WHAT, paths, wall_ms()).map(Self)
    }

    /// Reads the files, as [`open`](Self::open) does. While there are none, or only empty ones,
    /// there are no rules.
    ///
    /// # Errors
    /// [`FileError`] of a file that is there.
    pub fn open_or_wait(paths: Vec<PathBuf>) -> Result<Self, FileError> {
        Watched::open_or(WHAT, paths, wall_ms(), Rules::default()).map(Self)
    }

    /// Returns the rules in force.
    #[must_use]
    pub fn rules(&self) -> Arc<Rules> {
        self.0.get(wall_ms())
    }

    /// Reads the files once a second, so that a fault is logged also while there are no requests.
    pub async fn watch(self) {
        self.0.watch(wall_ms).await;
    }

    /// Returns the error in the current files; the rules are the last good ones.
    #[must_use]
    pub fn error(&self) -> Option<FileError> {
        self.0.error()
    }
}

fn rules(files: &[TextFile]) -> Result<Rules, FileError> {
    let mut rules = Rules::default();
    for file in files {
        parse(&file.path, &file.text, &mut rules)?;
    }
    Ok(rules)
}

fn wall_ms() -> i64 {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    time.map_or(0, |time| i64::try_from(time.as_millis()).unwrap_or(i64::MAX))
}

/// Descriptors of envoyproxy/ratelimit nest by two for each entry.
const FORMAT: Format = Format { needs: "rules", depth: 40 };

/// Adds the rules of one file to `rules`: in the agent's format if it says `weirgate: 1`, otherwise
/// in that of envoyproxy/ratelimit.
///
/// # Errors
/// [`FileError`] with line and column. The rules are as before then.
pub fn parse(path: &Path, text: &str, rules: &mut Rules) -> Result<(), FileError> {
    with_document(FORMAT, path, text, |source, file| {
        let takes = "a map with weirgate and domains, or one with domain and descriptors as envoyproxy/ratelimit has it";
        let entries = source.entries(&file, takes)?;
        let has = |name: &str| entries.iter().any(|(key, _)| key == name);
        if has("domain") && !has("weirgate") {
            let (domain, tree) = envoy::parse(&source, &file, |domain| rules.has(domain))?;
            rules.insert(domain, Domain::Nested(tree));
            return Ok(());
        }
        for (domain, list) in native::parse(&source, &file, |domain| rules.has(domain))? {
            rules.insert(domain, Domain::Listed(list));
        }
        Ok(())
    })
}

/// The rules of all files.
#[derive(Debug, Default)]
pub struct Rules {
    domains: HashMap<Box<str>, Domain>,
}

/// The rules of one domain, in one of the two formats.
#[derive(Debug)]
enum Domain {
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
    fn has(&self, domain: &str) -> bool {
        self.domains.contains_key(domain)
    }

    /// Adds the rules of a domain, which has none before.
    fn insert(&mut self, domain: Box<str>, rules: Domain) {
        self.domains.insert(domain, rules);
    }

    /// Returns the number of domains.
    #[must_use]
    pub fn domains(&self) -> usize {
        self.domains.len()
    }
}
