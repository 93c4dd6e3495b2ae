//! Entries of items that have expired, or that are others by now.

use weirgate_shared::attr;
use weirgate_shared::write::{Action, AttributeUpdate, Path, Update, Value};
use weirgate_store::{
    CHILDREN, Query, RedisOptions, ReturnValues, SortKeys, Table, TransactOutcome, random_id,
};
use weirgate_testkit::RedisServer;

use super::proxy::Proxy;
use super::{add, command, key, table};

const SETS: [&str; 3] =
    ["weirgate:{weirgate}:items", "weirgate:{weirgate}:GSI1", "weirgate:{weirgate}:expiries"];
/// Long after any test.
const LATE: i64 = 32_503_680_000;

/// A write of an item with an entry in an index, which expires in this second.
fn child(name: &str, parent: &str, ttl: i64) -> Update {
    let set = |name: &'static str, value| AttributeUpdate::Set(Path::of(name), value);
    let mut update = add(key(name), Value::Int(1));
    update.changes.extend([
        set(attr::GSI1PK, Value::text(parent)),
        set(attr::GSI1SK, Value::text(name)),
        set(attr::TTL, Value::Int(ttl)),
    ]);
    update
}

async fn write(table: &Table, update: &Update) {
    let written = table.update(update, ReturnValues::None).await;
    written.expect("it is applied");
}

/// Lengths of the sorted sets.
async fn lengths(server: &RedisServer) -> [i64; 3] {
    let mut lengths = [0; 3];
    for (length, set) in lengths.iter_mut().zip(SETS) {
        let count = command(server, &["ZCARD", set]).await;
        *length = redis::from_redis_value(count.expect("it is there")).expect("a number");
    }
    lengths
}

async fn children(table: &Table, parent: &str) -> Vec<String> {
    let query = Query::of_index(CHILDREN, parent, SortKeys::StartingWith(""));
    let listed = table.query(query, None).await.expect("it is there");
    let keys = listed.items.iter().filter_map(|item| item.key());
    keys.map(|key| key.pk).collect()
}

/// A table of a process that lets no item expire.
pub fn keeping(server: &RedisServer) -> Table {
    let keeping = Table::on_redis(&RedisOptions {
        use_server_time: false,
        ..RedisOptions::new(server.url())
    });
    keeping.expect("the URL is one")
}

/// Fills a table with this many items that have expired, and the memory of its server.
pub async fn fill(server: &RedisServer, expired: u32) {
    let keeping = keeping(server);
    for number in 0..expired {
        write(&keeping, &child(&format!("old-{number}"), "parent", 1)).await;
    }
    for name in ["one", "other", "late"] {
        write(&keeping, &child(name, "parent", LATE)).await;
    }
    let full = ["CONFIG", "SET", "maxmemory", "1"];
    command(server, &full).await.expect("it is there");
}

#[tokio::test]
async fn a_full_server_takes_what_frees_its_memory_and_nothing_else() {
    let server = RedisServer::start();
    fill(&server, 40).await;
    let (table, keeping) = (table(&server), keeping(&server));
    let is_refused = async |table: &Table| {
        let update = add(key("late"), Value::Int(1));
        let written = table.update(&update, ReturnValues::None).await;
        let error = written.expect_err("it is refused");
        assert!(error.reason.contains("OOM"), "{error}");
    };
    // Of a process that lets no item expire, the write frees nothing.
    is_refused(&keeping).await;
    let deletes = ["one", "other"].map(|name| Action::Delete(key(name), vec![]));
    let deleted = keeping.transact(&deletes, &random_id()).await;
    assert_eq!(deleted.expect("it is applied"), TransactOutcome::Applied);
    assert_eq!(lengths(&server).await, [41; 3]);
    let mut shorter = add(key("late"), Value::Int(1));
    let gone = AttributeUpdate::Remove(Path::of(attr::GSI1PK));
    shorter.changes.push(gone);
    write(&keeping, &shorter).await;
    assert_eq!(lengths(&server).await, [41, 40, 41]);
    is_refused(&keeping).await;
    // Each removes two that have expired.
    for written in 1..=20 {
        write(&table, &add(key("late"), Value::Int(1))).await;
        let left = 40 - 2 * written;
        assert_eq!(lengths(&server).await, [left + 1, left, left + 1]);
    }
    is_refused(&table).await;
}

#[tokio::test]
async fn expired_items_go_with_their_entries_by_the_writes_of_others() {
    let server = RedisServer::start();
    let table = table(&server);
    let keeping = keeping(&server);
    for number in 0..40 {
        write(&keeping, &child(&format!("old-{number}"), "parent", 1)).await;
    }
    write(&keeping, &child("late", "parent", LATE)).await;
    assert_eq!(lengths(&server).await, [41; 3]);
    // Each removes two, and adds none.
    for written in 1..=20 {
        write(&table, &child("late", "parent", LATE)).await;
        assert_eq!(lengths(&server).await, [41 - 2 * written; 3]);
    }
    write(&table, &child("late", "parent", LATE)).await;
    assert_eq!(lengths(&server).await, [1; 3]);
    assert_eq!(children(&table, "parent").await, ["ns/ENTITY#late"]);
    let left = command(&server, &["KEYS", "weirgate:{weirgate}:ns/*"]).await;
    let left: Vec<String> = redis::from_redis_value(left.expect("it is there")).expect("keys");
    assert_eq!(left.len(), 1, "{left:?}");
}

/// A longer answer does not arrive before its timeout.
#[tokio::test]
async fn any_number_of_items_is_read_and_listed_in_answers_of_a_hundred() {
    const COUNT: usize = 250;
    let server = RedisServer::start();
    let proxy = Proxy::before(server.port()).await;
    let table = Table::on_redis(&RedisOptions::new(proxy.url())).expect("the URL is one");
    let keys: Vec<_> = (0..COUNT).map(|at| key(&at.to_string())).collect();
    for key in &keys {
        let mut update = add(key.clone(), Value::Int(1));
        let text = Value::text(&"x".repeat(1_000));
        let long = AttributeUpdate::Set(Path::of("long"), text);
        update.changes.push(long);
        write(&table, &update).await;
    }
    proxy.close_at_answers_of(150_000);
    let read = table.read(&keys).await.expect("it arrives");
    assert_eq!(read.len(), COUNT);
    let scanned = table.scan("ns/", 1_000, None).await.expect("it arrives");
    assert_eq!(scanned.items.len(), COUNT);
}

#[tokio::test]
async fn many_keys_that_are_used_once_leave_no_more_than_those_that_live() {
    let server = RedisServer::start();
    let table = table(&server);
    for number in 0..200 {
        write(&table, &child(&format!("user-{number}"), "parent", 1)).await;
        let lengths = lengths(&server).await;
        assert!(lengths.iter().all(|length| *length <= 1), "{lengths:?}");
    }
}

#[tokio::test]
async fn a_write_that_removes_the_expiry_keeps_the_item() {
    let server = RedisServer::start();
    let table = table(&server);
    write(&table, &child("one", "parent", LATE)).await;
    assert_eq!(lengths(&server).await, [1; 3]);
    let mut kept = add(key("one"), Value::Int(1));
    let remove = AttributeUpdate::Remove(Path::of(attr::TTL));
    kept.changes.push(remove);
    write(&table, &kept).await;
    assert_eq!(lengths(&server).await, [1, 1, 0]);
    // An expiry that has passed, and is moved by the write itself.
    let mut update = child("two", "parent", 1);
    update.changes.pop();
    write(&table, &update).await;
    let score =
        ["ZADD", "weirgate:{weirgate}:expiries", "1", "weirgate:{weirgate}:ns/ENTITY#two #S"];
    command(&server, &score).await.expect("it is there");
    write(&table, &kept).await;
    assert_eq!(lengths(&server).await, [2, 2, 0]);
}

/// An item that was deleted manually, and one that was written again under its key, leave entries behind.
#[tokio::test]
async fn entries_that_are_not_of_the_item_are_not_listed_and_are_dropped() {
    let server = RedisServer::start();
    let table = table(&server);
    for name in ["deleted", "moved", "same"] {
        write(&table, &child(name, "first", LATE)).await;
    }
    for name in ["deleted", "moved"] {
        let item = format!("weirgate:{{weirgate}}:ns/ENTITY#{name} #S");
        let deleted = command(&server, &["DEL", &item]).await;
        assert_eq!(deleted.expect("it is there"), redis::Value::Int(1));
    }
    write(&table, &child("moved", "second", LATE)).await;
    assert_eq!(lengths(&server).await, [3, 4, 3]);
    assert_eq!(children(&table, "first").await, ["ns/ENTITY#same"]);
    assert_eq!(children(&table, "second").await, ["ns/ENTITY#moved"]);
    let scanned = table.scan("ns/", 10, None).await.expect("it is there");
    assert_eq!(scanned.items.len(), 2);
    assert_eq!(lengths(&server).await, [2, 2, 3]);
}
