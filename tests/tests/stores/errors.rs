//! Errors of Redis, by what they mean for a write, with the key or the remedy.

use std::time::Duration;

use weirgate::RateLimiter;
use weirgate_shared::write::{AttributeUpdate, Path, Update, Value};
use weirgate_shared::{BucketKey, attr};
use weirgate_store::{ErrorKind, RedisOptions, ReturnValues, StoreError, Table, WriteOutcome};
use weirgate_testkit::RedisServer;
use weirgate_testkit::server::free_port;

use super::proxy::Proxy;
use super::{add, command, key, table};

const ITEM: &str = "weirgate:{weirgate}:ns/ENTITY#one #S";

async fn write(table: &Table) -> Result<WriteOutcome, StoreError> {
    let update = add(key("one"), Value::Int(1));
    table.update(&update, ReturnValues::None).await
}

async fn failed(table: &Table, kind: ErrorKind, parts: &[&str]) {
    let error = write(table).await.expect_err("it is refused");
    assert_eq!(error.kind, kind, "{error}");
    let text = error.to_string();
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
}

fn at(url: String) -> Table {
    Table::on_redis(&RedisOptions::new(url)).expect("the URL is one")
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unreachable_and_is_found_when_it_is() {
    let table = at(format!("redis://127.0.0.1:{}/", free_port()));
    failed(&table, ErrorKind::Unreachable, &["refuses connections", "127.0.0.1"]).await;
    let server = RedisServer::start();
    let table = super::table(&server);
    write(&table).await.expect("it is there");
    let port = server.port().to_string();
    drop(server);
    let error = write(&table).await.expect_err("it is gone");
    assert!(error.kind.is_transient(), "{error}");
    failed(&table, ErrorKind::Unreachable, &["refuses connections"]).await;
    let _server = RedisServer::with(&["--port", &port]);
    write(&table).await.expect("it is there again");
}

#[tokio::test]
async fn wrong_credentials_are_missing_ones_and_are_not_shown() {
    let server = RedisServer::with(&["--requirepass", "right"]);
    let url = |user: &str| format!("redis://{user}127.0.0.1:{}/0", server.port());
    for user in ["", ":wrong-one@", "other:wrong-one@"] {
        let table = at(url(user));
        let error = write(&table).await.expect_err("it is refused");
        assert_eq!(error.kind, ErrorKind::MissingCredentials, "{error}");
        assert!(!format!("{error} {error:?}").contains("wrong-one"), "{error:?}");
    }
    write(&at(url(":right@"))).await.expect("it is accepted");
}

#[tokio::test]
async fn a_database_that_the_server_does_not_have_is_named() {
    let server = RedisServer::start();
    let table = at(server.url() + "99");
    failed(&table, ErrorKind::Rejected, &["got 99", "out of range", "name another one"]).await;
}

#[tokio::test]
async fn a_key_that_is_not_permitted_is_named() {
    let server = RedisServer::start();
    let user = ["ACL", "SETUSER", "some", "on", ">pass", "+@all", "~other*"];
    command(&server, &user).await.expect("it is there");
    let table = at(format!("redis://some:pass@127.0.0.1:{}/", server.port()));
    failed(&table, ErrorKind::AccessDenied, &[ITEM, "NOPERM", "allow the user"]).await;
}

#[tokio::test]
async fn a_key_of_another_application_is_left_alone_and_named() {
    let server = RedisServer::start();
    let table = table(&server);
    for place in [["SET", ITEM, "x", ""], ["HSET", ITEM, "field", "x"]] {
        let words: Vec<_> = place.into_iter().filter(|word| !word.is_empty()).collect();
        command(&server, &words).await.expect("it is there");
        let parts = [ITEM, "another application"];
        failed(&table, ErrorKind::Invalid, &parts).await;
        let read = table.read(&[key("one"), key("two")]).await;
        let error = read.expect_err("it is refused");
        assert_eq!(error.kind, ErrorKind::Invalid, "{error}");
        let text = error.to_string();
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        command(&server, &["DEL", ITEM]).await.expect("it is there");
    }
    for name in ["items", "expiries", "writes", "records"] {
        let shared = format!("weirgate:{{weirgate}}:{name}");
        let update = Update {
            changes: vec![
                AttributeUpdate::Set(Path::of(attr::TTL), Value::Int(1)),
                AttributeUpdate::Set(Path::of(attr::WRITE_SEQ), Value::Int(1)),
                AttributeUpdate::Set(Path::of(attr::HOUR), Value::Int(1)),
            ],
            key: BucketKey::parse("ns/BUCKET#one#gpt-4#0").expect("a key").item_key(),
            conditions: vec![],
        };
        command(&server, &["SET", &shared, "x"]).await.expect("it is there");
        let outcome = table.update(&update, ReturnValues::None).await;
        let error = outcome.expect_err("it is refused");
        assert_eq!(error.kind, ErrorKind::Invalid, "{error}");
        let error = error.to_string();
        for part in [&*shared, "WRONGTYPE", "another application"] {
            let (_, reason) = error.split_once(" on table ").expect("it has the table");
            assert!(reason.contains(part), "{error}");
        }
        if name == "records" {
            let told = table.describe_server().await.expect_err("it is refused");
            assert_eq!(told.kind, ErrorKind::Invalid, "{told}");
        }
        command(&server, &["DEL", &shared]).await.expect("it is there");
        // Nothing of the write was applied.
        let found = table.read(std::slice::from_ref(&update.key)).await;
        assert!(found.expect("it is there").is_empty(), "{name}");
    }
}

#[tokio::test]
async fn a_server_that_takes_no_writes_for_now_is_transient() {
    let server = RedisServer::with(&["--busy-reply-threshold", "20"]);
    let table = table(&server);
    write(&table).await.expect("it is there");
    let there = async |words: &[&str]| {
        let done = command(&server, words).await;
        done.expect("it is there")
    };
    there(&["CONFIG", "SET", "maxmemory", "1"]).await;
    failed(&table, ErrorKind::Unavailable, &["OOM"]).await;
    there(&["CONFIG", "SET", "maxmemory", "0"]).await;
    write(&table).await.expect("there is memory");

    let primary = free_port().to_string();
    there(&["REPLICAOF", "127.0.0.1", &primary]).await;
    failed(&table, ErrorKind::Unavailable, &["READONLY"]).await;
    there(&["REPLICAOF", "NO", "ONE"]).await;
    write(&table).await.expect("it is a primary");

    for database in ["", "1"] {
        while_busy(&server, database).await;
    }
    write(&table).await.expect("it is idle");
}

/// The name leads elsewhere by then, and the connection that is open does not.
#[tokio::test]
async fn a_server_that_may_have_a_successor_is_asked_no_more() {
    let closed = free_port().to_string();
    let replica = ["REPLICAOF", "127.0.0.1", &closed];
    for (answer, changes) in [
        ("MASTERDOWN", &[&["CONFIG", "SET", "replica-serve-stale-data", "no"][..], &replica][..]),
        ("READONLY", &[&replica]),
        ("NOREPLICAS", &[&["CONFIG", "SET", "min-replicas-to-write", "1"]]),
    ] {
        let (server, successor) = (RedisServer::start(), RedisServer::start());
        let proxy = Proxy::before(server.port()).await;
        let table = at(proxy.url());
        write(&table).await.expect("it is there");
        for change in changes {
            command(&server, change).await.expect("it is there");
        }
        proxy.lead_to(successor.port());
        failed(&table, ErrorKind::Unavailable, &[answer]).await;
        let written = write(&table).await;
        written.unwrap_or_else(|error| panic!("{answer}: {error}"));
    }
}

#[tokio::test]
async fn a_replica_is_neither_written_nor_read() {
    let server = RedisServer::start();
    let closed = free_port().to_string();
    let replica = ["REPLICAOF", "127.0.0.1", &closed];
    command(&server, &replica).await.expect("it is there");
    let table = table(&server);
    let primary = format!("a replica of 127.0.0.1:{closed}");
    let remedy = "give the URL of the primary";
    failed(&table, ErrorKind::Unavailable, &[&primary, remedy]).await;
    let read = table.read(&[key("one")]).await;
    let error = read.expect_err("it may be behind");
    assert!(error.reason.contains(&primary), "{error}");
    let promoted = ["REPLICAOF", "NO", "ONE"];
    command(&server, &promoted).await.expect("it is there");
    write(&table).await.expect("it is a primary");
}

/// Writes while the server runs a long script, by new connections.
async fn while_busy(server: &RedisServer, database: &str) {
    let long = async { command(server, &["EVAL", "while true do end", "0"]).await };
    let busy = async {
        let is_busy = async { while command(server, &["PING"]).await.is_ok() {} };
        let bound = Duration::from_secs(5);
        let waited = tokio::time::timeout(bound, is_busy).await;
        waited.expect("it says that it is busy");
        let error = write(&at(server.url() + database)).await;
        let error = error.expect_err("it is busy");
        assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
        let killed = redis::cmd("SCRIPT").arg("KILL").to_owned();
        let client = redis::Client::open(server.url()).expect("the URL is one");
        let mut connection = client.get_multiplexed_async_connection().await.expect("it is there");
        let killed: redis::RedisResult<()> = killed.query_async(&mut connection).await;
        killed.expect("it runs");
    };
    let (killed, ()) = tokio::join!(long, busy);
    assert!(killed.is_err());
}

/// A user without a password is not silently the user `default`, which may do all.
#[tokio::test]
async fn the_user_of_the_url_is_never_silently_another_one() {
    let server = RedisServer::start();
    for user in [["some", ">pass"], ["free", "nopass"]] {
        let set = ["ACL", "SETUSER", user[0], "on", user[1], "~*", "+@all"];
        command(&server, &set).await.expect("it is there");
    }
    let url = |user: &str| format!("redis://{user}127.0.0.1:{}/", server.port());
    let refused = write(&at(url("some@"))).await.expect_err("it is refused");
    assert_eq!(refused.kind, ErrorKind::MissingCredentials, "{refused}");
    for user in ["some:pass@", "free@", "free:any@", "default@", ""] {
        write(&at(url(user))).await.expect("it is accepted");
    }
    let connected = ["free@", "some:pass@"].map(|user| at(url(user)));
    for (table, name) in connected.iter().zip(["user=free ", "user=some "]) {
        write(table).await.expect("it is accepted");
        let clients = command(&server, &["CLIENT", "LIST"]).await;
        let clients: String = redis::from_redis_value(clients.expect("it is there")).expect("text");
        assert!(clients.contains(name), "{clients}");
    }
}

#[tokio::test]
async fn a_server_that_evicts_is_refused_unless_it_is_accepted() {
    let server = RedisServer::with(&["--maxmemory-policy", "allkeys-lru"]);
    let remedy = "CONFIG SET maxmemory-policy noeviction";
    let table = table(&server);
    failed(&table, ErrorKind::Rejected, &["allkeys-lru", remedy]).await;
    assert!(table.check_server().await.is_err());
    let accepting =
        Table::on_redis(&RedisOptions { accept_eviction: true, ..RedisOptions::new(server.url()) });
    write(&accepting.expect("the URL is one")).await.expect("it is accepted");
}

#[tokio::test]
async fn a_server_without_tls_is_unreachable_by_it() {
    let server = RedisServer::start();
    let table = at(format!("rediss://127.0.0.1:{}/", server.port()));
    failed(&table, ErrorKind::Unreachable, &["127.0.0.1"]).await;
}

#[test]
fn a_url_of_something_else_is_refused_without_its_password() {
    for url in ["http://user:wrong-one@host", "redis://user:wrong-one@:6379:1/", "redis"] {
        let error = Table::on_redis(&RedisOptions::new(url)).expect_err("it is refused");
        assert_eq!(error.kind, ErrorKind::Invalid);
        let text = format!("{error} {error:?}");
        assert!(text.contains("redis://user:password@host") && !text.contains("wrong-one"));
        let builder = format!("{:?}", RateLimiter::builder(url));
        assert!(!builder.contains("wrong-one"), "{builder}");
    }
}

#[tokio::test]
async fn a_url_in_place_of_a_name_is_refused_by_its_scheme_alone() {
    for (url, shown) in [
        ("valkey://user:wrong-one@host", "valkey://.."),
        ("Redis://user:wrong-one@host", "Redis://.."),
        ("http://user:wrong-one@host", "http://.."),
        ("user:wrong-one@://host", "..://.."),
        ("redis://user:12#wrong-one@host/0", "redis://.."),
    ] {
        let built = RateLimiter::builder(url).build().await;
        let text = format!("{:?}", built.expect_err("it is refused"));
        assert!(text.contains(shown) && text.contains("redis://"), "{text}");
        assert!(!text.contains("wrong-one"), "{text}");
    }
}
