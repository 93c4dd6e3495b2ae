//! Entries of items that have expired.

use weirgate_shared::attr;
use weirgate_shared::write::{AttributeUpdate, Path, Value};
use weirgate_store::{CHILDREN, Query, ReturnValues, SortKeys};
use weirgate_testkit::RedisServer;

use super::{add, command, key, table};

#[tokio::test]
async fn an_item_expires_and_its_entries_go_when_they_are_read() {
    let server = RedisServer::start();
    let table = table(&server);
    let set = |name: &'static str, value| AttributeUpdate::Set(Path::of(name), value);
    for (name, ttl) in [("old", 1), ("new", 32_503_680_000)] {
        let mut update = add(key(name), Value::Int(1));
        update.changes.extend([
            set(attr::GSI1PK, Value::text("parent")),
            set(attr::GSI1SK, Value::text(name)),
            set(attr::TTL, Value::Int(ttl)),
        ]);
        let written = table.update(&update, ReturnValues::None).await;
        written.expect("it is applied");
    }
    let counted = async || {
        let mut counts = vec![];
        for index in ["weirgate:items", "weirgate:GSI1"] {
            let count = command(&server, &["ZCARD", index]).await;
            counts.push(count.expect("it is there"));
        }
        counts
    };
    assert_eq!(
        counted().await,
        [redis::Value::Int(2), redis::Value::Int(2)]
    );
    let query = Query::of_index(CHILDREN, "parent", SortKeys::StartingWith(""));
    let listed = table.query(query, None).await.expect("it is there");
    let keys: Vec<_> = listed.items.iter().filter_map(|item| item.key()).collect();
    assert_eq!(keys, [key("new")]);
    let scanned = table.scan("ns/", 10, None).await.expect("it is there");
    assert_eq!(scanned.items.len(), 1);
    assert_eq!(
        counted().await,
        [redis::Value::Int(1), redis::Value::Int(1)]
    );
}

#[tokio::test]
async fn a_write_that_removes_the_expiry_keeps_the_item() {
    let server = RedisServer::start();
    let table = table(&server);
    let ttl = || Path::of(attr::TTL);
    let set = AttributeUpdate::Set(ttl(), Value::Int(32_503_680_000));
    for (change, expires) in [(set, true), (AttributeUpdate::Remove(ttl()), false)] {
        let mut update = add(key("one"), Value::Int(1));
        update.changes.push(change);
        let written = table.update(&update, ReturnValues::None).await;
        written.expect("it is applied");
        let of = "weirgate:{ns/one}:ns/ENTITY#one #S";
        let expiry = command(&server, &["EXPIRETIME", of]).await;
        let expected = if expires { 32_503_680_000 } else { -1 };
        assert_eq!(expiry.expect("it is there"), redis::Value::Int(expected));
    }
}
