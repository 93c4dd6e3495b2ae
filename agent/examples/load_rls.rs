//! Measures the rate limit service: an agent and its caller in one process, a thread each, over a
//! real connection, on an embedded DynamoDB.
//!
//! ```sh
//! cargo run --release -p weirgate-agent --example load_rls -- all
//! ```
//!
//! | measurement | prints |
//! |---|---|
//! | `bare` | calls a second of a service that only decodes and answers, 32 callers |
//! | `prefetched` | calls a second from prefetched tokens, 32 callers |
//! | `latency` | quantiles of the time of a call at 10,000 a second, from when it was due |
//! | `table` | calls a second that each need a write, beside the crate's own: the model of DynamoDB's partitions answers in 3 to 9 ms, 16 callers, each with its own bucket |

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService as BareService, RateLimitServiceServer,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use hdrhistogram::Histogram;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use weirgate::{Limit, Prefetch, RateLimiter};
use weirgate_agent::decide::Decider;
use weirgate_agent::net::{Bounds, Clients};
use weirgate_agent::rls::{Grpc, Options, RateLimitService};
use weirgate_agent::rules::RulesSource;
use weirgate_testkit::{Dynamo, Limits, Partitions};

const RULES: &str = r#"
weirgate: 1
domains:
  edge:
    - match: [tenant]
      entity: "{tenant}"
      resource: api
      take: {rpm: hits}
      limits: {rpm: {per_second: 1000000000}}
"#;
const SECONDS: u64 = 5;
const WARM_UP: Duration = Duration::from_secs(3);
const RATE: u32 = 10_000;
const CALLERS_OF_TABLE: usize = 16;

type Client = RateLimitServiceClient<Channel>;

fn main() {
    let wanted = std::env::args().nth(1).unwrap_or_else(|| "all".to_owned());
    let is_wanted = |name: &str| wanted == name || wanted == "all";
    if is_wanted("bare") {
        let address = bare();
        report("bare tonic", thread().block_on(callers(address, 32)));
    }
    if is_wanted("prefetched") {
        let address = agent(Some(Prefetch::default()));
        report("prefetched", thread().block_on(callers(address, 32)));
    }
    if is_wanted("latency") {
        for (name, address) in [
            ("bare tonic", bare()),
            ("prefetched", agent(Some(Prefetch::default()))),
        ] {
            let times = thread().block_on(paced(address));
            let at = |quantile| times.value_at_quantile(quantile);
            let (p50, p99, p999) = (at(0.5), at(0.99), at(0.999));
            println!("{name} at {RATE}/s: p50 {p50} µs, p99 {p99} µs, p99.9 {p999} µs");
        }
    }
    if is_wanted("table") {
        let own = crate_alone();
        report("the crate, a write each", own);
        let address = agent(None);
        let through = thread().block_on(callers(address, CALLERS_OF_TABLE));
        report("the service, a write each", through);
        let tenths = through * 1_000 / own.max(1);
        let (whole, tenth) = (tenths / 10, tenths % 10);
        println!("{whole}.{tenth} % of the crate's own rate");
    }
}

fn report(name: &str, calls: u64) {
    println!("{name}: {}/s", calls / SECONDS);
}

/// A runtime of one thread, which looks for I/O after every task.
fn thread() -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().event_interval(1).build().unwrap()
}

/// Runs a server on a thread of its own. Returns its address.
fn on_a_thread<F: Future<Output = ()>>(
    server: impl FnOnce(TcpListener) -> F + Send + 'static,
) -> SocketAddr {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            tell.send(listener.local_addr().unwrap()).unwrap();
            server(listener).await;
        });
    });
    told.recv().unwrap()
}

async fn limiter(prefetch: Option<Prefetch>) -> RateLimiter {
    let dynamo = Dynamo::new().await;
    let builder = |table| RateLimiter::builder("weirgate").table(table);
    let builder = match prefetch {
        Some(prefetch) => builder(dynamo.table().await).prefetch("api", prefetch),
        None => builder(Partitions::over(dynamo, Limits::default(), 1).table().await),
    };
    builder.build().await.unwrap()
}

fn agent(prefetch: Option<Prefetch>) -> SocketAddr {
    let path = std::env::temp_dir().join(format!("load-rls-{}.yaml", std::process::id()));
    std::fs::write(&path, RULES).unwrap();
    let rules = RulesSource::open(vec![path]).unwrap();
    on_a_thread(async move |listener| {
        let decider = Arc::new(Decider::new(limiter(prefetch).await, 10_000));
        let service = RateLimitService::new(decider, rules, Options::default());
        let (ready, stop) = (std::future::pending(), std::future::pending());
        let clients = Clients::new(Bounds {
            max_connections: 16_384,
            grace: Duration::ZERO,
        });
        Grpc::from(listener)
            .serve(service, clients, ready, stop)
            .await;
    })
}

/// A service that decodes, and answers the same to every call.
struct Bare;

#[tonic::async_trait]
impl BareService for Bare {
    async fn should_rate_limit(
        &self,
        _: tonic::Request<RateLimitRequest>,
    ) -> Result<tonic::Response<RateLimitResponse>, tonic::Status> {
        Ok(tonic::Response::new(RateLimitResponse {
            overall_code: Code::Ok.into(),
            ..RateLimitResponse::default()
        }))
    }
}

fn bare() -> SocketAddr {
    on_a_thread(async |listener| {
        Server::builder()
            .add_service(RateLimitServiceServer::new(Bare))
            .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true)))
            .await
            .unwrap();
    })
}

async fn client(address: SocketAddr) -> Client {
    let channel = Channel::from_shared(format!("http://{address}")).unwrap();
    RateLimitServiceClient::new(channel.connect().await.unwrap())
}

fn request(tenant: &str) -> RateLimitRequest {
    let entry = Entry {
        key: "tenant".to_owned(),
        value: tenant.to_owned(),
    };
    let descriptor = RateLimitDescriptor {
        entries: vec![entry],
        ..RateLimitDescriptor::default()
    };
    RateLimitRequest {
        domain: "edge".to_owned(),
        descriptors: vec![descriptor],
        hits_addend: 1,
    }
}

async fn call(client: &mut Client, tenant: &str) {
    let mut request = tonic::Request::new(request(tenant));
    request.set_timeout(Duration::from_millis(250));
    let answer = client.should_rate_limit(request).await.unwrap();
    assert_eq!(answer.into_inner().overall_code(), Code::Ok);
}

fn tenant(number: usize) -> String {
    format!("customer-{number}")
}

/// Returns the number of calls of so many callers, one connection, no pauses.
async fn callers(address: SocketAddr, number: usize) -> u64 {
    let client = client(address).await;
    let is_prefetched = number > CALLERS_OF_TABLE;
    closed_loop(number, |caller| {
        let mut client = client.clone();
        let tenant = tenant(if is_prefetched { 0 } else { caller });
        async move || {
            call(&mut client, &tenant).await;
            Ok::<_, Infallible>(())
        }
    })
    .await
}

/// Returns the number of calls that end within the measured time, after a warm-up.
async fn closed_loop<C, E>(number: usize, caller: impl Fn(usize) -> C) -> u64
where
    C: AsyncFnMut() -> Result<(), E>,
    E: std::fmt::Debug,
{
    let begin = Instant::now() + WARM_UP;
    let end = begin + Duration::from_secs(SECONDS);
    let calls = (0..number).map(|place| {
        let mut call = caller(place);
        async move {
            let mut count = 0_u64;
            loop {
                call().await.unwrap();
                let now = Instant::now();
                if now >= end {
                    return count;
                }
                count += u64::from(now >= begin);
            }
        }
    });
    futures_util::future::join_all(calls)
        .await
        .into_iter()
        .sum()
}

/// Returns the times of calls in microseconds, each from when it was due.
async fn paced(address: SocketAddr) -> Histogram<u64> {
    let client = client(address).await;
    let times = std::rc::Rc::new(std::cell::RefCell::new(Histogram::new(3).unwrap()));
    let local = tokio::task::LocalSet::new();
    let sending = async {
        let interval = Duration::from_secs(1) / RATE;
        let (start, begin) = (Instant::now(), Instant::now() + WARM_UP);
        let calls = RATE * u32::try_from(SECONDS + WARM_UP.as_secs()).unwrap();
        for number in 0..calls {
            let due = start + interval * number;
            while Instant::now() < due {
                tokio::task::yield_now().await;
            }
            let (mut client, times) = (client.clone(), std::rc::Rc::clone(&times));
            tokio::task::spawn_local(async move {
                call(&mut client, "customer-0").await;
                if due >= begin {
                    let micros = u64::try_from(due.elapsed().as_micros()).unwrap();
                    times.borrow_mut().record(micros).unwrap();
                }
            });
        }
    };
    local.run_until(sending).await;
    local.await;
    std::rc::Rc::try_unwrap(times).unwrap().into_inner()
}

/// Returns the number of acquires of the crate alone, as many at a time.
fn crate_alone() -> u64 {
    let limit = Limit::per_second("rpm", 1_000_000_000).unwrap();
    thread().block_on(async {
        let limiter = limiter(None).await;
        let limits: Arc<[Limit]> = [limit].into();
        closed_loop(CALLERS_OF_TABLE, |caller| {
            let (limiter, limits) = (limiter.clone(), Arc::clone(&limits));
            let tenant = tenant(caller);
            async move || {
                let acquire = limiter.acquire(&tenant, "api").shared_limits(&limits);
                let granted = acquire.take("rpm", 1).send().await?;
                assert!(granted.is_granted());
                Ok::<_, weirgate::Error>(())
            }
        })
        .await
    })
}
