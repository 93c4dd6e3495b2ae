//! What a killed server, a lost disk cache and a failover lose. Counts, no times.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use weirgate::{Config, ConfigLevel, Limit, RateLimiter};
use weirgate_testkit::{RedisServer, Temporary};
use weirgate_tests::fleet::{granted, is_granted, tokens};

use super::command;
use super::proxy::Proxy;

/// Capacity of the bucket, which refills by none in the time that a test takes.
const ALL: i64 = 1_000;
/// Longest time until something happens.
const BOUND: Duration = Duration::from_secs(30);

/// A folder that is removed at the end.
struct Folder(Temporary);

impl Folder {
    fn new() -> Self {
        Self(Temporary::folder())
    }

    /// A copy of its append-only file.
    fn copied(&self) -> Self {
        let copy = Self::new();
        let (from, to) = (files(&self.0), files(&copy.0));
        std::fs::create_dir_all(&to).expect("a folder");
        for file in std::fs::read_dir(&from).expect("it is there") {
            let file = file.expect("it is there");
            std::fs::copy(file.path(), to.join(file.file_name())).expect("it is copied");
        }
        copy
    }

    fn server(&self, fsync: &str) -> RedisServer {
        RedisServer::with(&["--dir", self.0.path(), "--appendonly", "yes", "--appendfsync", fsync])
    }

    /// The file that writes are appended to.
    fn log(&self) -> PathBuf {
        files(&self.0).join("appendonly.aof.1.incr.aof")
    }

    fn length(&self) -> u64 {
        let log = std::fs::metadata(self.log());
        log.expect("it is there").len()
    }

    /// Cuts what the disk does not have yet.
    fn cut(&self, length: u64) {
        let file = std::fs::OpenOptions::new().write(true).open(self.log());
        file.and_then(|file| file.set_len(length)).expect("it is cut");
    }
}

fn files(folder: &Path) -> PathBuf {
    folder.join("appendonlydir")
}

fn limits() -> [Limit; 1] {
    let text = format!("rpd=24/day,burst={ALL}");
    [text.parse().expect("a limit")]
}

async fn limiter(server: &RedisServer) -> RateLimiter {
    let built = RateLimiter::builder(server.url()).build().await;
    built.expect("the server fits")
}

async fn take(limiter: &RateLimiter, times: i64) {
    for _ in 0..times {
        drop(granted(limiter, &limits(), &[("rpd", 1)]).await);
    }
}

/// Takes until it is denied. Returns how often it was granted.
async fn take_all(server: &RedisServer) -> i64 {
    let limiter = limiter(server).await;
    let (mut grants, limits) = (0, limits());
    while is_granted(&limiter, &limits, &[("rpd", 1)]).await {
        grants += 1;
    }
    grants
}

/// What is available, and what was consumed.
async fn balances(server: &RedisServer) -> [i64; 2] {
    let limiter = limiter(server).await;
    let now = weirgate::Clock::now(&weirgate::SystemClock);
    let day = weirgate::Window::Daily;
    let usage = limiter.usage("e-1", "gpt-4", day, now).await;
    let used = usage.expect("it is read").usage.acquires;
    let limits = limits();
    let peeked = limiter.peek("e-1", "gpt-4").limits(&limits).send().await;
    let peeked = peeked.expect("it is read");
    let available = peeked.limit("rpd").expect("it is one").available;
    let whole = (0..=ALL).rev().find(|amount| available >= tokens(*amount));
    [whole.expect("it is not negative"), i64::try_from(used).expect("a number")]
}

/// Number of writes that a server knows of.
async fn writes(server: &RedisServer) -> i64 {
    let writes = command(server, &["HGET", "weirgate:{weirgate}:writes", "all"]).await;
    let writes: Option<i64> =
        redis::from_redis_value(writes.expect("it is there")).expect("a number");
    writes.unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_a_killed_server_that_syncs_always_has_all_that_it_has_granted() {
    let folder = Folder::new();
    let (mut server, mut acknowledged, mut unknown) = (folder.server("always"), 0, 0);
    for kill_after in [30, 110, 50] {
        let before = writes(&server).await;
        let callers = (0..4).map(|_| {
            let url = server.url();
            tokio::spawn(async move {
                let built = RateLimiter::builder(url).timeout(Duration::from_millis(500));
                let limiter = built.build().await.expect("the server fits");
                let (limits, mut grants) = (limits(), 0);
                loop {
                    let acquire = limiter.acquire("e-1", "gpt-4").limits(&limits);
                    match acquire.take("rpd", 1).send().await {
                        Ok(decision) if decision.is_granted() => grants += 1,
                        Ok(_) => return (grants, 0),
                        Err(_) => return (grants, 1),
                    }
                }
            })
        });
        let callers: Vec<_> = callers.collect();
        let is_used = async {
            let is_over = || callers.iter().all(tokio::task::JoinHandle::is_finished);
            while writes(&server).await < before + kill_after && !is_over() {}
        };
        let done = tokio::time::timeout(BOUND, is_used).await;
        done.expect("it is used");
        drop(server);
        for caller in callers {
            let (grants, lost) = caller.await.expect("it ends");
            acknowledged += grants;
            unknown += lost;
        }
        server = folder.server("always");
    }
    let rest = take_all(&server).await;
    assert!(acknowledged + rest <= ALL, "{acknowledged} {rest}");
    assert!(acknowledged + unknown + rest >= ALL, "{acknowledged} {unknown} {rest}");
}

/// Waits until all writes are in the file: a server puts that off while its disk is busy.
async fn is_written(server: &RedisServer) {
    let is_written = async {
        loop {
            let info = command(server, &["INFO", "persistence"]).await;
            let info: String = redis::from_redis_value(info.expect("it is there")).expect("text");
            if info.contains("aof_buffer_length:0\r") {
                return;
            }
        }
    };
    let written = tokio::time::timeout(BOUND, is_written).await;
    written.expect("it is written");
}

/// A machine that loses its power loses what `everysec` had not synced: about a second of writes. A part of
/// them in their order is left, and of each write all or nothing.
#[tokio::test]
async fn what_a_log_that_is_synced_each_second_loses_is_admitted_again_and_no_more() {
    let folder = Folder::new();
    let server = folder.server("everysec");
    let limiter = limiter(&server).await;
    take(&limiter, 20).await;
    is_written(&server).await;
    let synced = folder.length();
    take(&limiter, 10).await;
    is_written(&server).await;
    drop((limiter, server));
    let end = folder.length();
    assert!(end > synced, "{end} {synced}");
    let mut lost = vec![];
    for part in 0..=7 {
        let copy = folder.copied();
        copy.cut(synced + (end - synced) * part / 7);
        let server = copy.server("everysec");
        let [available, consumed] = balances(&server).await;
        assert_eq!(available + consumed, ALL, "they are lost together");
        let again = take_all(&server).await;
        assert_eq!(again, available);
        lost.push(30 - consumed);
    }
    assert!(lost.is_sorted_by(|one, next| one >= next), "{lost:?}");
    assert_eq!((lost[0], lost[7]), (10, 0), "{lost:?}");
}

#[tokio::test]
async fn a_failover_admits_again_what_the_replica_had_not_received_and_no_more() {
    for missing in [0, 10] {
        let primary = RedisServer::with(&["--repl-diskless-sync-delay", "0"]);
        let proxy = Proxy::before(primary.port()).await;
        let of = proxy.port().to_string();
        // It stores what it gets first.
        let folder = Folder::new();
        let path = folder.0.to_str().expect("UTF-8");
        let replica = RedisServer::with(&["--replicaof", "127.0.0.1", &of, "--dir", path]);
        let one = limiter(&primary).await;
        take(&one, 20 - missing).await;
        let received = async { while writes(&replica).await < writes(&primary).await {} };
        let done = tokio::time::timeout(BOUND, received).await;
        done.expect("the replica has it");
        proxy.swallow_answers();
        take(&one, missing).await;
        let behind = writes(&primary).await - writes(&replica).await;
        assert_eq!(behind, missing);
        drop((one, primary));
        let promoted = command(&replica, &["REPLICAOF", "NO", "ONE"]).await;
        promoted.expect("it is there");
        assert_eq!(take_all(&replica).await, ALL - 20 + behind);
        assert_eq!(balances(&replica).await, [0, ALL]);
    }
}

/// The successor gives its number to the next change.
#[tokio::test]
async fn limits_that_are_set_after_a_failover_reach_buckets_that_had_those_that_were_lost() {
    let primary = RedisServer::with(&["--repl-diskless-sync-delay", "0"]);
    let [replication, callers] =
        [Proxy::before(primary.port()).await, Proxy::before(primary.port()).await];
    let (of, folder) = (replication.port().to_string(), Folder::new());
    let path = folder.0.to_str().expect("UTF-8");
    let replica = RedisServer::with(&["--replicaof", "127.0.0.1", &of, "--dir", path]);
    let level = ConfigLevel::Resource("gpt-4".try_into().expect("a name"));
    let set = async |server: &RedisServer, rate: i64| {
        let config = Config::of([Limit::per_minute("rpm", rate).expect("a limit")]);
        let admin = limiter(server).await;
        let set = admin.admin().set_config(&level, &config);
        set.await.expect("it is there");
    };
    let capacity = async |limiter: &RateLimiter| {
        let acquire = limiter.acquire("e-1", "gpt-4").take("rpm", 1);
        drop(acquire.send().await.expect("it is decided"));
        let peeked = limiter.peek("e-1", "gpt-4").send().await;
        let peeked = peeked.expect("it is read");
        peeked.limit("rpm").expect("it is one").capacity
    };
    set(&primary, 100).await;
    let received = async { while writes(&replica).await < writes(&primary).await {} };
    let done = tokio::time::timeout(BOUND, received).await;
    done.expect("the replica has it");
    replication.swallow_answers();
    set(&primary, 200).await;
    let built = RateLimiter::builder(callers.url()).build().await;
    let knows_lost = built.expect("the server fits");
    assert_eq!(capacity(&knows_lost).await, tokens(200));
    callers.lead_to(replica.port());
    drop(primary);
    let promoted = command(&replica, &["REPLICAOF", "NO", "ONE"]).await;
    promoted.expect("it is there");
    let brought =
        async { while knows_lost.acquire("e-1", "gpt-4").take("rpm", 1).send().await.is_err() {} };
    let done = tokio::time::timeout(BOUND, brought).await;
    done.expect("it finds the successor");
    assert_eq!(capacity(&knows_lost).await, tokens(200));
    set(&replica, 50).await;
    assert_eq!(capacity(&limiter(&replica).await).await, tokens(50));
}

/// With the settings of the guide. It would go on to grant what its successor grants too.
#[tokio::test]
async fn a_primary_that_is_cut_off_from_its_replicas_takes_no_more_writes() {
    let primary =
        RedisServer::with(&["--repl-diskless-sync-delay", "0", "--min-replicas-to-write", "1"]);
    let proxy = Proxy::before(primary.port()).await;
    let of = proxy.port().to_string();
    let folder = Folder::new();
    let path = folder.0.to_str().expect("UTF-8");
    let replica = RedisServer::with(&["--replicaof", "127.0.0.1", &of, "--dir", path]);
    let url = RateLimiter::builder(primary.url()).timeout(Duration::from_millis(200));
    let (one, limits) = (url.build().await.expect("the server fits"), limits());
    let takes = async || {
        let acquire = one.acquire("e-1", "gpt-4").limits(&limits);
        acquire.take("rpd", 1).send_now().await
    };
    let is_granted = async || takes().await.is_ok_and(|decision| decision.is_granted());
    let has_replicas = async || {
        let info = command(&primary, &["INFO", "replication"]).await;
        let info: String = redis::from_redis_value(info.expect("it is there")).expect("text");
        !info.contains("connected_slaves:0\r")
    };
    let is_cut_off = async {
        while !is_granted().await {}
        // The replica's next sign of life ends its connection, and it finds no other.
        proxy.lead_to(weirgate_testkit::server::free_port());
        proxy.lose_next_request();
        let mut grants = 1;
        for _ in 0..5 {
            grants += i64::from(is_granted().await);
        }
        while has_replicas().await {}
        grants
    };
    let grants = tokio::time::timeout(BOUND, is_cut_off).await;
    let grants = grants.expect("it notices");
    let refused = takes().await.expect_err("it is refused").to_string();
    assert!(refused.contains("NOREPLICAS"), "{refused}");
    let behind = writes(&primary).await - writes(&replica).await;
    let promoted = command(&replica, &["REPLICAOF", "NO", "ONE"]).await;
    promoted.expect("it is there");
    assert_eq!(take_all(&replica).await, ALL - grants + behind);
    assert!(takes().await.is_err(), "it still takes none");
}

/// A server whose clock is ahead by so many seconds, and that says nothing else of itself. Returns its port.
async fn ahead(seconds: i64) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("it is bound").port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut buffer = vec![0; 1 << 12];
            while let Ok(length @ 1..) = client.read(&mut buffer).await {
                let asked = String::from_utf8_lossy(&buffer[..length]).into_owned();
                let mut answer = "+OK\r\n".repeat(asked.matches("SETINFO").count());
                if asked.contains("TIME") {
                    let now = weirgate::Clock::now(&weirgate::SystemClock).0 / 1_000 + seconds;
                    let digits = now.to_string().len();
                    answer += &format!("*2\r\n${digits}\r\n{now}\r\n$1\r\n0\r\n");
                }
                if asked.contains("\r\nINFO\r\n") {
                    answer += "$0\r\n\r\n";
                }
                if client.write_all(answer.as_bytes()).await.is_err() {
                    break;
                }
            }
        }
    });
    port
}

/// A bucket refills by the difference at once after a failover.
#[tokio::test]
async fn the_clock_of_each_replica_is_compared_with_that_of_its_primary() {
    let primary = RedisServer::with(&["--repl-diskless-sync-delay", "0"]);
    let (of, folder) = (primary.port().to_string(), Folder::new());
    let path = folder.0.to_str().expect("UTF-8");
    for (seconds, bounds) in
        [(None, 0..=0), (Some(60), 58_000..=60_000), (Some(-60), -62_000..=-60_000)]
    {
        let port = match seconds {
            Some(seconds) => ahead(seconds).await.to_string(),
            // Its own.
            None => "0".to_owned(),
        };
        let _replica = RedisServer::with(&[
            "--replicaof",
            "127.0.0.1",
            &of,
            "--dir",
            path,
            "--replica-announce-port",
            &port,
        ]);
        let table = super::table(&primary);
        let found = async {
            loop {
                let facts = table.describe_server().await.expect("it is there");
                if let [replica] = &facts.replicas[..] {
                    return replica.ahead_ms;
                }
            }
        };
        let found = tokio::time::timeout(BOUND, found).await.expect("it is there");
        let found = found.expect("it tells its time");
        assert!(bounds.contains(&found), "{found} {seconds:?}");
    }
}
