//! A mutex without poisoning.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A mutex that ignores poisoning, because what it guards is consistent between any two statements.
#[derive(Debug, Default)]
pub(crate) struct Locked<T>(Mutex<T>);

impl<T> Locked<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
