//! The limits that an acquire has for a bucket, and their version.

use std::cmp::Ordering;
use std::fmt;

use crate::{EpochMillis, Limit, Millis, WindowCode};

/// Time for which a bucket keeps rules that an acquire has changed without a newer version of the
/// same place, against other such acquires.
///
/// Otherwise two releases with different limits would overrule each other with every take.
pub const RULES_STAND: Millis = Millis(30_000);

/// A version of limits. Of two by one place, the one with the greater number is newer; of equal
/// numbers, the one with the later boundary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitsVersion {
    /// Number by the place that counts it: of changes in the table, or the complement of a release's
    /// number in the code, which is negative.
    pub number: i64,
    /// Last boundary of the schedules by which the limits are scaled; 0 without schedules.
    pub boundary: EpochMillis,
}

impl LimitsVersion {
    /// Returns the version with a number, of limits without schedules.
    #[must_use]
    pub const fn new(number: i64) -> Self {
        let boundary = EpochMillis(0);
        Self { number, boundary }
    }

    /// Returns the version of limits in the code, from 0.
    #[must_use]
    pub const fn of_release(number: i64) -> Self {
        Self::new(!number)
    }

    /// Returns the number of changes, of limits in the table.
    #[must_use]
    pub fn changes(self) -> Option<i64> {
        (self.number >= 0).then_some(self.number)
    }

    /// Returns the boundary, of limits with schedules.
    #[must_use]
    pub fn scaled_since(self) -> Option<EpochMillis> {
        (self.boundary.0 > 0).then_some(self.boundary)
    }
}

/// When the windows of quotas end. All calendars say the same, or nothing.
#[derive(Clone, Copy)]
pub struct Calendar(fn(WindowCode, EpochMillis) -> Option<EpochMillis>);

impl Calendar {
    /// Returns the calendar of a function that returns the end of the window that contains an
    /// instant; of a session, the end of the one that begins then. `None` for a window that it does
    /// not know.
    #[must_use]
    pub const fn new(end_after: fn(WindowCode, EpochMillis) -> Option<EpochMillis>) -> Self {
        Self(end_after)
    }

    /// Returns the end of the window that contains `now`; `None` for one that is not known here.
    #[must_use]
    pub fn end_after(self, code: WindowCode, now: EpochMillis) -> Option<EpochMillis> {
        (self.0)(code, now)
    }
}

/// Knows sessions only.
impl Default for Calendar {
    fn default() -> Self {
        Self(|code, now| code.session().map(|length| now.plus(length)))
    }
}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Calendar")
    }
}

impl PartialEq for Calendar {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Calendar {}

/// The limits that an acquire brings to a bucket.
///
/// Limits with a version yield to a newer version of the same place, so a process with old limits
/// does not undo a change. Limits of another place, or without a version, overrule, at most once in
/// [`RULES_STAND`](crate::RULES_STAND).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VersionedLimits<'a> {
    /// The limits.
    pub limits: &'a [Limit],
    /// Version of the configuration, or of the release, that they are from.
    pub version: Option<LimitsVersion>,
    /// Whether they are configured for exactly this entity and resource, so that the bucket is
    /// kept. Other buckets end when they are unused.
    pub is_own: bool,
    /// Calendar of their quotas.
    pub calendar: Calendar,
}

impl VersionedLimits<'_> {
    /// Compares their version with that of a bucket at `now`. `None` if not the same place counts both.
    ///
    /// Processes whose clocks are on both sides of a boundary agree, because the later boundary is
    /// newer. One that is further ahead than clocks differ comes from a wrong clock, and counts as none.
    #[must_use]
    pub fn order(self, known: Option<LimitsVersion>, now: EpochMillis) -> Option<Ordering> {
        let (ours, known) = (self.version?, known?);
        let is_same_place = ours.number.is_negative() == known.number.is_negative();
        let is_wrong = known.boundary > now.plus(RULES_STAND);
        let boundary = if is_wrong { EpochMillis(0) } else { known.boundary };
        let by_number = ours.number.unsigned_abs().cmp(&known.number.unsigned_abs());
        is_same_place.then(|| by_number.then(ours.boundary.cmp(&boundary)))
    }
}

impl<'a, L: AsRef<[Limit]> + ?Sized> From<&'a L> for VersionedLimits<'a> {
    fn from(limits: &'a L) -> Self {
        Self { limits: limits.as_ref(), ..Self::default() }
    }
}
