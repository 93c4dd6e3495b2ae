//! One acquire beside one bare write: what the client adds to DynamoDB. And how many bare writes the
//! emulator takes, which no client exceeds.

use std::time::{Duration, Instant};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{AttributeValue, ReturnValue};
use weirgate_testkit::Dynamo;
use weirgate_testkit::server::serve;

use super::harness::{Call, call_for, median};
use super::harness::{connected, far_limits, limiter};
use super::row::Rounds;
use super::run::BARE_WRITE;

const ROUNDS: usize = 5;
const PAIRS: usize = 600;
/// Bare writes at once: as many as the scenarios have callers.
const AT_ONCE: usize = 32;
/// Partition key of the item that is written.
const PK: &str = "default/BUCKET#openai#gpt-5#0";

/// One bare write of the item.
#[derive(Debug, Clone)]
struct BareWrite(Client);

impl Call for BareWrite {
    async fn call(&self) {
        let write = self.0.update_item().table_name("weirgate");
        let write = write.key("PK", AttributeValue::S(PK.to_owned()));
        let write = write.key("SK", AttributeValue::S("#STATE".to_owned()));
        let write = write.update_expression("ADD takes :one");
        let write = write.return_values(ReturnValue::None);
        let one = AttributeValue::N("1".to_owned());
        let written = write.expression_attribute_values(":one", one).send().await;
        written.expect("a write");
    }
}

/// Returns the rows of sequential acquires. Each is followed by a bare write of an item of the same
/// size, so that both see the same machine.
pub async fn rows() -> Vec<Rounds> {
    let dynamo = Dynamo::new().await;
    let (client, table) = connected(&serve(&dynamo)).await;
    let (limiter, limits) = (limiter(table).await, far_limits());
    let acquire = || async {
        let acquire = limiter.acquire("openai", "gpt-4").shared_limits(&limits);
        let decision = acquire.take("rpm", 1).take("tpm", 500).send().await;
        assert!(decision.expect("a decision").is_granted());
    };
    acquire().await;
    let mut twin = dynamo.item("default/BUCKET#openai#gpt-4#0", "#STATE");
    twin["PK"]["S"] = PK.into();
    dynamo.put(&twin);
    let bare = BareWrite(client);
    let (mut acquires, mut bares, mut ratios) = (vec![], vec![], vec![]);
    for _ in 0..ROUNDS {
        let (mut of_acquires, mut of_bares): (Vec<Duration>, Vec<Duration>) = (vec![], vec![]);
        for _ in 0..PAIRS {
            let started = Instant::now();
            acquire().await;
            of_acquires.push(started.elapsed());
            let started = Instant::now();
            bare.call().await;
            of_bares.push(started.elapsed());
        }
        let (acquire, bare) = (median(of_acquires), median(of_bares));
        acquires.push(acquire);
        bares.push(bare);
        ratios.push(acquire / bare);
    }
    let mut at_once = vec![];
    for _ in 0..ROUNDS {
        let times = call_for(&bare, AT_ONCE, Duration::from_secs(1)).await;
        at_once.push(times.measured().per_second);
    }
    [
        ("acquire/ratio", ratios),
        ("acquire/p50", acquires),
        (BARE_WRITE, bares),
        ("acquire/bare-writes", at_once),
    ]
    .map(|(id, rounds)| (id.to_owned(), rounds))
    .into()
}
