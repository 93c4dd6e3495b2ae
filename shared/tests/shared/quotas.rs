//! Windows of quotas: what they take, their texts, and their codes.

use std::collections::HashSet;
use std::time::Duration;

use proptest::prelude::*;
use weirgate_shared::{
    CalendarWindow, Every, Period, QuotaWindow, SessionWindow, Weekday, WindowCode, WindowError,
    ZoneName,
};

/// Days of the week, as the text of a window names them.
const WEEKDAYS: [&str; 7] =
    ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];

fn window(text: &str) -> CalendarWindow {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn code(window: impl Into<QuotaWindow>) -> WindowCode {
    window.into().code()
}

#[test]
fn a_text_leaves_defaults_out() {
    for (text, shown) in [
        ("month", "month"),
        ("month,day=15,at=09:00,tz=Europe/Berlin", "month,day=15,at=09:00,tz=Europe/Berlin"),
        ("month,tz=europe/berlin,at=09:00,day=15", "month,day=15,at=09:00,tz=Europe/Berlin"),
        ("week,day=sunday,at=00:30", "week,day=sunday,at=00:30"),
        ("week,day=monday,at=00:00,tz=utc", "week"),
        ("year,month=4,day=6", "year,month=4,day=6"),
        ("year,day=1,month=1", "year"),
        ("hour,at=:30", "hour,at=:30"),
        ("hour,at=:00", "hour"),
        ("day,tz=Asia/Calcutta", "day,tz=Asia/Calcutta"),
    ] {
        assert_eq!(window(text).to_string(), shown);
    }
    assert_eq!(Every::year().in_month(4).on_day(6).window().unwrap(), window("year,month=4,day=6"));
    assert_eq!(Every::hour().at_minute(30).window().unwrap(), window("hour,at=:30"));
    assert_eq!(Every::week().on(Weekday::Sunday).window().unwrap(), window("week,day=sunday"));
}

/// Texts of windows with a wrong field, and what the error begins with.
const WRONG: &str = r#"
 => every must be hour, day, week, month or year, got ""; write for example month
fortnight => every must be hour, day, week, month or year, got "fortnight"
month,day=0 => day must be 1 to 31, got "0"; write for example 15
month,day=32 => day must be 1 to 31, got "32"
month,day=300 => day must be 1 to 31, got "300"
month,day=+3 => day must be 1 to 31, got "+3"
month,day= => day must be 1 to 31, got ""
month,day => day must be 1 to 31, got ""
month,day=monday => day must be 1 to 31, got "monday"
week,day=3 => day must be a day of the week, got "3"; write for example sunday
week,day=Sunday => day must be a day of the week, got "Sunday"
day,day=3 => day must be left out of an hour or a day, got "3"; remove it
hour,day=friday => day must be left out of an hour or a day, got "friday"
month,month=3 => month must be left out, except in a year, got "3"; remove it
year,month=13 => month must be 1 to 12, got "13"; write for example 4
year,month=0 => month must be 1 to 12, got "0"
year,month=april => month must be 1 to 12, got "april"
year,month=2,day=30 => day must be a day that the month has in some year, got "30 of
year,month=4,day=31 => day must be a day that the month has in some year
day,at=24:00 => at must be a time from 00:00 to 23:59, got "24:00"; write for
day,at=09:60 => at must be a time from 00:00 to 23:59, got "09:60"
day,at=9:00 => at must be a time from 00:00 to 23:59, got "9:00"
day,at=:30 => at must be a time from 00:00 to 23:59, got ":30"
hour,at=00:30 => at must be a minute from :00 to :59, got "00:30"; write for
hour,at=:60 => at must be a minute from :00 to :59, got ":60"
hour,at=30 => at must be a minute from :00 to :59, got "30"
month,day=1,day=2 => day must be given once, got "2"; remove one
month,tz=UTC,tz=UTC => tz must be given once, got "UTC"
month,hour=3 => field must be day, month, at or tz, each with = and its value, got
month, => field must be day, month, at or tz, each with = and its value, got ""
month, day=3 => field must be day, month, at or tz
"#;

#[test]
fn a_wrong_field_is_named_with_its_value_and_what_it_takes() {
    for row in WRONG.trim_matches('\n').lines() {
        let (text, message) = row.split_once(" => ").expect(row);
        let error = text.parse::<CalendarWindow>().unwrap_err();
        assert!(matches!(error, WindowError::Field { .. }));
        assert!(error.to_string().starts_with(message), "{text}: {error}");
    }
}

/// Returns some window in a zone.
pub fn any_window(zone: impl Strategy<Value = String>) -> impl Strategy<Value = CalendarWindow> {
    let period = prop::sample::select(Period::ALL.to_vec());
    (period, 1..=31_u8, 1..=12_u8, 0..24_u8, 0..60_u8, 0..7_usize, zone).prop_map(
        |(period, day, month, hour, minute, weekday, zone)| {
            let every = Every::period(period).zone(&zone).unwrap();
            let every = match period {
                Period::Hour => every.at_minute(minute),
                Period::Day => every.at(hour, minute),
                Period::Week => {
                    let day = WEEKDAYS[weekday];
                    every.at(hour, minute).set("day", day).unwrap()
                }
                Period::Month => every.at(hour, minute).on_day(day),
                Period::Year => every.at(hour, minute).in_month(month).on_day(day.min(29)),
            };
            every.window().unwrap()
        },
    )
}

/// Returns some window of any kind.
pub fn any_quota() -> impl Strategy<Value = QuotaWindow> {
    let session = (1_000..=31_622_400_000_u64)
        .prop_map(|ms| SessionWindow::new(Duration::from_millis(ms)).unwrap().into());
    let names: Vec<_> = ZoneName::all().map(|zone| zone.to_string()).collect();
    let calendar = any_window(prop::sample::select(names)).prop_map(QuotaWindow::Calendar);
    prop_oneof![3 => calendar, 1 => session]
}

#[test]
fn codes_never_change() {
    for (text, number) in [
        ("month", -18_155_139_226_293_885),
        ("hour,at=:30", -4_503_731_704_845_949),
        ("week,day=sunday,at=18:00", -14_500_603_093_735_037),
        ("month,day=15,at=09:00,tz=Europe/Berlin", -20_127_780_943_453_396),
        ("year,month=4,day=6,tz=Europe/London", -23_397_610_635_149_134),
    ] {
        assert_eq!(code(window(text)), WindowCode(number), "{text}");
    }
    assert_eq!(
        code(SessionWindow::new(Duration::from_hours(5)).unwrap()),
        WindowCode(-(6 << 52 | 18_000_000))
    );
}

#[test]
fn the_case_of_a_zone_does_not_change_the_code_but_an_alias_does() {
    let code = |zone: &str| code(window(&format!("month,tz={zone}")));
    assert_eq!(code("Europe/Berlin"), code("eUROPE/berlin"));
    assert_ne!(code("Asia/Calcutta"), code("Asia/Kolkata"));
}

#[test]
fn a_code_of_no_window_is_none() {
    let month = code(window("month")).0;
    for number in [
        0,
        1,
        -1,
        i64::MAX,
        i64::MIN,
        -month,
        // Another zone, a day 0, a day of the week, a kind, an hour, and a bit above the kind.
        month - 1,
        month + (1 << 47),
        code(window("week")).0 - (7 << 47),
        -(7 << 52),
        code(window("hour")).0 - (60 << 32),
        code(window("day")).0 - (1440 << 32),
        code(window("day")).0 - (1 << 47),
        code(window("month")).0 - (1 << 43),
        code(window("year,month=2,day=29")).0 - (1 << 47),
        month - (1 << 55),
        // Sessions of 999 ms, and of more than 366 days.
        -(6 << 52 | 999),
        -(6 << 52 | 31_622_400_001),
    ] {
        assert_eq!(WindowCode(number).decode(), None, "{number}");
        assert_eq!(WindowCode(number).session(), None, "{number}");
    }
}

#[test]
fn distinct_windows_have_distinct_codes() {
    let zones = ["UTC", "Europe/Berlin", "Australia/Lord_Howe"];
    let mut codes = HashSet::new();
    let mut windows = 0;
    let mut add = |every: Every| {
        let window = every.window().unwrap();
        let code = code(window);
        assert!(code.0 < 0 && codes.insert(code), "{window}");
        windows += 1;
    };
    for zone in zones {
        let zoned = |every: Every| every.zone(zone).unwrap();
        (0..60).for_each(|minute| add(zoned(Every::hour()).at_minute(minute)));
        for (hour, minute) in (0..24).flat_map(|hour| (0..60).map(move |minute| (hour, minute))) {
            add(zoned(Every::day()).at(hour, minute));
            for day in WEEKDAYS {
                add(zoned(Every::week()).at(hour, minute).set("day", day).unwrap());
            }
            (1..=31).for_each(|day| add(zoned(Every::month()).at(hour, minute).on_day(day)));
        }
        for month in 1..=12 {
            for day in 1..=29 {
                for minute in 0..60 {
                    add(zoned(Every::year()).in_month(month).on_day(day).at(minute % 24, minute));
                }
            }
        }
    }
    assert_eq!(windows, 3 * (60 + 1440 * (1 + 7 + 31) + 12 * 29 * 60));
}

proptest! {
    #[test]
    fn codes_are_equal_only_for_equal_windows(one in any_quota(), other in any_quota()) {
        prop_assert!(one.code().0 < 0);
        prop_assert_eq!(one.code() == other.code(), one == other);
    }

    #[test]
    fn a_window_is_read_as_it_was_from_its_text_and_its_code(window in any_quota()) {
        prop_assert_eq!(window.to_string().parse::<QuotaWindow>(), Ok(window));
        prop_assert_eq!(window.code().decode(), Some(window));
        prop_assert_eq!(window.code().to_string(), window.to_string());
        let session = match window {
            QuotaWindow::Session(session) => Some(session.length()),
            QuotaWindow::Calendar(_) => None,
        };
        prop_assert_eq!(window.code().session(), session);
    }

    #[test]
    fn a_number_is_a_code_only_of_the_window_that_it_decodes_to(number: i64) {
        let code = WindowCode(number);
        prop_assert!(code.decode().is_none_or(|window| window.code() == code));
        prop_assert!(!code.to_string().is_empty());
    }
}
