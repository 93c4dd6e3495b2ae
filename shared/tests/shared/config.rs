//! Configuration as keys and items: written values are read back, and errors name the wrong value.

use std::collections::BTreeMap;

use crate::model::{Held, Item, config};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use weirgate_shared::write::{
    Action, Update, describe_entity, record_operation, set_entity, write_audit_event, write_config,
    write_switches,
};
use weirgate_shared::{
    AuditChange, AuditEvent, AuditId, AuditKey, AuditSubject, Config, ConfigFilter, ConfigKey,
    ConfigLevel, ConfigStatus, Entity, EntityDescription, EntityId, EntityKey, EpochMillis,
    IdempotencyKey, ItemKey, Limit, LimitMode, LimitName, MilliTokens, Millis, Namespace,
    OnUnavailable, Operation, Resource, Switch, Switches, Versioned, WriteId, read_audit,
    read_config, read_description, read_entity, read_operation, read_switches,
};

fn namespace() -> impl Strategy<Value = Namespace> {
    "[A-Za-z0-9][A-Za-z0-9_-]{0,31}".prop_map(|name| Namespace::new(name).unwrap())
}

/// Returns ids, also such that look like parts of keys.
fn entity() -> impl Strategy<Value = EntityId> {
    let any = "[A-Za-z0-9][A-Za-z0-9_.:@-]{0,20}".prop_map(|name| EntityId::new(name).unwrap());
    let odd = prop::sample::select(vec!["SYSTEM", "RESOURCE", "CONFIG", "default"]);
    prop_oneof![4 => any, 1 => odd.prop_map(|name| EntityId::new(name).unwrap())]
}

fn resource() -> impl Strategy<Value = Resource> {
    "[A-Za-z][A-Za-z0-9_./:-]{0,63}".prop_map(|name| Resource::new(name).unwrap())
}

fn level() -> impl Strategy<Value = ConfigLevel> {
    prop_oneof![
        (entity(), resource())
            .prop_map(|(entity, resource)| ConfigLevel::EntityResource(entity, resource)),
        entity().prop_map(ConfigLevel::Entity),
        resource().prop_map(ConfigLevel::Resource),
        Just(ConfigLevel::System),
    ]
}

fn mode() -> impl Strategy<Value = LimitMode> {
    prop::sample::select(vec![
        LimitMode::Enforced,
        LimitMode::Shadow,
        LimitMode::Soft,
    ])
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
    (
        prop_oneof![3 => rate, 1 => slots].prop_filter_map("taken", Result::ok),
        mode(),
    )
        .prop_map(|(limit, mode)| limit.in_mode(mode))
}

fn configuration() -> impl Strategy<Value = Config> {
    let status = prop::sample::select(vec![
        ConfigStatus::Enforced,
        ConfigStatus::Disabled,
        ConfigStatus::Unlimited,
    ]);
    (vec(limit(), 0..6), status, any::<bool>()).prop_map(|(mut limits, status, is_shadow)| {
        limits.sort_by(|one, other| one.name().cmp(other.name()));
        limits.dedup_by(|one, other| one.name() == other.name());
        Config {
            limits,
            status,
            is_shadow,
        }
    })
}

fn of_parent() -> impl Strategy<Value = Entity> {
    (entity(), option::of(entity()), any::<bool>()).prop_map(|(id, parent, cascades)| Entity {
        id,
        parent,
        cascades,
    })
}

fn description() -> impl Strategy<Value = EntityDescription> {
    let labels = btree_map("[A-Za-z0-9_./-]{1,64}", "\\PC{0,40}", 0..5);
    (option::of("\\PC{1,60}"), labels).prop_map(|(name, labels)| {
        let named = name
            .into_iter()
            .fold(EntityDescription::default(), |description, name| {
                description.named(name).unwrap()
            });
        labels
            .into_iter()
            .fold(named, |description, (name, value)| {
                description.labelled(name, value).unwrap()
            })
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

fn event() -> impl Strategy<Value = AuditEvent> {
    let of_config = (
        level(),
        option::of(configuration()),
        option::of(configuration()),
    )
        .prop_map(|(level, before, after)| AuditChange::Config {
            level,
            before,
            after,
        });
    let of_entity = (
        of_parent(),
        option::of(of_parent()),
        option::of(of_parent()),
    )
        .prop_map(|(own, before, after)| {
            let named = |entity: Entity| Entity {
                id: own.id.clone(),
                ..entity
            };
            AuditChange::Entity {
                id: own.id.clone(),
                before: before.map(named),
                after: after.map(named),
            }
        });
    let of_switch =
        (level(), option::of(switch()), option::of(switch())).prop_map(|(level, before, after)| {
            AuditChange::Switch {
                level,
                before,
                after,
            }
        });
    let of_policy = (option::of(policy()), option::of(policy()))
        .prop_map(|(before, after)| AuditChange::OnUnavailable { before, after });
    let amounts = || {
        btree_map("[a-z]{1,3}", any::<i64>(), 0..3).prop_map(|amounts| {
            let amount = |(name, amount): (String, i64)| {
                (LimitName::new(name).unwrap(), MilliTokens(amount))
            };
            amounts.into_iter().map(amount).collect()
        })
    };
    let of_balances = (entity(), resource(), amounts(), amounts()).prop_map(
        |(entity, resource, before, after)| AuditChange::Balances {
            entity,
            resource,
            before,
            after,
        },
    );
    let of_limits = (entity(), resource(), configuration(), configuration()).prop_map(
        |(entity, resource, before, after)| AuditChange::Limits {
            entity,
            resource,
            before: before.limits,
            after: after.limits,
        },
    );
    let of_lease = (entity(), resource(), "[a-z0-9]{1,9}", amounts()).prop_map(
        |(entity, resource, lease, held)| AuditChange::LeaseEnded {
            entity,
            resource,
            lease,
            held,
        },
    );
    let of_shards = (entity(), resource(), any::<u32>(), any::<u32>()).prop_map(
        |(entity, resource, before, after)| AuditChange::Shards {
            entity,
            resource,
            before,
            after,
        },
    );
    let of_erasure = entity().prop_map(|id| AuditChange::Erased { id });
    let of_description = (entity(), description(), description())
        .prop_map(|(id, before, after)| AuditChange::EntityDescription { id, before, after });
    let change = prop_oneof![
        Just(AuditChange::Purged),
        of_config,
        of_description,
        of_erasure,
        of_entity,
        of_switch,
        of_lease,
        of_shards,
        of_policy,
        of_balances,
        of_limits
    ];
    let id = (0..253_402_300_800_000_i64, any::<u128>());
    (id, "\\PC{1,20}", change).prop_map(|((at, random), principal, change)| AuditEvent {
        id: AuditId::new(EpochMillis(at), random),
        principal,
        change,
    })
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
    fn a_configurations_key_is_read_back_and_is_no_other_levels((ns, level, other) in (namespace(), level(), level())) {
        let key = ConfigKey { namespace: ns.clone(), level };
        prop_assert_eq!(ConfigKey::parse(&key.item_key()), Some(key.clone()));
        prop_assert_eq!(EntityKey::parse(&key.item_key()), None);
        let beside = ConfigKey { namespace: ns, level: other };
        prop_assert_eq!(beside == key, beside.item_key() == key.item_key());
        prop_assert!(beside == key || key.by_kind().is_none() || beside.by_kind() != key.by_kind());
    }

    #[test]
    fn a_configuration_is_in_the_lists_it_belongs_to((ns, level) in (namespace(), level())) {
        let key = ConfigKey { namespace: ns.clone(), level: level.clone() };
        let lists = |of: ConfigFilter, (pk, sk): (String, String)| {
            let (partition, prefix) = of.partition(&ns);
            partition == pk && sk.starts_with(prefix)
        };
        let kind = match &level {
            ConfigLevel::EntityResource(_, resource) => ConfigFilter::Resource(resource.clone()),
            ConfigLevel::Entity(_) => ConfigFilter::Entities,
            ConfigLevel::Resource(_) | ConfigLevel::System => ConfigFilter::Resources,
        };
        prop_assert_eq!(key.by_kind().is_some_and(|keys| lists(kind, keys)), level != ConfigLevel::System);
        if let ConfigLevel::EntityResource(entity, _) | ConfigLevel::Entity(entity) = &level {
            let ItemKey { pk, sk } = key.item_key();
            prop_assert!(lists(ConfigFilter::Entity(entity.clone()), (pk, sk)));
        }
    }

    #[test]
    fn a_key_that_parses_has_one_spelling(
        pk in "n/(ENTITY#|RESOURCE#|SYSTEM#|AUDIT#|AUDIT##RESOURCE#|AUDIT##SYSTEM)[a-z#_]{0,3}",
        sk in "#(CONFIG|META|AUDIT)#?(_default_|01[0-9A-Za-z]{24}|[a-z#_]{0,3})",
    ) {
        let item = ItemKey { pk, sk };
        if let Some(key) = ConfigKey::parse(&item) {
            prop_assert_eq!(key.item_key(), item.clone());
        }
        if let Some(key) = EntityKey::parse(&item) {
            prop_assert_eq!(key.item_key(), item.clone());
        }
        if let Some(key) = AuditKey::parse(&item) {
            prop_assert_eq!(key.item_key(), item);
        }
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

    #[test]
    fn an_entity_and_a_level_never_share_their_events((ns, one, other) in (namespace(), level(), level())) {
        let of = |level: &ConfigLevel| AuditSubject::from(level);
        let partition = |level| AuditKey::partition(&ns, &of(level));
        prop_assert_eq!(of(&one) == of(&other), partition(&one) == partition(&other));
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
            let is_listed = item.0.contains_key("GSI2PK") && item.0.contains_key("GSI2SK");
            prop_assert_eq!(is_listed, seen.value.is_some() && key.level != ConfigLevel::System);
        }
    }

    #[test]
    fn an_entity_is_read_back_and_is_among_its_parents_children(
        namespace in namespace(), turns in vec(of_parent(), 1..5),
    ) {
        let key = EntityKey { namespace, entity: turns[0].id.clone() };
        let (mut item, mut last) = (Item::default(), None);
        for (turn, next) in turns.into_iter().enumerate() {
            let (next, op) = (Entity { id: key.entity.clone(), ..next }, WriteId::from_bits(turn.try_into().unwrap()));
            let write = update(set_entity(&key, last.as_ref(), Some(&next), &op));
            prop_assert!(item.apply(&write));
            prop_assert!(!item.apply(&write), "it happens once");
            prop_assert_eq!(read_entity(key.entity.clone(), item.attributes()), Ok((next.clone(), op.clone())));
            let parent = next.parent.map(|entity| EntityKey { entity, ..key.clone() }.children());
            prop_assert_eq!(item.0.get("GSI1PK").cloned(), parent.map(Held::Text));
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
        prop_assert!(item.apply(&update(set_entity(&key, None, Some(&entity), &last))));
        for (turn, next) in (1..).zip(turns) {
            let op = WriteId::from_bits(turn);
            let write = update(describe_entity(&key, &last, &next, &op));
            prop_assert!(item.apply(&write));
            prop_assert!(!item.apply(&write), "it happens once");
            let attributes: Vec<_> = item.attributes().collect();
            prop_assert_eq!(read_description(&attributes), Ok(next.clone()));
            prop_assert_eq!(read_entity(key.entity.clone(), item.attributes()), Ok((entity.clone(), op.clone())));
            let reset = update(set_entity(&key, Some(&op), Some(&entity), &op));
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
