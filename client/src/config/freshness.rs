//! How long cached configurations are used: when an acquire reads them again.

use std::sync::Arc;
use std::time::Duration;

use weirgate_shared::{EntityId, PlanName};

use crate::session::{Moment, Session};
use crate::values::{EffectiveConfig, FileLevels};

/// Age below which a configuration is not read again for any reason, 1 s.
pub(super) const MIN_REREAD_INTERVAL: Duration = Duration::from_secs(1);

/// Greatest age of limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// The limiter's setting.
    AnyAge,
    /// [`MIN_REREAD_INTERVAL`], because the limits have probably changed.
    Recent,
    /// Read for this purpose.
    Now,
}

impl Freshness {
    /// Returns the age from which a part of the configuration is read again.
    pub(super) fn max_age(self, session: &Session) -> Duration {
        let ttl = session.settings.config_ttl;
        match self {
            Self::AnyAge => ttl,
            Self::Recent => ttl.min(MIN_REREAD_INTERVAL),
            Self::Now => Duration::ZERO,
        }
    }

    /// Returns whether a cached configuration can be used.
    pub(super) fn accepts(self, resolved: &ResolvedConfig, session: &Session) -> bool {
        resolved.generation == session.config_cache.generation()
            && resolved.is_in_force(session)
            && match self {
                Self::AnyAge => session.env.ages.now() < resolved.valid_until,
                Self::Recent => !resolved.may_be_stale(session.env.ages.now()),
                Self::Now => false,
            }
    }
}

impl ResolvedConfig {
    /// Returns whether no schedule has passed a boundary since it was resolved.
    fn is_in_force(&self, session: &Session) -> bool {
        let config = self.config.as_ref();
        let in_force = config.and_then(|config| config.in_force.as_ref());
        in_force.is_none_or(|in_force| in_force.contains(&session.now()))
    }

    /// Returns the same after a read that failed: none follows for a second, whatever age is needed.
    pub(super) fn after_failure(self) -> Self {
        let read_at = self.tried_at;
        Self { read_at, ..self }
    }

    /// Returns whether it is old enough to be read again.
    pub(crate) fn may_be_stale(&self, now: Moment) -> bool {
        now.since(self.read_at) >= MIN_REREAD_INTERVAL
    }

    /// Returns whether a bucket showed a `newer` version, and it is long enough ago that this one was
    /// read.
    pub(super) fn is_older_than(&self, newer: i64, now: Moment) -> bool {
        let may_be_read = now.since(self.tried_at) >= MIN_REREAD_INTERVAL;
        self.config.is_some() && self.version < newer && may_be_read
    }
}

/// The limits in force for an entity on a resource, and the parent.
#[derive(Debug)]
pub(crate) struct ResolvedConfig {
    /// `None` if no level has a configuration.
    pub(crate) config: Option<Arc<EffectiveConfig>>,
    /// Parent that the entity cascades to.
    pub(crate) parent: Option<EntityId>,
    /// Plan of the entity, if it is known not to exist.
    pub(crate) missing_plan: Option<PlanName>,
    /// Time of the last read of the oldest part, also of one that failed.
    pub(super) read_at: Moment,
    /// The same, also of one that was given up.
    pub(super) tried_at: Moment,
    pub(super) valid_until: Moment,
    pub(super) generation: u64,
    /// Sum of the versions of the table's levels and of the entity, which rises with every change of any
    /// level or of the plan.
    pub(super) version: i64,
    /// The limits file that it was resolved with.
    pub(super) file: Option<Arc<FileLevels>>,
}
