//! The limits that a request brings.

use std::ops::Deref;
use std::sync::Arc;

use weirgate_shared::{Limit, Terms};

/// Limits, and the version of the configuration they are from. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Limits {
    list: Arc<[Limit]>,
    pub(crate) version: Option<i64>,
}

impl Limits {
    pub(crate) const fn new(list: Arc<[Limit]>, version: Option<i64>) -> Self {
        Self { list, version }
    }

    /// The same limits, said to be of another version.
    pub(crate) fn of_version(&self, version: i64) -> Self {
        Self { list: Arc::clone(&self.list), version: Some(version) }
    }
}

impl Deref for Limits {
    type Target = [Limit];
    fn deref(&self) -> &[Limit] {
        &self.list
    }
}

impl PartialEq for Limits {
    fn eq(&self, other: &Self) -> bool {
        self.version == other.version && (Arc::ptr_eq(&self.list, &other.list) || self.list == other.list)
    }
}

impl<'a> From<&'a Limits> for Terms<'a> {
    fn from(limits: &'a Limits) -> Self {
        Self { limits, version: limits.version }
    }
}
