//! The JSON of public values is that of `docs/guide/json.md`, and reads back as the same value.

use std::fmt::Debug;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use weirgate::{
    AuditChange, AuditEvent, AuditId, Balances, Config, ConfigLevel, ConfigStatus, Degraded,
    Denied, Disabled, Entity, EntityDescription, EpochMillis, Every, Granularity, Limit, LimitKind,
    LimitMode, LimitStatus, MilliTokens, MilliTotal, NeverFits, OnUnavailable, OperationOutcome,
    Page, PageToken, QuotaWindow, Settlement, Stats, StoredBucket, StoredLease, Switch, TopUser,
    Usage, UsageRow, UsageState, UsageTotal, Window,
};

const GUIDE: &str = include_str!("../../docs/guide/json.md");

/// The next example of the page.
struct Examples(std::vec::IntoIter<&'static str>);

impl Examples {
    fn new() -> Self {
        let blocks = GUIDE.split("```json\n").skip(1);
        let text = blocks.map(|block| block.split("```").next().unwrap_or_default());
        Self(text.collect::<Vec<_>>().into_iter())
    }

    fn is<T: Serialize + DeserializeOwned + PartialEq + Debug>(&mut self, value: &T) {
        let example = self.0.next().expect("the page has an example");
        assert_eq!(&read::<T>(example), value, "{example}");
        self.reads_as(example, value);
    }

    fn reads_as(&self, example: &str, value: &impl Serialize) {
        let json: serde_json::Value = serde_json::from_str(example).unwrap();
        assert_eq!(serde_json::to_value(value).unwrap(), json);
    }
}

fn read<T: DeserializeOwned>(json: &str) -> T {
    serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {json}"))
}

fn usage() -> Usage {
    let tokens = [("rpm", 2_000), ("tpm", 1_213_125)];
    let tokens = tokens.map(|(limit, milli)| (limit.try_into().unwrap(), MilliTotal(milli)));
    Usage { tokens: tokens.into(), acquires: 2 }
}

fn status() -> LimitStatus {
    LimitStatus {
        entity: "openai".try_into().unwrap(),
        resource: "gpt-4".try_into().unwrap(),
        limit: "tpm".to_owned(),
        mode: LimitMode::Enforced,
        capacity: MilliTokens::from_tokens(200_000),
        refill_amount: MilliTokens::from_tokens(100_000),
        refill_period: Duration::from_secs(60),
        available: MilliTokens(-2_500),
        requested: MilliTokens::from_tokens(1_500),
        is_requested: true,
        retry_after: Some(Duration::from_millis(1_500)),
        paused_for: None,
        window: None,
        window_end: None,
        resets_in: None,
    }
}

#[test]
fn the_examples_of_the_guide_are_what_is_written_and_read() {
    let mut examples = Examples::new();
    let (entity, resource) =
        ("openai".try_into().unwrap(), weirgate::Resource::new("gpt-4").unwrap());
    let entity: weirgate::EntityId = entity;
    let rate =
        Limit::per_minute("tpm", 100_000).and_then(|limit| limit.with_burst(200_000)).unwrap();
    examples.is(&rate);
    let slots = Limit::concurrent("slots", 20).unwrap().in_mode(LimitMode::Soft);
    examples.is(&slots);
    let month = Every::month().on_day(15).at(9, 0).zone("Europe/Berlin");
    examples.is(&Limit::quota("tpm", 10_000, month.unwrap()).unwrap());
    examples.is(&Limit::session("tpm", 200, Duration::from_hours(5)).unwrap());
    let office_hours = "0 8 * * 1-5 for 10h scale 2/1 tz Europe/Berlin".parse();
    let scheduled = Limit::concurrent("slots", 20).unwrap();
    examples.is(&scheduled.with_schedule(office_hours.unwrap()).unwrap());
    let config = Config { is_shadow: true, ..Config::of([slots]) };
    examples.is(&config);
    examples.is(&Entity::new("user-1".try_into().unwrap()).child_of("team-a".try_into().unwrap(), true));
    let named = EntityDescription::default().named("Acme Inc.").unwrap();
    examples.is(&named.labelled("plan", "pro").unwrap());
    examples.is(&AuditEvent {
        id: AuditId::new(EpochMillis(1_795_219_230_000), 1),
        principal: "ops".to_owned(),
        operation: None,
        key: None,
        change: AuditChange::Config {
            level: ConfigLevel::EntityResource(entity.clone(), resource.clone()),
            before: None,
            after: Some(config),
        },
    });
    examples.is(&Denied {
        retry_after: Some(Duration::from_millis(1_500)),
        starts_in: None,
        limits: vec![status()],
        degraded: Some(Degraded { reason: "DynamoDB is unavailable".to_owned() }),
        missing_plan: None,
    });
    examples.is(&Disabled {
        entity: entity.clone(),
        resource: resource.clone(),
        stopped_at: Some(ConfigLevel::System),
    });
    examples.is(&NeverFits {
        entity: entity.clone(),
        resource: resource.clone(),
        limit: "tpm".to_owned(),
        requested: MilliTokens::from_tokens(300_000),
        capacity: MilliTokens::from_tokens(200_000),
        missing_plan: None,
    });
    examples.is(&Balances { retry_after: None, status: ConfigStatus::Disabled, limits: vec![] });
    let (start, end) = (EpochMillis(1_795_219_200_000), EpochMillis(1_795_222_800_000));
    examples.is(&UsageRow {
        entity: entity.clone(),
        resource: resource.clone(),
        start,
        end,
        usage: usage(),
        state: UsageState::Final,
        complete_until: end,
    });
    examples.is(&UsageTotal {
        usage: usage(),
        state: UsageState::Final,
        complete_until: end,
        unreadable: vec![],
    });
    examples.is(&TopUser { entity: entity.clone(), resource: resource.clone(), usage: usage() });
    let page = Page {
        items: vec![StoredBucket {
            entity,
            resource,
            shards: 2,
            leases: 3,
            limits: vec![],
            counted: usage(),
        }],
        unreadable: vec![],
        next: Some("WyJidWNrZXRzIix7IlBLIjoiYSJ9XQ==".parse().unwrap()),
    };
    let example = examples.0.next().expect("the page has a list");
    examples.reads_as(example, &page);
    let again: Page<StoredBucket> = read(example);
    assert_eq!((again.items, again.next), (page.items, page.next));
    examples.is(&StoredLease {
        id: "0000000000011".to_owned(),
        owner: "batch-17".to_owned(),
        expires_at: EpochMillis(start.0 + 30_000),
        tokens: [("slots".try_into().unwrap(), MilliTokens::from_tokens(1))].into(),
        shard: 0,
    });
    assert_eq!(examples.0.next(), None, "every example is tested");
}

fn survives<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: T, json: &str) {
    assert_eq!(serde_json::to_string(&value).unwrap(), json);
    assert_eq!(read::<T>(json), value);
}

#[test]
fn words_levels_and_changes_survive() {
    survives(LimitMode::Shadow, r#""shadow""#);
    survives(ConfigStatus::Unlimited, r#""unlimited""#);
    survives(Granularity::Monthly, r#""monthly""#);
    survives(Window::Hourly, r#""hourly""#);
    survives(Settlement::LeaseGone, r#""lease_gone""#);
    survives(OnUnavailable::Deny, r#""deny""#);
    survives(OnUnavailable::Local { percent: 25 }, r#""local 25""#);
    survives(OperationOutcome::DryRun, r#""dry_run""#);
    survives(OperationOutcome::AppliedBefore(EpochMillis(5)), r#"{"applied_before_ms":5}"#);
    survives(
        AuditChange::Switch {
            level: ConfigLevel::System,
            before: None,
            after: Some(Switch::Stopped),
        },
        r#"{"kind":"switch","level":{"level":"system"},"before":null,"after":"stopped"}"#,
    );
    survives(
        AuditChange::Balances {
            entity: "e-1".try_into().unwrap(),
            resource: "api".try_into().unwrap(),
            before: [("rpm".try_into().unwrap(), MilliTokens(-500))].into(),
            after: [("rpm".try_into().unwrap(), MilliTokens(5_000))].into(),
        },
        r#"{"kind":"balances","entity":"e-1","resource":"api","before_tokens":{"rpm":-0.5},"after_tokens":{"rpm":5}}"#,
    );
    survives(ConfigLevel::System, r#"{"level":"system"}"#);
    survives(
        ConfigLevel::Resource("gpt-4".try_into().unwrap()),
        r#"{"level":"resource","resource":"gpt-4"}"#,
    );
    survives(
        AuditChange::Entity { id: "e-1".try_into().unwrap(), before: None, after: None },
        r#"{"kind":"entity","id":"e-1","before":null,"after":null}"#,
    );
}

#[test]
fn a_quotas_status_has_its_window_and_its_end() {
    let window: QuotaWindow = "month,day=15,tz=Europe/Berlin".parse().unwrap();
    let quota = LimitStatus {
        capacity: MilliTokens::from_tokens(10_000),
        refill_amount: MilliTokens::ZERO,
        refill_period: Duration::ZERO,
        window: Some(window.code()),
        window_end: Some(EpochMillis(1_797_321_600_000)),
        resets_in: Some(Duration::from_secs(60)),
        ..status()
    };
    assert_eq!(quota.kind(), LimitKind::Quota);
    survives(
        quota,
        r#"{"entity":"openai","resource":"gpt-4","limit":"tpm","mode":"enforced","capacity_tokens":10000,"refill_tokens":0,"refill_period_ms":0,"available_tokens":-2.5,"requested_tokens":1500,"is_requested":true,"retry_after_ms":1500,"window":{"every":"month","day":15,"tz":"Europe/Berlin"},"resets_at_ms":1797321600000,"resets_in_ms":60000}"#,
    );
    let rate = serde_json::to_string(&status()).unwrap();
    assert!(!rate.contains("window") && !rate.contains("resets"), "{rate}");
}

/// Counters are added with time, so one that is missing counts as 0.
#[test]
fn counters_of_another_version_are_read() {
    let stats = Stats { granted: 3, unconfirmed_millitokens: 1_500, ..Stats::default() };
    let json = serde_json::to_string(&stats).unwrap();
    assert_eq!(read::<Stats>(&json), stats);
    let old: Stats = read(r#"{"granted":3,"unconfirmed_millitokens":1500,"unknown":1}"#);
    assert_eq!(old, stats);
}

#[test]
fn what_a_constructor_refuses_is_refused_with_its_text() {
    let refused = |error: serde_json::Error| error.to_string();
    let name = weirgate::EntityId::new("a#b").unwrap_err().to_string();
    let json = refused(serde_json::from_str::<Entity>(r#"{"id":"a#b"}"#).unwrap_err());
    assert!(json.starts_with(&name), "{json}");
    let token = "x".parse::<PageToken>().unwrap_err().to_string();
    let json = refused(serde_json::from_str::<PageToken>(r#""x""#).unwrap_err());
    assert!(json.starts_with(&token), "{json}");
    let json = refused(serde_json::from_str::<OnUnavailable>(r#""local 101""#).unwrap_err());
    assert!(json.contains("\"local 101\" must be error, deny"), "{json}");
    let json = refused(serde_json::from_str::<AuditId>(r#""x""#).unwrap_err());
    assert!(json.contains("pass it as it was returned"), "{json}");
    let json = refused(serde_json::from_str::<Entity>(r#"{"id":"a","parnet":"b"}"#).unwrap_err());
    assert!(json.contains("parnet"), "{json}");
}
