//! Settlements of which some writes fail: the API in this process, on a DynamoDB with faults.

use std::time::Duration;

use serde_json::{Value, json};
use weirgate_testkit::Fault;

use crate::fixtures::Answer;
use crate::served::Served;

const THROTTLE: Fault = Fault::Throttle { key_range: true };

/// Serves the API of a limiter that gives up after 50 ms.
fn impatient() -> Served {
    Served::new(Duration::ZERO, |builder| {
        builder.timeout(Duration::from_millis(50))
    })
}

impl Served {
    fn settle(&self, body: &Value) -> Answer {
        self.post("/v1/settle", body)
    }

    /// Takes two slots of each bucket; returns the grant.
    fn acquire(&self, entities: &[&str]) -> Value {
        let buckets: Vec<_> = entities.iter().copied().map(bucket).collect();
        let answer = self.post("/v1/acquire", &json!({ "buckets": buckets }));
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["grant"].clone()
    }

    fn slots(&self, entity: &str) -> f64 {
        let answer = self.post(
            "/v1/peek",
            &json!({"entity": entity, "resource": "r", "limits": limits()}),
        );
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["limits"][0]["available_tokens"]
            .as_f64()
            .unwrap()
    }

    /// Throttles the writes to the bucket of an entity.
    fn throttle(&self, entity: &'static str) {
        self.dynamo.fail_when(move |request| {
            let key = request["Key"]["PK"]["S"].as_str().unwrap_or_default();
            key.contains(entity).then_some(THROTTLE)
        });
    }

    fn recover(&self) {
        self.dynamo.fail_when(|_| None);
    }
}

fn limits() -> Value {
    json!([{"name": "slots", "slots": 20}])
}

fn bucket(entity: &str) -> Value {
    json!({"entity": entity, "resource": "r", "limits": limits(), "take": {"slots": 2}})
}

#[test]
fn a_settlement_that_one_bucket_of_two_refuses_is_unknown_and_has_the_grant_to_go_on_with() {
    let served = impatient();
    let grant = served.acquire(&["one", "two"]);
    served.throttle("two");
    let halfway = served.settle(&json!({"grant": grant, "adjust": {"slots": 1}}));
    let problem = halfway.json();
    assert_eq!(
        (halfway.status, &problem["applied"], &problem["retry"]),
        (503, &json!("unknown"), &json!(false)),
        "{problem}"
    );
    served.recover();
    assert_eq!((served.slots("one"), served.slots("two")), (19.0, 18.0));
    let again = json!({"grant": problem["grant"], "adjust": {"slots": 1}});
    let again = served.settle(&again);
    assert_eq!(again.status, 200, "{again:?}");
    assert_eq!((served.slots("one"), served.slots("two")), (19.0, 19.0));
}

#[test]
fn a_release_of_which_the_second_write_fails_is_unknown() {
    let served = impatient();
    let grant = served.acquire(&["one"]);
    let more = served.settle(&json!({"grant": grant, "take_more": {"slots": 1}}));
    assert_eq!(more.status, 200, "{more:?}");
    let mut writes = 0;
    served.dynamo.fail_when(move |_| {
        writes += 1;
        (writes > 1).then_some(THROTTLE)
    });
    let released = served.settle(&json!({"grant": more.json()["grant"], "end": "release"}));
    let problem = released.json();
    assert_eq!(
        (released.status, &problem["applied"], &problem["retry"]),
        (503, &json!("unknown"), &json!(false)),
        "{problem}"
    );
    served.recover();
    assert!(
        [18.0, 19.0].contains(&served.slots("one")),
        "the first write is applied"
    );
}

#[test]
fn a_settlement_of_one_write_that_is_refused_can_be_repeated() {
    let served = impatient();
    let grant = served.acquire(&["one"]);
    served.throttle("one");
    let settle = json!({"grant": grant, "adjust": {"slots": 1}});
    let refused = served.settle(&settle);
    let problem = refused.json();
    assert_eq!(
        (refused.status, &problem["applied"], &problem["retry"]),
        (503, &json!("no"), &json!(true)),
        "{problem}"
    );
    assert_eq!(problem.get("grant"), None, "{problem}");
    served.recover();
    assert_eq!(served.settle(&settle).status, 200);
    assert_eq!(served.slots("one"), 19.0);
}
