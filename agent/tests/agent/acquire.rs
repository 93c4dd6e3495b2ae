//! Decisions as an HTTP client sees them.

use serde_json::{Value, json};

use crate::fixtures::{Agent, Client};

#[test]
fn a_grant_says_what_was_taken_and_what_is_left() {
    let agent = Agent::new(&[]);
    let take = json!({"rpm": 1, "tpm": 1500.5, "slots": 1});
    let request = json!({"entity": "openai", "resource": "gpt-4", "take": take, "lease_ms": 30000});
    let answer = agent.post("/v1/acquire", &request);
    let granted = answer.json();
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(granted["amounts"], json!([take]));
    assert!(granted["lease"]["expires_at_ms"].as_u64().unwrap() > 1_700_000_000_000);
    assert_eq!(
        (&granted["would_deny"], &granted["degraded"]),
        (&Value::Null, &Value::Null)
    );
    let limits = granted["limits"].as_array().unwrap();
    assert_eq!(limits.len(), 3);
    let tpm = limits
        .iter()
        .find(|status| status["limit"] == "tpm")
        .unwrap();
    assert_eq!(tpm["available_tokens"], 98499.5);
    let policy = answer.field("ratelimit-policy");
    assert!(
        policy.contains("\"slots\";q=20;qu=\"concurrent-requests\""),
        "{policy}"
    );
    assert!(
        answer.field("ratelimit").contains("\"tpm\";r=98499"),
        "{answer:?}"
    );
    assert_eq!(answer.field("content-type"), "application/json");

    // Without a lease there is none.
    let take = json!({"entity": "openai", "resource": "gpt-4", "take": {"rpm": 1}});
    assert_eq!(agent.acquire(&take)["lease"], Value::Null);
}

#[test]
fn each_refusal_has_its_status_and_says_whether_to_retry() {
    let agent = Agent::new(&[]);
    let acquire = |resource: &str, take: Value| {
        let request = json!({"entity": "user-1", "resource": resource, "take": take});
        agent.post("/v1/acquire", &request)
    };
    assert_eq!(acquire("gpt-4", json!({"rpm": 600})).status, 200);
    let denied = acquire("gpt-4", json!({"rpm": 60}));
    let problem = denied.json();
    assert_eq!(denied.status, 429, "{denied:?}");
    let wait = problem["retry_after_ms"].as_u64().unwrap();
    assert!((1..=6_000).contains(&wait), "{problem}");
    assert_eq!(
        denied.field("retry-after"),
        problem["retry_after"].to_string()
    );
    assert_eq!(denied.field("content-type"), "application/problem+json");
    assert!(
        denied.field("ratelimit").contains("\"rpm\";r=0;t="),
        "{denied:?}"
    );
    assert_eq!(problem["violated-policies"], json!(["rpm"]));
    let next = |problem: &Value| (problem["applied"].clone(), problem["retry"].clone());
    assert_eq!(next(&problem), (json!("no"), json!(false)));

    let never = acquire("gpt-4", json!({"rpm": 601}));
    assert_eq!(never.status, 413, "{never:?}");
    assert_eq!(never.json()["blocking"]["quota"], 600);
    assert_eq!(never.field("retry-after"), "");
    assert_eq!(next(&never.json()), (json!("no"), json!(false)));

    let disabled = acquire("stopped", json!({"rpm": 1}));
    assert_eq!(
        (disabled.status, next(&disabled.json()).0),
        (403, json!("no"))
    );
    for (outcome, count) in [
        ("granted", 1.0),
        ("denied", 1.0),
        ("never_fits", 1.0),
        ("disabled", 1.0),
    ] {
        let labels = format!("protocol=\"http\",call=\"acquire\",outcome=\"{outcome}\"");
        assert_eq!(
            agent.metric(&format!("weirgate_agent_calls_total{{{labels}}}")),
            count
        );
    }
}

#[test]
fn several_buckets_are_all_granted_or_none_is() {
    let agent = Agent::new(&[]);
    let both = |tpm: u32| {
        json!({"buckets": [
            {"entity": "a", "resource": "gpt-4", "take": {"tpm": tpm}},
            {"entity": "b", "resource": "gpt-4", "take": {"rpm": 1}},
        ]})
    };
    let granted = agent.acquire(&both(100));
    assert_eq!(granted["amounts"], json!([{"tpm": 100}, {"rpm": 1}]));
    agent.acquire(&json!({"entity": "b", "resource": "gpt-4", "take": {"rpm": 599}}));
    let denied = agent.post("/v1/acquire", &both(50_000));
    assert_eq!(denied.status, 429, "{denied:?}");
    assert!(
        agent.balance("a", "gpt-4", "tpm") >= 99_900.0,
        "the first bucket has its tokens back"
    );
}

#[test]
fn the_options_of_a_request_reach_the_limiter() {
    let agent = Agent::new(&[]);
    let limits = json!([{"name": "daily", "capacity_tokens": 5, "refill_tokens": 5, "refill_period_ms": 86400000}]);
    let acquire = |more: Value| {
        let mut request = json!({"entity": "o", "resource": "own", "limits": limits});
        request
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        agent.post("/v1/acquire", &request)
    };
    let range = json!({"at_least": 1, "at_most": 10});
    let granted = acquire(json!({"take": {"daily": range}, "limits_version": 7}));
    assert_eq!(
        granted.json()["amounts"],
        json!([{"daily": 5}]),
        "{granted:?}"
    );
    let bypassed = acquire(json!({"take": {"daily": 100}, "bypass": true, "limits_version": 7}));
    assert_eq!(bypassed.status, 200, "{bypassed:?}");
    let denied = acquire(json!({"take": {"daily": 1}, "wait_ms": 50, "limits_version": 7}));
    assert_eq!(
        denied.status, 429,
        "a wait that cannot succeed does not begin: {denied:?}"
    );

    // A resource in shadow mode grants, and says what it would have denied.
    let trial = json!({"entity": "o", "resource": "trial", "take": {"rpm": 1}});
    assert_eq!(agent.acquire(&trial)["would_deny"], Value::Null);
    let waived = agent.acquire(&trial);
    assert_eq!(
        waived["would_deny"]["limits"][0]["limit"], "rpm",
        "{waived}"
    );
}

#[test]
fn without_dynamodb_the_request_or_the_agent_says_what_happens() {
    // Nothing listens there.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    let agent = Agent::on(&endpoint, &["--timeout", "0.5"]);
    let take = json!({"entity": "e", "resource": "r", "take": {"rpm": 1}});
    let with = |on_unavailable: &str| {
        let mut request = take.clone();
        request["on_unavailable"] = on_unavailable.into();
        agent.post("/v1/acquire", &request)
    };
    let failed = agent.post("/v1/acquire", &take);
    let problem = failed.json();
    assert_eq!(failed.status, 503, "{failed:?}");
    assert_eq!(
        (&problem["applied"], &problem["retry"]),
        (&json!("no"), &json!(true)),
        "{problem}"
    );
    assert!(
        problem["detail"]
            .as_str()
            .unwrap()
            .contains("no connection"),
        "{problem}"
    );
    let denied = with("deny");
    assert_eq!(
        (denied.status, denied.field("x-ratelimit-degraded")),
        (429, "true"),
        "{denied:?}"
    );
    let allowed = with("allow");
    assert_eq!(
        (allowed.status, allowed.field("x-ratelimit-degraded")),
        (200, "true"),
        "{allowed:?}"
    );
    assert!(
        allowed.json()["degraded"]["reason"].is_string(),
        "{allowed:?}"
    );
    assert_eq!(with("local 50").status, 200);
    let health = agent.get("/healthz");
    assert_eq!(
        (health.status, &health.json()["retry"]),
        (503, &json!(true)),
        "{health:?}"
    );
}

#[test]
fn what_a_client_took_returns_if_it_disconnects_before_the_answer() {
    let agent = Agent::new(&[]);
    let slots = |number: u32| json!({"entity": "e", "resource": "r", "take": {"slots": number}});
    let held = agent.acquire(&slots(20));
    let mut waiting: Client = agent.connect();
    let mut request = slots(5);
    request["wait_ms"] = 60_000.into();
    waiting.write("POST", "/v1/acquire", &[], &request.to_string());
    agent.wait_for("weirgate_agent_in_flight", |number| number == 1.0);
    drop(waiting);
    agent.wait_for("weirgate_agent_in_flight", |number| number == 0.0);
    agent.settle(&json!({"grant": held["grant"], "end": "release"}));
    agent.acquire(&slots(20));
}
