//! Requests that end before their answer: their tokens have returned when the agent ends.

use std::time::Duration;

use serde_json::{Value, json};
use weirgate_agent::decide::{Call, Outcome};

use crate::fixtures::Client;
use crate::served::Served;

/// Latency of each request to DynamoDB. A take is a read and a write, which is applied in its half.
const LATENCY: Duration = Duration::from_millis(200);

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

/// Returns how many requests ended so.
fn ended(served: &Served, outcome: Outcome) -> u64 {
    let outcomes = served.decider.measures.read(Call::Acquire).outcomes;
    outcomes.iter().find(|(one, _)| *one == outcome).unwrap().1
}

/// Sends a request, and waits until its write is applied. Its answer comes 100 ms later.
fn taken(served: &Served) -> Client {
    let mut client = served.connect();
    client.write("POST", "/v1/acquire", &[], &acquire().to_string());
    while left(served) != Some(6) {
        std::thread::yield_now();
    }
    client
}

/// Ends the limiter, as the end of the agent does.
fn shut_down(served: &Served) {
    let ended = served.decider.limiter.shutdown();
    served.runtime.block_on(ended).unwrap();
}

/// Tries until a request was not answered before it was dropped.
fn assert_returned(drop_one: impl Fn(&mut Served)) {
    for _ in 0..20 {
        let mut served = Served::new(LATENCY, |builder| builder);
        drop_one(&mut served);
        if ended(&served, Outcome::Granted) == 0 {
            assert_eq!(ended(&served, Outcome::Dropped), 1);
            assert_eq!(left(&served), Some(10));
            return;
        }
    }
    panic!("every request was answered before");
}

#[test]
fn what_a_request_took_whose_client_left_has_returned_when_the_agent_ends() {
    assert_returned(|served| {
        drop(taken(served));
        while served.decider.gate.in_flight() > 0 {
            std::thread::yield_now();
        }
        served.stop();
        shut_down(served);
    });
}

#[test]
fn what_a_request_took_that_the_end_of_the_agent_drops_has_returned() {
    assert_returned(|served| {
        let mut client = taken(served);
        served.stop();
        assert_eq!(served.decider.gate.in_flight(), 0);
        shut_down(served);
        let answer = client.read();
        assert_eq!(answer.is_some(), ended(served, Outcome::Granted) == 1);
    });
}

#[test]
fn a_request_that_was_answered_before_keeps_its_tokens() {
    let mut served = Served::new(Duration::ZERO, |builder| builder);
    let answer = served.post("/v1/acquire", &acquire());
    assert_eq!(answer.status, 200, "{answer:?}");
    served.stop();
    shut_down(&served);
    assert_eq!(left(&served), Some(6));
}
