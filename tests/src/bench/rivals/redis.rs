//! A token bucket in Lua on Debian's redis-server, which keeps nothing on disk: as fast as Redis
//! decides.

use std::net::TcpListener;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Client, Script};
use tokio::process::{Child, Command};

use super::super::harness::Call;
use super::super::scenario::{BUCKETS, Calls, Scenario};

/// A redis-server on a free port of this machine, until it is dropped.
#[derive(Debug)]
pub struct Server {
    _process: Child,
    url: String,
}

/// Attempts to reach it while it starts.
const ATTEMPTS: u32 = 200;

impl Server {
    /// Starts one.
    pub async fn start() -> Self {
        let port = {
            let free = TcpListener::bind("127.0.0.1:0").expect("a port is free");
            free.local_addr().expect("it is bound").port().to_string()
        };
        let started = Command::new("redis-server")
            .args(["--port", &port, "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn();
        let process = started.unwrap_or_else(|error| {
            panic!("redis-server does not start ({error}): run `make packages-redis`")
        });
        let server = Self { _process: process, url: format!("redis://127.0.0.1:{port}/") };
        for _ in 0..ATTEMPTS {
            if server.connect().await.is_ok() {
                return server;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("redis-server did not answer at {} within seconds", server.url)
    }

    /// Its URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    async fn connect(&self) -> redis::RedisResult<MultiplexedConnection> {
        Client::open(&*self.url)?.get_multiplexed_async_connection().await
    }
}

/// Callers of one process, on the one connection that the client shares between them.
#[derive(Debug, Clone)]
pub struct Caller {
    connection: MultiplexedConnection,
    script: Arc<Script>,
    scenario: &'static str,
    calls: Calls,
}

/// Of a limit: capacity, refill a second, amount.
type Take = (i64, f64, i64);
const FAR: i64 = 1_000_000_000;
const FAR_A_SECOND: f64 = 1e9;

impl Caller {
    /// Connects, and empties the bucket of denials.
    pub async fn new(server: &Server, scenario: &Scenario) -> Self {
        let caller = Self {
            connection: server.connect().await.expect("Redis is there"),
            script: Arc::new(Script::new(include_str!("../../../peer/token_bucket.lua"))),
            scenario: scenario.name,
            calls: scenario.calls,
        };
        if scenario.calls == Calls::Denied {
            assert!(caller.ask_near().await, "the first is denied");
        }
        caller
    }

    /// Takes from all of these buckets or from none; says whether it did.
    async fn take(&self, buckets: &[&str], takes: &[Take]) -> bool {
        let mut invocation = self.script.prepare_invoke();
        for bucket in buckets {
            invocation.key(*bucket);
        }
        for (capacity, a_second, amount) in takes {
            invocation.arg(capacity).arg(a_second).arg(amount);
        }
        let mut connection = self.connection.clone();
        let wait_ms: i64 = invocation.invoke_async(&mut connection).await.expect("the script runs");
        wait_ms == 0
    }

    async fn take_far(&self, buckets: &[&str]) {
        let takes = [(FAR, FAR_A_SECOND, 1), (FAR, FAR_A_SECOND, 500)];
        assert!(self.take(buckets, &takes).await, "there is enough");
    }

    /// One a day.
    async fn ask_near(&self) -> bool {
        self.take(&["near"], &[(1, 1.0 / 86_400.0, 1)]).await
    }
}

impl Call for Caller {
    async fn call(&self) {
        match self.calls {
            Calls::OneBucket => self.take_far(&[self.scenario]).await,
            Calls::ManyBuckets => {
                let bucket = format!("many-{}", fastrand::u8(..BUCKETS));
                self.take_far(&[&bucket]).await;
            }
            Calls::Denied => assert!(!self.ask_near().await, "more was granted than there is"),
            Calls::Adjusted => {
                self.take_far(&[self.scenario]).await;
                let back = [(FAR, FAR_A_SECOND, 0), (FAR, FAR_A_SECOND, -200)];
                assert!(self.take(&[self.scenario], &back).await);
            }
            Calls::Cascade => self.take_far(&["child", "parent"]).await,
        }
    }
}
