use std::process::Stdio;

use futures_util::future::join_all;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use weirgate::{EpochMillis, FakeClock, SystemClock};
use weirgate_store::{MemoryTable, RedisOptions};
use weirgate_testkit::heat::Functions;
use weirgate_testkit::policy::{Policy, enforce};
use weirgate_testkit::server::{free_port, serve};
use weirgate_testkit::shape;
use weirgate_testkit::{Dynamo, Fault, Limits, Partitions, RedisCluster, RedisServer};

use super::contract::REFUSED;
use super::*;

/// Processes of moto side by side.
const MOTOS: usize = 3;
const SECOND: Duration = Duration::from_secs(1);
/// What the embedded database takes, and DynamoDB refuses.
const TAKEN: [&str; 3] = [
    "an index's partition key of 2,049 bytes",
    "an index's sort key of 1,025 bytes",
    "301 operators and functions",
];

/// On partitions that throttle, which no emulator has.
#[tokio::test(start_paused = true)]
async fn a_throttled_key_is_split_and_its_usage_is_exact() {
    const UNITS: u32 = 200;
    let clock = FakeClock::at(EpochMillis(1_795_198_200_000));
    let dynamo = Dynamo::new().await.with_clock(clock.clone());
    let limits = Limits { units_per_second: UNITS, burst: UNITS, ..Limits::default() };
    let partitions = Partitions::over(dynamo.clone(), limits, 1);
    let table = partitions.table().await;
    let mut functions = Functions::new(table.clone(), dynamo, clock, UNITS);
    let namespace = Namespace::new("acceptance-1").expect("a name");
    let here =
        Backend { functions: Some(Deployed::local()), ..Backend::new(table, namespace, vec![]) };
    let aggregator = async {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            functions.aggregate().await;
        }
    };
    let rows = tokio::select! {
        rows = checks::hot(&here) => rows.expect("no error"),
        () = aggregator => unreachable!("it goes on"),
    };
    assert!(rows.iter().all(|row| row.outcome == State::Passed), "{rows:?}");
}

#[tokio::test(start_paused = true)]
async fn the_clean_up_goes_on_after_errors_until_nothing_is_left() {
    let dynamo = Dynamo::new().await;
    for number in 0..60 {
        dynamo.put(&serde_json::json!({
            "PK": {"S": "acceptance-1/CONTRACT#0"}, "SK": {"S": format!("#{number:03}")},
        }));
    }
    let mut left = 10;
    dynamo.fail_transactions(move |_| {
        left -= 1;
        (left > 0).then_some(Fault::Conflict)
    });
    let namespace = Namespace::new("acceptance-1").expect("a name");
    let here = Backend::new(dynamo.table().await, namespace, vec![]);
    let deleted = remains::clean(&here).await.expect("it is cleaned at last");
    assert_eq!((deleted, dynamo.items().len()), (60, 0));
}

/// A table on which the run may do what these policies allow.
async fn allowed(policies: [&str; 2]) -> (Dynamo, Backend) {
    let dynamo = Dynamo::new().await;
    let [one, other] = policies.map(|name| Policy::of(name, false));
    let _ = enforce(&dynamo, Some(one.and(other)), None);
    let namespace = Namespace::new("acceptance-1").expect("a name");
    let here = Backend::new(dynamo.table().await, namespace, vec![]);
    (dynamo, here)
}

#[tokio::test]
async fn what_must_not_be_deleted_is_not_written() {
    let (dynamo, here) = allowed(["AdminPolicy", "ErasePolicy"]).await;
    let contract = Contract::new("acceptance-1");
    let metrics = Metrics::NotChecked("");
    let run = tried(here, &contract, Duration::ZERO, metrics, estimate(&contract));
    let Err(Failure::Refused(text)) = run.await else {
        panic!("it may not delete all that it writes");
    };
    for named in ["AdminPolicy", "PurgePolicy"] {
        assert!(text.contains(named), "{text}");
    }
    assert_eq!(dynamo.items(), Vec::<serde_json::Value>::new());
    assert_eq!(dynamo.stream(), Vec::<serde_json::Value>::new());
}

#[tokio::test(start_paused = true)]
async fn all_that_is_written_is_deleted_with_the_policies_that_the_refusal_names() {
    let (dynamo, here) = allowed(["AdminPolicy", "PurgePolicy"]).await;
    remains::may_delete(&here).await.expect("it may");
    let run = here.namespace.as_str();
    remains::note(&here.table, run).await.expect("it may");
    let (contract, mut cases) = (Contract::new(run), 0);
    // What is refused writes nothing.
    let each_tenth = |case: &contract::Case| {
        cases += 1;
        cases % 10 == 0 && case.group != REFUSED
    };
    let found = contract.run(&here.table, run, each_tenth).await;
    assert!(found.values().all(|tried| tried.differences.is_empty()), "{found:?}");
    for tried in [checks::steady(&here).await, checks::usage(&here).await] {
        let tried = tried.expect("it may");
        assert_eq!(tried.outcome, State::Passed, "{tried:?}");
    }
    let _ = checks::leases(&here).await.expect("it may");
    let deleted = remains::clean(&here).await.expect("it may");
    assert!(deleted > 20, "{deleted}");
    assert_eq!(dynamo.items(), Vec::<serde_json::Value>::new());
}

/// Errors that stay end it in one pass; the others are tried again.
#[tokio::test(start_paused = true)]
async fn the_clean_up_ends_at_once_where_it_cannot_succeed() {
    let rest = async |fault| {
        let dynamo = Dynamo::new().await;
        let namespace = Namespace::new("acceptance-1").expect("a name");
        let here = Backend::new(dynamo.table().await, namespace, vec![]);
        let noted = remains::note(&here.table, here.namespace.as_str()).await;
        noted.expect("it is noted");
        dynamo.put(&serde_json::json!({
            "PK": {"S": "acceptance-1/CONTRACT#0"}, "SK": {"S": "#000"},
        }));
        dynamo.fail_transactions(move |_| Some(fault));
        let began = tokio::time::Instant::now();
        let stop = std::future::ready(());
        let ended = cleaned(&here, std::future::pending::<()>(), stop).await;
        let Err(Failure::Failed(text)) = ended else {
            panic!("not all is deleted: {ended:?}");
        };
        assert!(text.contains("--clean"), "{text}");
        let left = remains::runs(&here.table).await.expect("they are listed");
        assert_eq!(left, ["acceptance-1"]);
        (text, began.elapsed())
    };
    let (text, time) = rest(Fault::Forbidden).await;
    assert!(text.contains("PurgePolicy") && time < SECOND, "{text} {time:?}");
    let (text, time) = rest(Fault::Conflict).await;
    assert!(text.contains("passes") && time > SECOND, "{text} {time:?}");
}

/// Whatever named it: an option, a variable or a profile.
#[tokio::test]
async fn the_endpoint_of_a_table_is_where_requests_are_sent() {
    let url = serve(&Dynamo::new().await);
    let connection =
        ConnectOptions { local_endpoint: Some(url.clone()), ..ConnectOptions::default() };
    let table = Table::new(weirgate_store::connect(connection).await, "weirgate");
    assert_eq!(table.endpoint(), "");
    let _ = remains::runs(&table).await.expect("they are listed");
    assert_eq!(table.endpoint(), url);
}

#[tokio::test]
async fn the_contract_holds_on_the_table_in_memory() {
    let table = Table::in_memory(&MemoryTable::default(), SystemClock);
    let mut contract = Contract::new("contract");
    contract.repeats = false;
    // A request that DynamoDB refuses panics there.
    for (group, tried) in contract.run(&table, "contract", |case| case.group != REFUSED).await {
        assert_eq!(tried.differences, [], "{group}");
        assert!(tried.held > 2, "{group}");
    }
}

#[tokio::test]
async fn the_contract_has_each_shape_of_request_that_callers_and_functions_send() {
    let dynamo = Dynamo::new().await;
    let asked = enforce(&dynamo, None, None);
    let (table, contract) = (dynamo.table().await, Contract::new("contract"));
    let is_valid = |case: &contract::Case| case.group != REFUSED;
    let _ = contract.run(&table, "contract", is_valid).await;
    let tried = std::mem::take(&mut asked.lock().unwrap().shapes);
    let listed = shape::listed();
    assert!(!listed.is_empty());
    let untried: Vec<_> = listed.difference(&tried).collect();
    assert!(untried.is_empty(), "no case asks {untried:#?}");
}

#[tokio::test]
async fn the_contract_holds_on_redis_and_on_a_cluster() {
    let (server, cluster) = (RedisServer::start(), RedisCluster::start());
    for (what, server) in [("alone", &server), ("of a cluster", &cluster.nodes()[1])] {
        let table = Table::on_redis(&RedisOptions::new(server.url())).expect("a URL");
        let contract = Contract::new("contract");
        // Lengths and sizes are DynamoDB's.
        for (group, tried) in contract.run(&table, "contract", |case| case.group != REFUSED).await {
            assert_eq!(tried.differences, [], "{group} {what}");
            assert!(tried.held > 2, "{group} {what}");
        }
    }
}

#[tokio::test]
async fn the_contract_holds_on_the_embedded_database() {
    let dynamo = Dynamo::new().await;
    let connection =
        ConnectOptions { local_endpoint: Some(serve(&dynamo)), ..ConnectOptions::default() };
    let table = Table::new(weirgate_store::connect(connection).await, "weirgate");
    let contract = Contract::new("contract");
    for (group, tried) in contract.run(&table, "contract", |_| true).await {
        let mut differences = tried.differences;
        differences.retain(|found| {
            !TAKEN.contains(&found.case.as_str()) || found.found != "it is accepted"
        });
        assert_eq!(differences, [], "{group}");
    }
}

/// A difference of moto, in cases of the contract, and AWS's sentence that decides it.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct OfMoto {
    cases: Vec<String>,
    /// Part of what is found.
    found: String,
    aws: String,
    page: String,
}

/// A row of an acceptance on moto.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct RowOfMoto {
    check: String,
    outcome: State,
    /// Why moto cannot do it; empty if it passes.
    #[serde(default)]
    why: String,
}

/// DynamoDB as another project wrote it, in Python. It takes one request after the other: no write
/// of its is atomic otherwise.
async fn moto() -> (Child, ConnectOptions, Table) {
    const SERIAL: &str = "import sys, moto.server as server; run = server.run_simple; \
        server.run_simple = lambda *all, **options: run(*all, **{**options, 'threaded': False}); \
        server.main(sys.argv[1:])";
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let port = free_port();
    let mut server = Command::new(format!("{root}/.venv/moto/bin/python"));
    let server = server.args(["-c", SERIAL, "-H", "127.0.0.1", "-p", &port.to_string()]);
    let server = server.stdout(Stdio::null()).stderr(Stdio::null());
    let server = server.kill_on_drop(true).spawn();
    let server = server.expect("moto is installed");
    let began = tokio::time::Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
        assert!(began.elapsed() < Duration::from_secs(60), "moto answers");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let options = ConnectOptions {
        local_endpoint: Some(format!("http://127.0.0.1:{port}")),
        request_timeout: Duration::from_secs(60),
        ..ConnectOptions::default()
    };
    let connection = weirgate_store::connect(options.clone()).await;
    let created = weirgate_store::create_table(&connection.client, "weirgate").await;
    created.expect("the table is created");
    (server, options, Table::new(connection, "weirgate"))
}

fn lines<T: serde::de::DeserializeOwned>(file: &str) -> Vec<T> {
    let lines = file.lines();
    lines.map(|line| serde_json::from_str(line).expect("a line")).collect()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs .venv/moto: make e2e"]
async fn the_contract_holds_on_moto_but_for_what_is_named() {
    let known: Vec<OfMoto> = lines(include_str!("../../../../../store/contract/moto.jsonl"));
    // It parses slowly, so several have a part of the cases each.
    let servers = join_all((0..MOTOS).map(async |part| {
        let (_server, _, table) = moto().await;
        let (mut contract, mut number) = (Contract::new("contract"), 0);
        contract.concurrency = 1;
        // A transaction copies the whole table, so those have one of their own.
        let runs = |case: &contract::Case| {
            number += usize::from(!case.is_transaction());
            match part {
                0 => case.is_transaction(),
                _ => !case.is_transaction() && number % (MOTOS - 1) == part - 1,
            }
        };
        let tried = contract.run(&table, "contract", runs).await;
        tried.into_values().flat_map(|tried| tried.differences).collect::<Vec<_>>()
    }));
    let mut left: Vec<_> =
        known.iter().flat_map(|known| known.cases.iter().map(move |case| (known, case))).collect();
    let mut unnamed = vec![];
    for found in servers.await.into_iter().flatten() {
        let is_it = |(known, case): &(&OfMoto, &String)| {
            **case == found.case && found.found.contains(&known.found)
        };
        let Some(at) = left.iter().position(is_it) else {
            unnamed.push(found);
            continue;
        };
        let (known, _) = left.swap_remove(at);
        assert!(found.aws.is_empty() || found.aws == known.aws, "{found:?}");
        assert!(known.page.starts_with("https://docs.aws.amazon.com/"), "{known:?}");
        assert!(!known.aws.is_empty(), "{known:?}");
    }
    assert_eq!(unnamed, []);
    assert!(left.is_empty(), "moto does as DynamoDB by now: {left:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs .venv/moto and the built weirgate: make e2e"]
async fn an_acceptance_holds_on_moto_but_for_what_is_named() {
    let known: Vec<RowOfMoto> =
        lines(include_str!("../../../../../store/contract/moto-rows.jsonl"));
    let (_server, options, table) = moto().await;
    let endpoint = options.local_endpoint.expect("it has one");
    let namespace = Namespace::new("acceptance-1").expect("a name");
    let program = std::env::current_exe().ok();
    let program = program.and_then(|own| Some(own.parent()?.parent()?.join("weirgate")));
    let program = program.filter(|program| program.exists());
    assert!(program.is_some(), "the command line must be built: make e2e");
    let arguments = ["--table", "weirgate", "--endpoint-url", &endpoint];
    let arguments = arguments.into_iter().chain(["--namespace", "acceptance-1"]);
    let here = Backend {
        program: program.clone(),
        is_beside: true,
        ..Backend::new(table, namespace, arguments.map(OsString::from).collect())
    };
    let local = LocalBackend::start(weirgate_local::Options::default()).await;
    let local = local.expect("it starts");
    let beside = Backend { program, ..beside(&local, &here.namespace).await };
    let metrics = Metrics::NotChecked("moto has none");
    let (rows, _) = check_rows(&here, &beside, Duration::ZERO, &metrics).await;
    let deleted = remains::clean(&here).await;
    local.stop().await;
    deleted.expect("all is deleted");
    let told = |row: &Row| (row.check.clone(), row.outcome);
    let expected = known.iter().map(|row| (row.check.clone(), row.outcome));
    assert_eq!(
        rows.iter().map(told).collect::<Vec<_>>(),
        expected.collect::<Vec<_>>(),
        "{rows:#?}"
    );
    for row in known {
        let is_explained = !row.why.is_empty();
        assert_eq!(is_explained, row.outcome != State::Passed, "{row:?}");
    }
}

/// Settings of a stack with which nothing may be split, or of which nothing could be read: no check
/// fails for that.
#[tokio::test(start_paused = true)]
async fn what_the_settings_of_a_stack_rule_out_or_hide_is_not_checked() {
    let limits = Limits { units_per_second: 200, burst: 200, ..Limits::default() };
    let one_shard = Deployed { max_shards: Some(1), ..Deployed::local() };
    let slow = Deployed { batch_window: Some(Duration::from_secs(300)), ..Deployed::local() };
    let unread = Deployed::of("limits".to_owned());
    for functions in [one_shard, slow, unread] {
        let clock = FakeClock::at(EpochMillis(1_795_198_200_000));
        let dynamo = Dynamo::new().await.with_clock(clock);
        let table = Partitions::over(dynamo, limits.clone(), 1).table().await;
        let namespace = Namespace::new("settings").unwrap();
        let is_slow = functions.batch_window == Some(Duration::from_secs(300));
        let here = Backend { functions: Some(functions), ..Backend::new(table, namespace, vec![]) };
        let [split, run] = checks::hot(&here).await.unwrap();
        assert_eq!(split.outcome, State::NotChecked, "{split:?}");
        assert_eq!(run.outcome, State::Passed, "{run:?}");
        if !is_slow {
            let tried = checks::leases(&here).await.unwrap();
            assert_eq!(tried.outcome, State::NotChecked, "{tried:?}");
        }
    }
}

/// Begin of an hour.
const HOUR: i64 = 472_223 * 3_600_000;

#[tokio::test(start_paused = true)]
async fn an_hours_end_that_is_not_waited_for_is_not_checked() {
    for before_ms in [90_000, 1_000] {
        let clock = FakeClock::at(EpochMillis(HOUR - before_ms));
        let table = Dynamo::new().await.with_clock(clock).table().await;
        let backend = Backend::new(table, Namespace::new("usage").unwrap(), vec![]);
        let tried = checks::usage(&backend).await.unwrap();
        assert_eq!(tried.outcome, State::Passed, "{tried:?}");
        let tried = checks::hour_end(&backend, Duration::from_secs(60)).await;
        let tried = tried.unwrap();
        assert_eq!(tried.outcome, State::NotChecked, "{tried:?}");
        assert!(tried.note.contains("--for"), "{tried:?}");
    }
}

/// Without an aggregator, what was taken before it is not in the hour's usage any more.
#[tokio::test(start_paused = true)]
async fn no_hour_ends_while_a_key_is_hot() {
    for before_ms in [5_000, 20_000] {
        let clock = FakeClock::at(EpochMillis(HOUR - before_ms));
        let dynamo = Dynamo::new().await.with_clock(clock);
        let dynamo = dynamo.with_latency(SECOND);
        let namespace = Namespace::new("hot").unwrap();
        let here = Backend::new(dynamo.table().await, namespace, vec![]);
        let [_, run] = checks::hot(&here).await.unwrap();
        assert_ne!(run.outcome, State::Failed, "{run:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn both_hours_are_read_back_exactly_with_an_aggregator_and_not_without() {
    for (aggregates, expected) in [(true, State::Passed), (false, State::NotChecked)] {
        let clock = FakeClock::at(EpochMillis(HOUR - 30_000));
        let dynamo = Dynamo::new().await.with_clock(clock.clone());
        let table = dynamo.table().await;
        let mut functions = Functions::new(table.clone(), dynamo, clock, 1_000);
        let backend = Backend {
            functions: aggregates.then(Deployed::local),
            ..Backend::new(table, Namespace::new("usage").unwrap(), vec![])
        };
        let aggregator = async {
            loop {
                tokio::time::sleep(SECOND).await;
                if aggregates {
                    functions.aggregate().await;
                }
            }
        };
        let tried = tokio::select! {
            tried = checks::hour_end(&backend, Duration::from_secs(60)) => tried.unwrap(),
            () = aggregator => unreachable!("it goes on"),
        };
        assert_eq!(tried.outcome, expected, "{tried:?}");
        let figure = "11 before the hour's end, 5 after it";
        assert_eq!(tried.figure == figure, aggregates, "{tried:?}");
    }
}

#[test]
fn a_run_costs_at_most_a_dollar() {
    let cost = estimate(&Contract::new("acceptance-1"));
    assert!((1..=100).contains(&cost.cents()), "{cost:?}");
}
