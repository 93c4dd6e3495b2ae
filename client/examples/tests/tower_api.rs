//! What a client sends that wants reports without a limit.

use weirgate::testing::TestTable;

use super::*;

async fn ask(app: &Router, key: Option<&[u8]>, path: &str) -> (StatusCode, String) {
    let mut request = Request::get(path);
    if let Some(key) = key {
        request = request.header("x-api-key", key);
    }
    let request = request.body(Body::empty()).expect("a request");
    let response = app.clone().oneshot(request).await.expect("an answer");
    let status = response.status();
    let body = axum::body::to_bytes(response.into_body(), usize::MAX).await;
    (
        status,
        String::from_utf8_lossy(&body.expect("a body")).into_owned(),
    )
}

/// Alice has ten rows an hour. Whatever she says of them, no more than the last report exceeds them.
#[tokio::test(start_paused = true)]
async fn no_query_gives_rows_for_nothing() {
    for rows in [
        "-1",
        "0",
        "-9223372036854775808",
        "abc",
        "",
        "1e9",
        "1001",
        "1.5",
        "+",
        "9223372036854775807",
        "99999999999999999999",
        "%2d1",
        "1&rows=1",
        "1 ",
    ] {
        let limiter = TestTable::new().limiter().await;
        plans(&limiter).await.expect("the table is there");
        let app = app(limiter.clone());
        let path = format!("/report?rows={}", rows.replace(' ', "%20"));
        for _ in 0..10 {
            let (status, body) = ask(&app, Some(b"key-of-alice"), &path).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{rows}: {body}");
            assert!(!body.contains("rows"), "{rows}: {body}");
        }
        let (status, _) = ask(&app, Some(b"key-of-alice"), &path).await;
        assert_eq!(
            status,
            StatusCode::TOO_MANY_REQUESTS,
            "{rows}: each cost a row"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn no_key_but_a_known_one_reaches_the_limits() {
    let limiter = TestTable::new().limiter().await;
    plans(&limiter).await.expect("the table is there");
    let app = app(limiter.clone());
    for key in [
        None,
        Some(&b""[..]),
        Some(b"alice"),
        Some(b"key-of-bob "),
        Some(b"\xff"),
        Some(b"made-up"),
    ] {
        let (status, _) = ask(&app, key, "/report").await;
        let is_trimmed = key == Some(b"key-of-bob ");
        assert!(
            status == StatusCode::UNAUTHORIZED || is_trimmed,
            "{key:?}: {status}"
        );
    }
    let known = ["alice", "anonymous", "made-up"].map(|name| limiter.peek(name, "report"));
    for peek in known {
        let balances = peek.send().await.expect("it can be read");
        let rows = balances.limit("rows").expect("a limit").available;
        assert_eq!(rows.whole_tokens(), 10);
    }
}

/// A permanent error is no way around the limit; an outage lets requests pass.
#[tokio::test(start_paused = true)]
async fn only_transient_errors_pass() {
    let table = TestTable::new();
    let limiter = table.limiter().await;
    let app = app(limiter.clone()); // without plans: no limits are configured
    let (status, _) = ask(&app, Some(b"key-of-alice"), "/report").await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    plans(&limiter).await.expect("the table is there");
    table.set_unavailable(true);
    let (status, _) = ask(&app, Some(b"key-of-alice"), "/report?rows=5").await;
    assert_eq!(status, StatusCode::OK);
}
