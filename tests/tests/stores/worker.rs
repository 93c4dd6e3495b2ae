//! The functions while they run: what fails in part, a lock that another process has, and a server that loses all.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use weirgate_store::{RedisOptions, Table, Unread};
use weirgate_testkit::RedisServer;
use weirgate_worker::{Options, Work, Worker};

use super::lists::fill;
use super::proxy::Proxy;
use super::usage::{BOUND, World, quick};
use super::{command, table};

const RECORDS: &str = "weirgate:{weirgate}:records";
const LOCK: &str = "weirgate:{weirgate}:records:lock";

/// What a worker has reported.
type Log = Rc<RefCell<Vec<Work>>>;

fn worker(table: Table, options: Options) -> (Worker, Log) {
    let log = Log::default();
    let written = Rc::clone(&log);
    let worker = Worker::new(table, options, move |report| {
        written.borrow_mut().push(report.work);
    });
    (worker.expect("it is on Redis"), log)
}

async fn run(worker: Worker, until: impl Future<Output = ()>) {
    let done = tokio::time::timeout(BOUND, worker.run(until)).await;
    done.expect("it ends");
}

async fn is_logged(log: &Log, is_it: impl Fn(&Work) -> bool) {
    while !log.borrow().iter().any(&is_it) {
        tokio::task::yield_now().await;
    }
}

fn failed_with(part: &str) -> impl Fn(&Work) -> bool {
    move |work| matches!(work, Work::Failed { reason, .. } if reason.contains(part))
}

/// Lets a user reach the usage of these entities alone: `13`.
async fn allow(server: &RedisServer, entities: &str) {
    let usage = format!("~weirgate:{{weirgate}}:default/ENTITY#e-[{entities}]*");
    let rest = "~weirgate:{weirgate}:[^d]*";
    let buckets = "~weirgate:{weirgate}:default/[^E]*";
    let user = ["ACL", "SETUSER", "some", "reset", "on", ">pass", "+@all"];
    let user = [&user[..], &[&usage, rest, buckets]].concat();
    command(server, &user).await.expect("it is there");
}

fn of_user(world: &World) -> Table {
    let options = RedisOptions {
        clock: std::sync::Arc::new(world.clock.clone()),
        use_server_time: false,
        ..RedisOptions::new(world.server.url().replace("//", "//some:pass@"))
    };
    Table::on_redis(&options).expect("the URL is one")
}

/// Takes before and after the begin of an hour, the first after that of the test. The runtime's time stays.
async fn roll(world: &mut World, entities: &[&'static str], hour: i64) {
    for entity in entities {
        drop(world.take(entity, 3).await);
    }
    world.clock.skew(hour * 3_600_000);
    for entity in entities {
        drop(world.take(entity, 5).await);
    }
}

#[tokio::test]
async fn i3_records_from_the_first_that_fails_come_again_in_their_order() {
    let mut world = World::new().await;
    roll(&mut world, &["e-1", "e-2", "e-3"], 1).await;
    allow(&world.server, "13").await;
    let (worker, log) = worker(of_user(&world), quick());
    run(worker, is_logged(&log, failed_with("come again"))).await;
    let stream = world.table.records().expect("it is on Redis");
    let left = stream.read(Unread::Again, 9).await;
    let left = left.expect("it is there");
    let entities: Vec<_> = left.iter().map(|record| &*record.key.pk).collect();
    assert!(entities[0].contains("e-2"), "{entities:?}");
    assert!(entities[1..].iter().any(|pk| pk.contains("e-3")), "{entities:?}");
    assert!(left.is_sorted_by_key(|record| record.at));
    world.work().await;
    world.check().await;
}

#[tokio::test]
async fn i3_a_batch_that_fails_as_a_whole_is_halved_until_it_passes() {
    let mut world = World::new().await;
    roll(&mut world, &["e-1", "e-2", "e-3"], 1).await;
    let all = usize::try_from(world.records().await).expect("few");
    allow(&world.server, "9").await;
    let (worker, log) = worker(of_user(&world), quick());
    let records = |work: &Work| match work {
        Work::Aggregated(summary) => Some(summary.records),
        _ => None,
    };
    let handled = || log.borrow().iter().filter_map(records).sum::<usize>();
    let until = async {
        is_logged(&log, failed_with("no write was possible")).await;
        allow(&world.server, "123").await;
        while handled() < all {
            let _ = world.records().await;
        }
    };
    run(worker, until).await;
    let batches: Vec<_> = log.borrow().iter().filter_map(records).collect();
    assert!(batches[0] <= all.div_ceil(2), "{batches:?} of {all}");
    assert_eq!(handled(), all, "{batches:?}");
    assert_eq!(world.records().await, 0);
    world.check().await;
}

/// Waits until the lock was asked for so often.
async fn attempts(world: &World, count: u32) {
    let asked = async || {
        let stats = command(&world.server, &["INFO", "commandstats"]).await;
        let stats: String = redis::from_redis_value(stats.expect("it is there")).expect("text");
        let line = stats.lines().find(|line| line.starts_with("cmdstat_eval:"));
        let calls = line.and_then(|line| line.split(['=', ',']).nth(1)?.parse::<u32>().ok());
        calls.unwrap_or_default()
    };
    let begin = asked().await;
    while asked().await < begin + count {}
}

#[tokio::test]
async fn a_worker_rests_while_another_process_has_the_lock_and_goes_on_after_it() {
    let mut world = World::new().await;
    let there = async |server: &RedisServer, words: &[&str]| {
        let done = command(server, words).await;
        done.expect("it is there");
    };
    there(&world.server, &["SET", LOCK, "other"]).await;
    drop(world.take("e-1", 1).await);
    let short = Options { lock: Duration::from_millis(60), ..quick() };
    let (worker, log) = worker(world.table.clone(), short);
    let begun = || {
        let log = log.borrow();
        log.iter().filter(|work| matches!(work, Work::Began)).count()
    };
    let until = async {
        for turn in 0..3 {
            attempts(&world, 4).await;
            // Whatever it began before is over.
            let seen = begun();
            assert_eq!(seen, turn);
            drop(world.take(["e-2", "e-3", "e-4"][turn], 1).await);
            attempts(&world, 4).await;
            assert!(world.records().await > 0);
            assert_eq!(begun(), seen);
            there(&world.server, &["DEL", LOCK]).await;
            while world.records().await > 0 {}
            there(&world.server, &["SET", LOCK, "other"]).await;
        }
    };
    run(worker, until).await;
    world.check().await;
}

#[tokio::test]
async fn a_running_worker_goes_on_after_its_server_lost_all() {
    let mut world = World::new().await;
    let (worker, _) = worker(world.table.clone(), quick());
    let until = async {
        let damages = [&["DEL", RECORDS][..], &["FLUSHALL"], &[]];
        let entities = ["e-1", "e-2", "e-3"];
        for ((damage, entity), hour) in damages.into_iter().zip(entities).zip(1..) {
            match damage {
                [] => world.server.replace(),
                words => drop(command(&world.server, words).await.expect("it is there")),
            }
            let exists = async || {
                let exists = command(&world.server, &["EXISTS", RECORDS]).await;
                exists.expect("it is there") == redis::Value::Int(1)
            };
            while !exists().await {}
            world.ledger.clear();
            roll(&mut world, &[entity], hour).await;
            while world.records().await > 0 {}
            world.check().await;
        }
    };
    run(worker, until).await;
}

/// Their usage is counted again by the writes that come after it.
#[tokio::test]
async fn i3_records_that_a_successor_of_the_server_does_not_have_are_not_copied_to_it() {
    let mut world = World::new().await;
    roll(&mut world, &["e-1"], 1).await;
    allow(&world.server, "9").await;
    let (worker, log) = worker(of_user(&world), quick());
    let there = async |words: &[&str]| {
        let done = command(&world.server, words).await;
        done.expect("it is there")
    };
    let until = async {
        is_logged(&log, failed_with("no write was possible")).await;
        there(&["DEL", RECORDS]).await;
        allow(&world.server, "123").await;
        while there(&["EXISTS", RECORDS]).await != redis::Value::Int(1) {}
    };
    run(worker, until).await;
    let copies = there(&["KEYS", "*ENTITY#e-1 #USAGE*"]).await;
    assert_eq!(copies, redis::Value::Array(vec![]));
}

/// A process that stood still does not know at once that another one has the lock.
#[tokio::test]
async fn i3_records_that_another_process_read_without_the_lock_are_handled() {
    let mut world = World::new().await;
    let stale = world.table.records().expect("it is on Redis");
    let (worker, _) = worker(world.table.clone(), quick());
    let until = async {
        for hour in 1.. {
            roll(&mut world, &["e-1"], hour).await;
            let read = stale.read(Unread::New, 9).await;
            if !read.expect("it is there").is_empty() {
                break;
            }
        }
        while world.records().await > 0 {}
    };
    run(worker, until).await;
    world.check().await;
}

/// An answer that is too long for the network and the timeout never comes whole.
#[tokio::test]
async fn i3_a_batch_that_is_too_long_to_arrive_is_halved_until_it_does() {
    let mut world = World::new().await;
    for hour in 1..8 {
        roll(&mut world, &["e-1", "e-2", "e-3"], hour).await;
    }
    let proxy = Proxy::before(world.server.port()).await;
    // The answer that describes the server is shorter.
    let most = 12_000;
    proxy.close_at_answers_of(most);
    let stats = command(&world.server, &["MEMORY", "USAGE", RECORDS]).await;
    let bytes: usize = redis::from_redis_value(stats.expect("it is there")).expect("a number");
    assert!(bytes > 2 * most, "{bytes}");
    let table = Table::on_redis(&RedisOptions {
        clock: std::sync::Arc::new(world.clock.clone()),
        use_server_time: false,
        ..RedisOptions::new(proxy.url())
    });
    let options = Options { window: Duration::from_millis(1), ..Options::default() };
    let (worker, _) = worker(table.expect("the URL is one"), options);
    run(worker, async { while world.records().await > 0 {} }).await;
    world.check().await;
}

#[tokio::test]
async fn a_process_that_may_not_read_the_stream_leaves_it_to_another() {
    let server = RedisServer::start();
    let user = ["ACL", "SETUSER", "some", "on", ">pass", "~*", "+@all", "-xgroup"];
    command(&server, &user).await.expect("it is there");
    let of_user = RedisOptions::new(server.url().replace("//", "//some:pass@"));
    let of_user = Table::on_redis(&of_user).expect("the URL is one");
    let ((unable, failures), (able, log)) =
        (worker(of_user, quick()), worker(table(&server), quick()));
    let other = async {
        is_logged(&failures, failed_with("allow the user")).await;
        run(able, is_logged(&log, |work| matches!(work, Work::Began))).await;
    };
    run(unable, other).await;
}

#[tokio::test]
async fn functions_that_start_on_a_full_server_free_its_memory() {
    let server = RedisServer::start();
    fill(&server, 250).await;
    let (worker, _) = worker(table(&server), quick());
    let left = async || {
        let left = command(&server, &["ZCARD", "weirgate:{weirgate}:expiries"]).await;
        left.expect("it is there")
    };
    run(worker, async { while left().await != redis::Value::Int(3) {} }).await;
}

/// Records alone: the writes that copy usage from them need memory before they free it.
#[tokio::test]
async fn functions_that_start_on_a_server_full_of_records_free_its_memory() {
    let mut world = World::new().await;
    for hour in 1..8 {
        roll(&mut world, &["e-1", "e-2", "e-3"], hour).await;
    }
    assert!(world.records().await > 20);
    let full = ["CONFIG", "SET", "maxmemory", "1"];
    command(&world.server, &full).await.expect("it is there");
    let (worker, _) = worker(world.table.clone(), quick());
    run(worker, async { while world.records().await > 0 {} }).await;
    world.check().await;
}
