//! What a schedule takes, its forms, and what it makes of a limit.

use std::cmp::Ordering;
use std::time::Duration;

use proptest::prelude::*;
use weirgate_shared::{
    BucketKey, ClockMinute, EpochMillis, Limit, LimitKind, LimitsVersion, MilliTokens, Millis,
    Scale, Schedule, ScheduleRule, Shard, VersionedLimits, WindowError, parse_span,
};

fn rule(cron: &str, length: &str, scale: &str, zone: &str) -> Result<ScheduleRule, WindowError> {
    ScheduleRule::new(cron, parse_span(length).unwrap(), scale.parse()?)?.zone(zone)
}

/// Returns the schedule of the texts of its rules.
pub fn schedule(rules: &[(&str, &str, &str, &str)]) -> Result<Schedule, WindowError> {
    let rules = rules.iter().map(|(cron, length, scale, zone)| rule(cron, length, scale, zone));
    Schedule::new(rules.collect::<Result<Vec<_>, _>>()?)
}

fn error(rules: &[(&str, &str, &str, &str)]) -> String {
    schedule(rules).unwrap_err().to_string()
}

/// Rules with a wrong field: cron, length, scale and zone, and what the error begins with.
const WRONG: &str = r#"
0 0 8 * * 1 | 1m | 2/1 | UTC => cron must be five fields, so that it changes at most once a minute, got "0 0 8
@daily | 1m | 2/1 | UTC => cron must be five fields
 | 1m | 2/1 | UTC => cron must be five fields
60 0 * * * | 1m | 2/1 | UTC => minute of cron must be *, or numbers, rising ranges and steps of 0 to 59, got "60"
-1 0 * * * | 1m | 2/1 | UTC => minute of cron must be
+1 0 * * * | 1m | 2/1 | UTC => minute of cron must be
1, 0 * * * | 1m | 2/1 | UTC => minute of cron must be
5/15 0 * * * | 1m | 2/1 | UTC => minute of cron must be
*/0 0 * * * | 1m | 2/1 | UTC => minute of cron must be
*/60 0 * * * | 1m | 2/1 | UTC => minute of cron must be
*/5/5 0 * * * | 1m | 2/1 | UTC => minute of cron must be
0 24 * * * | 1m | 2/1 | UTC => hour of cron must be
0 18-8 * * * | 1m | 2/1 | UTC => hour of cron must be *, or numbers, rising ranges and steps of 0 to 23, got "18-8"
0 0 0 * * | 1m | 2/1 | UTC => day of the month of cron must be
0 0 32 * * | 1m | 2/1 | UTC => day of the month of cron must be
0 0 L * * | 1m | 2/1 | UTC => day of the month of cron must be
0 0 * 13 * | 1m | 2/1 | UTC => month of cron must be
0 0 * MON * | 1m | 2/1 | UTC => month of cron must be
0 0 * * 8 | 1m | 2/1 | UTC => day of the week of cron must be
0 0 * * FRI-SUN | 1m | 2/1 | UTC => day of the week of cron must be
0 0 30 2 * | 1m | 2/1 | UTC => cron must be a day that some month of the fields has, got "0 0 30 2 *"
0 0 31 2,4,6,9,11 * | 1m | 2/1 | UTC => cron must be a day that some month of the fields has
0 8 * * * | 0s | 2/1 | UTC => for must be whole minutes from 1m to 366d, got "0s"
0 8 * * * | 90s | 2/1 | UTC => for must be whole minutes
0 8 * * * | 367d | 2/1 | UTC => for must be whole minutes
0 8 * * * | 1h | 0/1 | UTC => scale must be a ratio of two numbers from 1 to 1000000, got "0/1"
0 8 * * * | 1h | 1/0 | UTC => scale must be
0 8 * * * | 1h | 2 | UTC => scale must be
0 8 * * * | 1h | -2/1 | UTC => scale must be
0 8 * * * | 1h | +2/1 | UTC => scale must be
0 8 * * * | 1h | 1000001/1 | UTC => scale must be
0 8 * * * | 1h | 2/1 | Mars/Base => tz must be a zone
"#;

#[test]
fn a_wrong_field_of_a_rule_is_named_with_its_value_and_what_it_takes() {
    let cron = |cron: &str| rule(cron, "1m", "2/1", "UTC");
    for row in WRONG.trim_matches('\n').lines() {
        let (fields, message) = row.split_once(" => ").expect(row);
        let [cron, length, scale, zone] = fields.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("{row}")
        };
        let refused = rule(cron, length, scale, zone);
        let error = refused.unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
    }
    // 31 January exists, and so does 31 February or a Monday.
    assert!(cron("0 0 31 1,2 *").is_ok() && cron("0 0 30 2 MON").is_ok());
    assert!(ScheduleRule::new("0 8 * * *", Duration::MAX, Scale::ONE).is_err());
}

#[test]
fn overlaps_are_refused() {
    let berlin = "Europe/Berlin";
    let (day, night) = (("0 8 * * *", "12h", "2/1", berlin), ("0 20 * * *", "12h", "1/2", berlin));
    // They meet, also in the nights in which the clock changes.
    assert!(schedule(&[day, night]).is_ok() && schedule(&[night, day]).is_ok());
    assert!(schedule(&[("0 0 * * *", "24h", "2/1", berlin)]).is_ok());
    assert!(schedule(&[("* * * * *", "1m", "2/1", berlin)]).is_ok());
    let takes = "for must be no longer than until the next time of its cron, got ";
    for (cron, length, at) in [
        ("0 0 * * *", "24h1m", "2020-01-02 00:00"),
        ("*/15 * * * *", "16m", "2020-01-01 00:15"),
        ("0 0 * * 1,2", "2d", "2020-01-07 00:00"),
        // Of some months only.
        ("0 0 1 * *", "29d", "2021-03-01 00:00"),
    ] {
        let expected =
            format!("{takes}\"{cron} for {length} scale 1/1 tz {berlin} at {at}\"; shorten it");
        let length = parse_span(length).unwrap();
        let rule = ScheduleRule::new(cron, length, Scale::ONE).unwrap().zone(berlin).unwrap();
        let error = Schedule::new(vec![rule]).unwrap_err().to_string();
        assert_eq!(error.replace("1d1m", "24h1m"), expected);
    }
    let takes = "schedule must be rules of which one holds at a time, got ";
    let both = error(&[day, ("59 19 * * 3", "1m", "1/1", berlin)]);
    let rules = "0 8 * * * for 12h scale 2/1 tz Europe/Berlin, and 59 19 * * 3 for 1m scale 1/1 tz Europe/Berlin, both at 2020-01-01 19:59";
    assert_eq!(both, format!("{takes}\"{rules}\"; shorten or move one of them"));
    // 29 February is a Sunday once in 28 years.
    let leap = ("0 0 29 2 *", "1h", "2/1", berlin);
    let sundays = ("0 0 * * 0", "1h", "2/1", berlin);
    assert!(error(&[leap, sundays]).contains("both at 2032-02-29 00:00"));
    let london = ("0 8 * * *", "1h", "2/1", "Europe/London");
    assert_eq!(
        error(&[("0 13 * * *", "1h", "2/1", berlin), london]),
        "tz must be one zone for all rules of a limit, got \"Europe/Berlin and Europe/London\"; write the \
         times of one of them by the clock of the other"
    );
    assert!(schedule(&[]).is_err());
    assert!(schedule(&[leap; 17]).unwrap_err().to_string().contains("17 rules"));
}

#[test]
fn rules_of_every_minute_are_compared() {
    let even = ("*/2 * * * *", "1m", "2/1", "Europe/Berlin");
    let odd = ("1-59/2 * * * *", "1m", "1/2", "Europe/Berlin");
    assert!(schedule(&[even, odd]).is_ok());
    let overlapping = ("1-59/2 * * * *", "2m", "1/2", "Europe/Berlin");
    assert!(schedule(&[even, overlapping]).is_err());
    // One of many begins, months later.
    let even = ("*/2 * * * *", "1m", "2/1", "UTC");
    for once in ["0 12 25 12 *", "1 12 25 12 *"] {
        assert!(schedule(&[even, (once, "2m", "1/2", "UTC")]).is_err());
    }
    assert!(schedule(&[even, ("1 12 25 12 *", "1m", "1/2", "UTC")]).is_ok());
}

#[test]
fn a_rule_given_twice_is_no_overlap_with_itself() {
    let rule = ("0 8 * * *", "1h", "2/1", "UTC");
    let error = schedule(&[rule, rule]).unwrap_err().to_string();
    assert!(error.contains("shorten or move one of them"), "{error}");
}

fn limit(text: &str) -> Limit {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn a_scale_is_exact_for_refill_and_rounds_a_capacity_down() {
    for (text, scale, expected) in [
        ("l=600/minute", "2/1", "l=1200/minute"),
        ("l=600/minute,burst=900", "1/2", "l=300/minute,burst=450"),
        ("l=1/second,burst=10", "1/2", "l=1/2s,burst=5"),
        ("l=1000/minute", "1/3", "l=1000/3m,burst=333"),
        ("l=3/minute,mode=soft", "3/2", "l=9/2m,burst=4,mode=soft"),
        ("l=5", "1/2", "l=2"),
        ("l=quota:10/day", "3/2", "l=quota:15/day"),
        ("l=session:9/5h,mode=shadow", "1/2", "l=session:4/5h,mode=shadow"),
        ("l=1000000000000/day", "1/1", "l=1000000000000/day"),
    ] {
        let scaled = limit(text).scaled(scale.parse().unwrap()).unwrap();
        assert_eq!(scaled.to_string(), expected, "{text} {scale}");
    }
}

#[test]
fn a_scale_that_leaves_no_limit_is_refused_with_the_limit() {
    for (text, scale) in [
        ("1/second", "1/2"),
        ("5", "1/6"),
        ("quota:1/day", "999999/1000000"),
        ("1000000000000/day", "2/1"),
        ("600000000000/day,burst=1", "2/1"),
        ("1/second,burst=1000000000000", "1000000/999999"),
        ("1/100d,burst=9", "1/4"),
    ] {
        let schedule: Schedule = format!("0 8 * * * for 1h scale {scale}").parse().unwrap();
        let error = limit(&format!("l={text}")).with_schedule(schedule);
        assert_eq!(
            error.unwrap_err().to_string(),
            format!(
                "limit \"l\": scale must be a ratio that leaves the limit 1 to 10^12 tokens, each of its classes 1, and a period of at \
                 most 366 days, got \"{scale} of {text}\"; write another ratio, or the rate with a longer period"
            )
        );
    }
    // A burst that is set after the schedule is scaled as well.
    let scheduled = limit("l=10/second,schedule=0 8 * * * for 1h scale 1/2");
    assert!(scheduled.clone().with_burst(1).is_err());
    let burst = scheduled.with_burst(2).unwrap();
    assert!(burst.schedule().is_some());
}

#[test]
fn a_text_that_is_no_schedule_is_refused_with_the_part_that_is_wrong() {
    let form =
        "schedule must be five fields of cron, then for, scale and tz, each with its value, got ";
    for (text, start) in [
        ("", form),
        ("0 8 * * *", form),
        ("0 8 * * * for 1h", form),
        ("0 8 * * * scale 2/1 for 1h", form),
        ("0 8 * * * for 1h scale 2/1 tz", form),
        ("0 8 * * * for 1h scale 2/1 tz UTC x", form),
        ("0 8 * * * for 1h scale 2/1;", form),
        ("0 8 * * for 1h scale 2/1", "cron must be five fields"),
        ("0 8 30 2 * for 1h scale 2/1", "cron must be a day that"),
        ("0 8 * * * for 1 scale 2/1", "for must be whole minutes"),
        ("0 8 * * * for 1h scale 2", "scale must be a ratio"),
        ("0 8 * * * for 1h scale 2/1 tz Mars/Base", "tz must be a zone"),
        ("0 8 * * * for 25h scale 2/1", "for must be no longer than until the next time"),
        (
            "0 8 * * * for 2h scale 2/1; 0 9 * * * for 1m scale 1/2",
            "schedule must be rules of which one holds at a time",
        ),
        (
            "0 8 * * * for 2h scale 2/1; 0 11 * * * for 1m scale 1/2 tz Asia/Tokyo",
            "tz must be one zone for all rules of a limit, got \"UTC and Asia/Tokyo\"",
        ),
    ] {
        let error = text.parse::<Schedule>().unwrap_err().to_string();
        assert!(error.starts_with(start), "{text}: {error}");
        let of_limit = format!("l=5,schedule={text}").parse::<Limit>();
        assert_eq!(of_limit.unwrap_err().to_string(), format!("limit \"l\": {error}"));
    }
    let twice = "l=5,schedule=0 8 * * * for 1h scale 2/1,schedule=0 8 * * * for 1h scale 2/1";
    assert!(twice.parse::<Limit>().is_err());
    let behind = "l=5,schedule=0 8 * * * for 1h scale 2/1,mode=soft".parse::<Limit>();
    assert!(behind.unwrap_err().to_string().contains("scale must be"));
}

/// Any rule that is not refused.
fn any_rule() -> impl Strategy<Value = ScheduleRule> {
    let minute = prop_oneof![
        (0..60_u8).prop_map(|minute| minute.to_string()),
        Just("*/20".to_owned()),
        Just("5,50".to_owned())
    ];
    let hour = prop_oneof![
        (0..24_u8).prop_map(|hour| hour.to_string()),
        Just("*".to_owned()),
        Just("8-18/2".to_owned())
    ];
    let days =
        prop::sample::select(vec!["* * *", "* * 1-5", "1 * *", "31 1,3 *", "* 2 SUN", "13 * FRI"]);
    let length = prop_oneof![1..30_u64, 1..3 * 24 * 60_u64];
    let scale = (1..5_u32, 1..5_u32);
    (minute, hour, days, length, scale).prop_filter_map(
        "cron",
        |(minute, hour, days, length, (over, under))| {
            let scale = Scale::new(over, under).ok()?;
            let length = Duration::from_secs(length * 60);
            ScheduleRule::new(&format!("{minute} {hour} {days}"), length, scale).ok()
        },
    )
}

/// Minutes of two years, with a leap day.
const YEARS: std::ops::Range<i64> = 30_504_960..31_557_600;

/// Returns how many rules hold at each of these minutes, by each begin.
fn held(rules: &[ScheduleRule]) -> Vec<u8> {
    let from = YEARS.start;
    let mut held = vec![0; usize::try_from(YEARS.end - from).unwrap()];
    for rule in rules {
        let mut at = ClockMinute(from - 1);
        while let Some(next) = rule.cron().next(at).filter(|next| YEARS.contains(&next.0)) {
            at = next;
            let end = rule.end(at).0.min(YEARS.end);
            let minutes = [at.0, end].map(|minute| usize::try_from(minute - from).unwrap());
            for count in &mut held[minutes[0]..minutes[1]] {
                *count = u8::saturating_add(*count, 1);
            }
        }
    }
    held
}

fn version(number: i64, boundary: i64) -> LimitsVersion {
    LimitsVersion { number, boundary: EpochMillis(boundary) }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn rules_that_hold_at_one_time_are_refused_and_no_others(one in any_rule(), other in any_rule()) {
        let rules = vec![one, other];
        let schedule = Schedule::new(rules.clone());
        let overlaps = held(&rules).iter().any(|count| *count > 1);
        if overlaps {
            prop_assert!(schedule.is_err());
        }
        // Others may overlap in another year.
        if let Ok(schedule) = schedule {
            prop_assert!(!overlaps);
            prop_assert_eq!(&schedule.to_string().parse::<Schedule>().unwrap(), &schedule);
        } else if !overlaps {
            let is_rare = rules.iter().any(|rule| rule.cron().to_string().contains(['1', '3']));
            prop_assert!(is_rare);
        }
    }

    #[test]
    fn a_cron_names_the_same_minutes_forwards_and_backwards(rule in any_rule(), at in YEARS) {
        let (cron, at) = (rule.cron(), ClockMinute(at));
        let (last, next) = (cron.floor(at).unwrap(), cron.next(at).unwrap());
        prop_assert!(last <= at && at < next);
        prop_assert_eq!(cron.next(last), Some(next));
        prop_assert_eq!(cron.floor(ClockMinute(next.0 - 1)), Some(last));
        prop_assert_eq!(cron.floor(next), Some(next));
    }

    #[test]
    fn a_scaled_rate_refills_by_the_ratio(
        amount in 1..=1_000_000_i64, period in 1..=86_400_000_i64, burst in 1..=1_000_000_i64,
        over in 1..=1_000_u32, under in 1..=1_000_u32,
    ) {
        let limit = Limit::custom("l", burst, amount, period).unwrap();
        let Some(scaled) = limit.scaled(Scale::new(over, under).unwrap()) else {
            return Ok(());
        };
        let [over, under] = [over, under].map(i128::from);
        let rate = |limit: &Limit| {
            let rule = limit.rule();
            [i128::from(rule.refill_amount.0), i128::from(rule.refill_period_ms)]
        };
        let ([one, ms], [of, of_ms]) = (rate(&scaled), rate(&limit));
        prop_assert_eq!(one * of_ms * under, of * ms * over);
        let capacity = i128::from(scaled.rule().capacity.whole_tokens());
        prop_assert!(capacity >= 1 && capacity * under <= i128::from(burst) * over);
        prop_assert!((capacity + 1) * under > i128::from(burst) * over);
        prop_assert_eq!(&scaled.to_string().parse::<Limit>().unwrap(), &scaled);
    }

    /// Whatever the clocks are, as far as clocks differ: a version is never older than one that it
    /// overrules, and a change overrules all boundaries.
    #[test]
    fn versions_have_one_order(
        numbers in prop::array::uniform3(0..3_i64), boundaries in prop::array::uniform3(0..4_i64), skew in -30_000..=30_000_i64,
    ) {
        // The boundaries that have passed by some clock.
        let now = EpochMillis(3 * 60_000);
        let all = [0, 1, 2].map(|at| version(numbers[at], boundaries[at] * 60_000));
        let order = |ours: LimitsVersion, known: LimitsVersion| {
            let terms = VersionedLimits { version: Some(ours), ..VersionedLimits::default() };
            terms.order(Some(known), EpochMillis(now.0 + skew)).unwrap()
        };
        for one in all {
            for other in all {
                prop_assert_eq!(order(one, other), order(other, one).reverse());
                prop_assert_eq!(order(one, other).is_eq(), one == other);
                if one.number > other.number {
                    prop_assert!(order(one, other).is_gt());
                }
                for third in all {
                    if order(one, other).is_ge() && order(other, third).is_ge() {
                        prop_assert!(order(one, third).is_ge());
                    }
                }
            }
        }
    }
}

proptest! {
    /// A boundary is a change of limits: what is held of slots or used of a quota stays so, and a rate
    /// gets no token.
    #[test]
    fn i1_a_boundary_makes_no_token(
        text in prop::sample::select(vec!["l=100/minute", "l=9/second,burst=100", "l=100", "l=session:100/5h"]),
        taken in 0..=100_i64, (over, under) in (1..=9_u32, 1..=9_u32), (first, second) in (0..90_000_i64, 0..90_000_i64),
    ) {
        let (limit, start) = (limit(text), EpochMillis(1_800_000_000_000));
        let Some(scaled) = limit.scaled(Scale::new(over, under).unwrap()) else {
            return Ok(());
        };
        let terms = |limit: &Limit, at: EpochMillis| (vec![limit.clone()], version(5, at.0));
        let at = start.plus(Millis(first));
        let later = at.plus(Millis(second));
        let (before, after, restored) = (terms(&limit, start), terms(&scaled, at), terms(&limit, later));
        let key = BucketKey::parse("n/BUCKET#e#r#0").unwrap();
        let mut shard = Shard::full(key, brought(&before), start);
        let state = shard.limits.get_mut("l").unwrap();
        state.available -= MilliTokens::from_tokens(taken);
        state.window_end = start.plus(Millis(18_000_000));
        let mut next = shard.projected(brought(&after), at);
        let (old, new) = (shard.limits["l"], next.limits["l"]);
        prop_assert_eq!(&new.rule, if first > 0 { scaled.rule() } else { limit.rule() });
        match new.rule.kind() {
            LimitKind::Rate => {
                prop_assert!(new.available <= shard.balance(&old, at));
                prop_assert!(new.available <= new.rule.capacity);
            }
            LimitKind::Slots | LimitKind::Quota => {
                let used = new.rule.capacity - new.available;
                prop_assert_eq!(used, MilliTokens::from_tokens(taken));
            }
        }
        // A process behind the boundary changes nothing, and the next boundary restores the capacity.
        next.config_version = Some(after.1);
        prop_assert_eq!(next.projected(brought(&before), later).limits["l"].rule, new.rule);
        let back = next.projected(brought(&restored), later).limits["l"];
        prop_assert_eq!(&back.rule, if second > 0 { limit.rule() } else { &new.rule });
        prop_assert!(back.available <= back.rule.capacity);
    }
}

fn brought((limits, version): &(Vec<Limit>, LimitsVersion)) -> VersionedLimits<'_> {
    VersionedLimits { limits, version: Some(*version), ..VersionedLimits::default() }
}

#[test]
fn a_boundary_of_a_wrong_clock_is_overruled() {
    let now = EpochMillis(1_800_000_000_000);
    let order = |known: i64| {
        let terms = VersionedLimits {
            version: Some(version(5, now.0 - 60_000)),
            ..VersionedLimits::default()
        };
        terms.order(Some(version(5, known)), now)
    };
    assert_eq!(order(now.0 + 30_000), Some(Ordering::Less));
    assert_eq!(order(now.0 + 30_001), Some(Ordering::Greater));
    assert_eq!(order(i64::MAX), Some(Ordering::Greater));
}
