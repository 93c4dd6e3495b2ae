//! Calls framed in every way that HTTP/2 allows, and in ways that it does not. In memory and in
//! virtual time.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader, duplex};
use tokio::time::{Instant, timeout};
use weirgate::RateLimiter;
use weirgate_agent::decide::Decider;
use weirgate_agent::net::{Bounds, Clients};
use weirgate_agent::rls::{Options, RateLimitService, serve_in_memory};
use weirgate_agent::rules::RulesSource;
use weirgate_testkit::Dynamo;

use crate::fixture::{RULES, file};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
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

fn head() -> Vec<u8> {
    headers(&[
        (":method", "POST"),
        (":scheme", "http"),
        (
            ":path",
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        ),
        (":authority", "agent"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ])
}

/// RateLimitRequest { domain: "edge", descriptors: [{ entries: [{ "tenant", "a" }] }] }
const MESSAGE: &[u8] = b"\x0a\x04edge\x12\x0d\x0a\x0b\x0a\x06tenant\x12\x01a";

/// Returns a message with the bytes before it.
fn message(flag: u8, length: usize, bytes: &[u8]) -> Vec<u8> {
    let mut all = vec![flag];
    all.extend(u32::try_from(length).unwrap().to_be_bytes());
    all.extend(bytes);
    all
}

/// Returns names, frames of a call, and whether it is one that is decided.
fn framings() -> Vec<(String, Vec<u8>, bool)> {
    let whole = message(0, MESSAGE.len(), MESSAGE);
    let opened = frame(HEADERS, END_HEADERS, 1, &head());
    let data = |flags: u8, payload: &[u8]| frame(DATA, flags, 1, payload);
    let join = |parts: &[Vec<u8>]| [std::slice::from_ref(&opened), parts].concat().concat();
    let mut all = vec![];
    let mut add = |name: &str, bytes: Vec<u8>, is_whole: bool| {
        all.push((name.to_owned(), bytes, is_whole));
    };
    add("one frame", join(&[data(END_STREAM, &whole)]), true);
    for size in [1, 2, 5, 6, 13] {
        let mut parts: Vec<_> = whole.chunks(size).map(|part| data(0, part)).collect();
        parts.push(data(END_STREAM, &[]));
        add("frames", join(&parts), true);
    }
    let end = || data(END_STREAM, &whole);
    let empty = || vec![data(0, &[]); 500].concat();
    add("empty frames before", join(&[empty(), end()]), true);
    add("empty frames", join(&[empty()]), false);
    add(
        "empty frames between",
        join(&[data(0, &whole[..7]), empty(), data(END_STREAM, &whole[7..])]),
        true,
    );
    let padded = [&[3], &whole[..], &[0; 3]].concat();
    add(
        "padding",
        join(&[frame(DATA, END_STREAM | PADDED, 1, &padded)]),
        true,
    );
    add(
        "only padding",
        join(&[frame(DATA, PADDED, 1, &[2, 0, 0]), end()]),
        true,
    );
    add(
        "too much padding",
        join(&[frame(DATA, PADDED, 1, &[9, 0])]),
        false,
    );
    let trailers = frame(
        HEADERS,
        END_HEADERS | END_STREAM,
        1,
        &headers(&[("x-a", "b")]),
    );
    add("trailers", join(&[data(0, &whole), trailers.clone()]), true);
    add("trailers alone", join(&[trailers]), false);
    let open_trailers = frame(HEADERS, END_HEADERS, 1, &headers(&[("x-a", "b")]));
    add(
        "trailers without an end",
        join(&[data(0, &whole), open_trailers]),
        false,
    );
    for at in [1, 2, 10, head().len() - 1] {
        let block = head();
        let parts = [
            frame(HEADERS, 0, 1, &block[..at]),
            frame(CONTINUATION, END_HEADERS, 1, &block[at..]),
            end(),
        ];
        add("a head in parts", parts.concat(), true);
    }
    add("half of a head", frame(HEADERS, 0, 1, &head()[..9]), false);
    add(
        "a head without a name",
        frame(HEADERS, END_HEADERS, 1, &head()[..9]),
        false,
    );
    let long = headers(&[("x-long", &"x".repeat(120))]).repeat(300);
    let long = frame(HEADERS, END_HEADERS, 1, &[head(), long].concat()[..16_384]);
    add("a head too long", long, false);
    // What the bytes before a message say.
    for (name, flag, length) in [
        ("a length too short", 0, MESSAGE.len() - 1),
        ("a length too long", 0, MESSAGE.len() + 1),
        ("no length", 0, 0),
        ("a huge length", 0, 4_000_000_000),
        ("compression", 1, MESSAGE.len()),
        ("an unknown flag", 255, MESSAGE.len()),
    ] {
        add(
            name,
            join(&[data(END_STREAM, &message(flag, length, MESSAGE))]),
            false,
        );
        add(
            name,
            join(&[data(0, &message(flag, length, MESSAGE))]),
            false,
        );
    }
    add(
        "two messages",
        join(&[data(END_STREAM, &[whole.clone(), whole.clone()].concat())]),
        false,
    );
    for at in 0..whole.len() {
        add(
            "a message cut",
            join(&[data(END_STREAM, &whole[..at])]),
            false,
        );
        add(
            "a message that stops",
            join(&[data(0, &whole[..at])]),
            false,
        );
    }
    add("a message without an end", join(&[data(0, &whole)]), false);
    let large = data(0, &[0; 16_384]).repeat(3);
    add(
        "a message beyond its window",
        join(&[large.repeat(2)]),
        false,
    );
    add(
        "a message reset",
        join(&[data(0, &whole), frame(RST_STREAM, 0, 1, &[0, 0, 0, 8])]),
        false,
    );
    add(
        "a call reset",
        join(&[frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]), end()]),
        false,
    );
    // Other frames between those of a call.
    for (name, other) in [
        ("a ping", frame(PING, 0, 0, &[0; 8])),
        ("an unknown frame", frame(99, 255, 1, &[1, 2, 3])),
        ("a priority", frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 9])),
        ("a window", frame(WINDOW_UPDATE, 0, 1, &[0, 0, 1, 0])),
        ("settings", frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 255, 255])),
    ] {
        add(
            name,
            join(&[
                other.clone(),
                data(0, &whole[..3]),
                other,
                data(END_STREAM, &whole[3..]),
            ]),
            true,
        );
    }
    for (name, other) in [
        ("a goodbye", frame(GOAWAY, 0, 0, &[0; 8])),
        ("a wrong ping", frame(PING, 0, 0, &[0; 7])),
        ("a wrong window", frame(WINDOW_UPDATE, 0, 0, &[0; 4])),
        ("data of no stream", frame(DATA, 0, 0, &[1])),
        ("data of an idle stream", frame(DATA, 0, 7, &[1])),
        (
            "an even stream",
            frame(HEADERS, END_HEADERS | END_STREAM, 2, &head()),
        ),
        ("settings that are wrong", frame(SETTINGS, 0, 0, &[0; 5])),
        (
            "a window of nothing",
            frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]),
        ),
        (
            "a frame too large",
            vec![255, 255, 255, DATA, 0, 0, 0, 0, 1],
        ),
    ] {
        add(name, join(&[other, end()]), false);
    }
    add("no frame", vec![], false);
    add(
        "another protocol",
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        false,
    );
    all
}

/// What a client sees of a call.
#[derive(Debug, Default)]
struct Seen {
    is_answered: bool,
    is_closed: bool,
}

async fn converse(service: Arc<RateLimitService>, parts: Vec<Vec<u8>>, is_closed: bool) -> Seen {
    let (mut client, server) = duplex(256 * 1024);
    let clients = Clients::new(Bounds {
        max_connections: 1,
        grace: Duration::ZERO,
    });
    let serving = serve_in_memory(service, &clients, BufReader::new(server));
    let asking = async move {
        for part in parts {
            if client.write_all(&part).await.is_err() {
                break;
            }
            tokio::task::yield_now().await;
        }
        if is_closed {
            let _ = client.shutdown().await;
        }
        let mut seen = Seen::default();
        // Longer than a silent connection is kept.
        let end = Instant::now() + Duration::from_secs(120);
        loop {
            let mut head = [0; 9];
            match timeout(end - Instant::now(), client.read_exact(&mut head)).await {
                Ok(Ok(_)) => {}
                Ok(Err(_)) => {
                    seen.is_closed = true;
                    return seen;
                }
                Err(_) => return seen,
            }
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; usize::try_from(length).unwrap()];
            if client.read_exact(&mut payload).await.is_err() {
                seen.is_closed = true;
                return seen;
            }
            let [kind, flags] = [head[3], head[4]];
            let is_end = matches!(kind, HEADERS | DATA) && flags & END_STREAM != 0;
            if is_end || kind == RST_STREAM || kind == GOAWAY {
                seen.is_answered = true;
                return seen;
            }
            if kind == PING && flags == 0 && !is_closed {
                // It asks whether the client is alive.
                let _ = client.write_all(&frame(PING, 1, 0, &payload)).await;
            }
        }
    };
    tokio::pin!(serving, asking);
    tokio::select! {
        seen = &mut asking => seen,
        () = serving => asking.await,
    }
}

async fn every_framing() -> usize {
    let rules = RulesSource::open(vec![file(RULES)]).unwrap();
    let table = Dynamo::new().await.table().await;
    let limiter = RateLimiter::builder("weirgate")
        .table(table)
        .build()
        .await
        .unwrap();
    let decider = Arc::new(Decider::new(limiter, 10));
    let service = Arc::new(RateLimitService::new(decider, rules, Options::default()));
    let mut count = 0;
    for (name, sent, is_whole) in framings() {
        let settings = frame(SETTINGS, 0, 0, &[]);
        for has_settings in [true, false] {
            let start = match has_settings {
                true => [PREFACE, &settings].concat(),
                false => PREFACE.to_vec(),
            };
            let all = [start.clone(), sent.clone()].concat();
            let bytes: Vec<_> = all
                .chunks(1 + all.len() / 2_000)
                .map(<[u8]>::to_vec)
                .collect();
            let deliveries = [vec![all], bytes, vec![start, sent.clone()]];
            for (at, parts) in deliveries.into_iter().enumerate() {
                for is_closed in [false, true] {
                    let seen = converse(Arc::clone(&service), parts.clone(), is_closed).await;
                    let case = format!(
                        "{name}, settings {has_settings}, delivery {at}, closed {is_closed}"
                    );
                    let is_done = seen.is_answered || seen.is_closed;
                    // Nothing is asked on it any more, so it may stay.
                    let is_idle = name == "no frame" || name.ends_with("reset");
                    assert!(is_done || is_idle, "neither answer nor end: {case}");
                    if is_whole && !is_closed && has_settings {
                        assert!(seen.is_answered, "{case}: {seen:?}");
                    }
                    count += 1;
                }
            }
        }
    }
    count
}

#[test]
fn every_framing_of_a_call_ends_in_an_answer_or_a_closed_connection() {
    // A loop that does not yield would stop the time too, so another thread looks at the clock.
    let (done, is_done) = channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        done.send(runtime.block_on(every_framing())).unwrap();
    });
    let count = is_done.recv_timeout(Duration::from_secs(300));
    let count = count.expect("all cases end, or one has failed above");
    println!("{count} framings");
    assert!(count >= 500, "{count}");
}
