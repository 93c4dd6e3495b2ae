//! Writes that a server refuses in the middle: of what another application holds under a key, or of commands that
//! the user may not run. An error that says that nothing was applied is true.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use weirgate_shared::write::{Action, AttributeUpdate, Path as At, Update, Value};
use weirgate_shared::{ItemKey, attr};
use weirgate_store::{
    ErrorKind, RedisOptions, ReturnValues, StoreError, Table, TransactOutcome, WriteOutcome,
    indexes, random_id,
};
use weirgate_testkit::RedisServer;

use super::{add, command, table};

const LATER: i64 = 4_000_000_000;

fn bucket(name: &str) -> ItemKey {
    ItemKey { pk: format!("ns/BUCKET#{name}"), sk: "#STATE".to_owned() }
}

/// A write of a bucket with entries in all indexes.
pub fn listed(name: &str, at: i64, expires: i64) -> Update {
    let mut changes = vec![
        AttributeUpdate::Set(At::of(attr::TTL), Value::Int(expires)),
        AttributeUpdate::Set(At::of("gone"), Value::Int(at)),
    ];
    for index in indexes() {
        let range = match index.range.1 {
            "N" => Value::Int(at),
            _ => Value::Text(format!("range-{at}")),
        };
        let hash = Value::Text(index.name.to_owned());
        changes.push(AttributeUpdate::Set(At::of(index.hash), hash));
        changes.push(AttributeUpdate::Set(At::of(index.range.0), range));
    }
    Update { key: bucket(name), conditions: vec![], changes }
}

/// A write that uses each command of the script.
fn all_commands(name: &str) -> Update {
    let mut update = listed(name, 2, LATER + 1);
    update.changes.retain(|change| *change.path() != At::of("gone"));
    update.changes.push(AttributeUpdate::Remove(At::of("gone")));
    update.changes.push(AttributeUpdate::Add(At::of("a"), Value::Int(1)));
    let hour = AttributeUpdate::Set(At::of(attr::HOUR), Value::Int(9));
    update.changes.push(hour);
    update
}

/// A table whose items do not expire.
fn lasting(server: &RedisServer) -> Table {
    let options = RedisOptions { use_server_time: false, ..RedisOptions::new(server.url()) };
    Table::on_redis(&options).expect("the URL is one")
}

async fn put(table: &Table, update: &Update) {
    let written = table.update(update, ReturnValues::None).await;
    written.expect("it is applied");
}

/// Some items, one that has expired, and a hash of another application among what expires.
async fn prepare(server: &RedisServer) {
    command(server, &["FLUSHALL"]).await.expect("it is there");
    let table = lasting(server);
    let stream = table.records().expect("it is on Redis");
    stream.open().await.expect("it is there");
    for name in ["one", "two", "three"] {
        put(&table, &listed(name, 1, LATER)).await;
    }
    put(&table, &listed("expired", 1, 1)).await;
    let foreign = "weirgate:{weirgate}:foreign";
    for words in [
        &["HSET", foreign, "ttl", "1"][..],
        &["ZADD", "weirgate:{weirgate}:expiries", "1", foreign],
    ] {
        command(server, words).await.expect("it is there");
    }
}

/// The hashes of the items by key, but the one that expires.
async fn items(server: &RedisServer) -> BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>> {
    let keys = command(server, &["KEYS", "weirgate:{weirgate}:ns/*"]).await;
    let keys: Vec<String> =
        redis::from_redis_value(keys.expect("it is there")).expect("all are names");
    let mut items = BTreeMap::new();
    for key in keys.into_iter().filter(|key| !key.contains("expired")) {
        let fields = command(server, &["HGETALL", &key]).await;
        let fields = redis::from_redis_value(fields.expect("it is there"));
        items.insert(key, fields.expect("it is a hash"));
    }
    items
}

async fn records(server: &RedisServer) -> redis::RedisResult<redis::Value> {
    command(server, &["XLEN", "weirgate:{weirgate}:records"]).await
}

/// Writes items and a transaction on a table that is not right in some way. Returns the errors.
async fn write_all(server: &RedisServer, table: &Table, what: &str) -> Vec<StoreError> {
    let mut errors = vec![];
    let before = (items(server).await, records(server).await);
    let one = table.update(&all_commands("one"), ReturnValues::AllNew).await;
    let one = one.map(|outcome| assert!(matches!(outcome, WriteOutcome::Applied(Some(_)))));
    let after_one = (items(server).await, records(server).await);
    match one {
        Ok(()) => assert_ne!(after_one.0, before.0, "{what}"),
        Err(error) => {
            assert!(error.kind.was_not_applied(), "{what}: {error}");
            assert_eq!(after_one, before, "{what}: {error}");
            errors.push(error);
        }
    }
    let actions = [
        Action::Update(all_commands("two")),
        Action::Update(add(bucket("new"), Value::Int(1))),
        Action::Delete(bucket("three"), vec![]),
    ];
    let token = random_id();
    for _ in 0..2 {
        match table.transact(&actions, &token).await {
            Ok(outcome) => {
                assert_eq!(outcome, TransactOutcome::Applied);
                let all = items(server).await;
                let has = |part: &str| all.keys().any(|key| key.contains(part));
                assert!(has("#new") && !has("#three"), "{what}: {all:?}");
                let new = all.iter().find(|(key, _)| key.contains("#new"));
                let added = new.and_then(|(_, fields)| fields.get(&b"a"[..]));
                assert_eq!(added.map(Vec::as_slice), Some(&b"1"[..]), "{what}");
            }
            Err(error) => {
                assert!(error.kind.was_not_applied(), "{what}: {error}");
                let after = (items(server).await, records(server).await);
                assert_eq!(after, after_one, "{what}: {error}");
                errors.push(error);
            }
        }
    }
    errors
}

#[tokio::test]
async fn a_write_that_meets_a_key_of_another_application_is_whole_or_refused() {
    let server = RedisServer::start();
    prepare(&server).await;
    let keys = command(&server, &["KEYS", "weirgate:{weirgate}:*"]).await;
    let keys: Vec<String> =
        redis::from_redis_value(keys.expect("it is there")).expect("all are names");
    let of_all = keys.iter().filter(|key| !key.contains(":ns/"));
    let of_all: Vec<_> = of_all.filter(|key| !key.ends_with(":gone")).collect();
    assert!(of_all.len() >= 8, "{of_all:?}");
    let mut refused = BTreeSet::new();
    for key in of_all {
        prepare(&server).await;
        command(&server, &["DEL", key]).await.expect("it is there");
        command(&server, &["SET", key, "x"]).await.expect("it is there");
        for error in write_all(&server, &table(&server), key).await {
            assert_eq!(error.kind, ErrorKind::Invalid, "{key}: {error}");
            refused.insert(key.clone());
        }
    }
    // Each index, the stream, the expiries and the number of writes.
    assert!(refused.len() >= 7, "{refused:?}");
}

/// Each of the guide's user.
async fn commands(server: &RedisServer) -> BTreeSet<String> {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide/redis.md");
    let guide = std::fs::read_to_string(guide).expect("the guide is there");
    let user = guide.lines().find_map(|line| line.strip_prefix("user "));
    let user = user.expect("the guide has a user");
    let mut all = BTreeSet::new();
    for allowed in user.split(' ').filter_map(|part| part.strip_prefix('+')) {
        let Some(category) = allowed.strip_prefix('@') else {
            all.insert(allowed.to_owned());
            continue;
        };
        let of = command(server, &["ACL", "CAT", category]).await;
        let of: Vec<String> =
            redis::from_redis_value(of.expect("it is there")).expect("all are names");
        // Of commands with parts, the whole one.
        all.extend(of.into_iter().filter(|name| !name.contains('|')));
    }
    all
}

#[tokio::test]
async fn a_write_that_needs_a_command_that_is_denied_is_whole_or_refused() {
    let server = RedisServer::start();
    let mut refused = BTreeSet::new();
    for denied in commands(&server).await {
        prepare(&server).await;
        let denies = format!("-{denied}");
        let user = ["ACL", "SETUSER", "some", "reset", "on", ">pass", "~*", "+@all", &denies];
        command(&server, &user).await.expect("it is there");
        let url = format!("redis://some:pass@127.0.0.1:{}/", server.port());
        let table = Table::on_redis(&RedisOptions::new(url)).expect("the URL is one");
        for error in write_all(&server, &table, &denied).await {
            assert_eq!(error.kind, ErrorKind::AccessDenied, "{denied}: {error}");
            let text = error.to_string();
            assert!(text.contains("allow the user"), "{denied}: {text}");
            refused.insert(denied.clone());
        }
    }
    for part in ["zadd", "zrem", "xadd", "hset", "hdel", "del", "set", "get"] {
        assert!(refused.contains(part), "{part}: {refused:?}");
    }
}

/// A write that is refused may have given the item an earlier entry than its own.
#[tokio::test]
async fn an_item_that_is_not_due_yet_keeps_its_entry_among_what_expires() {
    let server = RedisServer::start();
    prepare(&server).await;
    let (expiries, one) =
        ("weirgate:{weirgate}:expiries", "weirgate:{weirgate}:ns/BUCKET#one #STATE");
    let early = ["ZADD", expiries, "1", one];
    command(&server, &early).await.expect("it is there");
    let removed = table(&server).remove_expired(9).await;
    assert_eq!(removed.expect("it is there"), 1);
    let score = command(&server, &["ZSCORE", expiries, one]).await;
    let score: Option<i64> = redis::from_redis_value(score.expect("it is there")).expect("one");
    assert_eq!(score, Some(LATER));
}

/// Whatever cannot be removed stays, and is removed when it can be.
#[tokio::test]
async fn an_expired_item_whose_record_is_refused_stays_until_it_can_be_recorded() {
    let server = RedisServer::start();
    prepare(&server).await;
    let user = ["ACL", "SETUSER", "some", "on", ">pass", "~*", "+@all"];
    command(&server, &user).await.expect("it is there");
    let url = format!("redis://some:pass@127.0.0.1:{}/", server.port());
    let table = Table::on_redis(&RedisOptions::new(url)).expect("the URL is one");
    for denied in ["xadd", "del", "hset"] {
        let denies = format!("-{denied}");
        command(&server, &["ACL", "SETUSER", "some", &denies]).await.expect("it is there");
        let error = table.remove_expired(9).await.expect_err("it is refused");
        assert_eq!(error.kind, ErrorKind::AccessDenied, "{error}");
        let allows = format!("+{denied}");
        command(&server, &["ACL", "SETUSER", "some", &allows]).await.expect("it is there");
        let records = records(&server).await.expect("it is there");
        assert_eq!(records, redis::Value::Int(4), "{denied}");
    }
    assert_eq!(table.remove_expired(9).await.expect("it is removed"), 1);
    let records = records(&server).await.expect("it is there");
    assert_eq!(records, redis::Value::Int(5));
}
