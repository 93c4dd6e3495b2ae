//! A limit has one text on all surfaces, and each reads what it writes.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use weirgate::{
    Config, ConfigLevel, ConfigStatus, Entity, EntityId, Every, Limit, LimitMode,
    LimitsFileContents, Period, QuotaWindow, Resource, Scale, Schedule, ScheduleRule,
    SessionWindow, Weekday, ZoneName,
};
use weirgate_shared::{MAX_PERIOD_MS, MAX_TOKENS};

/// Amounts from the least to the most, small ones often.
fn amount() -> impl Strategy<Value = i64> {
    prop_oneof![1..1_000_i64, 1..=MAX_TOKENS, Just(MAX_TOKENS)]
}

fn period() -> impl Strategy<Value = i64> {
    let named = prop::sample::select(vec![1_000, 60_000, 3_600_000, 86_400_000]);
    prop_oneof![named, 1..100_000_i64, 1..=MAX_PERIOD_MS, Just(MAX_PERIOD_MS)]
}

/// Any window that a quota can have.
fn window() -> impl Strategy<Value = QuotaWindow> {
    let zone = prop::sample::select(ZoneName::all().collect::<Vec<_>>());
    let period = prop::sample::select(Period::ALL.to_vec());
    let weekday = prop::sample::select(vec![Weekday::Monday, Weekday::Thursday, Weekday::Sunday]);
    let parts = (period, 1..=12_u8, 1..=31_u8, weekday, 0..24_u8, 0..60_u8, zone);
    let calendar = parts.prop_map(|(period, month, day, weekday, hour, minute, zone)| {
        let every = Every::period(period).in_zone(zone);
        let every = match period {
            Period::Hour => every.at_minute(minute),
            Period::Day => every.at(hour, minute),
            Period::Week => every.at(hour, minute).on(weekday),
            Period::Month => every.at(hour, minute).on_day(day),
            Period::Year => every.at(hour, minute).on_day(day.min(29)).in_month(month),
        };
        QuotaWindow::try_from(every).unwrap()
    });
    let session = (1_000..=31_622_400_000_u64)
        .prop_map(|ms| SessionWindow::new(Duration::from_millis(ms)).unwrap().into());
    prop_oneof![3 => calendar, 1 => session]
}

/// Any limit that a call accepts.
fn limit() -> impl Strategy<Value = Limit> {
    let name = "[A-Za-z][A-Za-z0-9_.-]{0,12}|null|NO|y|1e3";
    let mode = prop::sample::select(vec![LimitMode::Enforced, LimitMode::Shadow, LimitMode::Soft]);
    let burst = prop::option::of(amount());
    let zone = prop::sample::select(vec!["UTC", "Europe/Berlin", "America/New_York"]);
    let rules = prop::collection::vec((0..60_u8, 1..60_u64, 1..9_u32, 1..9_u32), 1..4);
    let schedule = (rules, zone).prop_filter_map("overlaps", |(rules, zone)| {
        let rules = (8..).zip(rules).map(|(hour, (minute, length, over, under))| {
            let (cron, length) =
                (format!("{minute} {hour} * * 1-5"), Duration::from_secs(length * 60));
            ScheduleRule::new(&cron, length, Scale::new(over, under)?)?.zone(zone)
        });
        Schedule::new(rules.collect::<Result<Vec<_>, _>>().ok()?).ok()
    });
    let parts = (
        name,
        amount(),
        burst,
        period(),
        prop::option::of(window()),
        any::<bool>(),
        mode,
        prop::option::of(schedule),
    );
    // Some names are refused.
    parts.prop_filter_map(
        "a name",
        |(name, amount, burst, period, window, is_slots, mode, schedule)| {
            let limit = match (window, is_slots) {
                (Some(window), _) => Limit::quota(&name, amount, window),
                (None, true) => Limit::concurrent(&name, amount),
                (None, false) => Limit::custom(&name, burst.unwrap_or(amount), amount, period),
            };
            let limit = limit.ok()?.in_mode(mode);
            Some(match schedule {
                // Some scales leave no limit.
                Some(schedule) => limit.clone().with_schedule(schedule).unwrap_or(limit),
                None => limit,
            })
        },
    )
}

/// Any configuration that a call accepts, as the table returns it.
fn configuration() -> impl Strategy<Value = Config> {
    let limits = prop::collection::vec(limit(), 0..4);
    let status = prop::sample::select(vec![
        ConfigStatus::Enforced,
        ConfigStatus::Disabled,
        ConfigStatus::Unlimited,
    ]);
    let parts = (limits, status, any::<bool>());
    parts.prop_filter_map("limits", |(mut limits, status, is_shadow)| {
        limits.sort_by(|one, other| one.name().cmp(other.name()));
        limits.dedup_by(|one, other| one.name() == other.name());
        let config = Config { class: None, limits, status, is_shadow };
        config.check().is_ok().then_some(config)
    })
}

fn entity() -> impl Strategy<Value = EntityId> {
    let name = "[A-Za-z0-9][A-Za-z0-9_.:@-]{0,8}|null|true|NO|007|0x1f|1e3|2026-11-23|12:30";
    name.prop_filter_map("a name", |name| EntityId::new(&*name).ok())
}

fn level() -> impl Strategy<Value = ConfigLevel> {
    let resource = "[A-Za-z][A-Za-z0-9_.:/-]{0,8}|null|yes|Off";
    let resource = resource.prop_filter_map("a name", |name| Resource::new(&*name).ok());
    (0..4_usize, entity(), resource)
        .prop_map(|(at, entity, resource)| ConfigLevel::of(&entity, &resource)[at].clone())
}

/// All levels and parents of a namespace.
fn contents() -> impl Strategy<Value = LimitsFileContents> {
    let configs = prop::collection::btree_map(level(), configuration(), 0..8);
    let entities = prop::collection::btree_map(entity(), any::<bool>(), 0..4);
    (configs, entities).prop_map(|(configs, children)| {
        // Of no cycle, because no other one begins so.
        let parent = EntityId::new("parent:1").unwrap();
        let entities = children.into_iter().filter(|(id, _)| *id != parent);
        let entities =
            entities.map(|(id, cascades)| Entity::new(id).child_of(parent.clone(), cascades));
        LimitsFileContents { configs: configs.into_iter().collect(), entities: entities.collect() }
    })
}

/// The contents by name, without entities that say nothing.
fn by_name(
    contents: &LimitsFileContents,
) -> (BTreeMap<&ConfigLevel, &Config>, BTreeMap<&EntityId, &Entity>) {
    let configs = contents.configs.iter();
    let entities = contents.entities.iter().filter(|of| of.parent.is_some());
    (
        configs.map(|(level, config)| (level, config)).collect(),
        entities.map(|entity| (&entity.id, entity)).collect(),
    )
}

proptest! {
    #[test]
    fn a_limit_is_read_as_it_is_written_by_text_and_json(limit in limit()) {
        let text = limit.to_string();
        prop_assert_eq!(text.parse::<Limit>(), Ok(limit.clone()));
        let of_name = text.strip_prefix(limit.name().as_str()).unwrap().strip_prefix('=').unwrap();
        prop_assert_eq!(of_name, limit.text());
        let json = serde_json::to_value(&limit).unwrap();
        prop_assert_eq!(&json["text"], &text);
        prop_assert_eq!(&serde_json::from_value::<Limit>(json).unwrap(), &limit);
        let string = serde_json::Value::from(text);
        prop_assert_eq!(serde_json::from_value::<Limit>(string).unwrap(), limit);
    }

    #[test]
    fn a_limits_file_is_read_as_it_is_written_and_written_the_same_again(contents in contents()) {
        let text = contents.to_string();
        let read = LimitsFileContents::parse("limits.yaml", &*text).unwrap();
        prop_assert_eq!(by_name(&read), by_name(&contents), "{}", text);
        prop_assert_eq!(read.to_string(), text);
    }
}

/// The file's older form says the same.
#[test]
fn a_map_and_its_text_are_one_limit() {
    let file = |limit: &str| {
        let text = format!("weirgate: 1\nsystem:\n  limits:\n    l: {limit}\n");
        let contents = LimitsFileContents::parse("limits.yaml", text).unwrap();
        contents.configs[0].1.limits[0].to_string()
    };
    for (map, text) in [
        ("{per_second: 5}", "5/second"),
        ("{per_minute: 5, burst: 7, mode: soft}", "5/minute,burst=7,mode=soft"),
        ("{per_hour: 1_000}", "1000/hour"),
        ("{per_day: 5, mode: shadow}", "5/day,mode=shadow"),
        ("{concurrent: 20}", "20"),
        ("{capacity: 10, refill_amount: 1, refill_period_ms: 250}", "1/250ms,burst=10"),
        ("{quota: 10000, every: month}", "quota:10000/month"),
        (
            "{quota: 10_000, every: month, day: 15, at: \"09:00\", tz: europe/berlin, mode: soft}",
            "quota:10000/month,day=15,at=09:00,tz=Europe/Berlin,mode=soft",
        ),
        ("{quota: 5, every: week, day: sunday, at: 18:30}", "quota:5/week,day=sunday,at=18:30"),
        ("{quota: 5, every: hour, at: \":30\"}", "quota:5/hour,at=:30"),
        ("{quota: 5, every: year, month: 4, day: 6}", "quota:5/year,month=4,day=6"),
        ("{session: 5h, quota: 200}", "session:200/5h"),
        (
            "{per_day: 900, classes: {night: {at_least: 5%}, batch: {at_least: 10%, leaves: 30%}}}",
            "900/day,class=batch:10%:30%,class=night:5%",
        ),
        (
            "{per_minute: 5, schedule: [{cron: 0 8 * * 1-5, for: 600m, scale: 2/1, tz: europe/berlin}, {cron: \"0,30 0 * * *\", for: 5m, tz: Europe/Berlin, scale: 3/5}]}",
            "5/minute,schedule=0 8 * * 1-5 for 10h scale 2/1 tz Europe/Berlin; 0,30 0 * * * for 5m scale 3/5 tz Europe/Berlin",
        ),
    ] {
        assert_eq!(file(map), format!("l={text}"));
        assert_eq!(file(text), format!("l={text}"));
    }
}
