//! Ends of the windows of quotas, and the scales of schedules. Without the feature `calendar`, only
//! ends of sessions are known.

use weirgate_shared::{ActiveScale, Calendar, EpochMillis, Millis, Schedule, WindowCode};

/// The calendar of all writes.
pub(crate) const CALENDAR: Calendar = Calendar::new(end_after);

/// What to do about a window that it does not know.
pub(crate) const REMEDY: &str = match cfg!(feature = "calendar") {
    true => "it is of a newer release, or its zone is; update Weirgate",
    false => "enable the feature `calendar` of the crate weirgate",
};

/// What to do about a schedule that was not applied.
pub(crate) const SCHEDULE_REMEDY: &str = match cfg!(feature = "calendar") {
    true => {
        "only a configured limit can have: set it for a level, and leave the limits out of the call"
    }
    false => "this process cannot apply: enable the feature `calendar` of the crate weirgate",
};

/// Returns what a schedule says at `now`; `None` if this process does not know it.
#[cfg(feature = "calendar")]
pub(crate) fn active_scale(schedule: &Schedule, now: EpochMillis) -> Option<ActiveScale> {
    weirgate_shared::calendar::active_scale(schedule, now)
}

#[cfg(not(feature = "calendar"))]
pub(crate) const fn active_scale(_: &Schedule, _: EpochMillis) -> Option<ActiveScale> {
    None
}

/// Returns whether this process knows when windows of this code end.
pub(crate) fn knows(code: WindowCode) -> bool {
    code.session().is_some() || cfg!(feature = "calendar") && code.decode().is_some()
}

/// Returns the end of the window that contains `now`, or of a session that begins now; `None` if this
/// process does not know it.
pub(crate) fn end_after(code: WindowCode, now: EpochMillis) -> Option<EpochMillis> {
    #[cfg(feature = "calendar")]
    return weirgate_shared::calendar::end_after(code, now);
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
    weirgate_shared::calendar::start_before(code, end).map(|start| end.since(start))
}

#[cfg(not(feature = "calendar"))]
const fn of_calendar(_code: WindowCode, _end: EpochMillis) -> Option<Millis> {
    None
}
