//! Boundaries of the windows of quotas.

use std::cell::RefCell;
use std::collections::VecDeque;

use jiff::civil::{Date, DateTime};
use jiff::{Span, ToSpan};

use super::zone::Zone;
use crate::{CalendarWindow, EpochMillis, Period, QuotaWindow, WindowCode, ZoneName};

/// Returns the end of the window that contains `now`; of a session that begins now, the end of its
/// length. `None` for a code that this release does not know.
///
/// It never panics: a window that ends after the year 9999 ends at `i64::MAX`, and times before
/// the year -9999 belong to the first window that ends within these years.
///
/// ```
/// # use weirgate_shared::calendar::end_after;
/// # use weirgate_shared::{EpochMillis, QuotaWindow};
/// let window: QuotaWindow = "day,tz=America/New_York".parse()?;
/// let noon = EpochMillis(1_772_989_200_000); // 8 March 2026, 13:00 there: the clock skipped an hour
/// let end = end_after(window.code(), noon);
/// assert_eq!(end.map(|end| end.since(noon).0), Some(11 * 3_600_000));
/// # Ok::<(), weirgate_shared::WindowError>(())
/// ```
#[must_use]
pub fn end_after(code: WindowCode, now: EpochMillis) -> Option<EpochMillis> {
    if let Some(length) = code.session() {
        return Some(now.plus(length));
    }
    within(code, now).map(|(_, end)| end)
}

thread_local! {
    /// The last windows that were asked for, because one plan asks several times.
    static LAST: RefCell<VecDeque<(WindowCode, (EpochMillis, EpochMillis))>> = const { RefCell::new(VecDeque::new()) };
}
/// Maximum windows in [`LAST`].
const MAX_LAST: usize = 8;

/// Returns the bounds of the window on the calendar that contains `now`.
fn within(code: WindowCode, now: EpochMillis) -> Option<(EpochMillis, EpochMillis)> {
    LAST.with_borrow_mut(|last| {
        let is_it = |(known, (start, end)): &&(WindowCode, (EpochMillis, EpochMillis))| {
            *known == code && (*start..*end).contains(&now)
        };
        if let Some((_, bounds)) = last.iter().find(is_it) {
            return Some(*bounds);
        }
        let QuotaWindow::Calendar(window) = code.decode()? else {
            return None;
        };
        let found = bounds(&window, now)?;
        last.push_front((code, found));
        last.truncate(MAX_LAST);
        Some(found)
    })
}

/// Returns the start of the window that ends at `end`; `None` for a code that this release does not
/// know.
#[must_use]
pub fn start_before(code: WindowCode, end: EpochMillis) -> Option<EpochMillis> {
    if let Some(length) = code.session() {
        return Some(EpochMillis(end.0.saturating_sub(length.0)));
    }
    within(code, EpochMillis(end.0.saturating_sub(1))).map(|(start, _)| start)
}

/// Returns the start and the end of the window that contains `now`, as [`end_after`] does; `None` if
/// the database does not have the zone. A window that begins before the year -9999 begins at
/// `i64::MIN`.
#[must_use]
pub fn bounds(window: &CalendarWindow, now: EpochMillis) -> Option<(EpochMillis, EpochMillis)> {
    let zone = Zone::of(window.zone())?;
    let (start, end) = zone.around(now, |at| floor(window, at), |at| next(window, at));
    let instant = |civil: Option<DateTime>, beyond| {
        civil.map_or(EpochMillis(beyond), |civil| zone.first_instant(civil))
    };
    Some((instant(start, i64::MIN), instant(end, i64::MAX)))
}

/// Returns the last begin of a period at or before a local time.
fn floor(window: &CalendarWindow, at: DateTime) -> Option<DateTime> {
    begin(window, at, 0).filter(|begin| *begin <= at).or_else(|| begin(window, at, -1))
}

/// Returns the first begin of a period after a local time.
fn next(window: &CalendarWindow, at: DateTime) -> Option<DateTime> {
    begin(window, at, 0).filter(|begin| *begin > at).or_else(|| begin(window, at, 1))
}

/// Returns the begin within the calendar's hour, day, week, month or year of a local time, or
/// that many later.
fn begin(window: &CalendarWindow, at: DateTime, later: i64) -> Option<DateTime> {
    let move_by = |date: Date, span: Span| date.checked_add(span).ok();
    let date = match window.period() {
        Period::Hour => {
            let hour = at.date().at(at.hour(), i8_of(window.minute()), 0, 0);
            return hour.checked_add(later.hours()).ok();
        }
        Period::Day => move_by(at.date(), later.days())?,
        Period::Week => {
            let since = at.date().weekday().since(jiff::civil::Weekday::Monday);
            let back = (i64::from(since) + 1 - i64::from(window.day())).rem_euclid(7);
            move_by(at.date(), (later * 7 - back).days())?
        }
        Period::Month => day_of(window, move_by(at.date().first_of_month(), later.months())?)?,
        Period::Year => {
            let first = move_by(at.date().first_of_year(), later.years())?;
            let month = i64::from(window.month()) - 1;
            day_of(window, move_by(first, month.months())?)?
        }
    };
    Some(date.at(i8_of(window.hour()), i8_of(window.minute()), 0, 0))
}

/// Returns the window's day in the month that begins on `first`, or its last day.
fn day_of(window: &CalendarWindow, first: Date) -> Option<Date> {
    let day = i8_of(window.day()).min(first.days_in_month());
    first.with().day(day).build().ok()
}

/// Numbers of the calendar are below 60.
fn i8_of(number: u8) -> i8 {
    i8::try_from(number).unwrap_or(i8::MAX)
}

/// Returns an instant on the clock of a window's zone, as people read it: `15 Dec 09:00 (Berlin)`.
/// A session, or a window that this release does not know, is shown in UTC.
#[must_use]
pub fn shown(code: WindowCode, at: EpochMillis) -> Option<String> {
    let name = match code.decode() {
        Some(QuotaWindow::Calendar(window)) => window.zone(),
        Some(QuotaWindow::Session(_)) | None => ZoneName::UTC,
    };
    shown_in(name, at)
}

/// Returns an instant on the clock of a zone, as people read it: `15 Dec 09:00 (Berlin)`.
#[must_use]
pub fn shown_in(zone: ZoneName, at: EpochMillis) -> Option<String> {
    let local = Zone::of(zone)?.local(at)?;
    let time = match local.second() {
        0 => local.strftime("%-d %b %H:%M"),
        _ => local.strftime("%-d %b %H:%M:%S"),
    };
    Some(format!("{time} ({})", zone.city()))
}
