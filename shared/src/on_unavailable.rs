//! What to decide while DynamoDB is unavailable.

use std::fmt;

/// Decision of an acquire while DynamoDB is unavailable: it does not respond, returns server
/// errors, throttles the whole table, or the process cannot load its credentials for now.
///
/// Other failures stay errors: missing permission, a missing table, and rejected requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnUnavailable {
    /// An error: the caller decides.
    #[default]
    Error,
    /// Denied.
    Deny,
    /// Granted, and not counted.
    Allow,
    /// Decided by a local bucket, with a percentage of every limit. N processes with 100/N percent
    /// each together admit what the limits allow.
    Local {
        /// Percentage of the capacity and of the refill, 1 to 100.
        percent: u8,
    },
}

impl OnUnavailable {
    pub(crate) const WORDS: &str = "error, deny, allow, or local with 1 to 100: local 25";

    /// What the words stand for.
    #[must_use]
    pub fn parse(words: &str) -> Option<Self> {
        match words {
            "error" => Some(Self::Error),
            "deny" => Some(Self::Deny),
            "allow" => Some(Self::Allow),
            _ => {
                let percent = words.strip_prefix("local ")?.parse().ok()?;
                (1..=100).contains(&percent).then_some(Self::Local { percent })
            }
        }
    }
}

/// The words for it in items: `error`, `deny`, `allow`, or `local` with the percentage.
impl fmt::Display for OnUnavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error => f.write_str("error"),
            Self::Deny => f.write_str("deny"),
            Self::Allow => f.write_str("allow"),
            Self::Local { percent } => write!(f, "local {percent}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_read_back() {
        let local = |percent| OnUnavailable::Local { percent };
        for policy in
            [OnUnavailable::Error, OnUnavailable::Deny, OnUnavailable::Allow, local(1), local(100)]
        {
            assert_eq!(OnUnavailable::parse(&policy.to_string()), Some(policy));
        }
        for other in ["", "Allow", "local", "local 0", "local 101", "local x"] {
            assert_eq!(OnUnavailable::parse(other), None, "{other:?}");
        }
    }
}
