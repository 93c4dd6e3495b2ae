//! Keys and names.

use weirgate_shared::{
    AuditKey, BucketKey, ConfigKey, EntityId, EntityKey, Iso8601, ItemKey, LimitName, Namespace,
    Resource, SnapshotKey, Window, WriteId, parse_iso8601,
};

/// Reads a text as a partition key, a NUL, and a sort key, of everything that has keys; and as
/// every kind of name.
pub fn key(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let (pk, sk) = text.split_once('\0').unwrap_or((text, ""));
    let item = ItemKey { pk: pk.to_owned(), sk: sk.to_owned() };
    let one_spelling = |namespace: &Namespace, written: ItemKey| {
        assert_eq!(written, item, "a key has one spelling");
        assert_eq!(
            pk.split('/').next(),
            Some(namespace.as_str()),
            "the namespace is what stands before the first /"
        );
    };
    if let Some(key) = BucketKey::parse(pk) {
        one_spelling(&key.namespace, ItemKey { sk: sk.to_owned(), ..key.item_key() });
        let _ = (key.due_shard(), key.by_resource(), key.by_entity());
    }
    let parsed = [
        SnapshotKey::parse(&item).map(|key| one_spelling(&key.namespace, key.item_key())),
        AuditKey::parse(&item).map(|key| one_spelling(&key.namespace, key.item_key())),
        ConfigKey::parse(&item).map(|key| one_spelling(&key.namespace, key.item_key())),
        EntityKey::parse(&item).map(|key| one_spelling(&key.namespace, key.item_key())),
    ];
    assert!(parsed.iter().flatten().count() <= 1, "{item:?} is more than one thing");

    names(text);
    if let Some(at) = parse_iso8601(text) {
        assert_eq!(Iso8601(at).to_string(), text);
        for window in Window::ALL {
            assert!(window.start(at) <= at && at < window.end(window.start(at)));
        }
    }
}

fn names(text: &str) {
    let is_plain = |name: &str| {
        name == text && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#')
    };
    let names = [
        Namespace::new(text)
            .map(|name| is_plain(name.as_str()) && !text.contains('/') && text.len() <= 32),
        EntityId::new(text)
            .map(|name| is_plain(name.as_str()) && !text.contains('/') && text.len() <= 256),
        Resource::new(text).map(|name| is_plain(name.as_str()) && text.len() <= 64),
        LimitName::new(text)
            .map(|name| is_plain(name.as_str()) && !text.contains('/') && text.len() <= 64),
        WriteId::new(text)
            .map(|name| is_plain(name.as_str()) && !text.contains('/') && text.len() <= 32),
    ];
    for name in names {
        match name {
            Ok(is_sound) => assert!(is_sound, "{text:?}"),
            Err(error) => assert!(error.value == text && !error.to_string().contains('\n')),
        }
    }
}
