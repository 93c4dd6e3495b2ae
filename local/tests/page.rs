//! The page over HTTP, on a real table: what it serves to which request, and what it costs.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::RcvBuf;
use serde_json::Value;
use weirgate::{Clock, Config, ConfigLevel, Limit, RateLimiter, Resource, SystemClock};
use weirgate_local::page::{LivePage, MAX_VIEWERS, Options, PORT, PORTS};
use weirgate_store::Table;
use weirgate_testkit::server::ask;
use weirgate_testkit::{Dynamo, Fault};

/// How long something may take that takes a second or two.
const PATIENCE: Duration = Duration::from_secs(60);

/// On any free port.
fn options() -> Options {
    Options { port: Some(0), ..Options::new("weirgate") }
}

async fn limiter(table: Table) -> RateLimiter {
    let builder = RateLimiter::builder("weirgate").table(table);
    builder.build().await.expect("the table is there")
}

/// A page of a table with one resource, and a limiter on it.
async fn page(dynamo: &Dynamo) -> (LivePage, RateLimiter) {
    page_of(dynamo, limiter(dynamo.table().await).await, options()).await
}

/// The same, which reads through `reader`.
async fn page_of(
    dynamo: &Dynamo,
    reader: RateLimiter,
    options: Options,
) -> (LivePage, RateLimiter) {
    let caller = limiter(dynamo.table().await).await;
    let level = ConfigLevel::Resource(Resource::new("gpt-4").expect("it is a name"));
    let config = Config::of([Limit::per_minute("rpm", 60).expect("it is a limit")]);
    caller.admin().set_config(&level, &config).await.expect("DynamoDB works");
    let page = LivePage::start(reader, options).expect("a port is free");
    (page, caller)
}

async fn acquire(caller: &RateLimiter, entity: &str) {
    let decision = caller.acquire(entity, "gpt-4").take("rpm", 1).send().await;
    assert!(decision.expect("DynamoDB works").is_granted());
}

fn host(page: &LivePage) -> String {
    let url = page.url();
    url.trim_start_matches("http://").trim_end_matches('/').to_owned()
}

/// Sends a request of these lines, and returns the open response.
fn send(page: &LivePage, head: &[&str]) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(host(page)).expect("the page listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("it is a time");
    let text = format!("{}\r\n\r\n", head.join("\r\n"));
    stream.write_all(text.as_bytes()).expect("the page reads");
    BufReader::new(stream)
}

/// Returns the status and the text of a response.
fn answer(page: &LivePage, head: &[&str]) -> (u16, String) {
    ask(&host(page), &head.join("\r\n"), "")
}

/// A viewer of the resource.
struct Viewer(BufReader<TcpStream>);

impl Viewer {
    fn of(page: &LivePage) -> Self {
        Self::on(page, "resource=gpt-4")
    }

    fn on(page: &LivePage, query: &str) -> Self {
        let head = format!("GET /events?{query} HTTP/1.1");
        Self(send(page, &[&head, &format!("host: {}", host(page))]))
    }

    /// Reads to the next event of this name for which `is_it` holds.
    fn event(&mut self, name: &str, mut is_it: impl FnMut(&Value) -> bool) -> Value {
        let (mut line, mut is_named) = (String::new(), false);
        let end = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < end, "no such {name}");
            line.clear();
            assert!(self.0.read_line(&mut line).expect("the page sends") > 0, "no {name}");
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
        (format!("evil.example@{own}"), "accept: */*".to_owned(), false),
        (own.clone(), "origin: null".to_owned(), false),
        (own.clone(), "sec-fetch-site: cross-site".to_owned(), false),
        (own.clone(), format!("referer: http://{own}.evil.example/"), false),
    ] {
        let host = format!("host: {host}");
        for method in ["GET", "HEAD", "POST", "OPTIONS"] {
            for path in [
                "/",
                "/page.js",
                "/events?resource=gpt-4",
                "/why?entity=user-1&resource=gpt-4",
                "/hour?entity=user-1&resource=gpt-4",
                "/nothing",
            ] {
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
        "/why?entity=a%23b&resource=gpt-4",
        "/hour?resource=gpt-4",
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
    assert!(head.contains(&"content-type: text/event-stream\r\n".to_owned()), "{head:?}");
    assert_eq!(page.cost().viewers, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_files_together_are_small_and_reading_them_costs_no_request() {
    let dynamo = Dynamo::new().await;
    let (page, _) = page(&dynamo).await;
    let host = format!("host: {}", host(&page));
    let _ = dynamo.take_operations();
    let files = ["/", "/page.css", "/page.js", "/list.js", "/bucket.js", "/icon.svg"];
    let bytes = files.map(|file| {
        let (status, body) = answer(&page, &[&format!("GET {file} HTTP/1.1"), &host]);
        assert_eq!(status, 200, "{file}");
        body.len()
    });
    let sum: usize = bytes.iter().sum();
    assert!(sum <= 72 * 1024, "{bytes:?}");
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
    assert_eq!((&limit["name"], &limit["capacity"]), (&"rpm".into(), &60_000.into()));

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
async fn a_row_has_the_end_of_its_pause_until_it_is_resumed() {
    let dynamo = Dynamo::new().await;
    let (page, caller) = page(&dynamo).await;
    acquire(&caller, "user-1").await;
    let mut viewer = Viewer::of(&page);
    let mut until = |is_it: fn(&Value) -> bool| {
        viewer.event("rows", |rows| {
            let mut rows = rows["rows"].as_array().expect("a list").iter();
            rows.any(|row| row["entity"] == "user-1" && is_it(&row["paused_until"]))
        })
    };
    until(Value::is_null);
    let report = weirgate::VendorReport::new(429).with_retry_after(Duration::from_secs(600));
    let end = caller.report_vendor("user-1", "gpt-4", &report).await.unwrap();
    let rows = until(Value::is_i64);
    let shown = rows["rows"][0]["paused_until"].as_i64().expect("a time");
    let difference = shown - end.expect("a pause").0;
    assert!(difference.abs() < 1_000, "{rows}");
    caller.admin().resume("user-1", "gpt-4").send().await.unwrap();
    until(Value::is_null);
}

/// With limits of a plan, the page reads entities.
#[tokio::test(flavor = "multi_thread")]
async fn an_entity_that_cannot_be_read_does_not_hide_the_buckets() {
    for has_plans in [false, true] {
        let dynamo = Dynamo::new().await;
        let (page, caller) = page(&dynamo).await;
        let admin = caller.admin();
        if has_plans {
            let limits = [weirgate::Limit::per_minute("rpm", 70).unwrap()];
            let level = weirgate::ConfigLevel::Plan("pro".try_into().unwrap());
            admin.set_config(&level, &weirgate::Config::of(limits)).await.unwrap();
        }
        let entity = weirgate::Entity::new("user-2".try_into().unwrap());
        admin.set_entity(&entity).await.unwrap();
        let mut damaged = dynamo.item("default/ENTITY#user-2", "#META");
        let others =
            ["user-1", "user-3", "user-4", "user-5", "user-6", "user-7", "user-8", "user-9"];
        for entity in others.into_iter().chain(["user-2"]) {
            acquire(&caller, entity).await;
        }
        damaged["cascade"] = serde_json::json!({"S": "text"});
        dynamo.put(&damaged);
        let mut viewer = Viewer::of(&page);
        let mut seen = std::collections::BTreeSet::new();
        viewer.event("rows", |rows| {
            let rows = rows["rows"].as_array().expect("a list").iter();
            seen.extend(rows.map(|row| row["entity"].to_string()));
            println!("{seen:?}");
            others.iter().all(|other| seen.contains(&format!("{other:?}")))
        });
    }
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
    assert!(queries < 16 * u64::try_from(MAX_VIEWERS).expect("it is small"), "{queries}");
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

/// Returns JSON about the bucket of an entity on gpt-4.
fn json(page: &LivePage, path: &str, entity: &str) -> Value {
    let head = format!("GET {path}?entity={entity}&resource=gpt-4 HTTP/1.1");
    let (status, body) = answer(page, &[&head, &format!("host: {}", host(page))]);
    assert_eq!(status, 200, "{head}: {body}");
    serde_json::from_str(&body).expect("it is JSON")
}

fn gpt_4() -> ConfigLevel {
    ConfigLevel::Resource(Resource::new("gpt-4").expect("it is a name"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_is_given_must_be_free_and_without_one_the_next_free_one_is_taken() {
    let dynamo = Dynamo::new().await;
    let reader = limiter(dynamo.table().await).await;
    let start = |port| {
        let options = Options { port, ..options() };
        LivePage::start(reader.clone(), options)
    };
    let (first, second) = (start(None).expect("free"), start(None).expect("free"));
    for page in [&first, &second] {
        assert!((PORT..PORT + PORTS).contains(&page.port()), "{}", page.port());
    }
    assert!(first.port() < second.port());
    let taken = start(Some(first.port())).map(|page| page.port());
    let error = taken.expect_err("it is in use");
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_has_its_saturation_and_its_level_and_both_are_unknown_before() {
    let dynamo = Dynamo::new().await;
    let (page, caller) = page(&dynamo).await;
    acquire(&caller, "user-1").await;
    let mut viewer = Viewer::of(&page);
    let limit = |rows: &Value| rows["rows"][0]["limits"][0].clone();
    let first = limit(&viewer.event("rows", |rows| has(rows, "user-1")));
    assert_eq!([&first["saturation"], &first["from"], &first["used"]], [&Value::Null; 3]);
    let known = viewer.event("rows", |rows| !limit(rows)["saturation"].is_null());
    assert_eq!(limit(&known)["saturation"], 0, "nothing since the first read");
    for _ in 0..30 {
        acquire(&caller, "user-1").await;
    }
    // 30 tokens within seconds of a refill of one a second.
    viewer.event("rows", |rows| {
        let limit = limit(rows);
        limit["saturation"].as_i64() > Some(100) && limit["from"] == "resource"
    });
    // Another one than the table's, from the next acquire on.
    let bring = [Limit::per_minute("rpm", 50).expect("it is a limit")];
    let acquire = caller.acquire("user-1", "gpt-4").limits(&bring);
    let decision = acquire.take("rpm", 1).send().await;
    assert!(decision.expect("DynamoDB works").is_granted());
    viewer.event("rows", |rows| limit(rows)["from"] == "caller");
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_and_exempt_levels_are_told_to_every_viewer() {
    let dynamo = Dynamo::new().await;
    let (page, caller) = page(&dynamo).await;
    let admin = caller.admin();
    admin.stop(&gpt_4()).send().await.expect("it is written");
    let entity = ConfigLevel::Entity("user-1".try_into().expect("it is a name"));
    admin.exempt(&entity).send().await.expect("it is written");
    let mut viewer = Viewer::on(&page, "entity=user-2");
    let told = viewer.event("switches", |_| true);
    assert_eq!(
        told["switches"],
        serde_json::json!([
            {"level": "entity", "entity": "user-1", "switch": "exempt"},
            {"level": "resource", "resource": "gpt-4", "switch": "stopped"},
        ])
    );
    admin.start(&gpt_4()).send().await.expect("it is written");
    viewer.event("switches", |told| told["switches"].as_array().map(Vec::len) == Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_that_fails_says_why_and_when_the_last_good_one_began() {
    let dynamo = Dynamo::new().await;
    let (page, caller) = page(&dynamo).await;
    acquire(&caller, "user-1").await;
    let mut viewer = Viewer::of(&page);
    viewer.event("progress", |progress| progress["read_at_ms"].is_i64());
    dynamo.fail_reads(|_, _| Some(Fault::ServerError));
    let failing = SystemClock.now().0;
    let failed = viewer.event("progress", |progress| progress["problem"].is_string());
    assert!(failed["read_at_ms"].as_i64().is_some_and(|at| at <= failing), "{failed}");
    dynamo.fail_reads(|_, _| None);
    let read = viewer.event("progress", |progress| progress["problem"].is_null());
    assert!(read["read_at_ms"].as_i64() > Some(failing), "{read}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_are_found_by_their_start_and_other_buckets_are_not_read() {
    let dynamo = Dynamo::new().await;
    let (page, caller) = page(&dynamo).await;
    for user in 0..40 {
        acquire(&caller, &format!("user-{user}")).await;
    }
    let units = page.cost().units;
    let mut viewer = Viewer::on(&page, "resource=gpt-4&starting=user-39");
    let mut seen = vec![];
    viewer.event("rows", |rows| {
        seen.extend(rows["rows"].as_array().into_iter().flatten().cloned());
        has(rows, "user-39")
    });
    viewer.event("progress", |progress| !progress["sweep_ms"].is_null());
    assert_eq!(seen.len(), 1, "{seen:?}");
    // 16 pages of the list, one bucket, and what all viewers need: names, levels, switches.
    let cost = page.cost().units - units;
    assert!(cost <= 16.0 / 2.0 + 1.0 + 30.0, "{cost}");
}

/// The reads are counted by DynamoDB.
#[tokio::test(flavor = "multi_thread")]
async fn an_opened_bucket_costs_what_the_page_says_and_twice_at_once_no_more() {
    let dynamo = Dynamo::new().await;
    let (table, meter) = dynamo.metered().await;
    let reader = limiter(table).await;
    let (page, caller) = page_of(&dynamo, reader, options()).await;
    acquire(&caller, "user-1").await;
    let leased = caller.acquire("user-2", "gpt-4").take("rpm", 1);
    let leased = leased.lease(Duration::from_secs(600)).send().await;
    let _held = leased.expect("DynamoDB works");
    let mut counted = page.cost().units;
    let mut cost = |what: &str, most: f64| {
        let (read, total) = (meter.take().read, page.cost().units);
        assert!(read <= total - counted, "{what}: {read} of {total}");
        assert!(total - counted <= most, "{what}: {}", total - counted);
        counted = total;
        read
    };
    let _ = (meter.take(), dynamo.take_operations());
    let reasons = json(&page, "/why", "user-1");
    assert_eq!(reasons["limits"][0]["from"]["resource"], "gpt-4");
    assert!(cost("reasons", 12.0) > 0.0);
    json(&page, "/why", "user-2");
    cost("reasons with a lease", 13.0);
    // Limits with classes are planned with.
    let level = ConfigLevel::Entity("user-3".try_into().expect("an id"));
    let limit: Limit = "rpm=100/minute,class=batch:10%:30%".parse().expect("a limit");
    let config = Config::of([limit]);
    let set = caller.admin().set_config(&level, &config).await;
    set.expect("it is written");
    acquire(&caller, "user-3").await;
    let _ = meter.take();
    json(&page, "/why", "user-3");
    cost("reasons with classes", 22.0);
    let _ = dynamo.take_operations();
    let hour = json(&page, "/hour", "user-1");
    let rpm = &hour["limits"]["rpm"];
    assert_eq!(rpm["minutes"].as_array().map(Vec::len), Some(60), "{hour}");
    // The page has not read the bucket: its usage is spread over the hour.
    let means = rpm["means"].as_array().expect("a list");
    assert!(means.iter().any(|mean| mean.as_i64() > Some(0)), "{hour}");
    cost("hour", 2.0);
    let operations = dynamo.take_operations();
    assert!(!operations.contains_key("Scan"), "{operations:?}");
    for _ in 0..5 {
        json(&page, "/why", "user-1");
        json(&page, "/hour", "user-1");
    }
    assert!(dynamo.take_operations().is_empty());
    assert!(cost("again", 0.0) <= 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_view_scans_the_table_and_all_stay_within_the_allowed_units() {
    let dynamo = Dynamo::new().await;
    let (table, meter) = dynamo.metered().await;
    let reader = limiter(table).await;
    let options = Options { read_units: 50, ..options() };
    let (page, caller) = page_of(&dynamo, reader, options).await;
    for user in 0..80 {
        acquire(&caller, &format!("user-{user}")).await;
    }
    let _ = (meter.take(), dynamo.take_operations());
    let begun = Instant::now();
    let mut viewers = [Viewer::of(&page), Viewer::on(&page, "entity=user-1")];
    viewers[0].event("rows", |rows| has(rows, "user-1"));
    for user in 0..80 {
        json(&page, "/why", &format!("user-{user}"));
    }
    let (read, seconds) = (meter.take().read, begun.elapsed().as_secs_f64());
    let counted = page.cost().units;
    assert!(read <= counted, "{read} read, {counted} counted");
    // Requests for single buckets may be five seconds ahead of it, and a page of a list too.
    assert!(counted <= 50.0 * (seconds + 5.0) + 113.0, "{counted} in {seconds} s");
    let operations = dynamo.take_operations();
    assert!(!operations.contains_key("Scan"), "{operations:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn denials_are_those_that_callers_count() {
    let dynamo = Dynamo::new().await;
    let caller = limiter(dynamo.table().await).await;
    let reader = limiter(dynamo.table().await).await;
    let here = Options {
        callers: vec![caller.clone()],
        metrics: vec!["http://127.0.0.1:1/metrics".parse().expect("an address")],
        ..options()
    };
    let (page, _) = page_of(&dynamo, reader, here).await;
    let mut viewer = Viewer::of(&page);
    let hello = viewer.event("hello", |_| true);
    assert_eq!(hello["has_callers"], true);
    let first = viewer.event("callers", |_| true);
    assert_eq!(first[0]["denied_per_second"], Value::Null, "one read");
    assert!(first[1]["problem"].is_string(), "nothing listens there: {first}");
    let take = || caller.acquire("user-1", "gpt-4").take("rpm", 60).send();
    assert!(take().await.expect("DynamoDB works").is_granted());
    for _ in 0..10 {
        assert!(!take().await.expect("DynamoDB works").is_granted());
    }
    viewer.event("callers", |callers| {
        callers[0]["denied"].as_f64() == Some(10.0)
            && callers[0]["denied_per_second"].as_f64() > Some(0.0)
    });
}
