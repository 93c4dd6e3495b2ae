//! Which of the two formats a rules file has.

use std::path::Path;

use weirgate::FileError;

use super::ruleset::{Domain, Rules};
use super::yaml::with_document;
use super::{envoy, native};

/// Adds the rules of one file to `rules`: in the agent's format if it says `weirgate: 1`, otherwise
/// in that of envoyproxy/ratelimit.
///
/// # Errors
/// [`FileError`] with line and column. The rules are as before then.
pub fn parse(path: &Path, text: &str, rules: &mut Rules) -> Result<(), FileError> {
    let is_envoy = with_document(path, text, |source, file| {
        let takes = "a map with weirgate and domains, or one with domain and descriptors as envoyproxy/ratelimit has it";
        let entries = source.entries(&file, takes)?;
        let has = |name: &str| entries.iter().any(|(key, _)| key == name);
        Ok(has("domain") && !has("weirgate"))
    })?;
    if is_envoy {
        let (domain, tree) = envoy::parse(path, text, |domain| rules.has(domain))?;
        rules.insert(domain, Domain::Nested(tree));
        return Ok(());
    }
    for (domain, list) in native::parse(path, text, |domain| rules.has(domain))? {
        rules.insert(domain, Domain::Listed(list));
    }
    Ok(())
}
