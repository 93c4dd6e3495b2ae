//! The client: one acquire beside one bare write, and many callers of one bucket.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{AttributeValue, ReturnValue};
use tokio::task::JoinSet;
use weirgate::{Limit, RateLimiter};
use weirgate_store::{CapacityMeter, ConnectOptions, Table, connect};

use super::{Row, print};
use weirgate_testkit::Dynamo;
use weirgate_testkit::server::serve;

/// Acquires per second of 32 callers of one bucket, in the system this is compared with; the best
/// of its runs.
const PEER_PER_SECOND: f64 = 1_142.0;
const PAIRS: usize = 3_000;
const CROWD: usize = 32;
const CROWD_TIME: Duration = Duration::from_secs(5);

/// Prints the client's rows.
pub async fn run() {
    sequential().await;
    crowd().await;
}

pub(super) async fn connected(endpoint: &str) -> (Client, Table, CapacityMeter) {
    let connection = ConnectOptions {
        local_endpoint: Some(endpoint.to_owned()),
        ..ConnectOptions::default()
    };
    let (connected, meter) = (connect(connection).await, CapacityMeter::default());
    (
        connected.client.clone(),
        Table::new(connected, "weirgate"),
        meter,
    )
}

pub(super) async fn limiter(table: Table) -> RateLimiter {
    RateLimiter::builder("weirgate")
        .table(table)
        .build()
        .await
        .expect("the settings are good")
}

pub(super) fn far_limits() -> Arc<[Limit]> {
    let far = |name| Limit::per_second(name, 1_000_000_000).expect("a limit");
    Arc::new([far("rpm"), far("tpm")])
}

/// Each acquire is followed by a bare write of an item of the same size, so that both see the same
/// machine.
async fn sequential() {
    let dynamo = Dynamo::new().await;
    let (client, table, _) = connected(&serve(&dynamo)).await;
    let (limiter, limits) = (limiter(table).await, far_limits());
    let acquire = || async {
        let request = limiter
            .acquire("openai", "gpt-4")
            .shared_limits(&limits)
            .take("rpm", 1)
            .take("tpm", 500);
        assert!(request.send().await.expect("a decision").is_granted());
    };
    acquire().await;
    let mut twin = dynamo.item("default/BUCKET#openai#gpt-4#0", "#STATE");
    twin["PK"]["S"] = "default/BUCKET#openai#gpt-5#0".into();
    dynamo.put(&twin);
    let bare = || async {
        let request = client.update_item().table_name("weirgate");
        let request = request.key(
            "PK",
            AttributeValue::S("default/BUCKET#openai#gpt-5#0".to_owned()),
        );
        let request = request.key("SK", AttributeValue::S("#STATE".to_owned()));
        let request = request
            .update_expression("ADD takes :one")
            .return_values(ReturnValue::None);
        request
            .expression_attribute_values(":one", AttributeValue::N("1".to_owned()))
            .send()
            .await
            .expect("a write");
    };
    let (mut acquires, mut bares) = (vec![], vec![]);
    for _ in 0..PAIRS {
        let started = Instant::now();
        acquire().await;
        acquires.push(started.elapsed());
        let started = Instant::now();
        bare().await;
        bares.push(started.elapsed());
    }
    let (ours, bare) = (median(acquires), median(bares));
    let ratio = ours.as_secs_f64() / bare.as_secs_f64();
    print(&Row {
        what: "acquire p50 over HTTP, sequential",
        measured: format!("{ratio:.2} times one bare UpdateItem ({ours:.2?} and {bare:.2?})"),
        target: "at most 1.3 times",
        is_met: ratio <= 1.3,
    });
}

async fn crowd() {
    let dynamo = Dynamo::new().await;
    let (_, table, meter) = connected(&serve(&dynamo)).await;
    let (limiter, limits) = (limiter(table.with_meter(meter.clone())).await, far_limits());
    let until = Instant::now() + CROWD_TIME;
    let mut callers = JoinSet::new();
    for _ in 0..CROWD {
        let (limiter, limits) = (limiter.clone(), Arc::clone(&limits));
        callers.spawn(async move {
            while Instant::now() < until {
                let request = limiter
                    .acquire("openai", "gpt-4")
                    .shared_limits(&limits)
                    .take("rpm", 1)
                    .take("tpm", 500);
                assert!(request.send().await.expect("a decision").is_granted());
            }
        });
    }
    callers.join_all().await;
    let granted = f64::from(u32::try_from(limiter.stats().granted).expect("few enough"));
    let (rate, units) = (
        granted / CROWD_TIME.as_secs_f64(),
        meter.take().total / granted,
    );
    print(&Row {
        what: "32 callers of one process, one bucket",
        measured: format!(
            "{rate:.0} acquires/s, {:.0} times the peer, {units:.3} units each",
            rate / PEER_PER_SECOND
        ),
        target: "at least 20 times, at most 0.1 units",
        is_met: rate >= 20.0 * PEER_PER_SECOND && units <= 0.1,
    });
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
