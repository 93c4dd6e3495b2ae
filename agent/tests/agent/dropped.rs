//! Requests that end before their answer: their tokens return, at the latest before the agent ends.

use std::time::Duration;

use serde_json::{Value, json};

use crate::served::Served;

/// Latency of each request to DynamoDB. A take is a read and a write.
const LATENCY: Duration = Duration::from_millis(100);

fn acquire() -> Value {
    json!({
        "entity": "e", "resource": "r", "take": {"daily": 4},
        "limits": [{"name": "daily", "capacity_tokens": 10, "refill_tokens": 1, "refill_period_ms": 31_536_000_000_i64}],
    })
}

/// Returns what is left of the limit in the table, in whole tokens; `None` while there is no bucket.
fn left(served: &Served) -> Option<i64> {
    let item = served.dynamo.item("default/BUCKET#e#r#0", "#STATE");
    let milli: i64 = item["b_daily_tk"]["N"].as_str()?.parse().unwrap();
    Some(milli / 1000)
}

/// Sends a request for tokens, and waits until `is_begun`.
fn begin(served: &Served, is_begun: impl Fn(&Served) -> bool) -> crate::fixtures::Client {
    let mut client = served.connect();
    client.write("POST", "/v1/acquire", &[], &acquire().to_string());
    while !is_begun(served) {
        std::thread::yield_now();
    }
    client
}

fn is_in_flight(served: &Served) -> bool {
    served.decider.gate.in_flight() == 1
}

fn is_taken(served: &Served) -> bool {
    left(served) == Some(6)
}

#[test]
fn what_a_request_took_that_its_client_left_has_returned_when_the_agent_ends() {
    for is_begun in [is_in_flight, is_taken] {
        let mut served = Served::new(LATENCY, |builder| builder);
        drop(begin(&served, is_begun));
        while served.decider.gate.in_flight() > 0 {
            std::thread::yield_now();
        }
        served.stop();
        let ended = served.decider.limiter.shutdown();
        served.runtime.block_on(ended).unwrap();
        assert_ne!(left(&served), Some(6));
    }
}

#[test]
fn a_request_that_the_end_of_the_agent_drops_has_returned_its_tokens() {
    for is_begun in [is_in_flight, is_taken] {
        let mut served = Served::new(LATENCY, |builder| builder);
        let mut client = begin(&served, is_begun);
        served.stop();
        assert!(client.read().is_none(), "its connection is closed");
        assert_eq!(served.decider.gate.in_flight(), 0);
        let ended = served.decider.limiter.shutdown();
        served.runtime.block_on(ended).unwrap();
        assert_ne!(left(&served), Some(6));
    }
}

#[test]
fn a_request_that_was_answered_before_keeps_its_tokens() {
    let mut served = Served::new(Duration::ZERO, |builder| builder);
    let answer = served.post("/v1/acquire", &acquire());
    assert_eq!(answer.status, 200, "{answer:?}");
    served.stop();
    let ended = served.decider.limiter.shutdown();
    served.runtime.block_on(ended).unwrap();
    assert_eq!(left(&served), Some(6));
}
