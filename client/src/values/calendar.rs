//! The calendar of quotas.

use weirgate_shared::Calendar;

/// Knows all windows.
#[cfg(feature = "calendar")]
pub(crate) const CALENDAR: Calendar = Calendar::new(weirgate_calendar::end_after);
/// What to do about a window that it does not know.
#[cfg(feature = "calendar")]
pub(crate) const REMEDY: &str = "it is of a newer release, or its zone is; update Weirgate";

/// Knows sessions.
#[cfg(not(feature = "calendar"))]
pub(crate) const CALENDAR: Calendar =
    Calendar::new(|code, now| code.session().map(|length| now.plus(length)));
#[cfg(not(feature = "calendar"))]
pub(crate) const REMEDY: &str = "enable the feature `calendar` of the crate weirgate";
