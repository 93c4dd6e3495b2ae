//! Requests framed in every way that HTTP/1.1 allows, and in ways that it does not, cut and ended
//! anywhere. In memory and in virtual time: each case takes as long as its parts need to be read.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader, duplex};
use tokio::time::{Instant, timeout};
use weirgate::{Decision, Limit, MilliTokens, RateLimiter};
use weirgate_agent::decide::Decider;
use weirgate_agent::http::{Api, Bounds, serve_in_memory};
use weirgate_agent::net::Clients;
use weirgate_testkit::Dynamo;

const TAKE: &str = r#"{"entity":"e","resource":"r","take":{"x":1},"limits":[{"name":"x","capacity_tokens":1000000,"refill_tokens":1000000,"refill_period_ms":60000}]}"#;

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Expected {
    /// It is whole, and is answered with this status.
    Answer(u16),
    /// It is refused, or its connection is closed.
    Refused,
    /// It is one request and the beginning of another.
    Answered,
}

/// What its sender does afterwards.
#[derive(Debug, Clone, Copy)]
enum After {
    Waits,
    ClosesItsHalf,
    Leaves,
}

fn chunks(body: &str, size: usize, number: impl Fn(usize) -> String) -> String {
    let parts = body.as_bytes().chunks(size);
    let parts = parts.map(|part| {
        let text = std::str::from_utf8(part).unwrap();
        format!("{}\r\n{text}\r\n", number(part.len()))
    });
    parts.collect()
}

/// How the size of a chunk is written.
type Size = fn(usize) -> String;
/// A name, fields of a head, bytes of a body, and what becomes of them.
type Framing = (String, String, String, Expected);

fn framings(body: &str, whole: u16) -> Vec<Framing> {
    use Expected::{Answer, Answered, Refused};
    let chunked = "transfer-encoding: chunked\r\n";
    let length = |number: usize| format!("content-length: {number}\r\n");
    let hex = |number: usize| format!("{number:x}");
    let n = body.len();
    let mut all = vec![];
    let mut add = |name: &str, fields: &str, sent: String, expected: Expected| {
        all.push((name.to_owned(), fields.to_owned(), sent, expected));
    };
    add("a length", &length(n), body.to_owned(), Answer(whole));
    for size in [1, 2, 7, n.div_ceil(2), n] {
        let sent = chunks(body, size, hex) + "0\r\n\r\n";
        add("chunks", chunked, sent, Answer(whole));
    }
    let odd: [(&str, Size); 4] = [
        ("capital digits", |number| format!("{number:X}")),
        ("leading zeros", |number| format!("000{number:x}")),
        ("an extension", |number| format!("{number:x};name=value")),
        ("a quoted extension", |number| {
            format!("{number:x};a=\"b;c\"")
        }),
    ];
    for (name, number) in odd {
        add(
            name,
            chunked,
            chunks(body, 16, number) + "0\r\n\r\n",
            Answer(whole),
        );
    }
    let whole_chunk = || chunks(body, n, hex);
    add(
        "trailers",
        chunked,
        whole_chunk() + "0\r\nx-a: b\r\nx-c: d\r\n\r\n",
        Answer(whole),
    );
    add(
        "a zero of many digits",
        chunked,
        whole_chunk() + "0000\r\n\r\n",
        Answer(whole),
    );
    add(
        "capitals",
        "Transfer-Encoding: CHUNKED\r\n",
        whole_chunk() + "0\r\n\r\n",
        Answer(whole),
    );
    add(
        "100-continue",
        &(length(n) + "expect: 100-continue\r\n"),
        body.to_owned(),
        Answer(whole),
    );
    let expects = format!("{chunked}expect: 100-continue\r\n");
    add(
        "100-continue, chunks",
        &expects,
        whole_chunk() + "0\r\n\r\n",
        Answer(whole),
    );
    // In two requests, or of two lengths.
    let next = "GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n";
    add(
        "another request behind",
        &length(n),
        format!("{body}{next}"),
        Answered,
    );
    add(
        "a request behind chunks",
        chunked,
        whole_chunk() + "0\r\n\r\n" + next,
        Answered,
    );
    add(
        "half of a request behind",
        &length(n),
        format!("{body}GET /healthz HT"),
        Answered,
    );
    add(
        "bytes behind",
        &length(n),
        format!("{body}\0\0\0"),
        Answered,
    );
    add(
        "blank lines behind",
        &length(n),
        format!("{body}\r\n\r\n\r\n"),
        Answered,
    );
    add(
        "a length and chunks",
        &(length(n) + chunked),
        whole_chunk() + "0\r\n\r\n",
        Answered,
    );
    add(
        "chunks and a length",
        &(chunked.to_owned() + &length(3)),
        whole_chunk() + "0\r\n\r\n",
        Answered,
    );
    add(
        "the same length twice",
        &(length(n) + &length(n)),
        body.to_owned(),
        Answered,
    );
    add(
        "two lengths",
        &(length(n) + &length(n + 1)),
        body.to_owned(),
        Refused,
    );
    add(
        "two lengths in a field",
        &format!("content-length: {n}, {n}\r\n"),
        body.to_owned(),
        Answered,
    );
    // What is no length.
    for wrong in [
        "-1",
        "+1",
        "1x",
        "",
        " ",
        "0x10",
        "1.0",
        "18446744073709551616",
        &"9".repeat(5_000),
    ] {
        let fields = format!("content-length: {wrong}\r\n");
        add("a wrong length", &fields, body.to_owned(), Refused);
    }
    // What is no chunk.
    for wrong in ["", "x", "-1", "0x1", " ", "fffffffffffffffff", "1 1"] {
        add(
            "a wrong chunk",
            chunked,
            format!("{wrong}\r\n{body}\r\n0\r\n\r\n"),
            Refused,
        );
    }
    for encoding in [
        "gzip",
        "identity",
        "gzip, chunked",
        "chunked, gzip",
        "chunked, chunked",
        "x",
        "",
    ] {
        let fields = format!("transfer-encoding: {encoding}\r\n");
        add("an encoding", &fields, whole_chunk() + "0\r\n\r\n", Refused);
    }
    // What has no end.
    add("no body", &length(n), String::new(), Refused);
    add(
        "half of a body",
        &length(n),
        body[..n / 2].to_owned(),
        Refused,
    );
    add(
        "a body less a byte",
        &length(n),
        body[..n - 1].to_owned(),
        Refused,
    );
    add("no last chunk", chunked, whole_chunk(), Refused);
    add(
        "half of a chunk",
        chunked,
        format!("{n:x}\r\n{}", &body[..n / 2]),
        Refused,
    );
    add(
        "half of a last chunk",
        chunked,
        whole_chunk() + "0\r\n",
        Refused,
    );
    add(
        "half of a trailer",
        chunked,
        whole_chunk() + "0\r\nx-a",
        Refused,
    );
    add(
        "no line behind a chunk",
        chunked,
        format!("{n:x}\r\n{body}0\r\n\r\n"),
        Refused,
    );
    add(
        "a body too large",
        &length(3_000_000),
        body.to_owned(),
        Refused,
    );
    let endless = "1\r\n \r\n".repeat(20_000);
    add("chunks of a byte", chunked, endless, Refused);
    add(
        "a long extension",
        chunked,
        format!("1;{}\r\n \r\n", "x".repeat(40_000)),
        Refused,
    );
    add(
        "a long trailer",
        chunked,
        whole_chunk() + "0\r\nx: " + &"x".repeat(40_000),
        Refused,
    );
    add(
        "a long head",
        &format!("x: {}\r\n", "x".repeat(40_000)),
        String::new(),
        Refused,
    );
    add("no end of a head", "x-half: ", String::new(), Refused);
    all
}

async fn decider() -> Arc<Decider> {
    let limiter = RateLimiter::builder("weirgate").table(Dynamo::new().await.table().await);
    Arc::new(Decider::new(limiter.build().await.unwrap(), 10))
}

fn api(decider: &Arc<Decider>) -> Arc<Api> {
    Arc::new(Api::new(Arc::clone(decider), None, Arc::default()))
}

fn deliveries<'a>(head: &'a str, body: &'a str, all: &'a str) -> Vec<Vec<&'a [u8]>> {
    let size = if all.len() > 2_000 { 977 } else { 1 };
    vec![
        vec![all.as_bytes()],
        all.as_bytes().chunks(size).collect(),
        vec![head.as_bytes(), body.as_bytes()],
    ]
}

/// Sends bytes, and returns all that is answered until the connection is closed, or `None` if it
/// stays open without an answer for a minute.
async fn converse(api: &Arc<Api>, parts: &[&[u8]], after: After) -> Option<Vec<u8>> {
    let (mut client, server) = duplex(64 * 1024);
    let clients = Clients::new(Bounds {
        max_connections: 1,
        grace: Duration::ZERO,
    });
    let serving = serve_in_memory(Arc::clone(api), &clients, BufReader::new(server));
    let asking = async move {
        let mut answer = vec![];
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
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let mut bytes = [0; 4096];
            match timeout(end - Instant::now(), client.read(&mut bytes)).await {
                Ok(Ok(0) | Err(_)) => return Some(answer),
                Ok(Ok(length)) => answer.extend_from_slice(&bytes[..length]),
                // Kept open behind an answer.
                Err(_) => return (!answer.is_empty()).then_some(answer),
            }
        }
    };
    tokio::pin!(serving, asking);
    tokio::select! {
        answer = &mut asking => match after {
            After::Leaves => timeout(Duration::from_secs(60), serving).await.ok().map(|()| vec![]),
            After::Waits | After::ClosesItsHalf => answer,
        },
        () = &mut serving => asking.await.or(Some(vec![])),
    }
}

fn statuses(answer: &[u8]) -> Vec<u16> {
    let text = String::from_utf8_lossy(answer);
    let lines = text.split("HTTP/1.").skip(1);
    let codes = lines.map(|line| line[2..5].parse().unwrap());
    codes.filter(|code| *code != 100).collect()
}

async fn every_framing() -> usize {
    let api = api(&decider().await);
    let mut count = 0;
    let settle = r#"{"grant":"none","end":"release"}"#;
    let paths = [
        ("POST /v1/acquire", TAKE, 200),
        ("POST /v1/settle", settle, 400),
        ("GET /healthz", TAKE, 200),
        ("PUT /other", TAKE, 404),
    ];
    for (line, body, whole) in paths {
        for (name, fields, sent, expected) in framings(body, whole) {
            let mut head = format!("{line} HTTP/1.1\r\nhost: a\r\n{fields}");
            if name != "no end of a head" {
                head += "\r\n";
            }
            let all = format!("{head}{sent}");
            for (at, parts) in deliveries(&head, &sent, &all).into_iter().enumerate() {
                for after in [After::Waits, After::ClosesItsHalf, After::Leaves] {
                    let case = format!("{line}, {name} {fields:.40?}, delivery {at}, {after:?}");
                    let answer = converse(&api, &parts, after).await;
                    let answer = answer.unwrap_or_else(|| panic!("neither answer nor end: {case}"));
                    count += 1;
                    if matches!(after, After::Leaves) {
                        continue;
                    }
                    let found = statuses(&answer);
                    match expected {
                        // What a client that has left would get is dropped, and no process can tell one
                        // that has closed its half from one that has left.
                        _ if matches!(after, After::ClosesItsHalf) && found.is_empty() => {}
                        Expected::Answer(status) => assert_eq!(found, [status], "{case}"),
                        Expected::Answered => assert!(!found.is_empty(), "{case}"),
                        // What needs no body is answered before it is seen to be wrong.
                        Expected::Refused if line != "POST /v1/acquire" => {}
                        Expected::Refused => {
                            assert!(
                                found.iter().all(|status| *status >= 400),
                                "{case}: {found:?}"
                            );
                        }
                    }
                }
            }
        }
    }
    count
}

#[tokio::test(start_paused = true)]
async fn a_settlement_that_came_whole_is_made_although_its_client_has_left() {
    let decider = decider().await;
    let api = api(&decider);
    let slots = [Limit::concurrent("slots", 1).unwrap()];
    // A client that is to be asked for its body cannot have sent it and left.
    let is_whole =
        |framing: &Framing| framing.3 == Expected::Answer(200) && !framing.1.contains("expect");
    let count = framings("{}", 200)
        .iter()
        .filter(|framing| is_whole(framing))
        .count();
    for framing in 0..count {
        for delivery in 0..3 {
            let request = decider
                .limiter
                .acquire("e", "r")
                .take("slots", 1)
                .limits(&slots);
            let granted = request
                .lease(Duration::from_secs(3_600))
                .send()
                .await
                .unwrap();
            let Decision::Granted(grant) = granted else {
                panic!("the slot is held after framing {framing}, delivery {delivery}");
            };
            let settle = json!({"grant": grant.into_token(), "end": "release"}).to_string();
            let mut whole = framings(&settle, 200);
            whole.retain(is_whole);
            let (name, fields, sent, _) = &whole[framing];
            let head = format!("POST /v1/settle HTTP/1.1\r\nhost: a\r\n{fields}\r\n");
            let all = format!("{head}{sent}");
            let parts = deliveries(&head, sent, &all).swap_remove(delivery);
            let ended = converse(&api, &parts, After::Leaves).await;
            assert!(ended.is_some(), "{name}, delivery {delivery}");
            let peek = || decider.limiter.peek("e", "r").limits(&slots).send();
            let mut tries = 0;
            while peek().await.unwrap().limits[0].available == MilliTokens::ZERO {
                tries += 1;
                assert!(tries < 1_000, "not settled: {name}, delivery {delivery}");
                tokio::task::yield_now().await;
            }
        }
    }
}

#[test]
fn every_framing_of_a_body_ends_in_an_answer_or_a_closed_connection() {
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
