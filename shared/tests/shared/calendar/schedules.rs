//! Which rule of a schedule holds, when that changes, and what a schedule takes.

use std::time::Duration;

use jiff::SignedDuration;
use jiff::civil::DateTime;
use jiff::tz::TimeZoneDatabase;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use weirgate_shared::calendar::active_scale;
use weirgate_shared::{ActiveScale, EpochMillis, Scale, Schedule, ScheduleRule};

use super::{DAY, MINUTE, utc};
use crate::schedules::schedule;

/// What a schedule says whose zone the database has.
fn says(schedule: &Schedule, now: EpochMillis) -> ActiveScale {
    active_scale(schedule, now).unwrap()
}

/// Returns the boundaries from one instant to another, with the scale from each on.
fn boundaries(schedule: &Schedule, from: &str, to: &str) -> Vec<(String, String)> {
    let (mut at, mut found) = (utc(from), Vec::new());
    while says(schedule, at).until <= utc(to) {
        at = says(schedule, at).until;
        let text = jiff::Timestamp::from_millisecond(at.0).unwrap().to_string();
        found
            .push((text.trim_end_matches(":00Z").to_owned(), says(schedule, at).scale.to_string()));
    }
    found
}

fn assert_boundaries(rule: (&str, &str, &str, &str), from: &str, to: &str, expected: &[&str]) {
    let found = boundaries(&schedule(&[rule]).unwrap(), from, to);
    let found: Vec<_> = found.iter().map(|(at, scale)| format!("{at} {scale}")).collect();
    assert_eq!(found, expected, "{rule:?}");
}

#[test]
fn a_rule_holds_on_the_clock_of_its_zone() {
    // Office hours of a weekend on which the clock changes: 8:00 to 18:00 before and after.
    assert_boundaries(
        ("0 8 * * 1-5", "10h", "2/1", "Europe/Berlin"),
        "2026-03-27T00:00",
        "2026-03-31T00:00",
        &[
            "2026-03-27T07:00 2/1",
            "2026-03-27T17:00 1/1",
            "2026-03-30T06:00 2/1",
            "2026-03-30T16:00 1/1",
        ],
    );
    // Through the night in which 2:00 to 3:00 is skipped, and that in which it is repeated.
    let night = ("0 22 * * *", "8h", "1/2", "Europe/Berlin");
    let skipped = ["2026-03-28T21:00 1/2", "2026-03-29T04:00 1/1"];
    assert_boundaries(night, "2026-03-28T12:00", "2026-03-29T12:00", &skipped);
    let repeated = ["2026-10-24T20:00 1/2", "2026-10-25T05:00 1/1"];
    assert_boundaries(night, "2026-10-24T12:00", "2026-10-25T12:00", &repeated);
}

#[test]
fn a_rule_begins_right_after_a_gap_and_once_in_an_overlap() {
    let zone = "America/New_York";
    let (from, to) = ("2026-03-08T05:00", "2026-03-09T04:00");
    let late = ["2026-03-08T07:00 3/1", "2026-03-08T07:30 1/1"];
    assert_boundaries(("30 2 * * *", "1h", "3/1", zone), from, to, &late);
    // The gap has all of it: nothing holds between its boundaries.
    let never = ["2026-03-08T07:00 1/1"];
    assert_boundaries(("15 2 * * *", "30m", "3/1", zone), from, to, &never);
    let (from, to) = ("2026-11-01T04:00", "2026-11-02T05:00");
    let once = ["2026-11-01T05:30 3/1", "2026-11-01T05:45 1/1"];
    assert_boundaries(("30 1 * * *", "15m", "3/1", zone), from, to, &once);
    // 1:30 to 2:15 holds through both.
    let through = ["2026-11-01T05:30 3/1", "2026-11-01T07:15 1/1"];
    assert_boundaries(("30 1 * * *", "45m", "3/1", zone), from, to, &through);
}

/// Fields of cron with lists, ranges, steps and names, from and to a day, and when they begin.
const CRON: &str = "\
*/20 9 * * * | 2026-05-01 | 2026-05-02 | 05-01T09:00 05-01T09:20 05-01T09:40
0 8-12/2,23 1 5 * | 2026-01-01 | 2026-12-31 | 05-01T08:00 05-01T10:00 05-01T12:00 05-01T23:00
0 0 1 jan,JUL * | 2026-01-01 | 2026-12-31 | 07-01T00:00
0 0 * * SUN | 2026-05-01 | 2026-05-11 | 05-03T00:00 05-10T00:00
0 0 * * 0 | 2026-05-01 | 2026-05-11 | 05-03T00:00 05-10T00:00
0 0 * * 7 | 2026-05-01 | 2026-05-11 | 05-03T00:00 05-10T00:00
0 0 * * 6-7 | 2026-05-01 | 2026-05-04 | 05-02T00:00 05-03T00:00
0 0 * * Mon-wed | 2026-05-01 | 2026-05-09 | 05-04T00:00 05-05T00:00 05-06T00:00
59 23 31 * * | 2026-01-01 | 2026-05-01 | 01-31T23:59 03-31T23:59
# Either day is enough, unless one begins with a star.
0 0 5 5 MON | 2026-05-01 | 2026-05-12 | 05-04T00:00 05-05T00:00 05-11T00:00
0 0 */2 5 MON | 2026-05-01 | 2026-06-01 | 05-11T00:00 05-25T00:00
0 0 29 2 * | 2026-01-01 | 2029-01-01 | 2028-02-29T00:00
  0\t0   30  5 *  | 2026-01-01 | 2026-12-31 | 05-30T00:00";

#[test]
fn cron_has_lists_ranges_steps_and_names() {
    let starts = |cron: &str, from: &str, to: &str| {
        let schedule = schedule(&[(cron, "1m", "2/1", "UTC")]).unwrap();
        let starts =
            boundaries(&schedule, from, to).into_iter().filter(|(_, scale)| scale == "2/1");
        starts.map(|(at, _)| at.trim_start_matches("2026-").to_owned()).collect::<Vec<_>>()
    };
    for row in CRON.lines().filter(|row| !row.starts_with('#')) {
        let [cron, from, to, expected] = row.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("{row}")
        };
        let (from, to) = (format!("{from}T00:00"), format!("{to}T00:00"));
        assert_eq!(starts(cron, &from, &to).join(" "), expected, "{cron}");
    }
}

#[test]
fn times_beyond_all_years_have_boundaries_beyond_them() {
    let schedule = schedule(&[("0 8 * * *", "1h", "2/1", "Asia/Tokyo")]).unwrap();
    let last = says(&schedule, EpochMillis(i64::MAX));
    assert_eq!((last.scale, last.until), (Scale::ONE, EpochMillis(i64::MAX)));
    let first = says(&schedule, EpochMillis(i64::MIN)).since;
    assert!(says(&schedule, EpochMillis(i64::MIN)).until > first);
    for at in [i64::MIN, i64::MIN + DAY, i64::MAX - DAY, -377_705_116_800_000, 253_402_207_200_000]
    {
        let at = EpochMillis(at);
        assert!(
            says(&schedule, at).until > at
                && says(&schedule, at).since <= says(&schedule, at).until
        );
    }
}

/// Returns some schedule of one or two rules that do not overlap.
fn any_schedule() -> impl Strategy<Value = Schedule> {
    let zone = prop::sample::select(vec![
        "UTC",
        "America/New_York",
        "America/Santiago",
        "Australia/Lord_Howe",
        "Antarctica/Troll",
        "Pacific/Apia",
    ]);
    let days = prop::sample::select(vec!["* * *", "* * 1-5", "1,31 * *", "*/3 * 0", "5 4-12 MON"]);
    let times = (0..60_u32, 0..24_u32, 1..24 * 60_u64, 0..6_u32);
    (times, days, zone).prop_filter_map("overlap", |((minute, hour, length, every), days, zone)| {
        let (hours, length) = match every {
            0 => ("*".to_owned(), length % 60 + 1),
            _ => (hour.to_string(), length),
        };
        let rule = |minute, scale: &str, length| {
            let length = Duration::from_secs(length * 60);
            let rule =
                ScheduleRule::new(&format!("{minute} {hours} {days}"), length, scale.parse()?)?;
            rule.zone(zone)
        };
        let first = rule(minute, "2/1", length).ok()?;
        // The second begins after the first within its hour, and is short.
        let second = rule((minute + 20) % 60, "1/2", 5).ok()?;
        let both = Schedule::new(vec![first.clone(), second]);
        both.or_else(|_| Schedule::new(vec![first])).ok()
    })
}

/// Returns the scale by trying each minute before: whether the clock has first shown it by `now`,
/// and has not yet shown the end.
fn scale_minute_by_minute(schedule: &Schedule, now: EpochMillis) -> Scale {
    let holds = |rule: &&ScheduleRule| {
        let zone = TimeZoneDatabase::bundled().get(rule.zone_name().as_str()).unwrap();
        let clock = |ms| zone.to_datetime(jiff::Timestamp::from_millisecond(ms).unwrap());
        // The latest that the clock has shown since two days before.
        let shown = (0..=2 * DAY / MINUTE).map(|minutes| clock(now.0 - minutes * MINUTE)).max();
        let shown = shown.unwrap();
        let minutes = i64::try_from(rule.length().as_secs() / 60).unwrap();
        let begins = |at: DateTime| matches(&rule.cron().to_string(), at);
        let minute = shown.with().second(0).subsec_nanosecond(0).build().unwrap();
        (0..minutes).any(|ago| begins(minute.checked_sub(SignedDuration::from_mins(ago)).unwrap()))
    };
    schedule.rules().iter().find(holds).map_or(Scale::ONE, ScheduleRule::scale)
}

/// Returns whether a time matches one of the expressions of [`any_schedule`].
fn matches(cron: &str, at: DateTime) -> bool {
    let fields: Vec<_> = cron.split(' ').collect();
    let is = |field: &str, number: i8| field == "*" || field == number.to_string();
    let day = match fields[2..] {
        ["*", "*", "*"] => true,
        ["*", "*", "1-5"] => at.weekday().to_monday_one_offset() <= 5,
        ["1,31", "*", "*"] => [1, 31].contains(&at.day()),
        ["*/3", "*", "0"] => at.day() % 3 == 1 && at.weekday().to_sunday_zero_offset() == 0,
        ["5", "4-12", "MON"] => {
            at.month() >= 4 && (at.day() == 5 || at.weekday().to_monday_one_offset() == 1)
        }
        _ => panic!("{cron}"),
    };
    day && is(fields[0], at.minute()) && is(fields[1], at.hour())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn nothing_changes_between_boundaries(
        schedule in any_schedule(),
        now in 1_262_304_000_000..2_051_222_400_000_i64,
    ) {
        let now = EpochMillis(now);
        let (active, last) = (says(&schedule, now), says(&schedule, now).since);
        prop_assert!(last <= now && now < active.until);
        for at in [last, EpochMillis(active.until.0 - 1)] {
            prop_assert_eq!(says(&schedule, at), active);
            prop_assert_eq!(says(&schedule, at).since, last);
        }
        prop_assert_eq!(says(&schedule, active.until).since, active.until);
        prop_assert!(says(&schedule, EpochMillis(last.0 - 1)).since < last);
        prop_assert_eq!(last.0 % MINUTE, 0);
    }

    #[test]
    fn a_rule_holds_from_the_minute_of_its_cron(
        schedule in any_schedule(),
        now in prop_oneof![
            2 => 1_262_304_000_000..2_051_222_400_000_i64,
            // The nights in which clocks of New York, Santiago, Lord Howe and Troll change, and the
            // day that Apia skipped.
            1 => utc("2026-03-08T00:00").0..utc("2026-03-09T00:00").0,
            1 => utc("2026-11-01T00:00").0..utc("2026-11-02T00:00").0,
            1 => utc("2026-04-04T12:00").0..utc("2026-04-06T00:00").0,
            1 => utc("2026-09-05T12:00").0..utc("2026-09-07T00:00").0,
            1 => utc("2026-10-03T00:00").0..utc("2026-10-05T00:00").0,
            1 => utc("2026-10-25T00:00").0..utc("2026-10-26T00:00").0,
            1 => utc("2011-12-29T00:00").0..utc("2012-01-01T00:00").0,
        ],
    ) {
        let now = EpochMillis(now);
        prop_assert_eq!(says(&schedule, now).scale, scale_minute_by_minute(&schedule, now));
    }
}
