//! Settlements.

use serde_json::{Value, json};

use crate::fixtures::{Agent, database};

fn rpm(amount: u32) -> Value {
    json!({"entity": "openai", "resource": "gpt-4", "take": {"rpm": amount}})
}

#[test]
fn changes_are_applied_in_the_order_that_the_api_states() {
    let agent = Agent::new(&[]);
    let take = json!({"tpm": 1000, "slots": 3});
    let granted = agent.acquire(&json!({"entity": "e", "resource": "r", "take": take}));
    let changed = agent.settle(&json!({
        "grant": granted["grant"], "adjust": {"tpm": 1213.5}, "give_back": {"tpm": 0.5, "slots": 1},
        "renew_ms": 3600000,
    }));
    assert_eq!(changed["settlement"], "settled");
    assert_eq!(changed["amounts"], json!([{"tpm": 1213, "slots": 2}]));
    let expires = |answer: &Value| answer["lease"]["expires_at_ms"].as_u64().unwrap();
    assert!(
        expires(&changed) > expires(&granted) + 3_000_000,
        "{changed}"
    );
    assert_eq!(agent.balance("e", "r", "slots"), 18.0);
    let ended = agent.settle(&json!({"grant": changed["grant"], "end": "roll_back"}));
    assert_eq!(
        (&ended["grant"], &ended["lease"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(agent.balance("e", "r", "slots"), 20.0);
    assert_eq!(agent.balance("e", "r", "tpm"), 100_000.0);
    let again = agent.settle(&json!({"grant": changed["grant"], "end": "release"}));
    assert_eq!(again["settlement"], "lease_gone");
}

#[test]
fn a_grant_outlives_the_agent_that_gave_it() {
    let endpoint = database();
    let mut first = Agent::on(&endpoint, &[]);
    let granted = first.acquire(&json!({"entity": "e", "resource": "r", "take": {"slots": 20}}));
    first.process.kill().unwrap();
    first.process.wait().unwrap();
    let second = Agent::on(&endpoint, &[]);
    assert_eq!(second.balance("e", "r", "slots"), 0.0);
    let changed = second.settle(&json!({"grant": granted["grant"], "give_back": {"slots": 5}}));
    assert_eq!(second.balance("e", "r", "slots"), 5.0);
    second.settle(&json!({"grant": changed["grant"], "end": "release"}));
    assert_eq!(second.balance("e", "r", "slots"), 20.0);
}

#[test]
fn more_is_taken_whole_or_the_old_grant_stays() {
    let agent = Agent::new(&[]);
    let granted = agent.acquire(&rpm(100));
    let more = |grant: &Value, amounts: Value| {
        agent.post("/v1/settle", &json!({"grant": grant, "take_more": amounts}))
    };
    let taken = more(&granted["grant"], json!({"rpm": 50, "tpm": 0}));
    assert_eq!(
        taken.json()["amounts"],
        json!([{"rpm": 150, "tpm": 0}]),
        "{taken:?}"
    );
    let grant = taken.json()["grant"].clone();
    let denied = more(&grant, json!({"tpm": 90000, "rpm": 590}));
    assert_eq!(
        (denied.status, &denied.json()["applied"]),
        (429, &json!("no")),
        "{denied:?}"
    );
    assert!(
        agent.balance("openai", "gpt-4", "tpm") >= 90_000.0,
        "the other limit has them back"
    );
    agent.settle(&json!({"grant": grant, "end": "roll_back"}));
    assert_eq!(agent.balance("openai", "gpt-4", "rpm"), 600.0);
}

#[test]
fn a_change_is_for_each_bucket_that_has_the_limit_or_for_the_one_that_is_named() {
    let agent = Agent::new(&[]);
    let bucket =
        |entity: &str, take: Value| json!({"entity": entity, "resource": "r", "take": take});
    let request = json!({"buckets": [
        bucket("a", json!({"rpm": 10, "tpm": 1})),
        bucket("b", json!({"rpm": 10})),
        bucket("c", json!({"tpm": 1})),
    ]});
    let granted = agent.acquire(&request);
    let both = agent.settle(&json!({"grant": granted["grant"], "adjust": {"rpm": 20}}));
    assert_eq!(
        both["amounts"],
        json!([{"rpm": 20, "tpm": 1}, {"rpm": 20}, {"tpm": 1}])
    );
    let one = json!({"grant": both["grant"], "adjust": {"rpm": 30}, "bucket": 1});
    let one = agent.settle(&one);
    assert_eq!(
        one["amounts"],
        json!([{"rpm": 20, "tpm": 1}, {"rpm": 30}, {"tpm": 1}])
    );
    let beyond = json!({"grant": one["grant"], "adjust": {"rpm": 30}, "bucket": 3});
    let beyond = agent.post("/v1/settle", &beyond);
    let detail = beyond.json()["detail"].as_str().unwrap().to_owned();
    assert_eq!(beyond.status, 400, "{beyond:?}");
    assert!(
        detail.contains("bucket must be below 3") && detail.contains("got 3"),
        "{detail}"
    );
}

#[test]
fn a_renewal_is_for_the_buckets_that_have_a_lease() {
    let agent = Agent::new(&[]);
    let bucket =
        |entity: &str, take: Value| json!({"entity": entity, "resource": "r", "take": take});
    let buckets = [
        bucket("a", json!({"rpm": 10})),
        bucket("b", json!({"slots": 1})),
    ];
    let mixed = agent.acquire(&json!({ "buckets": buckets }));
    let renew = |bucket: Value| {
        let mut body = json!({"grant": mixed["grant"], "renew_ms": 3_600_000});
        body.as_object_mut()
            .unwrap()
            .extend(bucket.as_object().unwrap().clone());
        agent.post("/v1/settle", &body)
    };
    let expires = |answer: &Value| answer["lease"]["expires_at_ms"].as_u64().unwrap();
    for bucket in [json!({}), json!({"bucket": 1})] {
        let renewed = renew(bucket);
        assert_eq!(renewed.status, 200, "{renewed:?}");
        assert!(expires(&renewed.json()) > expires(&mixed) + 3_000_000);
    }
    let refused = renew(json!({"bucket": 0}));
    assert_eq!(
        (refused.status, &refused.json()["applied"]),
        (400, &json!("no")),
        "{refused:?}"
    );
    let detail = refused.json()["detail"].clone();
    assert!(detail.as_str().unwrap().contains("no lease"), "{detail}");
}

#[test]
fn a_settlement_that_cannot_be_changes_nothing_and_says_why() {
    let agent = Agent::new(&[]);
    let granted = agent.acquire(&rpm(100));
    let refused = |mut body: Value| {
        body["grant"] = granted["grant"].clone();
        let answer = agent.post("/v1/settle", &body);
        assert_eq!(answer.status, 400, "{answer:?}");
        assert_eq!(answer.json()["applied"], "no", "{answer:?}");
        answer.json()["detail"].as_str().unwrap().to_owned()
    };
    for (body, words) in [
        (
            json!({"give_back": {"rpm": 101}}),
            &["rpm", "0 to 100", "101"][..],
        ),
        (
            json!({"give_back": {"slots": 1}}),
            &["slots", "name a limit"],
        ),
        (json!({"renew_ms": 1000}), &["no lease", "lease()"]),
        (json!({"adjust": {"nonsense": 1}}), &["nonsense"]),
        (json!({}), &["changes nothing"]),
        (
            json!({"take_more": {"rpm": 1}, "end": "release"}),
            &["end", "combined"],
        ),
        (json!({"end": "forget"}), &["end", "release", "\"forget\""]),
    ] {
        let detail = refused(body);
        assert!(words.iter().all(|word| detail.contains(word)), "{detail}");
    }
    assert!(agent.balance("openai", "gpt-4", "rpm") >= 500.0);
}

#[test]
fn no_change_is_applied_if_another_one_cannot_be() {
    let agent = Agent::new(&[]);
    let limits = json!([{"name": "daily", "capacity_tokens": 100, "refill_tokens": 1, "refill_period_ms": 86400000}]);
    let take = json!({"daily": 50});
    let take = json!({"entity": "e", "resource": "d", "limits": limits, "take": take});
    let grant = agent.acquire(&take)["grant"].clone();
    for (other, value) in [
        ("adjust", json!({"daily": 1, "nonsense": 1})),
        ("give_back", json!({"daily": 2})),
        ("renew_ms", json!(1000)),
        ("bucket", json!(1)),
    ] {
        let mut body = json!({"grant": grant, "adjust": {"daily": 1}});
        body[other] = value;
        let refused = agent.post("/v1/settle", &body);
        assert_eq!(
            (refused.status, &refused.json()["applied"]),
            (400, &json!("no")),
            "{refused:?}"
        );
    }
    let peek = json!({"entity": "e", "resource": "d", "limits": limits});
    let left = agent.post("/v1/peek", &peek).json()["limits"][0]["available_tokens"].clone();
    assert_eq!(left.as_f64(), Some(50.0));
}
