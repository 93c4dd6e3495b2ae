//! Codes of windows and sessions: one number for each.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use jiff::tz::TimeZoneDatabase;
use proptest::prelude::*;
use weirgate_calendar::{Every, Session, Window};

use crate::window;
use crate::windows::any_window;

#[test]
fn codes_never_change() {
    for (text, code) in [
        ("month", -18_155_139_226_293_885),
        ("hour,at=:30", -4_503_731_704_845_949),
        ("week,day=sunday,at=18:00", -14_500_603_093_735_037),
        (
            "month,day=15,at=09:00,tz=Europe/Berlin",
            -20_127_780_943_453_396,
        ),
        (
            "year,month=4,day=6,tz=Europe/London",
            -23_397_610_635_149_134,
        ),
    ] {
        assert_eq!(window(text).code(), code, "{text}");
    }
    assert_eq!(
        Session::new(Duration::from_hours(5)).unwrap().code(),
        -(6 << 52 | 18_000_000)
    );
}

#[test]
fn the_case_of_a_zone_does_not_change_the_code_but_an_alias_does() {
    let code = |zone: &str| window(&format!("month,tz={zone}")).code();
    assert_eq!(code("Europe/Berlin"), code("eUROPE/berlin"));
    assert_ne!(code("Asia/Calcutta"), code("Asia/Kolkata"));
}

#[test]
fn no_two_zones_have_the_same_hash() {
    let mut names = HashMap::new();
    for name in TimeZoneDatabase::bundled().available() {
        let code = window(&format!("month,tz={name}")).code();
        let other = names.insert(code, name.to_string());
        assert_eq!(other, None, "{name}");
    }
    assert!(names.len() > 400, "{}", names.len());
}

#[test]
fn distinct_windows_have_distinct_codes() {
    let zones = ["UTC", "Europe/Berlin", "Australia/Lord_Howe"];
    let mut codes = HashSet::new();
    let mut windows = 0;
    let mut add = |every: Every| {
        let window: Window = every.window().unwrap();
        let code = window.code();
        assert!(code < 0 && codes.insert(code), "{window}");
        windows += 1;
    };
    for zone in zones {
        let zoned = |every: Every| every.zone(zone).unwrap();
        (0..60).for_each(|minute| add(zoned(Every::hour()).at_minute(minute)));
        for (hour, minute) in (0..24).flat_map(|hour| (0..60).map(move |minute| (hour, minute))) {
            add(zoned(Every::day()).at(hour, minute));
            for day in crate::WEEKDAYS {
                add(zoned(Every::week())
                    .at(hour, minute)
                    .set("day", day)
                    .unwrap());
            }
            (1..=31).for_each(|day| add(zoned(Every::month()).at(hour, minute).on_day(day)));
        }
        for month in 1..=12 {
            for day in 1..=29 {
                for minute in 0..60 {
                    add(zoned(Every::year())
                        .in_month(month)
                        .on_day(day)
                        .at(minute % 24, minute));
                }
            }
        }
    }
    assert_eq!(windows, 3 * (60 + 1440 * (1 + 7 + 31) + 12 * 29 * 60));
}

#[test]
fn a_session_lasts_from_a_second_to_366_days() {
    for text in ["1s", "5h", "366d", "1h30m", "1s1ms"] {
        assert_eq!(text.parse::<Session>().unwrap().to_string(), text);
    }
    for text in ["999ms", "366d1ms", "0s", "5", "", "-1s", "365d24h1s"] {
        let error = text.parse::<Session>().unwrap_err().to_string();
        let message = "session must be a span from 1s to 366d, got \"";
        assert!(
            error.starts_with(message) && error.ends_with("\"; write for example 5h"),
            "{error}"
        );
    }
    assert!(Session::new(Duration::MAX).is_err());
}

proptest! {
    #[test]
    fn codes_are_equal_only_for_equal_windows(one in any_window(), other in any_window()) {
        prop_assert!(one.code() < 0);
        prop_assert_eq!(one.code() == other.code(), one == other);
    }

    #[test]
    fn no_session_has_the_code_of_a_window(window in any_window(), ms in 1_000..=31_622_400_000_u64) {
        let session = Session::new(Duration::from_millis(ms)).unwrap();
        prop_assert!(session.code() < 0);
        prop_assert_ne!(session.code(), window.code());
    }
}
