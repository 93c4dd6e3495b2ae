//! A table in a cluster of three servers: it is on one slot, wherever that is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use weirgate::{Config, ConfigLevel, EntityId, Limit, RateLimiter, Resource};
use weirgate_shared::write::{AttributeUpdate, Path, Value};
use weirgate_store::{ErrorKind, RedisOptions, ReturnValues, Table};
use weirgate_testkit::RedisCluster;
use weirgate_tests::fleet::{granted, is_granted, tokens};
use weirgate_worker::{Options, Worker};

use super::refused::listed;

const ALL: i64 = 1_000_000;

fn limits() -> [Limit; 1] {
    // Refills by none in the time that a test takes.
    let text = format!("rpd=24/day,burst={ALL}");
    [text.parse().expect("a limit")]
}

async fn limiter(url: String) -> RateLimiter {
    let built = RateLimiter::builder(url).build().await;
    built.expect("the cluster fits")
}

#[tokio::test]
async fn any_server_of_a_cluster_leads_to_the_table() {
    let cluster = RedisCluster::start();
    let nodes = cluster.nodes();
    let stream = Table::on_redis(&RedisOptions::new(nodes[0].url()));
    let stream = stream.expect("the URL is one").records().expect("it is on Redis");
    stream.open().await.expect("it is there");
    let level = ConfigLevel::Resource(Resource::new("gpt-4").expect("a name"));
    let [limit] = limits();
    let first = limiter(nodes[0].url()).await;
    // Transactions change items, audit and lists at once.
    let config = Config::of([limit]);
    let set = first.admin().set_config(&level, &config).await;
    set.expect("it is stored");
    for (node, taken) in nodes.iter().zip(1..) {
        let limiter = limiter(node.url()).await;
        let acquire = limiter.acquire("e-1", "gpt-4").take("rpd", 100).send().await;
        let mut grant = acquire.expect("it is decided").granted().expect("it fits");
        let _ = grant.adjust("rpd", 10).await.expect("it is settled");
        let peeked = limiter.peek("e-1", "gpt-4").send().await.expect("it is read");
        let available = peeked.limit("rpd").expect("it is one").available;
        assert_eq!(available, tokens(ALL - 10 * taken));
        let one = EntityId::new("e-1").expect("an id");
        let listed = limiter.admin().entity_buckets(&one, None).await;
        assert_eq!(listed.expect("it is listed").items.len(), 1);
        let table = Table::on_redis(&RedisOptions::new(node.url())).expect("the URL is one");
        let scanned = table.scan("default/BUCKET#", 9, None).await;
        assert_eq!(scanned.expect("it is there").items.len(), 1);
    }
    // One server has all of it.
    let sizes: Vec<_> = (0..3).map(|at| cluster.run(at, &["DBSIZE"])).collect();
    assert_eq!(sizes.iter().filter(|size| *size == "0").count(), 2, "{sizes:?}");
    let table = Table::on_redis(&RedisOptions::new(nodes[2].url())).expect("the URL is one");
    let options = Options { window: Duration::from_millis(5), ..Options::default() };
    let worker = Worker::new(table.clone(), options, |report| {
        let text = format!("{report:?}");
        assert!(!text.contains("Failed"), "{text}");
    });
    let again = table.records().expect("it is on Redis");
    let is_copied = async {
        loop {
            let found = table.scan("default/ENTITY#e-1", 9, None).await;
            if found.expect("it is there").items.len() == 1 {
                return;
            }
        }
    };
    let worker = worker.expect("it is on Redis");
    let done = tokio::time::timeout(Duration::from_secs(30), worker.run(is_copied)).await;
    done.expect("usage is copied");
    assert!(again.lock(Duration::from_secs(1)).await.expect("it is there"));
}

#[tokio::test]
async fn a_limiter_finds_the_replica_that_took_the_place_of_its_server() {
    let mut cluster = RedisCluster::start();
    let limits = limits();
    let first = limiter(cluster.nodes()[0].url()).await;
    drop(granted(&first, &limits, &[("rpd", 100)]).await);
    let dead = holder(&cluster).expect("one has it");
    // It begins at another server than that of the table.
    let limiter = limiter(cluster.nodes()[(dead + 1) % 3].url()).await;
    drop(granted(&limiter, &limits, &[("rpd", 200)]).await);
    cluster.add_replica(dead);
    cluster.fail_over(dead, 3);
    let all_again = async {
        loop {
            let acquire = limiter.acquire("e-1", "gpt-4").limits(&limits);
            match acquire.take("rpd", ALL - 299).send_now().await {
                Ok(decision) => return decision.is_granted(),
                Err(error) => assert!(error.is_transient(), "{error}"),
            }
        }
    };
    let decided = tokio::time::timeout(Duration::from_secs(30), all_again).await;
    assert!(!decided.expect("it is found"), "all of the writes are there");
    assert!(is_granted(&limiter, &limits, &[("rpd", ALL - 300)]).await);
}

/// That of the table, and that of the URL.
#[tokio::test]
async fn one_request_gets_past_all_servers_that_are_gone() {
    let mut cluster = RedisCluster::start();
    let write = async |table: &Table| {
        let update = listed("one", 1, 4_000_000_000);
        table.update(&update, ReturnValues::None).await
    };
    let first = Table::on_redis(&RedisOptions::new(cluster.nodes()[0].url()));
    let first = first.expect("the URL is one");
    write(&first).await.expect("it is there");
    let dead = holder(&cluster).expect("one has it");
    let of_url = (dead + 1) % 3;
    cluster.add_replica(dead);
    let table = Table::on_redis(&RedisOptions::new(cluster.nodes()[of_url].url()));
    let table = table.expect("the URL is one");
    write(&table).await.expect("it is there");
    cluster.await_replica(dead);
    cluster.kill(of_url);
    cluster.fail_over(dead, 3);
    write(&table).await.expect("the replica is found");
}

/// The server that has the table.
fn holder(cluster: &RedisCluster) -> Option<usize> {
    (0..3).find(|at| cluster.run(*at, &["DBSIZE"]) != "0")
}

/// An expired item that has moved already is elsewhere and not gone.
#[tokio::test]
async fn an_expired_item_of_a_slot_that_moves_is_removed_after_it() {
    let cluster = RedisCluster::start();
    let slot = cluster.run(0, &["CLUSTER", "KEYSLOT", "weirgate:{weirgate}:items"]);
    let options = RedisOptions {
        // Nothing expires by it.
        use_server_time: false,
        ..RedisOptions::new(cluster.nodes()[0].url())
    };
    let lasting = Table::on_redis(&options).expect("the URL is one");
    let stream = lasting.records().expect("it is on Redis");
    stream.open().await.expect("it is there");
    let put = async |table: &Table, name: &str, expires: i64| {
        let mut update = listed(name, 1, expires);
        update.changes.push(AttributeUpdate::Add(Path::of("a"), Value::Int(1)));
        table.update(&update, ReturnValues::None).await
    };
    for (name, expires) in [("lasting", 4_000_000_000), ("expired", 1)] {
        put(&lasting, name, expires).await.expect("it is there");
    }
    let from = holder(&cluster).expect("one has it");
    let to = (from + 1) % 3;
    cluster.begin_move(&slot, from, to);
    let expired = "weirgate:{weirgate}:ns/BUCKET#expired #STATE";
    cluster.move_keys(from, to, &[expired]);
    let source = Table::on_redis(&RedisOptions::new(cluster.nodes()[from].url()));
    let source = source.expect("the URL is one");
    let written = put(&source, "lasting", 4_000_000_000).await;
    written.expect("all of its keys are there");
    let new = put(&source, "new", 4_000_000_000).await;
    let new = new.expect_err("the server does not know whether it has moved");
    assert_eq!(new.kind, ErrorKind::Unavailable, "{new}");
    cluster.move_keys(from, to, &["weirgate:{weirgate}:writes"]);
    let facts = source.describe_server().await;
    let facts = facts.expect_err("what a user may do is not asked elsewhere");
    assert_eq!(facts.kind, ErrorKind::Unavailable, "{facts}");
    cluster.end_move(&slot, from, to);
    let entries = || cluster.run(to, &["ZCARD", "weirgate:{weirgate}:GSI1"]);
    assert_eq!(entries(), "2");
    let target = Table::on_redis(&RedisOptions::new(cluster.nodes()[to].url()));
    let target = target.expect("the URL is one");
    assert_eq!(target.remove_expired(9).await.expect("it is there"), 1);
    assert_eq!(entries(), "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_a_slot_that_moves_keeps_what_was_taken() {
    let cluster = Arc::new(RedisCluster::start());
    let slot = cluster.run(0, &["CLUSTER", "KEYSLOT", "weirgate:{weirgate}:items"]);
    let first = limiter(cluster.nodes()[0].url()).await;
    drop(granted(&first, &limits(), &[("rpd", 1)]).await);
    let (is_moved, acknowledged) = (Arc::new(AtomicBool::default()), Arc::new(AtomicI64::new(1)));
    let (unknown, mut callers) = (Arc::new(AtomicI64::default()), vec![]);
    for node in cluster.nodes() {
        let limiter = limiter(node.url()).await;
        let (is_moved, acknowledged) = (Arc::clone(&is_moved), Arc::clone(&acknowledged));
        let unknown = Arc::clone(&unknown);
        callers.push(tokio::spawn(async move {
            let limits = limits();
            while !is_moved.load(Ordering::SeqCst) {
                let acquire = limiter.acquire("e-1", "gpt-4").limits(&limits);
                match acquire.take("rpd", 1).send_now().await {
                    Ok(decision) if decision.is_granted() => {
                        acknowledged.fetch_add(1, Ordering::SeqCst);
                    }
                    Ok(_) => return,
                    Err(error) if error.is_transient() => {
                        unknown.fetch_add(1, Ordering::SeqCst);
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }));
    }
    let moving = Arc::clone(&cluster);
    let moves = tokio::task::spawn_blocking(move || {
        for _ in 0..3 {
            let from = holder(&moving).expect("one has it");
            moving.move_slot(&slot, from, (from + 1) % 3);
            assert_eq!(holder(&moving), Some((from + 1) % 3));
        }
    });
    moves.await.expect("it moves");
    is_moved.store(true, Ordering::SeqCst);
    for caller in callers {
        caller.await.expect("it ends");
    }
    let limits = limits();
    let peeked = first.peek("e-1", "gpt-4").limits(&limits).send().await;
    let available = peeked.expect("it is read").limit("rpd").expect("it is one").available;
    let taken = (0..=ALL).find(|taken| tokens(ALL - taken) <= available);
    let taken = taken.expect("it is not negative");
    let acknowledged = acknowledged.load(Ordering::SeqCst);
    let unknown = unknown.load(Ordering::SeqCst);
    assert!(acknowledged <= taken, "{acknowledged} {taken}");
    assert!(taken <= acknowledged + unknown, "{acknowledged} {unknown} {taken}");
    assert!(!is_granted(&first, &limits, &[("rpd", ALL - taken + 1)]).await);
    assert!(is_granted(&first, &limits, &[("rpd", ALL - taken)]).await);
}
