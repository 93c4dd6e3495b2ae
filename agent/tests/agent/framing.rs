//! Requests and calls framed in every way that HTTP/1.1 and HTTP/2 allow, and in ways that they do
//! not, cut and ended anywhere. In memory and in virtual time: each case takes as long as its parts
//! need to be read.

use std::future::Future;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream, duplex};
use tokio::time::{Instant, timeout_at};
use weirgate::{Decision, Limit, MilliTokens, RateLimiter};
use weirgate_agent::gated::GatedLimiter;
use weirgate_agent::json_api::{self, Api, Bounds};
use weirgate_agent::net::Clients;
use weirgate_agent::rls::{self, Options, RateLimitService};
use weirgate_agent::rules::RulesSource;
use weirgate_testkit::Dynamo;

use crate::fixtures::file;
use crate::rls::RULES;

const TAKE: &str = r#"{"entity":"e","resource":"r","take":{"x":1},"limits":[{"name":"x","capacity_tokens":1000000,"refill_tokens":1000000,"refill_period_ms":60000}]}"#;

/// Fields of a head, bytes of a body, and what becomes of them: `whole` is one request, which is
/// answered; `more` is one and the beginning of another; `refused` is refused, or its connection is
/// closed. `~` is the end of a line, `{c}` the field of chunks, `{n}` the length of the body `{b}`,
/// `{h}` half of it, `{k}` the body as one chunk, and `{k7}` in chunks of 7 bytes.
const FRAMINGS: &str = "
content-length: {n}~|{b}|whole
{c}|{k}0~~|whole
{c}|{k1}0~~|whole
{c}|{k2}0~~|whole
{c}|{k7}0~~|whole
{c}|{k;name=value}0~~|whole
{c}|{k;a=\"b;c\"}0~~|whole
{c}|{k}0~x-a: b~x-c: d~~|whole
{c}|{k}0000~~|whole
Transfer-Encoding: CHUNKED~|{k}0~~|whole
content-length: {n}~expect: 100-continue~|{b}|whole
{c}expect: 100-continue~|{k}0~~|whole
content-length: {n}~|{b}GET /healthz HTTP/1.1~host: a~~|more
{c}|{k}0~~GET /healthz HTTP/1.1~host: a~~|more
content-length: {n}~|{b}GET /healthz HT|more
content-length: {n}~|{b}\0\0\0|more
content-length: {n}~|{b}~~~|more
content-length: {n}~{c}|{k}0~~|more
{c}content-length: 3~|{k}0~~|more
content-length: {n}~content-length: {n}~|{b}|more
content-length: {n}, {n}~|{b}|more
content-length: {n}~content-length: 1~|{b}|refused
content-length: -1~|{b}|refused
content-length: +1~|{b}|refused
content-length: 1x~|{b}|refused
content-length:  ~|{b}|refused
content-length: 0x10~|{b}|refused
content-length: 18446744073709551616~|{b}|refused
content-length: 3000000~|{b}|refused
{c}|~{b}~0~~|refused
{c}|x~{b}~0~~|refused
{c}|-1~{b}~0~~|refused
{c}|0x1~{b}~0~~|refused
{c}|fffffffffffffffff~{b}~0~~|refused
{c}|1 1~{b}~0~~|refused
transfer-encoding: gzip~|{k}0~~|refused
transfer-encoding: gzip, chunked~|{k}0~~|refused
transfer-encoding: chunked, gzip~|{k}0~~|refused
transfer-encoding: chunked, chunked~|{k}0~~|refused
transfer-encoding: ~|{k}0~~|refused
content-length: {n}~||refused
content-length: {n}~|{h}|refused
{c}|{k}|refused
{c}|1~{h}|refused
{c}|{k}0~|refused
{c}|{k}0~x-a|refused
{c}|{endless}|refused
{c}|1;{long}~ ~|refused
{c}|{k}0~x: {long}|refused
x: {long}~||refused
x-half: |{open}|refused
";

/// Fills the places of a framing in.
fn fill(text: &str, body: &str) -> String {
    let chunks = |size: usize, more: &str| -> String {
        let parts = body.as_bytes().chunks(size).map(|part| {
            let text = std::str::from_utf8(part).unwrap();
            format!("{:x}{more}\r\n{text}\r\n", part.len())
        });
        parts.collect()
    };
    let n = body.len();
    let filled = [
        ("{c}", "transfer-encoding: chunked~".to_owned()),
        ("{k}", chunks(n, "")),
        ("{k1}", chunks(1, "")),
        ("{k2}", chunks(2, "")),
        ("{k7}", chunks(7, "")),
        ("{k;name=value}", chunks(16, ";name=value")),
        ("{k;a=\"b;c\"}", chunks(16, ";a=\"b;c\"")),
        ("{endless}", "1~ ~".repeat(20_000)),
        ("{long}", "x".repeat(40_000)),
        ("{open}", String::new()),
        ("{n}", n.to_string()),
        ("{h}", body[..n / 2].to_owned()),
        ("{b}", body.to_owned()),
        ("~", "\r\n".to_owned()),
    ];
    let fill = |text: String, (place, with): &(&str, String)| text.replace(place, with);
    filled.iter().fold(text.to_owned(), fill)
}

/// What a sender does after its bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
enum After {
    Waits,
    ClosesItsHalf,
    Leaves,
}

/// Sends bytes, and returns all that is answered until the connection is closed, or `None` if it
/// stays open without an answer.
async fn converse<F: Future<Output = ()>>(
    serve: impl FnOnce(Clients, BufReader<DuplexStream>) -> F,
    parts: &[&[u8]],
    after: After,
) -> Option<Vec<u8>> {
    let (mut client, server) = duplex(256 * 1024);
    let clients = Clients::new(Bounds { max_connections: 1, grace: Duration::ZERO });
    let serving = serve(clients, BufReader::new(server));
    // Longer than a silent connection is kept.
    let end = Instant::now() + Duration::from_secs(120);
    let asking = async move {
        for part in parts {
            if client.write_all(part).await.is_err() {
                break;
            }
            tokio::task::yield_now().await;
        }
        match after {
            After::Leaves => return None,
            After::ClosesItsHalf => drop(client.shutdown().await),
            After::Waits => {}
        }
        let mut answer = vec![];
        loop {
            match timeout_at(end, client.read_buf(&mut answer)).await {
                Ok(Ok(0) | Err(_)) => return Some(answer),
                Ok(Ok(_)) => {}
                // Kept open behind an answer.
                Err(_) => return (!answer.is_empty()).then_some(answer),
            }
        }
    };
    tokio::pin!(serving, asking);
    tokio::select! {
        answer = &mut asking => match after {
            After::Leaves => timeout_at(end, serving).await.ok().map(|()| vec![]),
            After::Waits | After::ClosesItsHalf => answer,
        },
        () = &mut serving => asking.await.or(Some(vec![])),
    }
}

/// Returns the parts in which bytes come: at once, in small ones, and the head before the rest.
fn deliveries(head: usize, all: &[u8]) -> [Vec<&[u8]>; 3] {
    let small = 1 + all.len() / 2_000;
    let (head, rest) = all.split_at(head);
    [vec![all], all.chunks(small).collect(), vec![head, rest]]
}

async fn gated() -> Arc<GatedLimiter> {
    let limiter = RateLimiter::builder("weirgate").table(Dynamo::new().await.table().await);
    Arc::new(GatedLimiter::new(limiter.build().await.unwrap(), 10))
}

/// Returns the head and all bytes of a request.
fn framed<'f>(line: &str, body: &str, framing: &'f str) -> (usize, String, &'f str) {
    let (fields, rest) = framing.split_once('|').unwrap();
    let (sent, expected) = rest.split_once('|').unwrap();
    let end = if sent == "{open}" { "" } else { "\r\n" };
    let head = format!("{line} HTTP/1.1\r\nhost: a\r\n{}{end}", fill(fields, body));
    (head.len(), head + &fill(sent, body), expected)
}

async fn every_framing_of_http() -> usize {
    let api = Arc::new(Api::new(gated().await, None, Arc::default()));
    let mut count = 0;
    for (line, body, whole) in [
        ("POST /v1/acquire", TAKE, 200),
        ("POST /v1/settle", r#"{"grant":"none","end":"release"}"#, 400),
        ("POST /v1/report", r#"{"entity":"e","resource":"r","vendor":{"status":429}}"#, 200),
        ("GET /healthz", TAKE, 200),
        ("PUT /other", TAKE, 404),
    ] {
        for framing in FRAMINGS.lines().skip(1) {
            let (head, all, expected) = framed(line, body, framing);
            for (at, parts) in deliveries(head, all.as_bytes()).into_iter().enumerate() {
                for after in [After::Waits, After::ClosesItsHalf, After::Leaves] {
                    let case = format!("{line}, {framing:?}, delivery {at}, {after:?}");
                    let api = Arc::clone(&api);
                    let serve = async |clients: Clients, stream| {
                        json_api::serve_in_memory(api, &clients, stream).await;
                    };
                    let answer = converse(serve, &parts, after).await;
                    let answer = answer.unwrap_or_else(|| panic!("neither answer nor end: {case}"));
                    count += 1;
                    let text = String::from_utf8_lossy(&answer);
                    let lines = text.split("HTTP/1.").skip(1);
                    let codes = lines.map(|line| line[2..5].parse().unwrap());
                    let found: Vec<u16> = codes.filter(|code| *code != 100).collect();
                    let is_right = match expected {
                        // What a client that has left would get is dropped, and no process can tell
                        // one that has closed its half from one that has left.
                        _ if after != After::Waits && found.is_empty() => true,
                        "whole" => found == [whole],
                        "more" => !found.is_empty(),
                        // What needs no body is answered before it is seen to be wrong.
                        _ if line != "POST /v1/acquire" => true,
                        _ => found.iter().all(|status| *status >= 400),
                    };
                    assert!(is_right, "{case}: {found:?}");
                }
            }
        }
    }
    count
}

/// Bytes behind a request are no sign that its client is still there.
#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_is_noticed_whatever_it_sent_behind_its_request() {
    let gated = gated().await;
    let api = Arc::new(Api::new(Arc::clone(&gated), None, Arc::default()));
    let slots = [Limit::concurrent("slots", 1).unwrap()];
    let held = gated.limiter.acquire("e", "r").take("slots", 1);
    let held = held.limits(&slots).lease(Duration::from_secs(3_600));
    let Decision::Granted(_held) = held.send().await.unwrap() else {
        panic!("the slot is free");
    };
    let limits = json!([{"name": "slots", "slots": 1}]);
    let wait = json!({"entity": "e", "resource": "r", "take": {"slots": 1}, "limits": limits, "wait_ms": 3_000_000});
    for framing in FRAMINGS
        .lines()
        .filter(|line| line.ends_with("|more") || line.ends_with("|whole"))
        .filter(|line| !line.contains("expect"))
    {
        let (head, all, _) = framed("POST /v1/acquire", &wait.to_string(), framing);
        // At once: a connection in memory shows its end behind bytes that were read.
        let parts = &deliveries(head, all.as_bytes())[0];
        let serve = async |clients: Clients, stream| {
            json_api::serve_in_memory(Arc::clone(&api), &clients, stream).await;
        };
        let ended = converse(serve, parts, After::Leaves).await;
        assert!(ended.is_some(), "the connection stays: {framing}");
        assert_eq!(gated.gate.in_flight(), 0, "{framing}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_settlement_that_came_whole_is_made_although_its_client_has_left() {
    let gated = gated().await;
    let api = Arc::new(Api::new(Arc::clone(&gated), None, Arc::default()));
    let slots = [Limit::concurrent("slots", 1).unwrap()];
    // A client that is to be asked for its body cannot have sent it and left.
    let is_whole = |line: &&str| line.ends_with("|whole") && !line.contains("expect");
    for framing in FRAMINGS.lines().filter(is_whole) {
        for delivery in 0..3 {
            let request = gated.limiter.acquire("e", "r").take("slots", 1);
            let request = request.limits(&slots).lease(Duration::from_secs(3_600));
            let Decision::Granted(grant) = request.send().await.unwrap() else {
                panic!("the slot is held after framing {framing}, delivery {delivery}");
            };
            let settle = json!({"grant": grant.into_token(), "end": "release"}).to_string();
            let (head, all, _) = framed("POST /v1/settle", &settle, framing);
            let parts = &deliveries(head, all.as_bytes())[delivery];
            let serve = async |clients: Clients, stream| {
                json_api::serve_in_memory(Arc::clone(&api), &clients, stream).await;
            };
            let ended = converse(serve, parts, After::Leaves).await;
            assert!(ended.is_some(), "{framing}, delivery {delivery}");
            let peek = || gated.limiter.peek("e", "r").limits(&slots).send();
            let mut tries = 0;
            while peek().await.unwrap().limits[0].available == MilliTokens::ZERO {
                tries += 1;
                assert!(tries < 1_000, "not settled: {framing}, delivery {delivery}");
                tokio::task::yield_now().await;
            }
        }
    }
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let stream = stream.to_be_bytes();
    [&length[1..], &[kind, flags], &stream, payload].concat()
}

/// Returns a list of headers, each as a literal.
fn headers(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = vec![];
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend(text.bytes());
        }
    }
    block
}

/// Returns a message with the bytes before it.
fn message(flag: u8, length: usize) -> Vec<u8> {
    let length = u32::try_from(length).unwrap().to_be_bytes();
    [&[flag], &length[..], MESSAGE].concat()
}

/// RateLimitRequest { domain: "edge", descriptors: [{ entries: [{ "tenant", "a" }] }] }
const MESSAGE: &[u8] = b"\x0a\x04edge\x12\x0d\x0a\x0b\x0a\x06tenant\x12\x01a";

/// Returns frames of a call behind the preface, and whether it is one that is decided.
fn calls() -> Vec<(Vec<Vec<u8>>, bool)> {
    let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let head = headers(&[
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "agent"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ]);
    let open = || frame(1, END_HEADERS, 1, &head);
    let data = |payload: &[u8]| frame(0, 0, 1, payload);
    let last = |payload: &[u8]| frame(0, END_STREAM, 1, payload);
    let whole = message(0, MESSAGE.len());
    let end = || last(&whole);
    let trailer = headers(&[("x-a", "b")]);
    let trailers = |flags| frame(1, flags, 1, &trailer);
    let reset = || frame(3, 0, 1, &[0, 0, 0, 8]);
    let long = headers(&[("x-long", &"x".repeat(120))]).repeat(300);
    let long = [&head[..], &long].concat()[..16_384].to_vec();
    let nothing = || vec![data(&[]); 500].concat();
    let padded = [&[3], &whole[..], &[0; 3]].concat();
    let mut all = vec![
        (vec![open(), end()], true),
        (vec![open(), nothing(), end()], true),
        (vec![open(), data(&whole[..7]), nothing(), last(&whole[7..])], true),
        (vec![open(), nothing()], false),
        (vec![open(), frame(0, END_STREAM | 8, 1, &padded)], true),
        (vec![open(), frame(0, 8, 1, &[2, 0, 0]), end()], true),
        (vec![open(), frame(0, 8, 1, &[9, 0])], false),
        (vec![open(), data(&whole), trailers(END_HEADERS | END_STREAM)], true),
        (vec![open(), trailers(END_HEADERS | END_STREAM)], false),
        (vec![open(), data(&whole), trailers(END_HEADERS)], false),
        (vec![frame(1, 0, 1, &head[..9])], false),
        (vec![frame(1, END_HEADERS, 1, &head[..9])], false),
        (vec![frame(1, END_HEADERS, 1, &long)], false),
        (vec![open(), last(&whole.repeat(2))], false),
        (vec![open(), data(&whole)], false),
        (vec![open(), data(&[0; 16_384]).repeat(6)], false),
        (vec![b"GET / HTTP/1.1\r\n\r\n".to_vec()], false),
        // Nothing is asked on these any more, so they may stay.
        (vec![open(), data(&whole), reset()], false),
        (vec![open(), reset(), end()], false),
        (vec![], false),
    ];
    for size in [1, 2, 5, 6, 13] {
        let parts = whole.chunks(size).map(data).chain([last(&[])]);
        all.push(([open()].into_iter().chain(parts).collect(), true));
    }
    for at in [1, 2, 10, head.len() - 1] {
        let parts = [frame(1, 0, 1, &head[..at]), frame(9, END_HEADERS, 1, &head[at..])];
        all.push((parts.into_iter().chain([end()]).collect(), true));
    }
    let n = MESSAGE.len();
    for (flag, length) in [(0, n - 1), (0, n + 1), (0, 0), (0, 4_000_000_000), (1, n), (255, n)] {
        let wrong = message(flag, length);
        all.push((vec![open(), last(&wrong)], false));
        all.push((vec![open(), data(&wrong)], false));
    }
    for at in 0..whole.len() {
        all.push((vec![open(), last(&whole[..at])], false));
        all.push((vec![open(), data(&whole[..at])], false));
    }
    // Other frames between those of a call: a ping, an unknown one, a priority, a window, settings.
    for other in [
        frame(6, 0, 0, &[0; 8]),
        frame(99, 255, 1, &[1, 2, 3]),
        frame(2, 0, 1, &[0, 0, 0, 0, 9]),
        frame(8, 0, 1, &[0, 0, 1, 0]),
        frame(4, 0, 0, &[0, 4, 0, 0, 255, 255]),
    ] {
        let first = data(&whole[..3]);
        all.push((vec![open(), other.clone(), first, other, last(&whole[3..])], true));
    }
    // A goodbye, a wrong ping and window, data of no stream and of an idle one, an even stream, wrong
    // settings, a window of nothing, a frame too large.
    for other in [
        frame(7, 0, 0, &[0; 8]),
        frame(6, 0, 0, &[0; 7]),
        frame(8, 0, 0, &[0; 4]),
        frame(0, 0, 0, &[1]),
        frame(0, 0, 7, &[1]),
        frame(1, END_HEADERS | END_STREAM, 2, &head),
        frame(4, 0, 0, &[0; 5]),
        frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]),
        vec![255, 255, 255, 0, 0, 0, 0, 0, 1],
    ] {
        all.push((vec![open(), other, end()], false));
    }
    all
}

/// Returns whether frames of an answer end a call, or the connection.
fn is_answered(mut bytes: &[u8]) -> bool {
    while let [a, b, c, kind, flags, ..] = *bytes {
        let length = usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap();
        let is_end = matches!(kind, 0 | 1) && flags & END_STREAM != 0;
        if is_end || kind == 3 || kind == 7 {
            return true;
        }
        bytes = bytes.get(9 + length..).unwrap_or_default();
    }
    false
}

async fn every_framing_of_a_call() -> usize {
    let rules = file(RULES);
    let rules = RulesSource::open(vec![rules.to_path_buf()]).unwrap();
    let service = RateLimitService::new(gated().await, rules, Options::default());
    let service = Arc::new(service);
    let settings = frame(4, 0, 0, &[]);
    let starts = [[PREFACE, &settings].concat(), PREFACE.to_vec(), PREFACE[..16].to_vec()];
    let mut count = 0;
    for (frames, is_whole) in calls() {
        for start in &starts {
            let all = [start, &frames.concat()[..]].concat();
            for (at, parts) in deliveries(start.len(), &all).into_iter().enumerate() {
                for after in [After::Waits, After::ClosesItsHalf] {
                    let case = format!("{frames:?} after {start:?}, delivery {at}, {after:?}");
                    let service = Arc::clone(&service);
                    let serve = async |clients: Clients, stream| {
                        rls::serve_in_memory(service, &clients, stream).await;
                    };
                    let answer = converse(serve, &parts, after).await;
                    let answer = answer.unwrap_or_else(|| panic!("neither answer nor end: {case}"));
                    if is_whole && after == After::Waits && *start == starts[0] {
                        assert!(is_answered(&answer), "{case}: {answer:?}");
                    }
                    count += 1;
                }
            }
        }
    }
    count
}

/// A loop that does not yield would stop the time too, so another thread looks at the clock.
fn within_time<F: Future<Output = usize> + 'static>(cases: fn() -> F) {
    let (done, is_done) = channel();
    std::thread::spawn(move || {
        done.send(weirgate_testkit::runtime().block_on(cases())).unwrap();
    });
    let count = is_done.recv_timeout(Duration::from_secs(300));
    let count = count.expect("all cases end, or one has failed above");
    assert!(count >= 500, "{count}");
}

#[test]
fn every_framing_of_a_body_ends_in_an_answer_or_a_closed_connection() {
    within_time(every_framing_of_http);
}

#[test]
fn every_framing_of_a_call_ends_in_an_answer_or_a_closed_connection() {
    within_time(every_framing_of_a_call);
}
