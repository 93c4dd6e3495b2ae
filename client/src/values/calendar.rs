//! Ends of the windows of quotas. Without the feature `calendar`, only those of sessions are known.

use weirgate_shared::{Calendar, EpochMillis, Millis, WindowCode};

/// The calendar of all writes.
pub(crate) const CALENDAR: Calendar = Calendar::new(end_after);

/// What to do about a window that it does not know.
pub(crate) const REMEDY: &str = match cfg!(feature = "calendar") {
    true => "it is of a newer release, or its zone is; update Weirgate",
    false => "enable the feature `calendar` of the crate weirgate",
};

/// Returns whether this process knows when windows of this code end.
pub(crate) fn knows(code: WindowCode) -> bool {
    code.session().is_some() || cfg!(feature = "calendar") && code.decode().is_some()
}

/// Returns the end of the window that contains `now`, or of a session that begins now; `None` if this
/// process does not know it.
pub(crate) fn end_after(code: WindowCode, now: EpochMillis) -> Option<EpochMillis> {
    #[cfg(feature = "calendar")]
    return weirgate_calendar::end_after(code, now);
    #[cfg(not(feature = "calendar"))]
    Calendar::default().end_after(code, now)
}

/// Returns the length of the window that ends at `end`, or of a session that has not begun; `None` if
/// this process does not know it.
pub(crate) fn length(code: WindowCode, end: Option<EpochMillis>) -> Option<Millis> {
    code.session().or_else(|| of_calendar(code, end?))
}

#[cfg(feature = "calendar")]
fn of_calendar(code: WindowCode, end: EpochMillis) -> Option<Millis> {
    weirgate_calendar::start_before(code, end).map(|start| end.since(start))
}

#[cfg(not(feature = "calendar"))]
const fn of_calendar(_code: WindowCode, _end: EpochMillis) -> Option<Millis> {
    None
}
