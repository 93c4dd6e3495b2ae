//! Requests and their answers, as a client sees them, and more of both than there is room for.

use std::io::{Read, Write};
use std::time::Duration;

use serde_json::json;
use weirgate::{AuditSubject, VendorCount};
use weirgate_agent::Token;
use weirgate_agent::gated::{Call, Outcome};
use weirgate_testkit::Fault;

use crate::fixtures::{Agent, Client, START, Serving, Settings};

const TAKE: &str = r#"{"entity": "e", "resource": "r", "take": {"rpm": 1}}"#;
/// Limits of one resource alone.
const OF_RESOURCE: &str = "weirgate: 1\nresources: {gpt-4: {limits: {rpm: {per_minute: 600}}}}\n";
/// An entity with slots, whose parent has none.
const OF_PARENTS: &str = "
weirgate: 1
entities:
  kid:
    parent: team
    limits:
      tpm: {per_minute: 100000}
      slots: {concurrent: 20}
  team:
    limits:
      tpm: {per_minute: 100000}
";
/// An entity without limits, whose parent has slots, and the parent of that tokens.
const OF_UNLIMITED: &str = "
weirgate: 1
entities:
  kid: {parent: team, status: unlimited}
  team:
    parent: org
    limits:
      slots: {concurrent: 20}
  org:
    limits:
      tpm: {per_minute: 100000}
";
const THROTTLE: Fault = Fault::Throttle { key_range: true };

/// Sends a request of the table; returns what its answer has.
fn ask(agent: &Agent, line: &str, (grant, kept): (&mut String, &str)) -> String {
    let (head, body) = line.split_at(line.find([' ', '{', '[']).map_or(line.len(), |_| {
        let begins = [" {", " ["].map(|begin| line.find(begin).unwrap_or(line.len()));
        begins[0].min(begins[1])
    }));
    let mut words = head.split(' ');
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    let fields: Vec<_> = words.map(|word| word.split_once('=').unwrap()).collect();
    let body = body.trim_start().replace("$grant", grant).replace("$kept", kept);
    let answer = agent.connect().send(method, path, &fields, &body);
    if let Some(given) = answer.body.starts_with('{').then(|| answer.json())
        && let Some(given) = given["grant"].as_str()
    {
        *grant = given.to_owned();
    }
    let fields = answer.fields.iter();
    let fields: String = fields.map(|(name, value)| format!("{name}: {value}\n")).collect();
    format!("{}\n{fields}\n{}", answer.status, answer.body)
}

#[test]
fn requests_are_answered_as_the_table_says() {
    for part in include_str!("requests.txt").split("\n## ").skip(1) {
        let (name, steps) = part.split_once('\n').unwrap();
        let has_token = name.ends_with("(token)");
        let settings = Settings {
            token: has_token.then(|| Token::new("s3cret").unwrap()),
            allows_limit_changes: name.ends_with("(limit changes)"),
            limiter: match name.ends_with("(following the vendor)") {
                true => |builder| builder.follow_vendor(VendorCount::Tokens, "tpm"),
                false => |builder| builder,
            },
            ..Settings::default()
        };
        let own = [
            ("(one resource)", OF_RESOURCE),
            ("(parents)", OF_PARENTS),
            ("(unlimited)", OF_UNLIMITED),
        ];
        let own = own.iter().find(|(what, _)| name.ends_with(what));
        let mut agent = match own {
            Some((_, limits)) => Agent::with_limits(settings, limits),
            None => Agent::with(settings),
        };
        let (mut grant, mut kept) = (String::new(), String::new());
        for step in steps.split("> ").skip(1) {
            let mut lines = step.lines().filter(|line| !line.is_empty());
            let line = lines.next().unwrap();
            let words: Vec<_> = line.split(' ').collect();
            match *words {
                ["restart"] => agent.restart(),
                ["without-database"] => agent.without_database(),
                ["keep"] => kept.clone_from(&grant),
                ["recover"] => agent.dynamo.fail_when(|_| None),
                [fault @ ("throttle" | "lose"), entity] => {
                    let fault = match fault {
                        "lose" => Fault::LoseRequest,
                        _ => THROTTLE,
                    };
                    let entity = format!("#{entity}#");
                    agent.dynamo.fail_when(move |request| {
                        request.to_string().contains(&entity).then_some(fault)
                    });
                }
                ["throttle-after", writes] => {
                    let mut left: u32 = writes.parse().unwrap();
                    agent.dynamo.fail_when(move |_| {
                        let is_over = left == 0;
                        left = left.saturating_sub(1);
                        is_over.then_some(THROTTLE)
                    });
                }
                ["left", entity, resource, limit, tokens] => {
                    let left = agent.balance(entity, resource, limit);
                    let expected: f64 = tokens.parse().unwrap();
                    assert!((left - expected).abs() < 0.4, "{name}: {line}, got {left}");
                }
                _ => {
                    let answer = ask(&agent, line, (&mut grant, &kept));
                    let status = lines.next().unwrap();
                    assert!(answer.starts_with(status), "{name}: {line}: {answer}");
                    for has in lines {
                        let is_there = match has.strip_prefix('!') {
                            None => answer.contains(has),
                            Some(lacks) => !answer.contains(lacks),
                        };
                        assert!(is_there, "{name}: {line}: {has:?} of {answer}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_header_of_a_vendor_has_at_most_8_kib() {
    let agent = Agent::new();
    agent.acquire(&serde_json::from_str(TAKE).unwrap());
    let report = |bytes: usize| {
        let headers = json!({"retry-after": ["1", "2"], "x": "x".repeat(bytes - 14)});
        let vendor = json!({"status": 429, "headers": headers});
        let report = json!({"entity": "e", "resource": "r", "vendor": vendor});
        agent.post("/v1/report", &report)
    };
    let most = report(8_192);
    assert_eq!(most.status, 200, "{most:?}");
    let refused = report(8_193);
    assert_eq!(refused.status, 400);
    assert_eq!(
        refused.json()["detail"],
        "vendor.headers must have at most 8192 bytes, got 8193: send only the fields of limits"
    );
}

#[test]
fn a_change_of_limits_has_an_event_with_its_author() {
    let agent = Agent::with(Settings {
        allows_limit_changes: true,
        limiter: |builder| builder.owner("portal"),
        ..Settings::default()
    });
    let level = json!({"level": "entity", "entity": "e"});
    let limits = json!([{"name": "rpm", "capacity_tokens": 9, "refill_tokens": 9, "refill_period_ms": 60_000}]);
    let set = json!({"level": level, "limits": limits, "author": "alice"});
    let delete = json!({"level": level});
    for (path, request) in [("/v1/limits/set", &set), ("/v1/limits/delete", &delete)] {
        // The second one changes nothing, so it has no event.
        for changed in [true, false] {
            let answer = agent.post(path, request);
            assert_eq!(answer.json()["changed"], changed, "{answer:?}");
        }
        agent.advance(Duration::from_millis(5));
    }
    let admin = agent.gated.limiter.admin();
    let subject = AuditSubject::Entity("e".try_into().unwrap());
    let events = agent.runtime.block_on(admin.audit(&subject, None)).unwrap().items;
    let mut authors: Vec<_> = events.into_iter().map(|event| event.principal).collect();
    authors.sort();
    assert_eq!(authors, ["portal", "portal/alice"]);
}

fn slots(number: u32) -> serde_json::Value {
    json!({"entity": "e", "resource": "r", "take": {"slots": number}})
}

/// Opens connections that wait for slots with requests of so many bytes.
fn waiting(agent: &Agent, number: u32, bytes: usize) -> Vec<Client> {
    let mut wait = slots(20);
    wait["wait_ms"] = 60_000.into();
    let body = format!("{:<bytes$}", wait.to_string());
    let clients = (0..number).map(|_| {
        let mut client = agent.connect();
        client.write("POST", "/v1/acquire", &[], &body);
        client
    });
    let clients = clients.collect();
    agent.wait_for("weirgate_agent_in_flight", |found| found == f64::from(number));
    clients
}

#[test]
fn requests_beyond_the_bounds_are_refused_at_once_and_what_those_that_leave_took_returns() {
    // 60 KiB, of which the first is free: 138 of them are 8 MiB.
    for (max, number, bytes, says) in
        [(2, 2, 100, "2 requests are in flight"), (4096, 138, 61_440, "8192 KiB, the maximum")]
    {
        let agent = Agent::with(Settings { max_in_flight: max, ..Settings::default() });
        let held = agent.acquire(&slots(20));
        let clients = waiting(&agent, number, bytes);
        let body = format!("{TAKE:<bytes$}");
        let refused = agent.connect().send("POST", "/v1/acquire", &[], &body);
        assert_eq!(refused.applied(), (503, json!("no")), "{refused:?}");
        assert_eq!(refused.field("retry-after"), "1");
        assert!(refused.body.contains(says), "{refused:?}");
        assert_eq!(refused.json()["retry"], true, "{refused:?}");
        if max > number {
            let small = agent.connect().send("POST", "/v1/acquire", &[], TAKE);
            assert_eq!(small.status, 200, "{small:?}");
        }
        drop(clients);
        agent.wait_for("weirgate_agent_in_flight", |found| found == 0.0);
        let dropped =
            "weirgate_agent_calls_total{protocol=\"http\",call=\"acquire\",outcome=\"dropped\"}";
        assert_eq!(agent.metric(dropped), f64::from(number));
        agent.settle(&json!({"grant": held["grant"], "end": "release"}));
        agent.acquire(&slots(20));
    }
}

#[test]
fn limits_can_be_changed_while_all_places_are_of_requests_that_wait() {
    let agent = Agent::with(Settings {
        max_in_flight: 2,
        allows_limit_changes: true,
        ..Settings::default()
    });
    agent.acquire(&slots(20));
    let _clients = waiting(&agent, 2, 100);
    let level = json!({"level": "entity", "entity": "e"});
    let limits = json!([{"name": "slots", "slots": 40}]);
    let set = agent.post("/v1/limits/set", &json!({"level": level, "limits": limits}));
    assert_eq!(set.status, 200, "{set:?}");
    let deleted = agent.post("/v1/limits/delete", &json!({"level": level}));
    assert_eq!(deleted.status, 200, "{deleted:?}");
}

/// A settlement in flight may be applied after its answer.
#[test]
fn the_answer_to_a_settlement_that_the_agents_end_drops_asks_for_no_repetition() {
    let agent = Agent::with(Settings { grace: Duration::from_secs(1), ..Settings::default() });
    let grants: Vec<_> = (0..16).map(|_| agent.acquire(&slots(1))["grant"].clone()).collect();
    agent.dynamo.stall_when(|operation, _| operation == "UpdateItem");
    let settle = |grant: &serde_json::Value| {
        let mut client = agent.connect();
        let settle = json!({"grant": grant, "end": "release"}).to_string();
        client.write("POST", "/v1/settle", &[], &settle);
        client
    };
    let clients: Vec<_> = grants.iter().map(settle).collect();
    while agent.gated.settling.in_flight() < 16 {
        agent.runtime.block_on(tokio::task::yield_now());
    }
    agent.runtime.block_on(agent.clients.end());
    for mut client in clients {
        if let Some(answer) = client.read() {
            assert_eq!(answer.applied(), (503, json!("unknown")), "{answer:?}");
            assert_eq!(answer.json()["retry"], false, "{answer:?}");
        }
    }
}

/// Nothing of a table that answers no read was changed.
#[test]
fn a_read_without_an_answer_has_changed_nothing_and_may_be_repeated() {
    let mut agent = Agent::with(Settings { allows_limit_changes: true, ..Settings::default() });
    agent.acquire(&serde_json::from_str(TAKE).unwrap());
    let reads = |operation: &str| ["BatchGetItem", "GetItem", "Query", "Scan"].contains(&operation);
    for is_lost in [false, true] {
        agent.restart();
        match is_lost {
            true => {
                agent.dynamo.stall_when(|_, _| false);
                agent.dynamo.fail_reads(|_, _| Some(Fault::LoseRequest));
            }
            false => agent.dynamo.stall_when(move |operation, _| reads(operation)),
        }
        let (level, e) = (json!({"level": "entity", "entity": "e"}), "e");
        let day = 86_400_000;
        for (path, body) in [
            ("/v1/acquire", serde_json::from_str(TAKE).unwrap()),
            ("/v1/peek", json!({"entity": e, "resource": "r"})),
            (
                "/v1/usage",
                json!({"scope": {"entity": e}, "by": "day", "from_ms": START.0 / day * day, "to_ms": START.0 / day * day + day}),
            ),
            ("/v1/limits", json!({"entity": e, "resource": "r"})),
            ("/v1/limits/delete", json!({"level": level})),
        ] {
            let answer = agent.post(path, &body);
            assert_eq!(answer.applied(), (503, json!("no")), "{path}: {answer:?}");
            assert_eq!(answer.json()["retry"], true, "{path}: {answer:?}");
        }
    }
}

#[test]
fn the_head_of_an_answer_has_a_bound_however_many_limits_there_are() {
    let limits: Vec<_> = (0..10)
        .map(|at| format!("limit-with-a-name-{at}: {{per_minute: {}}}", 1_000 - at))
        .collect();
    let limits = format!("weirgate: 1\nsystem: {{limits: {{{}}}}}\n", limits.join(", "));
    let agent = Agent::with_limits(Settings::default(), &limits);
    let bucket = |at: usize| json!({"entity": format!("entity-{at}"), "resource": "r", "take": {"limit-with-a-name-0": 1 + at}});
    let buckets: Vec<_> = (0..100).map(bucket).collect();
    let answer = agent.post("/v1/acquire", &json!({"buckets": buckets}));
    assert_eq!(answer.status, 200, "{answer:?}");
    for name in ["ratelimit-policy", "ratelimit"] {
        let field = answer.field(name);
        assert!((4_096..=8_192).contains(&field.len()), "{name}: {field}");
        let first = field.split(';').next().unwrap();
        assert_eq!(first, "\"limit-with-a-name-0#100\"", "it is the strictest");
    }
    let (limits, grant) = (&answer.json()["limits"], &answer.json()["grant"]);
    assert_eq!(limits.as_array().unwrap().len(), 1_000);
    agent.settle(&json!({"grant": grant, "end": "release"}));
}

/// The report beside a settlement meets a table that does not answer it.
#[test]
fn a_settlement_does_not_wait_longer_than_the_timeout_for_the_report_beside_it() {
    let agent = Agent::with(Settings {
        limiter: |builder| builder.timeout(Duration::from_secs(2)),
        ..Settings::default()
    });
    let granted = agent.acquire(&slots(20));
    agent.dynamo.stall_when(|_, request| request.to_string().contains("\"pz\""));
    let begun = agent.runtime.block_on(async { tokio::time::Instant::now() });
    let vendor = json!({"status": 429, "headers": {"retry-after": "20"}});
    let settle = json!({"grant": granted["grant"], "vendor": vendor, "end": "release"});
    let settled = agent.settle(&settle);
    assert_eq!(settled["settlement"], "settled", "{settled}");
    assert_eq!(settled["paused_until_ms"], json!(null), "{settled}");
    let lasted = agent.runtime.block_on(async { begun.elapsed() });
    assert!(lasted <= Duration::from_secs(2), "{lasted:?}");
    agent.dynamo.stall_when(|_, _| false);
    agent.acquire(&slots(20));
}

/// A request in the line has its place as one that waits.
#[test]
fn requests_that_queue_are_in_flight_until_their_start_and_those_that_leave_free_their_place() {
    let agent = Agent::with(Settings { max_in_flight: 2, ..Settings::default() });
    let queues = |answer: &str| json!({"entity": "e", "resource": "r", "take": {"rpm": 100}, "queue_ms": 60_000, "answer": answer});
    agent.acquire(&json!({"entity": "e", "resource": "r", "take": {"rpm": 600}}));
    let clients: Vec<_> = (0..2)
        .map(|_| {
            let mut client = agent.connect();
            client.write("POST", "/v1/acquire", &[], &queues("start").to_string());
            client
        })
        .collect();
    agent.wait_for("weirgate_agent_in_flight", |found| found == 2.0);
    let refused = agent.post("/v1/acquire", &queues("now"));
    assert_eq!(refused.applied(), (503, json!("no")), "{refused:?}");
    drop(clients);
    agent.wait_for("weirgate_agent_in_flight", |found| found == 0.0);
    // What they took returns in the background: in a second, 10 of 200 would refill.
    for _ in 0..1_000 {
        if agent.balance("e", "r", "rpm") >= 0.0 {
            break;
        }
        agent.advance(Duration::from_millis(1));
    }
    // Behind both it would start 30 s after the beginning.
    let next = agent.acquire(&queues("now"));
    let starts_at = next["starts_at_ms"].as_i64().unwrap();
    assert!(starts_at < START.0 + 20_000, "{next}");
}

/// The table answers after 200 ms, and applies a write after half of them.
#[test]
fn what_a_request_took_that_ends_before_its_answer_has_returned_when_the_agent_ends() {
    for is_agents_end in [false, true] {
        let agent =
            Agent::with(Settings { latency: Duration::from_millis(200), ..Settings::default() });
        let mut client = agent.connect();
        client.write("POST", "/v1/acquire", &[], &slots(4).to_string());
        let left = || {
            let item = agent.dynamo.item("default/BUCKET#e#r#0", "#STATE");
            item["b_slots_tk"]["N"].as_str().map(str::to_owned)
        };
        for _ in 0..1_000 {
            if left().as_deref() == Some("16000") {
                break;
            }
            agent.advance(Duration::from_millis(5));
        }
        assert_eq!(left().as_deref(), Some("16000"), "it is applied, not answered");
        if is_agents_end {
            agent.runtime.block_on(agent.clients.end());
        }
        drop(client);
        while agent.gated.gate.in_flight() > 0 {
            agent.advance(Duration::from_millis(1));
        }
        let outcomes = agent.gated.measures.read(Call::Acquire).outcomes;
        assert!(outcomes.contains(&(Outcome::Dropped, 1)), "{outcomes:?}");
        agent.runtime.block_on(agent.gated.limiter.shutdown()).unwrap();
        assert_eq!(left().as_deref(), Some("20000"));
    }
}

#[test]
fn the_grant_of_the_largest_request_can_be_settled() {
    let agent = Agent::new();
    let names: Vec<_> = ('a'..='t').map(String::from).collect();
    let limits: Vec<_> = names.iter().map(|name| json!({"name": name, "slots": 9})).collect();
    let take: serde_json::Map<_, _> = names.iter().map(|name| (name.clone(), 1.into())).collect();
    let bucket = |at: usize| json!({"entity": at.to_string(), "resource": "r", "limits": limits, "take": take});
    let buckets: Vec<_> = (0..100).map(bucket).collect();
    let request = json!({"buckets": buckets, "wait_ms": 0});
    let length = request.to_string().len();
    assert!((60_000..=65_536).contains(&length), "{length}");
    let granted = agent.acquire(&request);
    assert!(granted["grant"].as_str().unwrap().len() > 65_536);
    let released = agent.settle(&json!({"grant": granted["grant"], "end": "release"}));
    assert_eq!(released["settlement"], "settled", "{released}");
}

#[test]
fn a_large_or_deep_body_is_refused_and_the_next_request_is_answered() {
    let agent = Agent::new();
    let send = |path: &str, body: &str| agent.connect().send("POST", path, &[], body);
    for (path, most) in [("/v1/acquire", 65_536), ("/v1/settle", 2_097_152)] {
        for bytes in [most + 1, 10_000_000] {
            let answer = send(path, &format!("{TAKE}{}", " ".repeat(bytes - TAKE.len())));
            assert_eq!(answer.status, 413, "{answer:?}");
            let says = format!("at most {most} bytes, got {bytes}");
            assert!(answer.body.contains(&says), "{answer:?}");
        }
    }
    assert_eq!(send("/v1/acquire", &format!("{TAKE:<65000}")).status, 200);
    for deep in ["{\"take\":".to_owned() + &"[".repeat(60_000), "[".repeat(60_000)] {
        assert_eq!(send("/v1/acquire", &deep).status, 400);
    }
    // Of a length that is not announced, and that ends nowhere.
    let mut endless = agent.connect();
    endless.write_raw(
        b"POST /v1/acquire HTTP/1.1\r\nhost: agent\r\ntransfer-encoding: chunked\r\n\r\n",
    );
    let chunk = [b"10000\r\n".to_vec(), vec![b' '; 0x10000], b"\r\n".to_vec()].concat();
    let stream = endless.0.get_mut();
    while stream.write_all(&chunk).is_ok() {}
    assert_eq!(send("/v1/acquire", TAKE).status, 200);
}

#[test]
fn slow_clients_take_no_place_of_others() {
    let agent = Agent::with(Settings { max_in_flight: 1, ..Settings::default() });
    let head = b"POST /v1/acquire HTTP/1.1\r\nhost: agent\r\ncontent-length: 100\r\n\r\n{";
    let mut slow: Vec<Client> = (0..50).map(|_| agent.connect()).collect();
    for (at, client) in slow.iter_mut().enumerate() {
        // Half of them stop within the head, half within the body.
        client.write_raw(&head[..if at % 2 == 0 { 30 } else { head.len() }]);
    }
    let mut other = agent.connect();
    for _ in 0..20 {
        assert_eq!(other.send("POST", "/v1/acquire", &[], TAKE).status, 200);
    }
    // What was begun can still be finished, also after the connection gave its buffers back.
    agent.advance(Duration::from_secs(3));
    let rest = format!("{:<99}", &TAKE[1..]);
    for (at, begun) in [(0, 30), (1, head.len())] {
        slow[at].write_raw(&[&head[begun..], rest.as_bytes()].concat());
        assert_eq!(slow[at].read().unwrap().status, 200);
    }
    agent.advance(Duration::from_secs(30));
    assert!(slow[2].read().is_none(), "its head took too long");
    assert_eq!(slow[3].read().unwrap().status, 408, "its body took too long");
    assert_eq!(other.send("POST", "/v1/acquire", &[], TAKE).status, 200);
}

#[test]
fn bodies_that_arrive_slowly_give_way_to_those_that_arrive_at_once() {
    let agent = Agent::new();
    let part = format!(
        "POST /v1/settle HTTP/1.1\r\nhost: agent\r\ncontent-length: 2000000\r\n\r\n{}",
        " ".repeat(500_000)
    );
    // 24 MiB have room for 48 of them.
    let mut slow: Vec<Client> = (0..60).map(|_| agent.connect()).collect();
    for client in &mut slow {
        client.write_raw(part.as_bytes());
    }
    assert!(slow[0].read().is_none(), "it has been arriving longest");
    for _ in 0..20 {
        let body = format!("{TAKE:<60000}");
        let answer = agent.connect().send("POST", "/v1/acquire", &[], &body);
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

#[test]
fn idle_connections_give_way_to_new_ones() {
    let agent = Agent::with(Settings { max_connections: 200, ..Settings::default() });
    let mut idle: Vec<Client> = (0..200).map(|_| agent.connect()).collect();
    let mut last = idle.pop().unwrap();
    assert_eq!(last.send("POST", "/v1/acquire", &[], TAKE).status, 200);
    for _ in 0..50 {
        assert_eq!(agent.get("/healthz").status, 200);
    }
    assert_eq!(last.send("POST", "/v1/acquire", &[], TAKE).status, 200);
    let end = idle[0].0.get_mut().read(&mut [0]);
    assert!(!matches!(end, Ok(1..)), "it was idle for the longest time");
    // An hour without a request ends a connection.
    agent.advance(Duration::from_secs(3_599));
    assert_eq!(last.send("POST", "/v1/acquire", &[], TAKE).status, 200);
    agent.advance(Duration::from_secs(3_601));
    assert!(matches!(last.0.get_mut().read(&mut [0]), Ok(0) | Err(_)));
}
