//! Cache of the switches by which an operator stops levels.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use weirgate_shared::Switches;

use super::Session;
use super::ages::{Cached, Moment};
use crate::values::Locked;

/// Age below which the switches are not read again, and time after a failed read before the next,
/// 1 s.
const MIN_REREAD_INTERVAL: Duration = Duration::from_secs(1);

/// The cached switches of the namespace, and the lock of their load.
#[derive(Debug, Default)]
pub(crate) struct SwitchCache {
    known: Locked<Option<Cached<Arc<Switches>>>>,
    failed_at: Locked<Option<Moment>>,
    /// Whether this process has changed the switches since it read them, or may have.
    is_changed: AtomicBool,
    /// Held by the read in flight.
    pub(crate) loading: Arc<tokio::sync::Mutex<()>>,
}

/// The switches as a process knows them.
pub(crate) struct KnownSwitches {
    /// The last that were read; `None` if none were.
    pub(crate) latest: Option<Arc<Switches>>,
    pub(crate) is_due: bool,
    /// Whether this process has changed them since, or may have.
    pub(crate) is_changed: bool,
}

impl SwitchCache {
    /// Returns the age at which the switches are due to be read again.
    #[allow(clippy::unused_self, reason = "it is a property of the cache")]
    pub(crate) fn max_age(&self, session: &Session) -> Duration {
        session.settings.config_ttl.max(MIN_REREAD_INTERVAL)
    }

    /// Returns the last switches that were read, and whether they are due to be read again.
    pub(crate) fn known(&self, session: &Session) -> KnownSwitches {
        let now = session.ages.now();
        let known = self.known.lock();
        let max_age = self.max_age(session);
        let is_fresh = |read: &Cached<_>| now.since(read.read_at) < max_age;
        let failed_at = *self.failed_at.lock();
        let has_failed = failed_at.is_some_and(|at| now.since(at) < MIN_REREAD_INTERVAL);
        let latest = known.as_ref().map(|read| Arc::clone(&read.value));
        let is_changed = self.is_changed.load(Ordering::Acquire);
        KnownSwitches {
            is_due: !has_failed && (is_changed || !known.as_ref().is_some_and(is_fresh)),
            is_changed,
            // Switches that cannot be read stop nothing.
            latest: latest.or_else(|| has_failed.then(Arc::default)),
        }
    }

    /// Returns the switches, unless they are due to be read.
    pub(crate) fn fresh(&self, session: &Session) -> Option<Arc<Switches>> {
        let KnownSwitches { latest, is_due, .. } = self.known(session);
        latest.filter(|_| !is_due)
    }

    /// Caches switches read at `read_at`, unless they were invalidated since. Returns them.
    pub(crate) fn insert(
        &self,
        is_current: bool,
        read_at: Moment,
        read: Switches,
    ) -> Arc<Switches> {
        let value = Arc::new(read);
        if is_current {
            let value = Arc::clone(&value);
            *self.known.lock() = Some(Cached { read_at, value });
            *self.failed_at.lock() = None;
            self.is_changed.store(false, Ordering::Release);
        }
        value
    }

    /// Records a failed read. Returns the last switches, or none.
    pub(crate) fn record_failure(&self, at: Moment) -> Arc<Switches> {
        *self.failed_at.lock() = Some(at);
        latest(self.known.lock().as_ref())
    }

    /// Makes the switches due, because this process has changed them, or may have. Until they are
    /// read, those known before stay in force.
    pub(super) fn mark_changed(&self) {
        self.is_changed.store(true, Ordering::Release);
        *self.failed_at.lock() = None;
    }
}

fn latest(known: Option<&Cached<Arc<Switches>>>) -> Arc<Switches> {
    known
        .map(|read| Arc::clone(&read.value))
        .unwrap_or_default()
}
