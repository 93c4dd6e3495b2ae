//! The page over HTTP, on a real table: what it serves to which request, and what it costs.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::RcvBuf;
use serde_json::Value;
use weirgate::{Config, ConfigLevel, Limit, RateLimiter, Resource};
use weirgate_local::page::{LivePage, MAX_VIEWERS, Options};
use weirgate_testkit::Dynamo;

/// How long something may take that takes a second or two.
const PATIENCE: Duration = Duration::from_secs(60);

/// A page of a table with one resource, and a limiter on it.
async fn page(dynamo: &Dynamo) -> (LivePage, RateLimiter) {
    let limiter = || async {
        let builder = RateLimiter::builder("weirgate").table(dynamo.table().await);
        builder.build().await.expect("the table is there")
    };
    let caller = limiter().await;
    let level = ConfigLevel::Resource(Resource::new("gpt-4").expect("it is a name"));
    let config = Config::of([Limit::per_minute("rpm", 60).expect("it is a limit")]);
    caller
        .admin()
        .set_config(&level, &config)
        .await
        .expect("DynamoDB works");
    let page = LivePage::start(limiter().await, Options::new("weirgate")).expect("a port is free");
    (page, caller)
}

async fn acquire(caller: &RateLimiter, entity: &str) {
    let decision = caller.acquire(entity, "gpt-4").take("rpm", 1).send().await;
    assert!(decision.expect("DynamoDB works").is_granted());
}

fn host(page: &LivePage) -> String {
    let url = page.url();
    url.trim_start_matches("http://")
        .trim_end_matches('/')
        .to_owned()
}

/// Sends a request of these lines, and returns the open response.
fn send(page: &LivePage, head: &[&str]) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(host(page)).expect("the page listens");
    stream
        .set_read_timeout(Some(PATIENCE))
        .expect("it is a time");
    let text = format!("{}\r\n\r\n", head.join("\r\n"));
    stream.write_all(text.as_bytes()).expect("the page reads");
    BufReader::new(stream)
}

/// Returns the status and the text of a response.
fn answer(page: &LivePage, head: &[&str]) -> (u16, String) {
    let mut response = send(page, &[head, &["connection: close"]].concat());
    let mut text = String::new();
    response.read_to_string(&mut text).expect("it is text");
    let status = text
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    let (_, body) = text.split_once("\r\n\r\n").unwrap_or_default();
    (status.expect("a status"), body.to_owned())
}

/// A viewer of the resource.
struct Viewer(BufReader<TcpStream>);

impl Viewer {
    fn of(page: &LivePage) -> Self {
        let host = format!("host: {}", host(page));
        Self(send(page, &["GET /events?resource=gpt-4 HTTP/1.1", &host]))
    }

    /// Reads to the next event of this name for which `is_it` holds.
    fn event(&mut self, name: &str, mut is_it: impl FnMut(&Value) -> bool) -> Value {
        let (mut line, mut is_named) = (String::new(), false);
        loop {
            line.clear();
            assert!(
                self.0.read_line(&mut line).expect("the page sends") > 0,
                "no {name}"
            );
            match line.trim_end().split_once(": ") {
                Some(("event", event)) => is_named = event == name,
                Some(("data", data)) if is_named => {
                    let data = serde_json::from_str(data).expect("it is JSON");
                    if is_it(&data) {
                        return data;
                    }
                }
                _ => {}
            }
        }
    }
}

fn has(rows: &Value, entity: &str) -> bool {
    let rows = rows["rows"].as_array().expect("a list");
    rows.iter().any(|row| row["entity"] == entity)
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Which hosts and sites are its own is decided as for the table's server.
#[tokio::test(flavor = "multi_thread")]
async fn only_its_own_page_and_typed_addresses_are_answered() {
    let dynamo = Dynamo::new().await;
    let (page, _) = page(&dynamo).await;
    let own = host(&page);
    let (_, port) = own.rsplit_once(':').expect("a port");
    let named = format!("localhost:{port}");
    for (host, field, is_own) in [
        (own.clone(), "accept: */*".to_owned(), true),
        (named.clone(), format!("origin: http://{named}"), true),
        (own.clone(), "sec-fetch-site: none".to_owned(), true),
        (own.clone(), format!("referer: http://{own}/"), true),
        (
            format!("evil.example@{own}"),
            "accept: */*".to_owned(),
            false,
        ),
        (own.clone(), "origin: null".to_owned(), false),
        (own.clone(), "sec-fetch-site: cross-site".to_owned(), false),
        (
            own.clone(),
            format!("referer: http://{own}.evil.example/"),
            false,
        ),
    ] {
        let host = format!("host: {host}");
        for method in ["GET", "HEAD", "POST", "OPTIONS"] {
            for path in ["/", "/page.js", "/events?resource=gpt-4", "/nothing"] {
                let expected = match (is_own, method, path) {
                    (false, ..) => 403,
                    (true, "POST" | "OPTIONS", _) => 405,
                    (true, _, "/nothing") => 404,
                    // A stream has no end.
                    (true, _, "/events?resource=gpt-4") => continue,
                    (true, ..) => 200,
                };
                let head = format!("{method} {path} HTTP/1.1");
                let (status, body) = answer(&page, &[&head, &host, &field]);
                assert_eq!(status, expected, "{head} {host} {field}: {body}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn head_is_answered_as_get_without_its_body_and_is_no_viewer() {
    let dynamo = Dynamo::new().await;
    let (page, _) = page(&dynamo).await;
    let host = format!("host: {}", host(&page));
    let fields = |method: &str, path: &str| {
        let head = format!("{method} {path} HTTP/1.1");
        let mut response = send(&page, &[&head, &host, "connection: close"]);
        let (mut text, mut fields) = (String::new(), vec![]);
        while response.read_line(&mut text).expect("it is text") > 2 {
            fields.push(std::mem::take(&mut text).to_lowercase());
        }
        fields.retain(|field| !field.starts_with("date"));
        fields.sort();
        (fields, response)
    };
    for path in [
        "/",
        "/page.css",
        "/icon.svg",
        "/nothing",
        "/events?resource=a%23b",
    ] {
        let ((head, mut rest), (get, mut body)) = (fields("HEAD", path), fields("GET", path));
        assert_eq!(head, get, "{path}");
        let mut text = String::new();
        rest.read_to_string(&mut text).expect("it is text");
        assert_eq!(text, "", "{path}");
        body.read_to_string(&mut text).expect("it is text");
        assert_ne!(text, "", "{path}");
    }
    let (head, _) = fields("HEAD", "/events?resource=gpt-4");
    assert!(
        head.contains(&"content-type: text/event-stream\r\n".to_owned()),
        "{head:?}"
    );
    assert_eq!(page.cost().viewers, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_files_together_are_small_and_reading_them_costs_no_request() {
    let dynamo = Dynamo::new().await;
    let (page, _) = page(&dynamo).await;
    let host = format!("host: {}", host(&page));
    let _ = dynamo.take_operations();
    let files = ["/", "/page.css", "/page.js", "/list.js", "/icon.svg"];
    let bytes = files.map(|file| {
        let (status, body) = answer(&page, &[&format!("GET {file} HTTP/1.1"), &host]);
        assert_eq!(status, 200, "{file}");
        body.len()
    });
    let sum: usize = bytes.iter().sum();
    assert!(sum <= 60 * 1024, "{bytes:?}");
    assert!(dynamo.take_operations().is_empty());
    assert!(page.cost().units <= 0.0, "{:?}", page.cost());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_viewer_sees_buckets_and_their_changes_and_nothing_is_read_without_one() {
    let dynamo = Dynamo::new().await;
    let (page, caller) = page(&dynamo).await;
    acquire(&caller, "user-1").await;
    let mut viewer = Viewer::of(&page);
    let hello = viewer.event("hello", |_| true);
    assert_eq!(hello["table"], "weirgate");
    let names = viewer.event("names", |_| true);
    assert_eq!(names["resources"], serde_json::json!(["gpt-4"]));
    let rows = viewer.event("rows", |rows| has(rows, "user-1"));
    let limit = &rows["rows"][0]["limits"][0];
    assert_eq!(
        (&limit["name"], &limit["capacity"]),
        (&"rpm".into(), &60_000.into())
    );

    acquire(&caller, "user-2").await;
    viewer.event("rows", |rows| has(rows, "user-2"));
    assert_eq!(page.cost().viewers, 1);

    drop(viewer);
    // The page finds out when it sends something.
    until("the viewer is gone", || page.cost().viewers == 0);
    let _ = dynamo.take_operations();
    acquire(&caller, "user-3").await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let operations = dynamo.take_operations();
    assert!(!operations.contains_key("Query"), "{operations:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_cannot_be_read_is_a_row_with_its_error_beside_the_others() {
    let dynamo = Dynamo::new().await;
    let (page, caller) = page(&dynamo).await;
    for entity in ["user-1", "user-2", "user-3"] {
        acquire(&caller, entity).await;
    }
    let mut damaged = dynamo.item("default/BUCKET#user-2#gpt-4#0", "#STATE");
    damaged["v"] = serde_json::json!({"S": "text"});
    let whole = dynamo.item("default/BUCKET#user-2#gpt-4#0", "#STATE");
    dynamo.put(&damaged);
    let mut viewer = Viewer::of(&page);
    let mut seen = std::collections::BTreeMap::new();
    viewer.event("rows", |rows| {
        for row in rows["rows"].as_array().expect("a list") {
            let error = row["error"].as_str().map(str::to_owned);
            seen.insert(row["entity"].to_string(), error);
        }
        seen.len() == 3
    });
    let errors: Vec<_> = seen.values().map(Option::is_some).collect();
    assert_eq!(errors, [false, true, false], "{seen:?}");
    let usage = viewer.event("usage", |usage| usage["unreadable"] == 1);
    let top = &usage["measures"][0]["top"];
    assert_eq!(top.as_array().map(Vec::len), Some(2), "{usage}");
    // Corrected, it is a bucket again.
    dynamo.put(&whole);
    viewer.event("rows", |rows| {
        let mut rows = rows["rows"].as_array().expect("a list").iter();
        rows.any(|row| row["entity"] == "user-2" && row["error"].is_null())
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn one_viewer_too_many_is_told_so_and_viewers_of_one_subject_share_its_reads() {
    let dynamo = Dynamo::new().await;
    let (page, caller) = page(&dynamo).await;
    acquire(&caller, "user-1").await;
    let mut viewers: Vec<_> = (0..MAX_VIEWERS).map(|_| Viewer::of(&page)).collect();
    for viewer in &mut viewers {
        viewer.event("rows", |rows| has(rows, "user-1"));
    }
    let host = format!("host: {}", host(&page));
    let (status, body) = answer(&page, &["GET /events?resource=gpt-4 HTTP/1.1", &host]);
    assert_eq!(status, 503);
    assert!(body.contains("16 viewers are connected"), "{body}");

    let _ = dynamo.take_operations();
    acquire(&caller, "user-2").await;
    for viewer in &mut viewers {
        viewer.event("rows", |rows| has(rows, "user-2"));
    }
    let queries = dynamo.take_operations()["Query"];
    assert!(
        queries < 16 * u64::try_from(MAX_VIEWERS).expect("it is small"),
        "{queries}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn viewers_that_never_read_end_and_one_that_reads_stays() {
    let dynamo = Dynamo::new().await;
    let (page, caller) = page(&dynamo).await;
    let mut reading = Viewer::of(&page);
    reading.event("hello", |_| true);
    // The systems of some keep as much as they can.
    let stalled = (1..MAX_VIEWERS).map(|number| {
        let viewer = Viewer::of(&page);
        if number % 2 == 0 {
            setsockopt(viewer.0.get_ref(), RcvBuf, &(4 << 20)).expect("it is a size");
        }
        viewer
    });
    let _stalled: Vec<_> = stalled.collect();
    let host = format!("host: {}", host(&page));
    until("the places are taken", || {
        answer(&page, &["GET /events?resource=gpt-4 HTTP/1.1", &host]).0 == 503
    });
    // The reader reads meanwhile.
    let reader = std::thread::spawn(move || {
        reading.event("rows", |rows| has(rows, "user-1"));
    });
    until("a viewer finds a place", || {
        let mut line = String::new();
        let mut response = send(&page, &["GET /events?resource=gpt-4 HTTP/1.1", &host]);
        response.read_line(&mut line).expect("the page answers");
        line.contains("200")
    });
    acquire(&caller, "user-1").await;
    reader.join().expect("the reader is served");
}
