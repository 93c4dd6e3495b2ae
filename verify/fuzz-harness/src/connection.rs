//! Connections of the agent, from the bytes of their sockets.

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream, duplex};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, timeout_at};
use weirgate::testing::TestTable;
use weirgate_agent::gated::GatedLimiter;
use weirgate_agent::json_api::{self, Api};
use weirgate_agent::net::{Bounds, Clients};
use weirgate_agent::rls::{self, Options, RateLimitService};
use weirgate_agent::rules::RulesSource;

/// Longest time that a connection may last on which nothing more is sent: a silent one of HTTP/2 is
/// asked after a minute whether it is alive, and has 20 s to answer.
const LONGEST: Duration = Duration::from_secs(100);

struct Agent {
    runtime: Runtime,
    api: Arc<Api>,
    calls: Arc<RateLimitService>,
}

thread_local! {
    static AGENT: OnceCell<Agent> = const { OnceCell::new() };
}

impl Agent {
    fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.expect("a runtime without I/O");
        let limiter = runtime.block_on(async { TestTable::new().limiter().await });
        let gated = Arc::new(GatedLimiter::new(limiter, 100));
        let rules = std::env::temp_dir().join(format!("fuzz-rules-{}.yaml", std::process::id()));
        let text = "weirgate: 1\ndomains:\n  edge:\n    - {match: [tenant], entity: \"{tenant}\", \
            resource: api, take: {rpm: hits}, limits: {rpm: {per_minute: 10}}}\n";
        std::fs::write(&rules, text).expect("a folder for temporary files");
        let rules = RulesSource::open(vec![rules]).expect("the rules are valid");
        let calls = RateLimitService::new(Arc::clone(&gated), rules, Options::default());
        Self {
            runtime,
            api: Arc::new(Api::new(gated, None, Arc::default())),
            calls: Arc::new(calls),
        }
    }
}

/// Sends these bytes on a connection of HTTP/1.1; the first one says in which parts, and how the
/// sender ends.
pub fn http_connection(bytes: &[u8]) {
    let answer = converse(bytes, |agent, clients, stream| {
        let api = Arc::clone(&agent.api);
        async move { json_api::serve_in_memory(api, &clients, stream).await }
    });
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."));
}

/// Sends these bytes on a connection of HTTP/2 for calls, as [`http_connection`] does. A preface is
/// put before them unless they begin with one.
pub fn grpc_connection(bytes: &[u8]) {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let (how, frames) = bytes.split_at(1.min(bytes.len()));
    let all = match frames.starts_with(b"PRI") {
        true => bytes.to_vec(),
        false => [how, PREFACE, frames].concat(),
    };
    converse(&all, |agent, clients, stream| {
        let calls = Arc::clone(&agent.calls);
        async move { rls::serve_in_memory(calls, &clients, stream).await }
    });
}

/// Returns what is answered to the bytes behind the first one.
fn converse<F: Future<Output = ()>>(
    bytes: &[u8],
    serve: impl FnOnce(&Agent, Clients, BufReader<DuplexStream>) -> F,
) -> Vec<u8> {
    let Some((how, bytes)) = bytes.split_first() else {
        return vec![];
    };
    let (closes, size) = (how & 1 == 1, usize::from(how >> 1).pow(2) + 1);
    AGENT.with(|agent| {
        let agent = agent.get_or_init(Agent::new);
        agent.runtime.block_on(async {
            let clients = Clients::new(Bounds { max_connections: 1, grace: Duration::ZERO });
            let (mut client, server) = duplex(64 * 1024);
            let serving = serve(agent, clients.clone(), BufReader::new(server));
            let asking = async move {
                for part in bytes.chunks(size) {
                    if client.write_all(part).await.is_err() {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
                if closes {
                    let _ = client.shutdown().await;
                }
                let end = Instant::now() + LONGEST;
                let mut answer = vec![];
                // A connection that was answered may stay open.
                while let Ok(Ok(1..)) = timeout_at(end, client.read_buf(&mut answer)).await {}
                answer
            };
            let end = Instant::now() + LONGEST * 2;
            let (answer, ended) = tokio::join!(asking, timeout_at(end, serving));
            assert!(ended.is_ok(), "the connection goes on without its client");
            assert_eq!(clients.open(), 0);
            answer
        })
    })
}
