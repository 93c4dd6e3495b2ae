//! Names that cannot contain a key delimiter, validated once, at construction.

use std::fmt;

use crate::attr;

/// An invalid name; nothing was sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {value:?} is not a valid name: {rule}")]
pub struct NameError {
    /// Kind of name: `entity`, `plan`, `resource`, `limit`, `namespace`, `lease` or
    /// `idempotency key`.
    pub kind: &'static str,
    /// Rejected value.
    pub value: String,
    /// Rule for the name.
    pub rule: &'static str,
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $kind:literal, $max:literal, $first:expr, $rest:expr, $rule:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(Box<str>);

        impl $type {
            /// Checks the name.
            ///
            /// # Errors
            /// [`NameError`] with the rule, if the name breaks it.
            pub fn new(name: impl Into<Box<str>>) -> Result<Self, NameError> {
                let name = name.into();
                let (first, rest): (fn(u8) -> bool, fn(u8) -> bool) = ($first, $rest);
                let mut bytes = name.bytes();
                if name.len() <= $max && bytes.next().is_some_and(first) && bytes.all(rest) && Self::is_free(&name) {
                    Ok(Self(name))
                } else {
                    Err(Self::refused(name))
                }
            }

            fn refused(name: impl Into<String>) -> NameError {
                NameError { kind: $kind, value: name.into(), rule: $rule }
            }

            /// Returns the name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }

        impl std::borrow::Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<&str> for $type {
            type Error = NameError;
            fn try_from(name: &str) -> Result<Self, NameError> {
                Self::new(name)
            }
        }
    };
}

name!(
    /// A tenant; the first part of every key.
    Namespace, "namespace", 32,
    |b| b.is_ascii_alphanumeric(),
    |b| b.is_ascii_alphanumeric() || b"_-".contains(&b),
    "1 to 32 of A-Z a-z 0-9 _ -, starting with a letter or digit"
);
name!(
    /// An entity, which is limited: `user-123`, `openai`.
    EntityId, "entity", 256,
    |b| b.is_ascii_alphanumeric(),
    |b| b.is_ascii_alphanumeric() || b"_.-:@".contains(&b),
    "1 to 256 of A-Z a-z 0-9 _ . - : @, starting with a letter or digit"
);
name!(
    /// A plan, whose limits hold for every entity that has it: `free`, `pro`.
    PlanName, "plan", 64,
    |b| b.is_ascii_alphanumeric(),
    |b| b.is_ascii_alphanumeric() || b"_.-".contains(&b),
    "1 to 64 of A-Z a-z 0-9 _ . -, starting with a letter or digit"
);
name!(
    /// A resource that an entity is limited on: `gpt-4`, `api/search`.
    Resource, "resource", 64,
    |b| b.is_ascii_alphabetic(),
    |b| b.is_ascii_alphanumeric() || b"_.-/:".contains(&b),
    "1 to 64 of A-Z a-z 0-9 _ . - / :, starting with a letter"
);
name!(
    /// A limit on a resource: `rpm`, `tpm`, `slots`. In buckets also the pool of a class,
    /// `tpm@batch`, which no limit of a configuration or a call can be named.
    LimitName, "limit", 64,
    |b| b.is_ascii_alphabetic(),
    |b| b.is_ascii_alphanumeric() || b"_.-@".contains(&b),
    "1 to 64 of A-Z a-z 0-9 _ . -, starting with a letter, and none of wcu, \
     total_events, final, ttl, PK, SK, GSI1PK, GSI1SK, GSI2PK, GSI2SK, \
     GSI3PK, GSI3SK, due_shard, due, q0, q1, ..."
);
name!(
    /// A class of callers, which has a part of a limit: `batch`.
    ClassName, "class", 32,
    |b| b.is_ascii_alphabetic(),
    |b| b.is_ascii_alphanumeric() || b"_-".contains(&b),
    "1 to 32 of A-Z a-z 0-9 _ -, starting with a letter"
);
name!(
    /// Id of a lease or of the last write of an item: random, and unique while it is compared.
    WriteId, "lease", 32,
    |b| b.is_ascii_lowercase() || b.is_ascii_digit(),
    |b| b.is_ascii_lowercase() || b.is_ascii_digit(),
    "1 to 32 of a-z 0-9"
);
name!(
    /// Key by which a repeated change of an operator is recognized: a ticket, a message's id.
    IdempotencyKey, "idempotency key", 128,
    |b| b.is_ascii_alphanumeric(),
    |b| b.is_ascii_alphanumeric() || b"_.-/:@".contains(&b),
    "1 to 128 of A-Z a-z 0-9 _ . - / : @, starting with a letter or digit"
);

macro_rules! any_is_free {
    ($($type:ident),*) => {$(
        impl $type {
            const fn is_free(_: &str) -> bool { true }
        }
    )*};
}
any_is_free!(Namespace, EntityId, PlanName, Resource, ClassName, WriteId, IdempotencyKey);

impl LimitName {
    /// Returns whether a limit can have this name. Usage snapshots have one attribute per limit
    /// beside their own, so the names must differ. They must also differ from the key attributes of
    /// indexes, which are no numbers.
    fn is_free(name: &str) -> bool {
        const TAKEN: [&str; 4] = ["wcu", "total_events", "final", "ttl"];
        let copied_at = name.strip_prefix('q');
        let class = name.split_once('@').map(|(_, class)| class);
        class.is_none_or(|class| ClassName::new(class).is_ok())
            && !TAKEN.contains(&name)
            && !attr::INDEXED.contains(&name)
            && !copied_at.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    }

    /// Checks the name of a limit that is no pool of another one.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn of_limit(name: &str) -> Result<Self, NameError> {
        // The rule that an error states does not have the character of pools.
        let known = Self::new(name)?;
        (!known.is_pool()).then_some(known).ok_or_else(|| Self::refused(name))
    }

    /// Returns the name of the whole limit.
    #[must_use]
    pub fn whole(&self) -> Self {
        Self(self.base().into())
    }

    /// Returns the name of the whole limit as text: that of a pool without its class.
    #[must_use]
    pub fn base(&self) -> &str {
        let pool = self.as_str().split_once('@');
        pool.map_or(self.as_str(), |(base, _)| base)
    }

    /// Returns the class whose pool it names.
    #[must_use]
    pub fn pool_of(&self) -> Option<&str> {
        self.as_str().split_once('@').map(|(_, class)| class)
    }

    /// Returns whether it names the pool of a class.
    #[must_use]
    pub fn is_pool(&self) -> bool {
        self.pool_of().is_some()
    }

    /// Returns the name of a class's pool of this limit.
    ///
    /// # Errors
    /// [`NameError`] if it is longer than 64 characters.
    pub fn pool(&self, class: &ClassName) -> Result<Self, NameError> {
        Self::new(format!("{self}@{class}"))
    }
}

impl WriteId {
    /// Returns thirteen characters of base 32 for 64 random bits.
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
        let digit = |place: u32| {
            let five = usize::try_from((bits >> (place * 5)) & 31).unwrap_or_default();
            char::from(DIGITS[five])
        };
        Self((0..13).rev().map(digit).collect::<String>().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_can_hold_a_key_delimiter() {
        for bad in ["", "a#b", "#", "a b", "é", "a\0", "a\n", "ａ", "a/../b#"] {
            assert!(EntityId::new(bad).is_err(), "{bad:?}");
            assert!(Namespace::new(bad).is_err(), "{bad:?}");
            assert!(PlanName::new(bad).is_err(), "{bad:?}");
            assert!(LimitName::new(bad).is_err(), "{bad:?}");
            assert!(Resource::new(bad).is_err(), "{bad:?}");
            assert!(WriteId::new(bad).is_err(), "{bad:?}");
        }
        assert!(Namespace::new("a/b").is_err());
        assert!(EntityId::new("a/b").is_err());
        assert!(PlanName::new("a/b").is_err());
        assert!(Resource::new("api/search").is_ok());
        assert!(EntityId::new("user@example.com:1").is_ok());
    }

    #[test]
    fn names_end_at_their_length() {
        assert!(Namespace::new("n".repeat(32)).is_ok() && Namespace::new("n".repeat(33)).is_err());
        assert!(EntityId::new("e".repeat(256)).is_ok() && EntityId::new("e".repeat(257)).is_err());
        assert!(Resource::new("r".repeat(64)).is_ok() && Resource::new("r".repeat(65)).is_err());
        assert!(LimitName::new("l".repeat(64)).is_ok() && LimitName::new("l".repeat(65)).is_err());
    }

    #[test]
    fn a_limit_cannot_take_the_name_of_a_snapshot_attribute() {
        for taken in ["wcu", "ttl", "total_events", "final", "q0", "q17", "PK"] {
            let error = LimitName::new(taken).unwrap_err();
            assert!(error.to_string().contains(taken), "{error}");
        }
        for free in ["q", "g", "qps", "q0x", "rpm", "gpu0"] {
            assert!(LimitName::new(free).is_ok(), "{free}");
        }
    }

    #[test]
    fn write_ids_are_thirteen_characters_and_differ_by_bits() {
        assert_eq!(WriteId::from_bits(0).as_str(), "0000000000000");
        assert_eq!(WriteId::from_bits(33).as_str(), "0000000000011");
        assert_eq!(WriteId::from_bits(u64::MAX).as_str(), "fzzzzzzzzzzzz");
        assert!(WriteId::new(WriteId::from_bits(u64::MAX).as_str()).is_ok());
    }
}
