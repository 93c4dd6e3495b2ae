//! Which of the two formats a rules file has.

use std::path::Path;

use weirgate::FileError;
use weirgate_shared::files::{Format, with_document};

use super::ruleset::{Domain, Rules};
use super::{envoy, native};

/// Descriptors of envoyproxy/ratelimit nest by two for each entry.
const FORMAT: Format = Format {
    needs: "rules",
    depth: 40,
};

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
