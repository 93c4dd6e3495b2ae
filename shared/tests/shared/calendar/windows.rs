//! The days of which clocks change, and that windows tile all time.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZoneDatabase;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use weirgate_shared::calendar::{end_after, shown};
use weirgate_shared::{CalendarWindow, EpochMillis, Period, QuotaWindow, WindowCode, ZoneName};

use super::{Boundaries, DAY, utc, window};
use crate::quotas;

/// Returns the start and the end of the window that contains an instant, in UTC.
fn bounds(text: &str, at: &str) -> (EpochMillis, EpochMillis) {
    window(text).bounds(utc(at))
}

/// Windows of days on which clocks change, each with its start and its end in UTC.
const CHANGES: &str = "\
# The clock skips 2:00 to 3:00, and repeats 1:00 to 2:00.
day,tz=America/New_York 2026-03-08T05:00 2026-03-09T04:00
day,tz=America/New_York 2026-11-01T04:00 2026-11-02T05:00
day,at=02:30,tz=America/New_York 2026-03-07T07:30 2026-03-08T07:00
day,at=02:30,tz=America/New_York 2026-03-08T07:00 2026-03-09T06:30
day,at=01:30,tz=America/New_York 2026-11-01T05:30 2026-11-02T06:30
hour,tz=America/New_York 2026-03-08T06:00 2026-03-08T07:00
hour,tz=America/New_York 2026-11-01T05:00 2026-11-01T07:00
month,tz=America/New_York 2026-03-01T05:00 2026-04-01T04:00
# Midnight is skipped: the day begins at 1:00.
day,tz=America/Santiago 2026-09-05T04:00 2026-09-06T04:00
day,tz=America/Santiago 2026-09-06T04:00 2026-09-07T03:00
day,tz=Asia/Beirut 2026-03-28T22:00 2026-03-29T21:00
day,tz=America/Sao_Paulo 2018-11-04T03:00 2018-11-05T02:00
# Midnight occurs twice.
day,tz=America/Santiago 2026-04-04T03:00 2026-04-05T04:00
day,tz=America/Sao_Paulo 2018-02-17T02:00 2018-02-18T03:00
# Changes of half an hour, and a zone of 12:45.
hour,tz=Australia/Lord_Howe 2026-10-03T15:30 2026-10-03T16:00
hour,tz=Australia/Lord_Howe 2026-04-04T14:00 2026-04-04T15:30
hour,tz=Pacific/Chatham 2026-07-01T00:15 2026-07-01T01:15
hour,at=:30,tz=Asia/Kolkata 2026-07-01T00:00 2026-07-01T01:00
# 30 December 2011 does not exist.
day,tz=Pacific/Apia 2011-12-29T10:00 2011-12-30T10:00
day,tz=Pacific/Apia 2011-12-30T10:00 2011-12-31T10:00
day,at=09:00,tz=Pacific/Apia 2011-12-30T10:00 2011-12-30T19:00
month,day=30,tz=Pacific/Apia 2011-12-30T10:00 2012-01-29T10:00
day,tz=Pacific/Kwajalein 1993-08-20T12:00 1993-08-21T12:00
day,tz=Pacific/Kwajalein 1993-08-21T12:00 1993-08-22T12:00
# 4 July 1892 occurs twice.
day,tz=Pacific/Apia 1892-07-03T11:26:56 1892-07-05T11:26:56";

#[test]
fn days_on_which_clocks_change_have_one_window() {
    for row in CHANGES.lines().filter(|row| !row.starts_with('#')) {
        let [text, start, end] = row.split(' ').collect::<Vec<_>>()[..] else { panic!("{row}") };
        let expected = (utc(start), utc(end));
        let window = window(text);
        assert_eq!(window.bounds(expected.0), expected, "{text} from {start}");
        assert_eq!(window.bounds(EpochMillis(expected.1.0 - 1)), expected, "{text} to {end}");
    }
}

#[test]
fn a_month_that_lacks_the_day_begins_on_its_last_day() {
    let month = bounds("month,day=31,at=09:00", "2026-02-28T09:00");
    assert_eq!(month, (utc("2026-02-28T09:00"), utc("2026-03-31T09:00")));
    let month = bounds("month,day=31", "2028-02-28T09:00");
    assert_eq!(month, (utc("2028-01-31T00:00"), utc("2028-02-29T00:00")));
    let year = bounds("year,month=2,day=29", "2027-12-01T00:00");
    assert_eq!(year, (utc("2027-02-28T00:00"), utc("2028-02-29T00:00")));
}

#[test]
fn defaults_are_utc_monday_and_the_first() {
    for (text, start, end) in [
        ("hour", "2026-05-13T10:00", "2026-05-13T11:00"),
        ("day", "2026-05-13T00:00", "2026-05-14T00:00"),
        ("week", "2026-05-11T00:00", "2026-05-18T00:00"),
        ("week,day=sunday", "2026-05-10T00:00", "2026-05-17T00:00"),
        ("week,day=wednesday,at=10:30", "2026-05-06T10:30", "2026-05-13T10:30"),
        ("month", "2026-05-01T00:00", "2026-06-01T00:00"),
        ("year", "2026-01-01T00:00", "2027-01-01T00:00"),
        ("year,month=4,day=6", "2026-04-06T00:00", "2027-04-06T00:00"),
    ] {
        assert_eq!(bounds(text, "2026-05-13T10:20"), (utc(start), utc(end)), "{text}");
    }
}

#[test]
fn a_session_ends_its_length_after_its_first_use() {
    let session: QuotaWindow = "5h".parse().unwrap();
    let now = utc("2026-05-13T10:20");
    assert_eq!(end_after(session.code(), now), Some(utc("2026-05-13T15:20")));
}

#[test]
fn an_unknown_window_has_no_end() {
    for code in [0, 1, -1, i64::MIN, i64::MAX] {
        assert_eq!(end_after(WindowCode(code), utc("2026-05-13T10:20")), None);
    }
}

#[test]
fn an_end_is_shown_on_the_clock_of_its_zone() {
    for (text, at, expected) in [
        ("month,day=15,at=09:00,tz=Europe/Berlin", "2026-12-15T08:00", "15 Dec 09:00 (Berlin)"),
        ("day,tz=America/New_York", "2026-11-02T05:00", "2 Nov 00:00 (New York)"),
        ("month", "2026-12-01T00:00", "1 Dec 00:00 (UTC)"),
        ("5h", "2026-12-01T00:00:07", "1 Dec 00:00:07 (UTC)"),
    ] {
        let window: QuotaWindow = text.parse().unwrap();
        assert_eq!(shown(window.code(), utc(at)).as_deref(), Some(expected));
    }
    assert_eq!(
        shown(WindowCode(-1), utc("2026-12-01T00:00")).as_deref(),
        Some("1 Dec 00:00 (UTC)")
    );
    assert_eq!(shown(WindowCode(-1), EpochMillis(i64::MAX)), None);
}

/// Returns some window in any zone.
fn any_window() -> impl Strategy<Value = CalendarWindow> {
    let names: Vec<_> = ZoneName::all().map(|zone| zone.to_string()).collect();
    // Those whose clocks change by half an hour, at midnight, by a day, or by two hours.
    let odd = [
        "Australia/Lord_Howe",
        "America/Santiago",
        "Pacific/Apia",
        "Pacific/Kwajalein",
        "Antarctica/Troll",
        "Africa/Casablanca",
        "Asia/Manila",
    ];
    let odd = prop::sample::select(odd.to_vec()).prop_map(str::to_owned);
    quotas::any_window(prop_oneof![odd, prop::sample::select(names)])
}

/// Returns some instant: often near a day that a zone skips or repeats, sometimes beyond all years.
fn any_instant() -> impl Strategy<Value = EpochMillis> {
    prop_oneof![
        4 => utc("1970-01-01T00:00").0..utc("2060-01-01T00:00").0,
        1 => utc("2011-12-28T00:00").0..utc("2012-01-02T00:00").0,
        1 => utc("1993-08-18T00:00").0..utc("1993-08-25T00:00").0,
        1 => utc("1892-07-02T00:00").0..utc("1892-07-08T00:00").0,
        1 => utc("1844-12-29T00:00").0..utc("1845-01-03T00:00").0,
        1 => any::<i64>(),
        1 => Timestamp::MAX.as_millisecond() - 400 * DAY..=Timestamp::MAX.as_millisecond() + DAY,
        1 => Timestamp::MIN.as_millisecond() - DAY..=Timestamp::MIN.as_millisecond() + 400 * DAY,
        1 => prop::sample::select(vec![i64::MIN, i64::MIN + 1, i64::MAX - 1]),
    ]
    .prop_map(EpochMillis)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2_000,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn windows_tile_all_time(window in any_window(), now in any_instant(), part in 0.0..1.0_f64) {
        let (start, end) = window.bounds(now);
        prop_assert!(start <= now && now < end, "{:?}", (start, end));
        prop_assert_eq!(window.end_after(now), end);
        // Each instant of the window has the same bounds.
        let length = i128::from(end.0) - i128::from(start.0);
        #[allow(clippy::as_conversions, reason = "any instant of the window")]
        let within = (length as f64 * part) as i128;
        let within = i64::try_from(i128::from(start.0) + within.min(length - 1)).unwrap();
        for within in [start.0, within, end.0 - 1] {
            prop_assert_eq!(window.bounds(EpochMillis(within)), (start, end));
        }
        if end.0 < i64::MAX {
            let (start_of_next, end_of_next) = window.bounds(end);
            prop_assert_eq!(start_of_next, end);
            prop_assert!(end_of_next > end);
        }
        if start.0 > i64::MIN {
            prop_assert_eq!(window.end_after(EpochMillis(start.0 - 1)), start);
        }
    }

    #[test]
    fn ends_are_monotone(window in any_window(), one in any_instant(), other in any_instant()) {
        let (one, other) = (one.min(other), one.max(other));
        prop_assert!(window.end_after(one) <= window.end_after(other));
    }

    /// The clock shows at an end what the window says, or a gap skipped that.
    #[test]
    fn the_clock_at_an_end_is_what_the_window_says(window in any_window(), now in any_instant()) {
        let end = window.end_after(now);
        let Ok(at) = Timestamp::from_millisecond(end.0) else { return Ok(()) };
        let zone = TimeZoneDatabase::bundled().get(window.zone().as_str()).unwrap();
        let (local, moment) = (zone.to_datetime(at), jiff::SignedDuration::from_millis(1));
        let before = zone.to_datetime(at.checked_sub(moment).unwrap());
        let fields = window.fields();
        let field = |name| fields.iter().find(|(field, _)| *field == name).map(|(_, text)| &**text);
        let says = |local: DateTime| {
            let month: i8 = field("month").map_or(1, |month| month.parse().unwrap());
            let day = || field("day").map_or(1, |day| day.parse().unwrap());
            let day = match window.period() {
                Period::Hour | Period::Day => true,
                Period::Week => {
                    let name = local.strftime("%A").to_string().to_lowercase();
                    name == field("day").unwrap_or("monday")
                }
                Period::Month => local.day() == local.days_in_month().min(day()),
                Period::Year => {
                    (local.month(), local.day()) == (month, local.days_in_month().min(day()))
                }
            };
            let time = match window.period() {
                Period::Hour => local.strftime(":%M").to_string() == field("at").unwrap_or(":00"),
                _ => local.strftime("%H:%M").to_string() == field("at").unwrap_or("00:00"),
            };
            day && time && local.second() == 0
        };
        let skips = local.duration_since(before) > moment;
        let mut skipped = std::iter::successors(Some(before), |skipped| {
            let minute = jiff::SignedDuration::from_mins(1);
            // From the next whole minute on.
            let next = skipped.checked_add(minute).ok()?;
            next.with().second(0).subsec_nanosecond(0).build().ok().filter(|next| *next < local)
        });
        prop_assert!(says(local) || skips && skipped.any(says), "{local} after {before}");
    }
}
