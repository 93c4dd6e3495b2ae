//! More clients and requests than there is room for, and clients that are slow.

use std::io::Read;
use std::net::TcpStream;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::json;

use crate::fixtures::{Agent, Client};

const TAKE: &str = r#"{"entity": "e", "resource": "r", "take": {"rpm": 1}}"#;

#[test]
fn a_request_beyond_the_bound_is_refused_at_once_and_those_within_it_are_not() {
    let agent = Agent::new(&["--max-in-flight", "2"]);
    let slots = json!({"entity": "e", "resource": "r", "take": {"slots": 20}});
    let held = agent.acquire(&slots);
    let mut wait = slots.clone();
    wait["wait_ms"] = 60_000.into();
    let mut waiting = [agent.connect(), agent.connect()];
    for client in &mut waiting {
        client.write("POST", "/v1/acquire", &[], &wait.to_string());
    }
    agent.wait_for("weirgate_agent_in_flight", |number| number == 2.0);
    let refused = agent.connect().send("POST", "/v1/acquire", &[], TAKE);
    assert_eq!(
        (refused.status, refused.field("retry-after")),
        (503, "1"),
        "{refused:?}"
    );
    let problem = refused.json();
    assert_eq!(
        (&problem["applied"], &problem["retry"]),
        (&json!("no"), &json!(true))
    );
    assert!(
        problem["detail"]
            .as_str()
            .unwrap()
            .contains("2 requests are in flight"),
        "{problem}"
    );
    drop(waiting);
    agent.wait_for("weirgate_agent_in_flight", |number| number == 0.0);
    let dropped =
        "weirgate_agent_calls_total{protocol=\"http\",call=\"acquire\",outcome=\"dropped\"}";
    agent.wait_for(dropped, |number| number == 2.0);
    agent.settle(&json!({"grant": held["grant"], "end": "release"}));
}

#[test]
fn large_waiting_requests_are_bounded_and_small_ones_find_room() {
    let agent = Agent::new(&[]);
    let slots = json!({"entity": "e", "resource": "r", "take": {"slots": 20}});
    let held = agent.acquire(&slots);
    let mut wait = slots.clone();
    wait["wait_ms"] = 60_000.into();
    // 60 KiB, of which the first is free: 138 of them are 8 MiB.
    let large = format!("{:<61440}", wait.to_string());
    let mut waiting: Vec<Client> = (0..138).map(|_| agent.connect()).collect();
    for client in &mut waiting {
        client.write("POST", "/v1/acquire", &[], &large);
    }
    agent.wait_for("weirgate_agent_in_flight", |number| number == 138.0);
    let refused = agent.connect().send("POST", "/v1/acquire", &[], &large);
    assert_eq!(
        (refused.status, refused.field("retry-after")),
        (503, "1"),
        "{refused:?}"
    );
    let problem = refused.json();
    let detail = problem["detail"].as_str().unwrap();
    assert!(
        detail.contains("8192 KiB, the maximum") && detail.contains("run more agents"),
        "{problem}"
    );
    let small = agent.connect().send("POST", "/v1/acquire", &[], TAKE);
    assert_eq!(small.status, 200, "{small:?}");
    drop(waiting);
    agent.wait_for("weirgate_agent_in_flight", |number| number == 0.0);
    agent.settle(&json!({"grant": held["grant"], "end": "release"}));
}

#[test]
fn slow_clients_take_no_place_of_others() {
    let agent = Agent::new(&["--max-in-flight", "1"]);
    let mut slow: Vec<Client> = (0..50).map(|_| agent.connect()).collect();
    for (at, client) in slow.iter_mut().enumerate() {
        let head = b"POST /v1/acquire HTTP/1.1\r\nhost: agent\r\ncontent-length: 100\r\n\r\n{";
        // Half of them stop within the head, half within the body.
        client.write_raw(&head[..if at % 2 == 0 { 30 } else { head.len() }]);
    }
    let mut other = agent.connect();
    for _ in 0..20 {
        assert_eq!(other.send("POST", "/v1/acquire", &[], TAKE).status, 200);
    }
    // What was begun can still be finished, also after the connection gave its buffers back.
    agent.wait_for("weirgate_agent_connections", |number| number >= 51.0);
    let rest = format!("{}{}", &TAKE[1..], " ".repeat(100 - TAKE.len()));
    slow[1].write_raw(rest.as_bytes());
    assert_eq!(slow[1].read().unwrap().status, 200);
}

#[test]
fn a_connection_that_its_answer_closes_is_closed() {
    let agent = Agent::new(&[]);
    // A head that stops for longer than a connection keeps its buffers makes it the last one.
    let mut client = (0..50)
        .find_map(|_| {
            let mut client = agent.connect();
            let stream = client.0.get_ref().try_clone().unwrap();
            let wait = |ms| stream.set_read_timeout(Some(Duration::from_millis(ms)));
            client.write_raw(b"GET /healthz HTTP/1.1\r\nhost: agent\r\n");
            wait(100).unwrap();
            assert!(client.read().is_none(), "the head is incomplete");
            wait(30_000).unwrap();
            client.write_raw(b"\r\n");
            let answer = client.read().unwrap();
            assert_eq!(answer.status, 200, "{answer:?}");
            (answer.field("connection") == "close").then_some(client)
        })
        .expect("an answer that closes its connection");
    let end = client.0.get_mut().read(&mut [0]);
    assert_eq!(end.unwrap(), 0, "the end of the connection");
}

#[test]
fn bodies_that_arrive_slowly_give_way_to_those_that_arrive_at_once() {
    let agent = Agent::new(&[]);
    let part = format!(
        "POST /v1/settle HTTP/1.1\r\nhost: agent\r\ncontent-length: 2000000\r\n\r\n{}",
        " ".repeat(500_000)
    );
    // 24 MiB have room for 48 of them.
    let mut slow: Vec<Client> = (0..60).map(|_| agent.connect()).collect();
    for client in &mut slow {
        client.write_raw(part.as_bytes());
    }
    assert!(
        slow[0].read().is_none(),
        "it has been arriving for the longest time"
    );
    for _ in 0..20 {
        let body = format!("{TAKE}{}", " ".repeat(60_000));
        let answer = agent.connect().send("POST", "/v1/acquire", &[], &body);
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

#[test]
fn idle_connections_give_way_to_new_ones() {
    let agent = Agent::new(&["--max-connections", "200"]);
    let mut idle: Vec<Client> = (0..200).map(|_| agent.connect()).collect();
    let mut last = idle.pop().unwrap();
    assert_eq!(last.send("POST", "/v1/acquire", &[], TAKE).status, 200);
    for _ in 0..50 {
        assert_eq!(agent.get("/healthz").status, 200);
        assert_eq!(
            agent
                .connect()
                .send("POST", "/v1/acquire", &[], TAKE)
                .status,
            200
        );
    }
    assert_eq!(last.send("POST", "/v1/acquire", &[], TAKE).status, 200);
    let end = idle[0].0.get_mut().read(&mut [0]);
    assert!(
        !matches!(end, Ok(1..)),
        "the one that was idle for the longest time"
    );
}

#[test]
fn requests_that_wait_leave_room_for_health_and_settlements() {
    let agent = Agent::new(&["--max-connections", "8"]);
    let slots = json!({"entity": "e", "resource": "r", "take": {"slots": 20}});
    let held = agent.acquire(&slots);
    // All of them find slots once those are released.
    let wait = json!({"entity": "e", "resource": "r", "take": {"slots": 2}, "wait_ms": 60_000});
    let mut waiting: Vec<Client> = (0..6).map(|_| agent.connect()).collect();
    for client in &mut waiting {
        client.write("POST", "/v1/acquire", &[], &wait.to_string());
    }
    agent.wait_for("weirgate_agent_in_flight", |number| number == 6.0);
    for _ in 0..20 {
        let refused = agent.connect().send("POST", "/v1/acquire", &[], TAKE);
        assert_eq!(refused.status, 503, "{refused:?}");
        assert_eq!(agent.get("/healthz").status, 200);
    }
    agent.settle(&json!({"grant": held["grant"], "end": "release"}));
    for mut client in waiting {
        let answer = client.read().unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

/// How many idle connections are opened: `WEIRGATE_IDLE_CONNECTIONS`, or fewer by default.
fn idle_connections() -> usize {
    let variable = std::env::var("WEIRGATE_IDLE_CONNECTIONS");
    variable.map_or(3_000, |number| number.parse().expect("a number"))
}

#[test]
fn idle_connections_that_were_used_need_little_memory_and_go_on() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let agent = Agent::new(&[]);
    let count = idle_connections();
    agent.connect().send("POST", "/v1/acquire", &[], TAKE);
    let before = resident(&agent);
    let mut idle: Vec<Client> = (0..count)
        .map(|_| Client::to(TcpStream::connect(&agent.address).unwrap()))
        .collect();
    for client in &mut idle {
        assert_eq!(client.send("GET", "/healthz", &[], "").status, 200);
    }
    // Two buffers of 8 KiB each would be 16 KiB for a connection. The allocator keeps those of a
    // burst, which is longer on a busy machine.
    let most = before + 24_000 + count * 3;
    let mut now = resident(&agent);
    for _ in 0..20_000 {
        if now < most {
            break;
        }
        assert_eq!(agent.get("/healthz").status, 200);
        now = resident(&agent);
    }
    println!("{count} idle connections: {before} KiB before, {now} KiB");
    assert!(now < most, "{before} KiB before, {now} KiB");
    for client in &mut idle {
        assert_eq!(client.send("GET", "/healthz", &[], "").status, 200);
    }
}

/// Returns the resident memory of the agent, in KiB.
fn resident(agent: &Agent) -> usize {
    let status = format!("/proc/{}/status", agent.process.id());
    let status = std::fs::read_to_string(status).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let number = line.unwrap().split_whitespace().nth(1);
    number.unwrap().parse().unwrap()
}
