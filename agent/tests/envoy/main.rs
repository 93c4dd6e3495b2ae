//! A real Envoy with the configuration and the rules of docs/guide/envoy.md, before a real agent.
//! Run by `make envoy`, which installs Envoy.

mod processes;

use processes::{Differences, Gateway, Response};
use serde_json::Value;
use weirgate::Limit;

const TENANT: (&str, &str) = ("x-api-key", "key-of-acme");
/// What the page's configuration takes before each call of the model.
const ESTIMATE: i64 = 4_000;

fn header<'r>(response: &'r Response, name: &str) -> Option<&'r str> {
    response.headers().get(name)?.to_str().ok()
}

fn llm() -> Limit {
    Limit::per_day("tpd", 100_000).unwrap()
}

#[tokio::test]
#[ignore = "needs Envoy: make envoy"]
async fn an_allowed_request_passes_with_our_fields_and_envoys_in_the_order_of_the_descriptors() {
    let gateway = Gateway::new(Differences::default()).await;
    let response = gateway.get("/v1", &[TENANT]).await;
    assert_eq!(
        (response.status().as_u16(), &**response.body()),
        (200, "from the upstream")
    );
    let ours = header(&response, "ratelimit").unwrap();
    assert_eq!(ours, r#""rpd";r=999;t=86314"#);
    assert_eq!(
        header(&response, "ratelimit-policy"),
        Some(r#""rpd";q=1000;w=86400"#)
    );
    let limit = header(&response, "x-ratelimit-limit");
    assert_eq!(limit, Some(r#"1000, 1000;w=86400;name="rpd""#));
    assert_eq!(header(&response, "x-ratelimit-remaining"), Some("999"));
    assert_eq!(header(&response, "x-ratelimit-reset"), Some("86314"));
    let response = gateway.get("/static/a.png", &[TENANT]).await;
    assert_eq!(response.status(), 200);
    assert_eq!(header(&response, "ratelimit"), None, "no limit applies");
}

#[tokio::test]
#[ignore = "needs Envoy: make envoy"]
async fn a_denied_request_gets_our_body_and_our_fields() {
    let gateway = Gateway::new(Differences::default()).await;
    // All but one request of the day, by another process.
    let limits = [Limit::per_day("rpd", 1_000).unwrap()];
    let acquire = gateway.limiter.acquire("acme", "api").limits(&limits);
    assert!(acquire.take("rpd", 999).send().await.unwrap().is_granted());
    assert_eq!(gateway.get("/v1", &[TENANT]).await.status(), 200);
    let response = gateway.get("/v1", &[TENANT]).await;
    assert_eq!(response.status(), 429);
    assert_eq!(
        header(&response, "content-type"),
        Some("application/problem+json")
    );
    assert_eq!(header(&response, "x-envoy-ratelimited"), Some("true"));
    let retry: u64 = header(&response, "retry-after").unwrap().parse().unwrap();
    assert!(
        (1..=87).contains(&retry),
        "a token comes back every 86.4 s: {retry}"
    );
    let ours = header(&response, "ratelimit").unwrap();
    assert!(ours.starts_with(r#""rpd";r=0;t="#), "{ours}");
    let problem: Value = serde_json::from_str(response.body()).unwrap();
    assert_eq!(problem["status"], 429);
    assert_eq!(problem["violated-policies"], serde_json::json!(["rpd"]));
    let other = gateway.get("/v1", &[("x-api-key", "key-of-initech")]).await;
    assert_eq!(other.status(), 200, "another tenant");
}

#[tokio::test]
#[ignore = "needs Envoy: make envoy"]
async fn after_the_response_the_estimate_comes_back_and_what_was_used_is_debited() {
    let gateway = Gateway::new(Differences::default()).await;
    let ask = async |used| gateway.get("/llm", &[TENANT, ("x-use", used)]).await;
    let response = ask("1500").await;
    assert_eq!(response.status(), 200);
    let ours = header(&response, "ratelimit").unwrap();
    assert!(
        ours.starts_with(r#""tpd";r=96000;t="#),
        "the estimate is taken: {ours}"
    );
    assert_eq!(header(&response, "x-tokens-used"), None);
    gateway.left("llm", &llm(), 98_500..98_600).await;
    // More than was estimated, and more than is there.
    assert_eq!(ask("150000").await.status(), 200);
    gateway.left("llm", &llm(), -51_500..-51_400).await;
    let denied = ask("0").await;
    assert_eq!(denied.status(), 429, "the debt is paid first");
}

/// Whatever a client sends, its key decides the tenant, and the configuration the cost.
#[tokio::test]
#[ignore = "needs Envoy: make envoy"]
async fn a_client_has_no_say_in_its_tenant_and_its_cost() {
    let gateway = Gateway::new(Differences::default()).await;
    let estimates = [
        "-1",
        "0",
        "abc",
        "",
        "1e9",
        "99999999999999999999",
        "18446744073709551615",
    ];
    let mut left = 100_000;
    let attacks = estimates.map(|estimate| vec![("x-estimate", estimate)]);
    let attacks = attacks.into_iter().chain([
        vec![],
        vec![("x-tenant", "initech")],
        vec![("x-tenant", "made-up"), ("X-Tenant", "other")],
        vec![("x-tenant", "")],
        vec![
            ("x_tenant", "initech"),
            ("x-tokens-used", "0"),
            ("x-weirgate", "1"),
        ],
    ]);
    for attack in attacks {
        let headers: Vec<_> = attack
            .iter()
            .copied()
            .chain([TENANT, ("x-use", "1000")])
            .collect();
        let response = gateway.get("/llm", &headers).await;
        assert_eq!(response.status(), 200, "{attack:?}");
        let ours = header(&response, "ratelimit").unwrap();
        let taken = ours.split("r=").nth(1).unwrap().split(';').next().unwrap();
        let taken: i64 = taken.parse().unwrap();
        assert!(
            (0..100).contains(&(taken - (left - ESTIMATE))),
            "{attack:?}: {ours}"
        );
        left -= 1_000;
        gateway.left("llm", &llm(), left..left + 100).await;
    }
    for key in [
        None,
        Some(""),
        Some("key-of-nobody"),
        Some("acme"),
        Some("key-of-acme,key-of-initech"),
    ] {
        let key = key.map(|key| ("x-api-key", key));
        let headers: Vec<_> = key
            .into_iter()
            .chain([("x-tenant", "acme"), ("x-estimate", "1")])
            .collect();
        for path in ["/llm", "/v1", "/static/a.png"] {
            let response = gateway.get(path, &headers).await;
            assert_eq!(response.status(), 401, "{key:?} {path}");
        }
    }
    let other = gateway
        .get("/llm", &[("x-api-key", "key-of-initech")])
        .await;
    let ours = header(&other, "ratelimit").unwrap().to_owned();
    assert!(
        ours.starts_with(r#""tpd";r=96000;"#),
        "its bucket is full: {ours}"
    );
}

/// Servers read these paths as `/llm/chat`, so the gateway must too: it has the limit of the model, or
/// is refused.
#[tokio::test]
#[ignore = "needs Envoy: make envoy"]
async fn a_client_has_no_say_in_the_limit_by_how_it_writes_a_path() {
    let gateway = Gateway::new(Differences::default()).await;
    let mut left = 100_000;
    for (path, is_refused) in [
        ("/llm/chat", false),
        ("/static/../llm/chat", false),
        ("/static/%2e%2e/llm/chat", false),
        ("/static/%2E./llm/chat", false),
        ("/static/.%2e/llm/chat?a=/static/", false),
        ("/static/./../llm/chat", false),
        ("/static/a/../../llm/chat", false),
        ("/static//../../llm/chat", false),
        ("http://gateway/static/../llm/chat", false),
        ("/x/../llm/chat", false),
        ("/./llm/chat", false),
        ("//llm/chat", false),
        ("///llm//chat", false),
        ("/%6clm/chat", false),
        ("/static/..%2fllm/chat", true),
        ("/static/..%2Fllm/chat", true),
        ("/static/%2e%2e%2fllm/chat", true),
        ("/static/..%5cllm/chat", true),
        ("/static%2f../llm/chat", true),
        ("/%2fllm/chat", true),
    ] {
        let nameless = gateway.get(path, &[("x-tenant", "acme")]).await;
        let expected = if is_refused { 400 } else { 401 };
        assert_eq!(nameless.status(), expected, "{path}");
        let response = gateway.get(path, &[TENANT, ("x-use", "1000")]).await;
        let ours = header(&response, "ratelimit");
        if is_refused {
            assert_eq!((response.status().as_u16(), ours), (400, None), "{path}");
            continue;
        }
        assert_eq!(response.status(), 200, "{path}");
        let ours = ours.unwrap_or_else(|| panic!("{path} has no limit"));
        let taken = ours.strip_prefix("\"tpd\";r=");
        let taken = taken.unwrap_or_else(|| panic!("{path} has another limit: {ours}"));
        let taken: i64 = taken.split(';').next().unwrap().parse().unwrap();
        assert!(
            (0..100).contains(&(taken - (left - ESTIMATE))),
            "{path}: {ours}"
        );
        left -= 1_000;
        gateway.left("llm", &llm(), left..left + 100).await;
    }
}

/// Work that was begun costs its estimate, if its usage is not known.
#[tokio::test]
#[ignore = "needs Envoy: make envoy"]
async fn a_client_that_disconnects_or_an_upstream_that_fails_pays_the_estimate() {
    let gateway = Gateway::new(Differences::default()).await;
    gateway
        .abort("/llm", &[TENANT, ("x-hang", "1")], async || {
            gateway.left("llm", &llm(), 96_000..96_100).await;
        })
        .await;
    let broken = gateway.get("/llm", &[TENANT, ("x-use", "none")]).await;
    assert_eq!(broken.status(), 200);
    gateway.left("llm", &llm(), 92_000..92_100).await;
    let next = gateway.get("/llm", &[TENANT, ("x-use", "500")]).await;
    assert_eq!(next.status(), 200);
    gateway.left("llm", &llm(), 91_500..91_600).await;
}

/// Whatever an upstream says of its usage: if it cannot be debited, the estimate stays taken.
#[tokio::test]
#[ignore = "needs Envoy: make envoy"]
async fn a_usage_that_cannot_be_debited_costs_the_estimate() {
    let gateway = Gateway::new(Differences::default()).await;
    let mut left = 100_000;
    for usage in [
        "abc",
        "-50",
        "+50",
        "",
        "1.5",
        "1e3",
        "0x10",
        "5, 7",
        "5 7",
        "é",
        "3004001",
        "999999999",
        "1000000000",
        "99999999999",
        "1000000000001",
        "9223372036854775808",
        "18446744073709551615",
        "18446744073709551616",
        "nan",
    ] {
        let response = gateway.get("/llm", &[TENANT, ("x-use", usage)]).await;
        assert_eq!(response.status(), 200, "{usage:?}");
        left -= ESTIMATE;
        gateway.left("llm", &llm(), left..left + 100).await;
    }
    // The bound, and another notation of a number.
    for (usage, tokens) in [("0000001000", 1_000), ("3000000", 3_000_000)] {
        let response = gateway.get("/llm", &[TENANT, ("x-use", usage)]).await;
        assert_eq!(response.status(), 200, "{usage:?}");
        left -= tokens;
        gateway.left("llm", &llm(), left..left + 100).await;
    }
}

/// Envoy applies the refund after every request, also after one that took nothing.
#[tokio::test]
#[ignore = "needs Envoy: make envoy"]
async fn a_denied_request_gives_nothing_back() {
    let gateway = Gateway::new(Differences::default()).await;
    let limits = [llm()];
    let acquire = gateway.limiter.acquire("acme", "llm").limits(&limits);
    let taken = acquire.take("tpd", 97_000).send().await.unwrap();
    assert!(taken.is_granted());
    for _ in 0..3 {
        let denied = gateway.get("/llm", &[TENANT, ("x-use", "0")]).await;
        assert_eq!(denied.status(), 429);
    }
    // What was used of this request is debited after the denied ones.
    let headers = [("x-api-key", "key-of-initech"), ("x-use", "10000")];
    assert_eq!(gateway.get("/llm", &headers).await.status(), 200);
    gateway
        .left_of("initech", "llm", &llm(), 90_000..90_100)
        .await;
    gateway.left("llm", &llm(), 3_000..3_100).await;
}

#[tokio::test]
#[ignore = "needs Envoy: make envoy"]
async fn a_request_without_a_decision_gives_nothing_back() {
    let gateway = Gateway::new(Differences::default()).await;
    let limits = [llm()];
    let acquire = gateway.limiter.acquire("acme", "llm").limits(&limits);
    let taken = acquire.take("tpd", 70_000).send().await.unwrap();
    assert!(taken.is_granted());
    gateway.signal_agent("STOP");
    // The upstream resumes the agent before it answers, so it would get the refund.
    let agent = gateway.agent().to_string();
    let headers = [TENANT, ("x-use", "0"), ("x-resume", &agent)];
    assert_eq!(gateway.get("/llm", &headers).await.status(), 200);
    let headers = [TENANT, ("x-use", "10000")];
    assert_eq!(gateway.get("/llm", &headers).await.status(), 200);
    gateway.left("llm", &llm(), 20_000..20_100).await;
}

#[tokio::test]
#[ignore = "needs Envoy: make envoy"]
async fn without_a_decision_the_failure_mode_decides() {
    let silent = Differences {
        is_silent: true,
        ..Differences::default()
    };
    let gateway = Gateway::new(silent).await;
    assert_eq!(
        gateway.get("/v1", &[TENANT]).await.status(),
        200,
        "it passes"
    );
    let strict = Differences {
        envoy: &[("failure_mode_deny: false", "failure_mode_deny: true")],
        ..silent
    };
    let gateway = Gateway::new(strict).await;
    let response = gateway.get("/v1", &[TENANT]).await;
    assert_eq!((response.status().as_u16(), &**response.body()), (500, ""));
}

/// The answer is the agent's own, so it came before the deadline, also before the one that Envoy has
/// by default.
#[tokio::test]
#[ignore = "needs Envoy: make envoy"]
async fn the_agents_own_answer_comes_before_the_deadline_of_the_filter() {
    for timeout in ["0.25s", "0.02s"] {
        let deny = Differences {
            envoy: &[("timeout: 0.25s", &format!("timeout: {timeout}"))],
            agent: &["--on-unavailable", "deny"],
            is_silent: true,
        };
        let gateway = Gateway::new(deny).await;
        // The first call waits for Envoy's connection too.
        let mut statuses = vec![];
        for _ in 0..5 {
            statuses.push(gateway.get("/v1", &[TENANT]).await.status().as_u16());
        }
        assert!(statuses[1..].contains(&429), "{timeout}: {statuses:?}");
    }
}

#[tokio::test]
#[ignore = "needs Envoy: make envoy"]
async fn an_unavailable_agent_is_a_failure_and_no_request_of_the_gateway_hangs() {
    let strict = Differences {
        envoy: &[("failure_mode_deny: false", "failure_mode_deny: true")],
        ..Differences::default()
    };
    let mut gateway = Gateway::new(strict).await;
    assert_eq!(gateway.get("/v1", &[TENANT]).await.status(), 200);
    gateway.end_agent();
    assert_eq!(gateway.get("/v1", &[TENANT]).await.status(), 500);
}
