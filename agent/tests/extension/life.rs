//! Init, requests of the function, shutdown.

use std::io::Read;
use std::net::TcpListener;

use clap::CommandFactory;
use serde_json::{Value, json};
use weirgate_agent::extension::{REFUSED, check_variables};
use weirgate_agent::options::Options;

use crate::lambda::{Lambda, TOKEN, acquire, database};

#[test]
fn it_listens_before_it_registers_and_registers_for_shutdown_alone() {
    let endpoint = database();
    let variables = [
        ("WEIRGATE_TABLE", "weirgate"),
        ("AWS_ENDPOINT_URL_DYNAMODB", &endpoint),
    ];
    let mut lambda = Lambda::start(&variables);
    let register = lambda.call();
    assert_eq!(register.path, "/2020-01-01/extension/register");
    assert!(
        register.is_listening,
        "the function can ask while it is initialised"
    );
    assert_eq!(register.body, json!({"events": ["SHUTDOWN"]}));
    assert!(
        register
            .head
            .contains("lambda-extension-name: weirgate-agent\r\n"),
        "{register:?}"
    );
    let next = lambda.call();
    assert_eq!(next.path, "/2020-01-01/extension/event/next");
    assert!(
        next.head.contains("lambda-extension-identifier: id-1\r\n"),
        "{next:?}"
    );
    assert_eq!(lambda.shut_down().code(), Some(0));
}

#[test]
fn only_the_function_is_answered() {
    let endpoint = database();
    let variables = [
        ("WEIRGATE_TABLE", "weirgate"),
        ("AWS_ENDPOINT_URL_DYNAMODB", &endpoint),
    ];
    let lambda = Lambda::start(&variables).ready();
    let (status, problem) = lambda
        .post_with("another", "/v1/acquire", &acquire(1))
        .unwrap();
    assert_eq!(status, 401, "{problem}");
    // Every request needs the token: health and metrics too.
    for path in ["/healthz", "/metrics"] {
        assert_eq!(lambda.get("another", path), Some(401), "{path}");
        assert_eq!(lambda.get(TOKEN, path), Some(200), "{path}");
    }
    let (status, granted) = lambda.post("/v1/acquire", &acquire(3));
    assert_eq!(status, 200, "{granted}");
    assert_eq!(lambda.slots(), 17.0);
    let release = json!({"grant": granted["grant"], "end": "release"});
    let (status, settled) = lambda.post("/v1/settle", &release);
    assert_eq!(
        (status, &settled["settlement"]),
        (200, &json!("settled")),
        "{settled}"
    );
    assert_eq!(lambda.slots(), 20.0);
}

/// A limit that does not refill while a test runs.
fn daily() -> Value {
    json!([{"name": "daily", "capacity_tokens": 10000, "refill_tokens": 1, "refill_period_ms": 86400000}])
}

fn daily_balance(lambda: &Lambda) -> f64 {
    let peek = json!({"entity": "e", "resource": "r", "limits": daily()});
    lambda.post("/v1/peek", &peek).1["limits"][0]["available_tokens"]
        .as_f64()
        .unwrap()
}

/// Takes tokens until some are prefetched. Returns how many were taken.
fn take_until_prefetched(lambda: &Lambda) -> f64 {
    let take = json!({"entity": "e", "resource": "r", "limits": daily(), "take": {"daily": 1}});
    let mut taken = 0.0;
    // Until more is taken of the table than was asked for.
    while taken < 10.0 || daily_balance(lambda) >= 10_000.0 - taken {
        let (status, answer) = lambda.post("/v1/acquire", &take);
        assert_eq!(status, 200, "{answer}");
        taken += 1.0;
        assert!(taken < 5_000.0, "nothing was prefetched");
    }
    taken
}

#[test]
fn shutdown_returns_what_was_prefetched() {
    let endpoint = database();
    let variables = [
        ("WEIRGATE_TABLE", "weirgate"),
        ("AWS_ENDPOINT_URL_DYNAMODB", endpoint.as_str()),
        ("WEIRGATE_AGENT_PREFETCH", "r=50@60000"),
    ];
    let mut lambda = Lambda::start(&variables).ready();
    let taken = take_until_prefetched(&lambda);
    assert_eq!(lambda.shut_down().code(), Some(0));
    let next = Lambda::start(&variables[..2]).ready();
    assert_eq!(daily_balance(&next), 10_000.0 - taken);
}

#[test]
fn a_lost_connection_to_lambda_is_replaced() {
    let endpoint = database();
    let variables = [
        ("WEIRGATE_TABLE", "weirgate"),
        ("AWS_ENDPOINT_URL_DYNAMODB", endpoint.as_str()),
    ];
    let mut lambda = Lambda::start(&variables).ready();
    for _ in 0..3 {
        lambda.lose_answer();
        assert!(lambda.call().path.ends_with("/extension/event/next"));
    }
    assert_eq!(lambda.post("/v1/acquire", &acquire(1)).0, 200);
    assert_eq!(lambda.shut_down().code(), Some(0));
}

#[test]
fn without_events_it_returns_what_was_prefetched_and_reports_why_it_ends() {
    let endpoint = database();
    let variables = [
        ("WEIRGATE_TABLE", "weirgate"),
        ("AWS_ENDPOINT_URL_DYNAMODB", endpoint.as_str()),
        ("WEIRGATE_AGENT_PREFETCH", "r=50@60000"),
    ];
    let mut lambda = Lambda::start(&variables).ready();
    let taken = take_until_prefetched(&lambda);
    lambda.refuse();
    let report = lambda.call();
    assert!(report.path.ends_with("/extension/exit/error"), "{report:?}");
    let told = report.body["errorMessage"].as_str().unwrap();
    assert!(
        told.contains("event/next") && told.contains("500"),
        "{told}"
    );
    assert_eq!(lambda.process.wait().unwrap().code(), Some(1));
    let next = Lambda::start(&variables[..2]).ready();
    assert_eq!(daily_balance(&next), 10_000.0 - taken);
}

#[test]
fn options_that_an_extension_does_not_take_are_refused_and_listed() {
    let page = include_str!("../../../docs/guide/lambda-extension.md");
    for name in REFUSED {
        assert!(page.contains(&format!("`{name}`")), "{name}");
        let command = Options::command();
        let is_option = |argument: &clap::Arg| argument.get_env().is_some_and(|env| env == name);
        assert!(command.get_arguments().any(is_option), "{name}");
        let set = |asked: &str| (asked == name).then(|| "7".to_owned());
        let error = check_variables(set).unwrap_err();
        assert!(
            error.starts_with(name) && error.contains("\"7\""),
            "{error}"
        );
    }
    assert_eq!(check_variables(|_| None), Ok(()));
}

#[test]
fn it_ends_although_dynamodb_does_not_answer() {
    // Accepts connections by its backlog, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let variables = [
        ("WEIRGATE_TABLE", "weirgate"),
        ("AWS_ENDPOINT_URL_DYNAMODB", &endpoint),
    ];
    let mut lambda = Lambda::start(&variables).ready();
    let port = lambda.post_in_background(&acquire(1));
    let ended = lambda.shut_down();
    assert_eq!(ended.code(), Some(0), "{ended}");
    drop(port);
}

#[test]
fn what_keeps_it_from_starting_is_told_to_lambda() {
    let endpoint = database();
    for (variables, words) in [
        (
            &[("AWS_ENDPOINT_URL_DYNAMODB", endpoint.as_str())][..],
            &["WEIRGATE_TABLE"][..],
        ),
        (&[("WEIRGATE_TABLE", "a b")], &["\"a b\"", "table name"]),
        (
            &[("WEIRGATE_TABLE", "weirgate"), ("WEIRGATE_HTTP_PORT", "x")],
            &["WEIRGATE_HTTP_PORT", "\"x\""],
        ),
        (
            &[
                ("WEIRGATE_TABLE", "weirgate"),
                ("WEIRGATE_AGENT_TOKEN_FILE", "/token"),
            ],
            &["WEIRGATE_AGENT_TOKEN_FILE", "remove it"],
        ),
        (
            &[("WEIRGATE_TABLE", "weirgate"), ("AWS_SESSION_TOKEN", "")],
            &["AWS_SESSION_TOKEN"],
        ),
    ] {
        let mut lambda = Lambda::start(variables);
        assert!(lambda.call().path.ends_with("/extension/register"));
        let error = lambda.call();
        assert!(error.path.ends_with("/extension/init/error"), "{error:?}");
        let told = error.body["errorMessage"].as_str().unwrap();
        assert!(words.iter().all(|word| told.contains(word)), "{told}");
        assert!(error.head.contains("error-type: extension."), "{error:?}");
        assert_eq!(lambda.process.wait().unwrap().code(), Some(2));
        let mut line = String::new();
        lambda
            .process
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut line)
            .unwrap();
        assert!(words.iter().all(|word| line.contains(word)), "{line}");
        assert_eq!(line.lines().count(), 1, "{line}");
    }
}
