//! Requests that are not what the API takes.

use std::io::{Read, Write};

use serde_json::json;

use crate::fixtures::{Agent, File};

#[test]
fn an_error_names_the_field_its_value_and_the_remedy() {
    let agent = Agent::new(&[]);
    let acquire = "/v1/acquire";
    for (path, body, words) in [
        (
            acquire,
            "",
            &["the body", "not JSON", "send one JSON object"][..],
        ),
        (
            acquire,
            "[1]",
            &["the body must be a JSON object", "got [1]"],
        ),
        (
            acquire,
            "{\"entity\": \"e\",}",
            &["not JSON", "line 1 column 16"],
        ),
        (
            acquire,
            r#"{"resource": "r", "take": {}}"#,
            &["entity is missing", "add it"],
        ),
        (
            acquire,
            r#"{"entity": 7, "resource": "r", "take": {}}"#,
            &["entity must be text", "got 7"],
        ),
        (
            acquire,
            r#"{"entity": "e", "resource": "r", "take": {"rpm": "x"}}"#,
            &["take.rpm must be", "got \"x\""],
        ),
        (
            acquire,
            r#"{"entity": "e", "resource": "r", "take": {"rpm": -1}}"#,
            &["take.rpm", "got -1"],
        ),
        (
            acquire,
            r#"{"entity": "e", "resource": "r", "take": {"rpm": 0.0001}}"#,
            &["take.rpm", "three places", "got 0.0001"],
        ),
        (
            acquire,
            r#"{"entity": "e", "resource": "r", "take": {"rpm": {"at_least": 1}}}"#,
            &["take.rpm.at_most is missing"],
        ),
        (
            acquire,
            r#"{"entity": "e", "resource": "r", "take": {"rpm": 1, "rpm": 2}}"#,
            &["\"rpm\" comes twice", "line 1"],
        ),
        (
            acquire,
            r#"{"entity": "e", "resource": "r", "take": {"rpm": 1}, "wait": 5}"#,
            &["wait is unknown", "wait_ms"],
        ),
        (
            acquire,
            r#"{"entity": "e", "resource": "r", "take": {"rpm": 1}, "lease_ms": 0}"#,
            &["lease_ms must be 1 to 86400000", "got 0"],
        ),
        (
            acquire,
            r#"{"entity": "e", "resource": "r", "take": {"rpm": 1}, "on_unavailable": "local"}"#,
            &["on_unavailable must be", "local 25", "got \"local\""],
        ),
        (
            acquire,
            r#"{"entity": "e", "buckets": []}"#,
            &["buckets must have 1 to 100"],
        ),
        (
            acquire,
            r#"{"entity": "e", "buckets": [{"entity": "e", "resource": "r", "take": {}}]}"#,
            &["entity cannot be combined"],
        ),
        (
            acquire,
            r#"{"buckets": [{"entity": "e", "resource": "r", "take": {"rpm": true}}]}"#,
            &["buckets[0].take.rpm must be", "got true"],
        ),
        (
            acquire,
            r#"{"entity": "e", "resource": "r", "take": {"rpm": 1}, "limits": [{"name": "rpm"}]}"#,
            &["limits[0] is no limit", "capacity_tokens"],
        ),
        (
            acquire,
            r#"{"entity": "a/b#", "resource": "r", "take": {"rpm": 1}}"#,
            &["a/b#"],
        ),
        (
            acquire,
            r#"{"entity": "e", "resource": "r", "take": {"nonsense": 1}}"#,
            &["nonsense"],
        ),
        (
            "/v1/settle",
            r#"{"grant": "nonsense", "end": "release"}"#,
            &["grant token"],
        ),
        ("/v1/settle", r#"{"end": "release"}"#, &["grant is missing"]),
        (
            "/v1/settle",
            r#"{"grant": "x", "take_more": {"rpm": 0.5}}"#,
            &["take_more.rpm", "whole"],
        ),
        ("/v1/peek", r#"{"entity": "e"}"#, &["resource is missing"]),
        (
            "/v1/usage",
            r#"{"scope": {}, "by": "day", "from_ms": 0, "to_ms": 1}"#,
            &["scope must have"],
        ),
        (
            "/v1/usage",
            r#"{"scope": {"entity": "e"}, "by": "week", "from_ms": 0, "to_ms": 1}"#,
            &["by must be", "got \"week\""],
        ),
    ] {
        let answer = agent.connect().send("POST", path, &[], body);
        assert_eq!(answer.status, 400, "{body}: {answer:?}");
        let problem = answer.json();
        let detail = problem["detail"].as_str().unwrap();
        assert!(
            words.iter().all(|word| detail.contains(word)),
            "{body}: {detail}"
        );
        assert_eq!(
            (&problem["applied"], &problem["retry"]),
            (&json!("no"), &json!(false))
        );
    }
}

#[test]
fn the_grant_of_the_largest_request_can_be_settled() {
    let agent = Agent::new(&[]);
    let names: Vec<_> = ('a'..='t').map(String::from).collect();
    let limits: Vec<_> = names
        .iter()
        .map(|name| json!({"name": name, "slots": 9}))
        .collect();
    let take: serde_json::Map<_, _> = names.iter().map(|name| (name.clone(), 1.into())).collect();
    let bucket = |at: usize| json!({"entity": at.to_string(), "resource": "r", "limits": limits, "take": take});
    let buckets: Vec<_> = (0..100).map(bucket).collect();
    let request = json!({"buckets": buckets, "wait_ms": 0});
    let length = request.to_string().len();
    assert!((60_000..=65_536).contains(&length), "{length}");
    let granted = agent.acquire(&request);
    let grant = granted["grant"].as_str().unwrap();
    println!("a grant of {} bytes", grant.len());
    assert!(grant.len() > 65_536);
    let released = agent.settle(&json!({"grant": grant, "end": "release"}));
    assert_eq!(released["settlement"], "settled", "{released}");
    let beyond = format!("{{\"grant\": \"{}\"}}", "a".repeat(2 * 1024 * 1024));
    let beyond = agent.connect().send("POST", "/v1/settle", &[], &beyond);
    assert_eq!(beyond.status, 413, "{beyond:?}");
    assert!(beyond.body.contains("at most 2097152 bytes"), "{beyond:?}");
}

#[test]
fn a_large_body_is_refused_and_the_next_request_is_answered() {
    let agent = Agent::new(&[]);
    let take = json!({"entity": "e", "resource": "r", "take": {"rpm": 1}}).to_string();
    let padded = |bytes: usize| format!("{take}{}", " ".repeat(bytes - take.len()));
    let whole = agent
        .connect()
        .send("POST", "/v1/acquire", &[], &padded(64 * 1024));
    assert_eq!(whole.status, 200, "{whole:?}");
    for bytes in [64 * 1024 + 1, 10_000_000] {
        let answer = agent
            .connect()
            .send("POST", "/v1/acquire", &[], &padded(bytes));
        assert_eq!(answer.status, 413, "{answer:?}");
        let detail = answer.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains("at most 65536 bytes"), "{detail}");
        assert!(detail.contains(&bytes.to_string()), "{detail}");
    }
    // Of a length that is not announced, and that ends nowhere.
    let mut endless = agent.connect();
    endless.write_raw(
        b"POST /v1/acquire HTTP/1.1\r\nhost: agent\r\ntransfer-encoding: chunked\r\n\r\n",
    );
    let chunk = [b"10000\r\n".to_vec(), vec![b' '; 0x10000], b"\r\n".to_vec()].concat();
    let stream = endless.0.get_mut();
    while stream.write_all(&chunk).is_ok() {}
    let mut answer = vec![];
    let _ = endless.0.read_to_end(&mut answer);
    agent.acquire(&json!({"entity": "e", "resource": "r", "take": {"rpm": 1}}));
}

#[test]
fn deep_nesting_is_refused() {
    let agent = Agent::new(&[]);
    let deep = format!("{{\"take\":{}", "[".repeat(60_000));
    let answer = agent.connect().send("POST", "/v1/acquire", &[], &deep);
    assert_eq!(answer.status, 400, "{answer:?}");
    assert!(
        answer.json()["detail"]
            .as_str()
            .unwrap()
            .contains("recursion limit"),
        "{answer:?}"
    );
}

#[test]
fn unknown_paths_and_methods_and_web_pages_are_refused() {
    let agent = Agent::new(&[]);
    let unknown = agent.get("/v2/acquire");
    assert_eq!(unknown.status, 404);
    assert!(
        unknown.json()["detail"]
            .as_str()
            .unwrap()
            .contains("use /v1/acquire"),
        "{unknown:?}"
    );
    for (method, path, allowed) in [
        ("GET", "/v1/acquire", "POST"),
        ("DELETE", "/v1/settle", "POST"),
        ("POST", "/metrics", "GET"),
        ("PUT", "/healthz", "GET"),
    ] {
        let answer = agent.connect().send(method, path, &[], "");
        assert_eq!(
            (answer.status, answer.field("allow")),
            (405, allowed),
            "{answer:?}"
        );
    }
    let take = r#"{"entity": "e", "resource": "r", "take": {"rpm": 1}}"#;
    let origin = [("origin", "https://example.com")];
    let page = agent.connect().send("POST", "/v1/acquire", &origin, take);
    assert_eq!(page.status, 403, "{page:?}");
}

#[test]
fn only_requests_with_the_token_are_answered() {
    let token = File::new("s3cret\n");
    let agent = Agent::new(&["--token-file", token.path()]);
    let take = r#"{"entity": "e", "resource": "r", "take": {"rpm": 1}}"#;
    let send = |fields: &[(&str, &str)]| agent.connect().send("POST", "/v1/acquire", fields, take);
    for fields in [
        &[][..],
        &[("x-weirgate-token", "s3cre")],
        &[("authorization", "s3cret")],
    ] {
        let answer = send(fields);
        assert_eq!(answer.status, 401, "{answer:?}");
        let detail = answer.json()["detail"].as_str().unwrap().to_owned();
        assert!(
            detail.contains("X-Weirgate-Token") && !detail.contains("s3cret"),
            "{detail}"
        );
    }
    assert_eq!(send(&[("x-weirgate-token", "s3cret")]).status, 200);
    assert_eq!(agent.get("/healthz").status, 200, "a probe needs none");
}
