//! The table's server as other processes meet it: raw requests over sockets.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use weirgate_local::{LocalBackend, Options};

/// How long something may take that takes some seconds.
const PATIENCE: Duration = Duration::from_secs(60);
const PUT: &str = r#"{"TableName": "weirgate", "Item": {"PK": {"S": "a"}, "SK": {"S": "b"}}}"#;
const SCAN: &str = r#"{"TableName": "weirgate"}"#;

fn address(backend: &LocalBackend) -> String {
    let url = backend.endpoint_url();
    url.trim_start_matches("http://").to_owned()
}

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Returns the status and the body of an answer, which ends with the connection.
fn answer(mut stream: TcpStream) -> (u16, Value) {
    let mut text = vec![];
    // A body that the server did not read makes the end a reset.
    let read = stream.read_to_end(&mut text);
    assert!(!text.is_empty(), "no answer: {read:?}");
    let text = String::from_utf8(text).unwrap();
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
    let (_, body) = text.split_once("\r\n\r\n").unwrap();
    let body = body.find('{').map_or(Value::Null, |at| serde_json::from_str(&body[at..]).unwrap());
    (status.unwrap(), body)
}

fn head(operation: &str, fields: &[&str], length: usize) -> String {
    let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
    format!(
        "POST / HTTP/1.1\r\n{fields}x-amz-target: DynamoDB_20120810.{operation}\r\n\
         connection: close\r\ncontent-length: {length}\r\n\r\n"
    )
}

fn ask(address: &str, operation: &str, fields: &[&str], body: &str) -> (u16, Value) {
    let mut stream = connect(address);
    let text = head(operation, fields, body.len()) + body;
    stream.write_all(text.as_bytes()).unwrap();
    answer(stream)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_of_another_site_or_to_another_name_neither_reads_nor_writes() {
    let options = Options { hosts: vec!["weirgate-local".parse().unwrap()], ..Options::default() };
    let backend = LocalBackend::start(options).await.unwrap();
    let own = address(&backend);
    let port = own.rsplit(':').next().unwrap();
    let hosts = [
        (own.clone(), true),
        (format!("localhost:{port}"), true),
        (format!("weirgate-local:{port}"), true),
        ("weirgate-local".to_owned(), true),
        (format!("evil.example:{port}"), false),
        ("evil.example".to_owned(), false),
        (format!("evil.example@{own}"), false),
        (format!("weirgate-local.evil.example:{port}"), false),
        ("127.0.0.1:1".to_owned(), false),
    ];
    for (host, is_own) in &hosts {
        for (field, is_ours) in [
            (String::new(), true),
            (format!("origin: http://{host}"), true),
            ("origin: http://evil.example".to_owned(), false),
            ("origin: null".to_owned(), false),
            ("referer: http://evil.example/page".to_owned(), false),
            ("sec-fetch-site: cross-site".to_owned(), false),
            ("sec-fetch-site: same-site".to_owned(), false),
            ("sec-fetch-site: none".to_owned(), true),
        ] {
            let host = format!("host: {host}");
            let fields = [host.as_str(), &field].map(str::to_owned);
            let fields: Vec<&str> =
                fields.iter().map(String::as_str).filter(|field| !field.is_empty()).collect();
            let (status, body) = ask(&own, "PutItem", &fields, PUT);
            if *is_own && is_ours {
                assert_eq!(status, 200, "{fields:?}: {body}");
                let key =
                    r#"{"TableName": "weirgate", "Key": {"PK": {"S": "a"}, "SK": {"S": "b"}}}"#;
                assert_eq!(ask(&own, "DeleteItem", &fields, key).0, 200);
                continue;
            }
            assert_eq!(status, 403, "{fields:?}: {body}");
            assert_eq!(body["__type"], "com.amazon.coral.service#ValidationException");
            let reason = body["message"].as_str().unwrap();
            let named = if *is_own { "the header " } else { "the header Host must be " };
            assert!(reason.starts_with(named) && reason.contains("got "), "{reason}");
            assert_eq!(!*is_own, reason.contains("--allow-host"), "{reason}");
            for operation in ["Scan", "ListTables", "DeleteTable", "Unknown"] {
                assert_eq!(ask(&own, operation, &fields, SCAN).0, 403, "{fields:?}");
            }
            let host = format!("host: {own}");
            let (_, scanned) = ask(&own, "Scan", &[&host], SCAN);
            assert!(!scanned.to_string().contains(r#""PK":{"S":"a"}"#), "{fields:?}: {scanned}");
        }
    }
    assert_eq!(ask(&own, "ListTables", &[], "{}").0, 403, "no host");
    backend.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_slow_too_long_or_broken_is_a_typed_error() {
    let backend = LocalBackend::start(Options::default()).await.unwrap();
    let own = address(&backend);
    let host = format!("host: {own}");
    let begin = |length: usize, sent: &str| {
        let mut stream = connect(&own);
        let text = head("PutItem", &[&host], length) + sent;
        stream.write_all(text.as_bytes()).unwrap();
        stream
    };
    // Small and large ones, of which nothing, a part, or all but a byte has arrived.
    let slow: Vec<_> = [(10, 0), (PUT.len(), 5), (100_000, 99_999), (16_000_000, 1_000_000)]
        .map(|(length, sent)| begin(length, &"x".repeat(sent)))
        .into();
    let kind =
        |error: &Value| error["__type"].as_str().unwrap().rsplit('#').next().unwrap().to_owned();
    for stream in slow {
        let (status, error) = answer(stream);
        assert_eq!((status, kind(&error).as_str()), (408, "RequestTimeoutException"), "{error}");
        assert!(error["message"].as_str().unwrap().contains("within 10 s"), "{error}");
    }
    let (status, error) = answer(begin(16 * 1024 * 1024 + 1, ""));
    assert_eq!((status, kind(&error).as_str()), (413, "SerializationException"), "{error}");

    let mut chunked = connect(&own);
    let text = format!(
        "POST / HTTP/1.1\r\n{host}\r\nx-amz-target: DynamoDB_20120810.PutItem\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    chunked.write_all(text.as_bytes()).unwrap();
    let mut broken = chunked.try_clone().unwrap();
    broken.write_all(b"no length\r\n").unwrap();
    let (status, error) = answer(chunked);
    assert_eq!(status, 400, "{error}");

    // Chunks are as good as a length.
    let mut chunked = connect(&own);
    let text = text.replace("chunked\r\n", "chunked\r\nconnection: close\r\n");
    let text = format!("{text}{:x}\r\n{PUT}\r\n0\r\ntrailer: x\r\n\r\n", PUT.len());
    chunked.write_all(text.as_bytes()).unwrap();
    assert_eq!(answer(chunked).0, 200);
    backend.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_at_once_are_all_served_beside_small_ones() {
    let backend = LocalBackend::start(Options::default()).await.unwrap();
    let own = address(&backend);
    let host = format!("host: {own}");
    // Two that have begun keep the others waiting; small ones are answered meanwhile.
    let item = |size: usize| {
        json!({"TableName": "weirgate", "Filler": "x".repeat(size), "Item": {"PK": {"S": "large"}, "SK": {"S": "b"}}}).to_string()
    };
    let body = item(15_000_000);
    let mut begun: Vec<_> = (0..4)
        .map(|_| {
            let mut stream = connect(&own);
            let text = head("PutItem", &[&host], body.len());
            stream.write_all(text.as_bytes()).unwrap();
            stream.write_all(&body.as_bytes()[..100_000]).unwrap();
            stream
        })
        .collect();
    assert_eq!(ask(&own, "PutItem", &[&host], PUT).0, 200);
    let ends: Vec<_> = begun
        .drain(..)
        .map(|mut stream| {
            let rest = body.as_bytes()[100_000..].to_vec();
            std::thread::spawn(move || {
                stream.write_all(&rest).unwrap();
                answer(stream)
            })
        })
        .collect();
    for end in ends {
        let (status, body) = end.join().unwrap();
        assert_eq!(status, 200, "{body}");
    }
    backend.stop().await;
}
