//! The limits of a bucket as a caller knows them, and how new that is.

use crate::Limit;

/// The limits that a caller brings to a bucket.
///
/// Limits from the table have a version, and those of an older version than the bucket's give way: a caller that has not
/// heard of a change yet does not undo it. Limits given with a call have none, and overrule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Terms<'a> {
    /// The limits.
    pub limits: &'a [Limit],
    /// Version of the configuration they are from.
    pub version: Option<i64>,
}

impl<'a> Terms<'a> {
    /// Those limits whose rules overrule the ones of a bucket of this version: all, or none.
    pub fn newer_than(self, bucket: Option<i64>) -> impl Iterator<Item = &'a Limit> {
        let is_newer = self.version.is_none() || bucket < self.version;
        self.limits.iter().filter(move |_| is_newer)
    }
}

impl<'a> From<&'a [Limit]> for Terms<'a> {
    fn from(limits: &'a [Limit]) -> Self {
        Self { limits, version: None }
    }
}

impl<'a, const N: usize> From<&'a [Limit; N]> for Terms<'a> {
    fn from(limits: &'a [Limit; N]) -> Self {
        Self { limits, version: None }
    }
}

impl<'a> From<&'a Vec<Limit>> for Terms<'a> {
    fn from(limits: &'a Vec<Limit>) -> Self {
        Self { limits, version: None }
    }
}
