//! Configuration as keys and items: written values are read back, and errors name the wrong value.

use std::collections::BTreeMap;

use crate::keys::{entity, namespace, plan, resource};
use crate::model::{Held, Item, START, config};
use crate::quotas::any_quota;
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use weirgate_shared::write::{
    Action, Update, describe_entity, purge_config, record_operation, set_entity, write_audit_event,
    write_config, write_switches,
};
use weirgate_shared::{
    AuditChange, AuditEvent, AuditId, AuditKey, AuditSubject, Class, ClassName, Config,
    ConfigFilter, ConfigKey, ConfigLevel, ConfigStatus, Entity, EntityDescription, EntityKey,
    EpochMillis, IdempotencyKey, ItemKey, LISTED_CONFIG, Limit, LimitMode, LimitName, MilliTokens,
    Millis, Namespace, OnUnavailable, Operation, Switch, Switches, Versioned, WriteId,
    config_partitions, read_audit, read_config, read_description, read_entity, read_operation,
    read_switches,
};

fn level() -> impl Strategy<Value = ConfigLevel> {
    prop_oneof![
        (entity(), resource())
            .prop_map(|(entity, resource)| ConfigLevel::EntityResource(entity, resource)),
        entity().prop_map(ConfigLevel::Entity),
        (plan(), resource()).prop_map(|(plan, resource)| ConfigLevel::PlanResource(plan, resource)),
        plan().prop_map(ConfigLevel::Plan),
        resource().prop_map(ConfigLevel::Resource),
        Just(ConfigLevel::System),
    ]
}

fn mode() -> impl Strategy<Value = LimitMode> {
    prop::sample::select(vec![LimitMode::Enforced, LimitMode::Shadow, LimitMode::Soft])
}

fn limit() -> impl Strategy<Value = Limit> {
    let rate = (
        "[a-z]{1,3}[.-]?[a-z]{1,3}",
        1..=10_i64.pow(12),
        1..=10_i64.pow(12),
        1..=366 * 86_400_000_i64,
    );
    let rate =
        rate.prop_map(|(name, capacity, amount, ms)| Limit::custom(&name, capacity, amount, ms));
    let slots = ("[a-z]{1,3}", 1..=10_i64.pow(12))
        .prop_map(|(name, slots)| Limit::concurrent(&name, slots));
    let quota = ("[a-z]{1,3}", 1..=10_i64.pow(12), any_quota())
        .prop_map(|(name, tokens, window)| Limit::quota(&name, tokens, window));
    (
        prop_oneof![3 => rate, 1 => slots, 1 => quota].prop_filter_map("taken", Result::ok),
        mode(),
        vec((class(), 0..40_u8, 0..99_u8), 0..3),
    )
        .prop_map(|(limit, mode, classes)| {
            let classes = classes.into_iter().map(|(name, at_least, leaves)| {
                let class = Class::new(name.as_str(), at_least).unwrap();
                class.leaving(leaves).unwrap()
            });
            let limit = limit.in_mode(mode);
            // Not every limit can have them, and none has one twice.
            limit.clone().with_classes(classes).unwrap_or(limit)
        })
}

fn class() -> impl Strategy<Value = ClassName> {
    "[a-c]".prop_map(|name| ClassName::new(name).unwrap())
}

fn configuration() -> impl Strategy<Value = Config> {
    let status = prop::sample::select(vec![
        ConfigStatus::Enforced,
        ConfigStatus::Disabled,
        ConfigStatus::Unlimited,
    ]);
    let parts = (vec(limit(), 0..6), status, any::<bool>(), option::of(class()));
    parts.prop_map(|(mut limits, status, is_shadow, class)| {
        limits.sort_by(|one, other| one.name().cmp(other.name()));
        limits.dedup_by(|one, other| one.name() == other.name());
        Config { class, limits, status, is_shadow }
    })
}

fn of_parent() -> impl Strategy<Value = Entity> {
    let parts = (entity(), option::of(entity()), any::<bool>(), option::of(plan()));
    parts.prop_map(|(id, parent, cascades, plan)| Entity { id, parent, cascades, plan })
}

fn description() -> impl Strategy<Value = EntityDescription> {
    let labels = btree_map("[A-Za-z0-9_./-]{1,64}", "\\PC{0,40}", 0..5);
    (option::of("\\PC{1,60}"), labels).prop_map(|(name, labels)| {
        let named = name.into_iter().fold(EntityDescription::default(), |description, name| {
            description.named(name).unwrap()
        });
        labels
            .into_iter()
            .fold(named, |description, (name, value)| description.labelled(name, value).unwrap())
    })
}

fn switch() -> impl Strategy<Value = Switch> {
    prop::sample::select(vec![Switch::Stopped, Switch::Exempt])
}

fn policy() -> impl Strategy<Value = OnUnavailable> {
    let local = (1..=100_u8).prop_map(|percent| OnUnavailable::Local { percent });
    prop_oneof![
        Just(OnUnavailable::Error),
        Just(OnUnavailable::Deny),
        Just(OnUnavailable::Allow),
        local
    ]
}

fn amounts() -> impl Strategy<Value = BTreeMap<LimitName, MilliTokens>> {
    // Of these letters, no name is reserved.
    let name = "[a-c]{1,3}".prop_map(|name| LimitName::new(name).unwrap());
    btree_map(name, any::<i64>().prop_map(MilliTokens), 0..3)
}

prop_compose! {
    fn event()(
        (kind, at, random, principal) in (0..11, 0..253_402_300_800_000_i64, any::<u128>(), "\\PC{1,20}"),
        (level, entity, resource, lease) in (level(), entity(), resource(), "[a-z0-9]{1,9}"),
        configs in vec(option::of(configuration()), 2), entities in vec(option::of(of_parent()), 2),
        switches in vec(option::of(switch()), 2), policies in vec(option::of(policy()), 2),
        amounts in vec(amounts(), 2), counts in any::<[u32; 2]>(), descriptions in vec(description(), 2),
        (operation, key) in (option::of("\\PC{1,40}"), option::of("[A-Za-z0-9][A-Za-z0-9_.:/@-]{0,20}")),
    ) -> AuditEvent {
        let id = entity.clone();
        let [config, other] = <[_; 2]>::try_from(configs).unwrap();
        let limits = |of: Option<Config>| of.unwrap_or_default().limits;
        let own = |of: Option<Entity>| of.map(|of| Entity { id: entity.clone(), ..of });
        let [first, second] = <[_; 2]>::try_from(entities).unwrap().map(own);
        let [held, more] = <[_; 2]>::try_from(amounts).unwrap();
        let [described, next] = <[_; 2]>::try_from(descriptions).unwrap();
        let change = match kind {
            0 => AuditChange::Purged,
            1 => AuditChange::Config { level, before: config, after: other },
            2 => AuditChange::EntityDescription { id, before: described, after: next },
            3 => AuditChange::Erased { id },
            4 => AuditChange::Entity { id, before: first, after: second },
            5 => AuditChange::Switch { level, before: switches[0], after: switches[1] },
            6 => AuditChange::LeaseEnded { entity: id, resource, lease, held },
            7 => AuditChange::Shards { entity: id, resource, before: counts[0], after: counts[1] },
            8 => AuditChange::OnUnavailable { before: policies[0], after: policies[1] },
            9 => AuditChange::Balances { entity: id, resource, before: held, after: more },
            _ => AuditChange::Limits { entity: id, resource, before: limits(config), after: limits(other) },
        };
        AuditEvent { id: AuditId::new(EpochMillis(at), random), principal, operation, key, change }
    }
}

fn update(action: Action) -> Update {
    match action {
        Action::Update(update) => update,
        other => panic!("{other:?} is no update"),
    }
}

fn config_of(item: &Item) -> Versioned<Config> {
    read_config(item.attributes()).unwrap()
}

fn key(item: &Item) -> ItemKey {
    weirgate_shared::read_key(item.attributes()).unwrap()
}

proptest! {
    #![proptest_config(config(256))]

    #[test]
    fn switches_are_read_back_and_only_the_version_seen_is_replaced(
        levels in btree_map(level(), switch(), 0..5), seen in 0..3_i64, on_unavailable in option::of(policy()),
    ) {
        let ns = Namespace::new("ns").unwrap();
        let switches = Switches { version: seen + 1, levels, on_unavailable, ..Switches::default() };
        let known = Switches { version: seen, ..Switches::default() };
        let update = update(write_switches(&ns, &known, &switches));
        let mut item = Item::default();
        if seen > 0 {
            let before = Switches { version: seen, on_unavailable: Some(OnUnavailable::Deny), ..Switches::default() };
            let Action::Update(first) = write_switches(&ns, &Switches::default(), &before) else { unreachable!() };
            prop_assert!(item.apply(&first));
        }
        prop_assert!(item.apply(&update));
        prop_assert_eq!(read_switches(item.attributes()).unwrap(), switches);
        prop_assert!(!item.apply(&update), "replaced what it had not seen");
    }

    #[test]
    fn an_idempotency_key_is_used_once(at in any::<i64>(), what in "\\PC{1,20}") {
        let key = IdempotencyKey::new("INC-12:a/b").unwrap();
        let operation = Operation { at: EpochMillis(at), what };
        let update = update(record_operation(&Namespace::new("ns").unwrap(), &key, &operation, None));
        let mut item = Item::default();
        prop_assert!(item.apply(&update));
        prop_assert_eq!(read_operation(item.attributes()).unwrap(), operation);
        prop_assert!(!item.apply(&update));
    }

    #[test]
    fn a_configuration_is_in_the_lists_it_belongs_to((ns, level) in (namespace(), level())) {
        let key = ConfigKey { namespace: ns.clone(), level: level.clone() };
        let lists = |of: ConfigFilter, (pk, sk): (String, String)| {
            let (partition, prefix) = of.partition(&ns).unwrap();
            partition == pk && sk.starts_with(prefix)
        };
        let kind = match &level {
            ConfigLevel::EntityResource(_, resource) | ConfigLevel::PlanResource(_, resource) => {
                Some(ConfigFilter::Resource(resource.clone()))
            }
            ConfigLevel::Entity(_) => Some(ConfigFilter::Entities),
            ConfigLevel::Resource(_) => Some(ConfigFilter::Resources),
            ConfigLevel::Plan(_) | ConfigLevel::System => None,
        };
        let is_listed = kind.clone().zip(key.by_kind()).map(|(kind, keys)| lists(kind, keys));
        prop_assert_eq!(is_listed, kind.map(|_| true));
        if let Some(plan) = level.plan() {
            let ItemKey { pk, sk } = key.item_key();
            prop_assert!(lists(ConfigFilter::Plan(plan.clone()), (pk, sk)));
            prop_assert!(lists(ConfigFilter::Plans, key.by_namespace().unwrap()));
        }
        if let ConfigLevel::EntityResource(entity, _) | ConfigLevel::Entity(entity) = &level {
            let ItemKey { pk, sk } = key.item_key();
            prop_assert!(lists(ConfigFilter::Entity(entity.clone()), (pk, sk)));
        }
        let of_namespace = key.by_namespace().is_some_and(|(pk, sk)| {
            config_partitions(&ns).any(|partition| partition == pk) && sk.starts_with(LISTED_CONFIG)
        });
        let is_expected = level.plan().is_some() || matches!(level, ConfigLevel::EntityResource(..));
        prop_assert_eq!(of_namespace, is_expected);
    }

    #[test]
    fn an_events_key_is_read_back_and_sorts_by_time(
        (namespace, level, at, later) in (namespace(), level(), 0..2_i64.pow(47), 1..1_000_000_i64),
        (random, other) in (any::<u128>(), any::<u128>()),
    ) {
        let event = |id| AuditKey { namespace: namespace.clone(), of: AuditSubject::from(&level), id };
        let first = event(AuditId::new(EpochMillis(at), random));
        prop_assert_eq!(AuditKey::parse(&first.item_key()), Some(first.clone()));
        prop_assert_eq!(first.id.at(), EpochMillis(at));
        let last = event(AuditId::new(EpochMillis(at + later), other));
        prop_assert!(first.item_key().sk < last.item_key().sk);
        prop_assert!(first.item_key().sk < event(first.id.next()).item_key().sk);
    }

    /// After any sets and deletes, the item has the last configuration, and its version counts.
    #[test]
    fn a_configuration_is_read_back_and_its_version_never_falls(
        (namespace, level) in (namespace(), level()), turns in vec(option::of(configuration()), 1..6),
    ) {
        let key = ConfigKey { namespace, level };
        let (mut item, mut seen) = (Item::default(), Versioned::default());
        for (turn, next) in turns.into_iter().enumerate() {
            let write = update(write_config(&key, &seen, next.as_ref()));
            prop_assert!(item.apply(&write));
            prop_assert!(!item.apply(&write), "it happens once");
            seen = Versioned { version: i64::try_from(turn).unwrap() + 1, value: next };
            prop_assert_eq!(&config_of(&item), &seen);
            let has = |index: [&str; 2]| index.iter().all(|name| item.0.contains_key(*name));
            let is_listed = has(["GSI2PK", "GSI2SK"]) || has(["GSI3PK", "GSI3SK"]);
            prop_assert_eq!(is_listed, seen.value.is_some() && key.level != ConfigLevel::System);
        }
        if key.level == ConfigLevel::System {
            prop_assert!(item.apply(&update(purge_config(&key.namespace, START))));
            prop_assert_eq!(config_of(&item).value, None);
            prop_assert_eq!(item.0.len(), 3, "its keys and its version: {:?}", item.0);
        }
    }

    #[test]
    fn an_entity_is_read_back_and_is_among_its_parents_children_and_its_plans_entities(
        namespace in namespace(), id in entity(), turns in vec(option::of(of_parent()), 1..6),
    ) {
        let key = EntityKey { namespace, entity: id };
        let (mut item, mut last) = (Item::default(), None);
        // With a version a deletion leaves it, and nothing else.
        for (turn, next) in (1..).zip(turns) {
            let value = next.map(|next| Entity { id: key.entity.clone(), ..next });
            let (next, op) = (Versioned { version: turn, value }, WriteId::from_bits(turn.try_into().unwrap()));
            let write = update(set_entity(&key, last.as_ref(), &next, &op));
            prop_assert!(item.apply(&write));
            prop_assert!(!item.apply(&write), "it happens once");
            prop_assert_eq!(read_entity(key.entity.clone(), item.attributes()), Ok((next.clone(), op.clone())));
            let parent = next.value.as_ref().and_then(|next| next.parent.clone());
            let parent = parent.map(|entity| EntityKey { entity, ..key.clone() }.children());
            prop_assert_eq!(item.0.get("GSI1PK").cloned(), parent.map(Held::Text));
            let plan = next.value.as_ref().and_then(|next| next.plan.as_ref());
            let plan = plan.map(|plan| key.by_plan(plan).0);
            prop_assert_eq!(item.0.get("GSI2PK").cloned(), plan.map(Held::Text));
            prop_assert_eq!(item.0.contains_key("GSI3PK"), next.value.is_some());
            if next.value.is_none() {
                prop_assert_eq!(item.0.len(), 4, "the keys, the version and the last write");
            }
            last = Some(op);
        }
        prop_assert_eq!(EntityKey::parse(&self::key(&item)), Some(key));
    }

    #[test]
    fn a_description_is_read_back_and_the_entity_is_not_changed(
        namespace in namespace(), entity in of_parent(), turns in vec(description(), 1..5),
    ) {
        let key = EntityKey { namespace, entity: entity.id.clone() };
        let (mut item, mut last) = (Item::default(), WriteId::from_bits(0));
        let stored = Versioned { version: 0, value: Some(entity) };
        prop_assert!(item.apply(&update(set_entity(&key, None, &stored, &last))));
        for (turn, next) in (1..).zip(turns) {
            let op = WriteId::from_bits(turn);
            let write = update(describe_entity(&key, &last, &next, &op));
            prop_assert!(item.apply(&write));
            prop_assert!(!item.apply(&write), "it happens once");
            let attributes: Vec<_> = item.attributes().collect();
            prop_assert_eq!(read_description(&attributes), Ok(next.clone()));
            prop_assert_eq!(read_entity(key.entity.clone(), item.attributes()), Ok((stored.clone(), op.clone())));
            let reset = update(set_entity(&key, Some(&op), &stored, &op));
            prop_assert!(item.apply(&reset));
            let attributes: Vec<_> = item.attributes().collect();
            prop_assert_eq!(read_description(&attributes), Ok(next));
            last = op;
        }
    }

    #[test]
    fn an_event_is_read_back_and_lives_for_its_time((namespace, event) in (namespace(), event()), days in prop::option::of(0..4000_i64)) {
        let mut item = Item::default();
        let write = update(write_audit_event(&namespace, &event, days.map(|days| Millis(days * 86_400_000))));
        prop_assert!(item.apply(&write));
        prop_assert!(!item.apply(&write), "it happens once");
        prop_assert_eq!(read_audit(item.attributes()), Ok(event.clone()));
        let Some(days) = days else {
            prop_assert!(!item.0.contains_key("ttl"));
            return Ok(());
        };
        let Some(Held::Number(ttl, _)) = item.0.get("ttl") else { panic!("it has a time to live") };
        let late = ttl - i128::from(event.id.at().0) - i128::from(days) * 86_400_000;
        prop_assert!((0..1000).contains(&late), "{late} ms late");
    }

    #[test]
    fn a_wrong_attribute_of_a_configuration_is_named(
        wrong in prop::sample::select(vec![
            ("cv", "many"), ("cv", ""), ("limits", "rpm"), ("status", "off"), ("shadow", "yes"), ("limits.rpm", "60"),
            ("limits.rpm.cp", "0"), ("limits.rpm.cp", "1.5"), ("limits.rpm.cp", ""), ("limits.rpm.ra", "-1"),
            ("limits.rpm.rp", "0"), ("limits.rpm.rp", "9223372036854775807"), ("limits.rpm.mode", "hard"),
        ]),
    ) {
        let key = ConfigKey { namespace: Namespace::new("n").unwrap(), level: ConfigLevel::System };
        let config = Config::of([Limit::per_minute("rpm", 60).unwrap()]);
        let mut item = Item::default();
        prop_assert!(item.apply(&update(write_config(&key, &Versioned::default(), Some(&config)))));
        let (path, text) = wrong;
        let held = match text.parse::<f64>() {
            Ok(_) => Held::Number(0, text.to_owned()),
            Err(_) => Held::Text(text.to_owned()),
        };
        replace(&mut item.0, path, Some(held).filter(|_| !text.is_empty()));
        let error = read_config(item.attributes()).unwrap_err();
        prop_assert_eq!(&error.attribute, path);
        let value = if text.is_empty() { "missing" } else { text };
        prop_assert!(error.value.contains(value), "{error}");
    }
}

/// Replaces a value at a path inside maps, or removes it.
fn replace(map: &mut BTreeMap<String, Held>, path: &str, held: Option<Held>) {
    match path.split_once('.') {
        Some((first, rest)) => match map.get_mut(first) {
            Some(Held::Map(inner)) => replace(inner, rest, held),
            other => panic!("{other:?} is no map"),
        },
        None => {
            map.remove(path);
            map.extend(held.map(|held| (path.to_owned(), held)));
        }
    }
}
