//! Tenants share a table and nothing else: every key begins with its namespace, and no two things
//! share a key, whatever they are called.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use weirgate_shared::{
    AuditId, AuditKey, AuditSubject, BucketKey, ConfigFilter, ConfigKey, ConfigLevel, EntityId,
    EntityKey, EpochMillis, ItemKey, LimitName, Namespace, PlanKey, PlanName, Resource,
    SnapshotKey, Window, WriteId, schema_key,
};

/// Names that are as near to each other, and to parts of keys, as names may be.
pub fn namespace() -> impl Strategy<Value = Namespace> {
    let near = prop::sample::select(vec![
        "a", "A", "a-b", "a_b", "ab", "a-", "a_", "aa", "BUCKET", "ENTITY", "0",
    ]);
    prop_oneof![near.prop_map(str::to_owned), "[A-Za-z0-9][A-Za-z0-9_-]{0,31}"]
        .prop_map(|name| Namespace::new(name).unwrap())
}

pub fn plan() -> impl Strategy<Value = PlanName> {
    let near = prop::sample::select(vec!["a", "a-b", "0", "_default_", "CONFIG", "00"]);
    prop_oneof![near.prop_map(str::to_owned), "[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"]
        .prop_filter_map("a name", |name| PlanName::new(name).ok())
}

pub fn entity() -> impl Strategy<Value = EntityId> {
    let near = [
        "a", "A", "a-b", "a.b", "a:b", "a@b", "BUCKET", "ENTITY", "SYSTEM", "RESOURCE", "a:0", "0",
    ];
    let near = prop::sample::select(near.to_vec()).prop_map(str::to_owned);
    prop_oneof![near, "[A-Za-z0-9][A-Za-z0-9_.:@-]{0,40}"]
        .prop_map(|name| EntityId::new(name).unwrap())
}

pub fn resource() -> impl Strategy<Value = Resource> {
    let near = [
        "a", "A", "a/b", "a/BUCKET", "a:b", "b/ENTITY", "hourly", "a/", "a//", "SYSTEM", "RESOURCE",
    ];
    let near = prop::sample::select(near.to_vec()).prop_map(str::to_owned);
    prop_oneof![near, "[A-Za-z][A-Za-z0-9_./:-]{0,30}"]
        .prop_map(|name| Resource::new(name).unwrap())
}

/// Everything that has a key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Thing {
    Bucket(BucketKey),
    Snapshot(SnapshotKey),
    Config(ConfigKey),
    Entity(EntityKey),
    Plan(PlanKey),
    Audit(AuditKey),
    Schema(Namespace),
}

impl Thing {
    fn key(&self) -> ItemKey {
        match self {
            Self::Bucket(key) => key.item_key(),
            Self::Snapshot(key) => key.item_key(),
            Self::Config(key) => key.item_key(),
            Self::Entity(key) => key.item_key(),
            Self::Plan(key) => key.item_key(),
            Self::Audit(key) => key.item_key(),
            Self::Schema(namespace) => schema_key(namespace),
        }
    }

    /// Returns the result of every parser that accepts its key.
    fn read_back(&self) -> Vec<Self> {
        let key = self.key();
        // A bucket's key is identified by its partition alone.
        let bucket = BucketKey::parse(&key.pk).map(Self::Bucket);
        let others = [
            SnapshotKey::parse(&key).map(Self::Snapshot),
            ConfigKey::parse(&key).map(Self::Config),
            EntityKey::parse(&key).map(Self::Entity),
            PlanKey::parse(&key).map(Self::Plan),
            AuditKey::parse(&key).map(Self::Audit),
        ];
        bucket.into_iter().chain(others.into_iter().flatten()).collect()
    }

    /// Partitions of the indexes that it stands in.
    fn index_partitions(&self) -> Vec<String> {
        match self {
            Self::Bucket(key) => vec![key.by_resource().0, key.by_entity().0],
            Self::Config(key) => [key.by_kind(), key.by_namespace()]
                .into_iter()
                .flatten()
                .map(|(partition, _)| partition)
                .collect(),
            Self::Entity(key) => vec![key.children()],
            Self::Plan(key) => vec![key.by_namespace().0],
            Self::Audit(key) => {
                vec![AuditKey::partition(&key.namespace, &key.of), key.by_namespace().0]
            }
            Self::Snapshot(_) | Self::Schema(_) => vec![],
        }
    }
}

/// Something of a namespace.
fn thing(namespace: Namespace) -> impl Strategy<Value = Thing> {
    (entity(), resource(), any::<u32>(), 0..253_370_000_000_000_i64, plan(), 0..15_usize).prop_map(
        move |(entity, resource, number, at, plan, kind)| {
            let namespace = namespace.clone();
            let config = |level| Thing::Config(ConfigKey { namespace: namespace.clone(), level });
            let id = AuditId::new(EpochMillis(at), u128::from(number));
            let audit = |of| Thing::Audit(AuditKey { namespace: namespace.clone(), of, id });
            let window = Window::ALL[kind % 2];
            match kind {
                0 => Thing::Bucket(BucketKey { namespace, entity, resource, shard: number % 70 }),
                1 => {
                    let start = window.start(EpochMillis(at));
                    Thing::Snapshot(SnapshotKey { namespace, entity, resource, window, start })
                }
                2 => config(ConfigLevel::EntityResource(entity, resource)),
                3 => config(ConfigLevel::Entity(entity)),
                4 => config(ConfigLevel::Resource(resource)),
                5 => config(ConfigLevel::System),
                6 => Thing::Entity(EntityKey { namespace, entity }),
                7 => audit(AuditSubject::Entity(entity)),
                8 => audit(AuditSubject::Resource(resource)),
                9 => audit(AuditSubject::System),
                10 => config(ConfigLevel::PlanResource(plan, resource)),
                11 => config(ConfigLevel::Plan(plan)),
                12 => audit(AuditSubject::Plan(plan)),
                13 => Thing::Plan(PlanKey { namespace, plan }),
                _ => Thing::Schema(namespace),
            }
        },
    )
}

fn anything() -> impl Strategy<Value = Thing> {
    namespace().prop_flat_map(thing)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 512,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn no_two_things_share_a_key(things in prop::collection::vec(anything(), 2..40)) {
        let mut owners: BTreeMap<ItemKey, Thing> = BTreeMap::new();
        for thing in things {
            if let Some(other) = owners.insert(thing.key(), thing.clone()) {
                prop_assert_eq!(other, thing);
            }
        }
    }

    #[test]
    fn keys_are_read_back_as_what_they_are_of_and_as_nothing_else(thing in anything()) {
        let read = thing.read_back();
        match thing {
            Thing::Schema(_) => prop_assert_eq!(read, []),
            thing => prop_assert_eq!(read, [thing]),
        }
    }

    /// The part that IAM compares: everything up to the first `/` is the namespace, in keys, in
    /// partitions of indexes, and in those of lists.
    #[test]
    fn every_partition_begins_with_its_namespace_and_with_no_other(
        (one, other) in (namespace(), namespace()),
        thing in namespace().prop_flat_map(|namespace| (Just(namespace.clone()), thing(namespace))),
        (entity, resource) in (entity(), resource()),
    ) {
        let (namespace, thing) = thing;
        let plan = PlanName::new("pro").unwrap();
        let lists = [ConfigFilter::Entity(entity), ConfigFilter::Plan(plan), ConfigFilter::Plans, ConfigFilter::Resource(resource), ConfigFilter::Entities, ConfigFilter::Resources];
        let lists = lists.map(|of| of.partition(&namespace).unwrap().0);
        for partition in thing.index_partitions().into_iter().chain([thing.key().pk]).chain(lists) {
            prop_assert_eq!(partition.split('/').next(), Some(namespace.as_str()));
            for other in [&one, &other].into_iter().filter(|other| **other != namespace) {
                let is_theirs = partition.starts_with(&format!("{other}/"));
                prop_assert!(!is_theirs, "{} of {} begins like {}", partition, namespace, other);
            }
        }
    }

    /// A name is refused or kept as it is, byte for byte: nothing is cut, folded or normalised into
    /// another one.
    #[test]
    fn a_name_is_kept_as_it_is_or_refused(name in prop_oneof!["\\PC{0,40}", "[a-zA-Z0-9_.:@/#-]{0,300}", ".{0,12}"]) {
        let kept = [
            Namespace::new(&*name).map(|kept| kept.to_string()),
            EntityId::new(&*name).map(|kept| kept.to_string()),
            PlanName::new(&*name).map(|kept| kept.to_string()),
            Resource::new(&*name).map(|kept| kept.to_string()),
            LimitName::new(&*name).map(|kept| kept.to_string()),
            WriteId::new(&*name).map(|kept| kept.to_string()),
        ];
        for kept in kept.into_iter().flatten() {
            prop_assert_eq!(&kept, &name);
            prop_assert!(kept.is_ascii() && !kept.contains(['#', '\0', '\n', ' ']));
        }
    }
}

/// Texts that look like a name, or would be one after a library's normalization.
#[test]
fn look_alikes_of_names_are_refused() {
    let unicode = "ａcme аcme acmé acme\u{301} acme\u{200b} acme\u{200d}x \u{feff}acme \
        \u{202e}emca acme\u{ad} ⓐcme acme\u{2044}x acme\u{ff0f}BUCKET acme\u{ff03}x ſystem \
        \u{212a}elvin ı acme\u{e0061}";
    let delimiters = [
        "", " ", "a b", " a", "a ", "a#b", "#a", "a#", "a\0", "\0", "a\nb", "a\n", "a\r", "a\t",
        "a%2Fb", "a\\b", "a*",
    ];
    for name in unicode.split(' ').chain(delimiters) {
        let refused = [
            Namespace::new(name).is_err(),
            EntityId::new(name).is_err(),
            Resource::new(name).is_err(),
            LimitName::new(name).is_err(),
            WriteId::new(name).is_err(),
        ];
        assert_eq!(refused, [true; 5], "{name:?}");
    }
    // Only a resource may hold the one that ends a namespace, and not before its own `#`.
    for name in ["a/b", "a/BUCKET", "a/", "/a"] {
        assert!(
            Namespace::new(name).is_err()
                && EntityId::new(name).is_err()
                && LimitName::new(name).is_err(),
            "{name}"
        );
    }
    let long = |of: &str, len: usize| of.repeat(len);
    assert!(Namespace::new(long("n", 32)).is_ok() && Namespace::new(long("n", 33)).is_err());
    assert!(EntityId::new(long("e", 256)).is_ok() && EntityId::new(long("e", 257)).is_err());
    assert!(Resource::new(long("r", 64)).is_ok() && Resource::new(long("r", 65)).is_err());
    assert!(LimitName::new(long("l", 64)).is_ok() && LimitName::new(long("l", 65)).is_err());
    assert!(WriteId::new(long("w", 32)).is_ok() && WriteId::new(long("w", 33)).is_err());
}
