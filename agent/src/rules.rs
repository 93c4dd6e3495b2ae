//! Rules: which descriptors of a rate limit request are which entity, resource and amounts.
//!
//! # Layout
//!
//! - `source`: [`RulesSource`]: the files, read again when they change
//! - `format`: which of the two formats a file has
//! - `native`: the agent's own format
//! - `envoy`: the format of envoyproxy/ratelimit
//! - `limits`: a map of limits, as in a limits file
//! - `template`: names made of a descriptor's values
//! - `pattern`: a value that an entry must have
//! - `list`: rules in their order
//! - `terms`: [`Matched`]: what the rules say about a descriptor
//! - `ruleset`: [`Rules`]: all of them

mod envoy;
mod format;
mod limits;
mod list;
mod native;
mod pattern;
mod ruleset;
mod source;
mod template;
mod terms;

pub use format::parse;
pub use ruleset::Rules;
pub use source::RulesSource;
pub use terms::{Amount, Bucket, Entry, Matched, Take, Terms};
