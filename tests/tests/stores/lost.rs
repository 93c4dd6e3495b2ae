//! Answers that are lost: the store repeats the write with its id, and the item tells whether it was applied.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use weirgate::FakeClock;
use weirgate_shared::attr;
use weirgate_shared::write::{Action, AttributeUpdate, Condition, Path, Value};
use weirgate_store::{
    Clock, ErrorKind, RedisOptions, ReturnValues, SystemClock, Table, TransactOutcome,
    WriteOutcome, random_id,
};
use weirgate_testkit::RedisServer;
use weirgate_testkit::server::free_port;

use super::proxy::Proxy;
use super::{add, key, only_if, shown, table};

const ONCE: Option<&str> = Some("N(\"1\")");

async fn behind(proxy: &Proxy) -> Table {
    let table = Table::on_redis(&RedisOptions {
        request_timeout: Duration::from_millis(300),
        ..RedisOptions::new(proxy.url())
    });
    let table = table.expect("the URL is one");
    table.warm().await.expect("it is there");
    table
}

#[tokio::test]
async fn a_write_whose_answer_is_lost_is_applied_once_and_known() {
    let server = RedisServer::start();
    for swallows in [false, true] {
        let proxy = Proxy::before(server.port()).await;
        let table = behind(&proxy).await;
        match swallows {
            true => proxy.swallow_answers(),
            false => proxy.lose_next_answer(),
        }
        let key = key(&format!("swallows-{swallows}"));
        // The condition no longer holds when the write is repeated.
        let update = only_if(Condition::Absent(Path::of("a")), add(key, Value::Int(1)));
        let outcome = table.update(&update, ReturnValues::AllNew).await;
        let WriteOutcome::Applied(Some(new)) = outcome.expect("it is known") else {
            panic!("it is applied");
        };
        assert_eq!(shown(&new, "a").as_deref(), ONCE);
    }
}

#[tokio::test]
async fn a_transaction_whose_answer_is_lost_is_applied_once_and_known() {
    let server = RedisServer::start();
    let proxy = Proxy::before(server.port()).await;
    let (table, token) = (behind(&proxy).await, random_id());
    let gone = add(key("gone"), Value::Int(1));
    let placed = table.update(&gone, ReturnValues::None);
    placed.await.expect("it is there");
    proxy.lose_next_answer();
    let exists = Condition::Present(Path::of("PK"));
    let actions =
        [Action::Update(add(key("one"), Value::Int(1))), Action::Delete(key("gone"), vec![exists])];
    for _ in 0..2 {
        let outcome = table.transact(&actions, &token).await;
        assert_eq!(outcome.expect("it is known"), TransactOutcome::Applied);
    }
    let items = table.read(&[key("one"), key("gone")]).await.expect("it is there");
    assert_eq!(items.len(), 1);
    assert_eq!(shown(&items[0], "a").as_deref(), ONCE);
}

/// The item no longer has the id: a repeated write could be applied twice.
#[tokio::test]
async fn a_write_that_too_many_others_followed_stays_unconfirmed() {
    let server = RedisServer::start();
    let proxy = Proxy::before(server.port()).await;
    let (lossy, other) = (behind(&proxy).await, table(&server));
    let update = add(key("hot"), Value::Int(1));
    // The server has the script from here on, so that the first answer that is lost is of the write.
    let first = other.update(&update, ReturnValues::None).await;
    first.expect("it is applied");
    proxy.swallow_answers();
    let writes = async {
        for _ in 0..50 {
            let write = other.update(&update, ReturnValues::None).await;
            write.expect("it is applied");
        }
    };
    let (lost, ()) = tokio::join!(lossy.update(&update, ReturnValues::None), writes);
    assert_eq!(lost.expect_err("it is unknown").kind, ErrorKind::Unconfirmed);
    let items = other.read(&[key("hot")]).await.expect("it is there");
    assert_eq!(shown(&items[0], "a").as_deref(), Some("N(\"52\")"));
}

/// The clock that the first sending was dated by must not decide what the item's ids prove.
#[tokio::test]
async fn a_clock_that_is_set_does_not_let_a_write_be_applied_twice() {
    for step_hours in [-2, 2] {
        let server = RedisServer::start();
        let proxy = Proxy::before(server.port()).await;
        let clock = FakeClock::at(SystemClock.now());
        let lossy = Table::on_redis(&RedisOptions {
            request_timeout: Duration::from_millis(300),
            clock: Arc::new(clock.clone()),
            ..RedisOptions::new(proxy.url())
        });
        let (lossy, other) = (lossy.expect("the URL is one"), table(&server));
        lossy.warm().await.expect("it is there");
        let update = add(key("hot"), Value::Int(1));
        let first = other.update(&update, ReturnValues::None).await;
        first.expect("it is applied");
        clock.skew(step_hours * 3_600_000);
        // A connection that was idle for hours is made again.
        lossy.warm().await.expect("it is there");
        proxy.swallow_answers();
        let writes = async {
            for _ in 0..17 {
                let write = other.update(&update, ReturnValues::None).await;
                write.expect("it is applied");
            }
        };
        let (lost, ()) = tokio::join!(lossy.update(&update, ReturnValues::None), writes);
        let lost = lost.expect_err("it is unknown").kind;
        assert_eq!(lost, ErrorKind::Unconfirmed);
        let items = other.read(&[key("hot")]).await.expect("it is there");
        assert_eq!(shown(&items[0], "a").as_deref(), Some("N(\"19\")"));
    }
}

/// A server that lost its last writes begins to count from fewer: what it counts says nothing of the first sending.
#[tokio::test]
async fn a_write_to_a_server_with_another_history_stays_unconfirmed() {
    let server = RedisServer::start();
    let proxy = Proxy::before(server.port()).await;
    let other = table(&server);
    let update = add(key("one"), Value::Int(1));
    for _ in 0..30 {
        let write = other.update(&update, ReturnValues::None).await;
        write.expect("it is applied");
    }
    let lossy = behind(&proxy).await;
    proxy.swallow_answers();
    let loses = async {
        let is_applied = async || {
            let items = other.read(&[key("one")]).await.expect("it is there");
            shown(&items[0], "a").as_deref() == Some("N(\"31\")")
        };
        while !is_applied().await {}
        let flushed = super::command(&server, &["FLUSHALL"]).await;
        flushed.expect("it is there");
        let write = other.update(&update, ReturnValues::None).await;
        write.expect("it is applied");
    };
    let bound = Duration::from_secs(5);
    let loses = tokio::time::timeout(bound, loses);
    let (lost, done) = tokio::join!(lossy.update(&update, ReturnValues::None), loses);
    done.expect("it ends");
    let lost = lost.expect_err("it is unknown");
    assert_eq!(lost.kind, ErrorKind::Unconfirmed, "{lost}");
    let items = other.read(&[key("one")]).await.expect("it is there");
    assert_eq!(shown(&items[0], "a").as_deref(), ONCE);
}

/// Writes before the first sending say nothing about it, however many they were.
#[tokio::test]
async fn a_write_that_was_not_applied_is_after_any_number_of_earlier_ones() {
    let server = RedisServer::start();
    let proxy = Proxy::before(server.port()).await;
    let (lossy, update) = (behind(&proxy).await, add(key("hot"), Value::Int(1)));
    for _ in 0..50 {
        let write = lossy.update(&update, ReturnValues::None).await;
        write.expect("it is applied");
    }
    proxy.lose_next_request();
    let outcome = lossy.update(&update, ReturnValues::AllNew).await;
    let WriteOutcome::Applied(Some(new)) = outcome.expect("it is known") else {
        panic!("it is applied");
    };
    assert_eq!(shown(&new, "a").as_deref(), Some("N(\"51\")"));
}

/// The ids of an item that was deleted are gone with it.
#[tokio::test]
async fn a_write_to_an_item_that_was_made_again_stays_unconfirmed() {
    let server = RedisServer::start();
    let proxy = Proxy::before(server.port()).await;
    let (lossy, other) = (behind(&proxy).await, table(&server));
    let update = add(key("one"), Value::Int(1));
    let first = other.update(&update, ReturnValues::None).await;
    first.expect("it is applied");
    proxy.swallow_answers();
    let made_again = async {
        // After the write whose answer is lost.
        let is_applied = async |sum: &str| {
            loop {
                let items = other.read(&[key("one")]).await.expect("it is there");
                if shown(&items[0], "a").as_deref() == Some(sum) {
                    return;
                }
            }
        };
        let bound = Duration::from_secs(5);
        let applied = tokio::time::timeout(bound, is_applied("N(\"2\")")).await;
        applied.expect("it is applied");
        let actions = [Action::Delete(key("one"), vec![])];
        let deleted = other.transact(&actions, &random_id()).await;
        deleted.expect("it is deleted");
        let made = other.update(&update, ReturnValues::None).await;
        made.expect("it is applied");
    };
    let (lost, ()) = tokio::join!(lossy.update(&update, ReturnValues::None), made_again);
    assert_eq!(lost.expect_err("it is unknown").kind, ErrorKind::Unconfirmed);
    let items = other.read(&[key("one")]).await.expect("it is there");
    assert_eq!(shown(&items[0], "a").as_deref(), ONCE);
}

/// Also if nothing is under its key when it is repeated: a write whose item was deleted is not applied to a new one.
#[tokio::test]
async fn a_write_whose_item_was_deleted_stays_unconfirmed() {
    let server = RedisServer::start();
    let proxy = Proxy::before(server.port()).await;
    let (lossy, other) = (behind(&proxy).await, table(&server));
    let loads = add(key("other"), Value::Int(1));
    let loaded = other.update(&loads, ReturnValues::None).await;
    loaded.expect("the script is there");
    let update = add(key("one"), Value::Int(1));
    let mut expired = add(key("two"), Value::Int(1));
    let past = AttributeUpdate::Set(Path::of(attr::TTL), Value::Int(1));
    expired.changes.push(past);
    proxy.swallow_answers();
    let deleted = async {
        let is_applied = async || {
            let deletion = || [Action::Delete(key("one"), vec![Condition::Present(Path::of("a"))])];
            while other.transact(&deletion(), &random_id()).await.expect("it is there")
                != TransactOutcome::Applied
            {}
        };
        let bound = Duration::from_secs(5);
        let applied = tokio::time::timeout(bound, is_applied()).await;
        applied.expect("it is applied");
    };
    let (lost, ()) = tokio::join!(lossy.update(&update, ReturnValues::None), deleted);
    let lost = lost.expect_err("it is unknown");
    assert_eq!(lost.kind, ErrorKind::Unconfirmed, "{lost}");
    // It expires in the write itself, or in a later one.
    let lossy = behind(&proxy).await;
    proxy.lose_next_answer();
    let lost = lossy.update(&expired, ReturnValues::None).await;
    assert_eq!(lost.expect_err("it is unknown").kind, ErrorKind::Unconfirmed);
    let items = other.read(&[key("one"), key("two")]).await;
    assert_eq!(items.expect("it is there"), []);
    // A new item is not taken for a deleted one.
    let lossy = behind(&proxy).await;
    proxy.lose_next_answer();
    let new = lossy.update(&add(key("new"), Value::Int(1)), ReturnValues::AllNew).await;
    assert!(matches!(new, Ok(WriteOutcome::Applied(Some(_)))), "{new:?}");
    proxy.lose_next_request();
    let new = lossy.update(&add(key("newer"), Value::Int(1)), ReturnValues::AllNew).await;
    assert!(matches!(new, Ok(WriteOutcome::Applied(Some(_)))), "{new:?}");
}

/// The network delivers the first sending after the repeated one was refused.
#[tokio::test]
async fn a_write_that_was_refused_is_not_applied_later() {
    let server = RedisServer::start();
    let proxy = Proxy::before(server.port()).await;
    let other = table(&server);
    let apply = async |update| {
        let applied = other.update(&update, ReturnValues::None).await;
        applied.expect("it is there");
    };
    let sum = async || {
        let items = other.read(&[key("one")]).await.expect("it is there");
        shown(&items[0], "a")
    };
    apply(add(key("one"), Value::Int(5))).await;
    let lossy = behind(&proxy).await;
    let if_seven = Condition::Equals(Path::of("a"), Value::Int(7));
    let update = only_if(if_seven, add(key("one"), Value::Int(1)));
    proxy.hold_next_request();
    let outcome = lossy.update(&update, ReturnValues::None).await;
    assert!(matches!(outcome, Ok(WriteOutcome::ConditionFailed(_))), "{outcome:?}");
    apply(add(key("one"), Value::Int(2))).await;
    proxy.release().await;
    assert_eq!(sum().await.as_deref(), Some("N(\"7\")"));

    // A transaction, also of an item that is not there.
    let if_nine = Condition::Equals(Path::of("a"), Value::Int(9));
    let actions =
        [Action::Check(key("one"), vec![if_nine]), Action::Update(add(key("two"), Value::Int(1)))];
    proxy.hold_next_request();
    let outcome = lossy.transact(&actions, &random_id()).await;
    assert!(matches!(outcome, Ok(TransactOutcome::ConditionFailed(_))), "{outcome:?}");
    apply(add(key("one"), Value::Int(2))).await;
    proxy.release().await;
    let two = other.read(&[key("two")]).await;
    assert_eq!(two.expect("it is there"), []);
    // Later writes of the item are as before.
    for _ in 0..20 {
        apply(add(key("one"), Value::Int(1))).await;
    }
    proxy.lose_next_answer();
    let outcome = lossy.update(&add(key("one"), Value::Int(1)), ReturnValues::None).await;
    assert!(matches!(outcome, Ok(WriteOutcome::Applied(_))), "{outcome:?}");
    assert_eq!(sum().await.as_deref(), Some("N(\"30\")"));
}

#[tokio::test]
async fn a_token_is_of_one_transaction() {
    let server = RedisServer::start();
    let (table, token) = (table(&server), random_id());
    let first = [Action::Update(add(key("one"), Value::Int(1)))];
    for _ in 0..2 {
        let outcome = table.transact(&first, &token).await;
        assert_eq!(outcome.expect("it is there"), TransactOutcome::Applied);
    }
    for other in [
        vec![Action::Update(add(key("one"), Value::Int(2)))],
        vec![Action::Update(add(key("two"), Value::Int(1)))],
        vec![Action::Delete(key("one"), vec![])],
        [&first[..], &[Action::Check(key("two"), vec![])]].concat(),
    ] {
        let error = table.transact(&other, &token).await;
        let error = error.expect_err("it is refused");
        assert_eq!(error.kind, ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("take another one"), "{error}");
    }
    let items = table.read(&[key("one"), key("two")]).await;
    let items = items.expect("it is there");
    assert_eq!(items.len(), 1);
    assert_eq!(shown(&items[0], "a").as_deref(), ONCE);
}

/// It answers, with what it knew then.
#[tokio::test]
async fn a_server_that_became_a_replica_is_read_for_half_a_minute_at_most() {
    let server = RedisServer::start();
    let clock = FakeClock::at(SystemClock.now());
    let options =
        RedisOptions { clock: Arc::new(clock.clone()), ..RedisOptions::new(server.url()) };
    let table = Table::on_redis(&options).expect("the URL is one");
    let read = async || table.read(&[key("one")]).await;
    read().await.expect("it is there");
    let replica = ["REPLICAOF", "127.0.0.1", &free_port().to_string()];
    let demoted = super::command(&server, &replica).await;
    demoted.expect("it is there");
    for skew_ms in [10_000, 20_000, 25_000] {
        clock.skew(skew_ms);
        read().await.expect("the connection is open");
    }
    clock.skew(30_000);
    let error = read().await.expect_err("it is asked again what it is");
    assert!(error.reason.contains("a replica of"), "{error}");
}

/// A network may have forgotten a connection that was idle; a process that was frozen knows by its wall clock alone.
#[tokio::test]
async fn an_idle_connection_is_not_waited_for() {
    let server = RedisServer::start();
    let proxy = Proxy::before(server.port()).await;
    let clock = FakeClock::at(SystemClock.now());
    let options = RedisOptions {
        request_timeout: Duration::from_secs(600),
        clock: Arc::new(clock.clone()),
        ..RedisOptions::new(proxy.url())
    };
    let table = Table::on_redis(&options).expect("the URL is one");
    let update = add(key("one"), Value::Int(1));
    for (skew_ms, connections) in [(0, 1), (29_000, 1), (58_000, 1), (88_000, 2), (-90_000, 2)] {
        clock.skew(skew_ms);
        if connections != proxy.connections() {
            proxy.swallow_answers();
        }
        let written = table.update(&update, ReturnValues::None);
        let written = tokio::time::timeout(Duration::from_secs(60), written).await;
        written.expect("it is answered").expect("it is applied");
        assert_eq!(proxy.connections(), connections, "{skew_ms}");
        proxy.pass_all();
    }
}

/// Neither one that began to connect, nor one that waited for that.
#[tokio::test]
async fn a_request_that_is_not_polled_keeps_no_other_one_waiting() {
    let server = RedisServer::start();
    let proxy = Proxy::before(server.port()).await;
    let table = Table::on_redis(&RedisOptions::new(proxy.url())).expect("the URL is one");
    let keys = [key("one")];
    let read = async || {
        let read = tokio::time::timeout(Duration::from_secs(60), table.read(&keys)).await;
        read.expect("it is answered").expect("it is there");
    };
    let mut unpolled = [(); 2].map(|()| Box::pin(table.read(&keys)));
    for request in &mut unpolled {
        let begun = poll_fn(|context| Poll::Ready(request.as_mut().poll(context)));
        assert!(begun.await.is_pending());
    }
    read().await;
    assert_eq!(proxy.connections(), 1);
    proxy.lose_next_answer();
    read().await;
    assert_eq!(proxy.connections(), 2);
    for request in unpolled {
        request.await.expect("it goes on");
    }
}

#[tokio::test]
async fn a_script_that_the_server_forgot_is_sent_again() {
    let server = RedisServer::start();
    let table = table(&server);
    for sum in 1..4 {
        let flushed = super::command(&server, &["SCRIPT", "FLUSH"]).await;
        flushed.expect("it is there");
        let update = add(key("one"), Value::Int(1));
        let added = table.update(&update, ReturnValues::AllNew);
        let WriteOutcome::Applied(Some(new)) = added.await.expect("it is there") else {
            panic!("it is applied");
        };
        assert_eq!(shown(&new, "a"), Some(format!("N(\"{sum}\")")));
    }
}

#[tokio::test]
async fn usage_whose_answer_is_lost_is_read_again() {
    let server = RedisServer::start();
    let proxy = Proxy::before(server.port()).await;
    let built = weirgate::RateLimiter::builder(proxy.url()).build().await;
    let limiter = built.expect("the server fits");
    let day = weirgate::Window::Daily;
    let usage = async || limiter.usage("e-1", "gpt-4", day, SystemClock.now()).await;
    drop(usage().await.expect("it is read"));
    proxy.lose_next_answer();
    drop(usage().await.expect("it is read again"));
}
