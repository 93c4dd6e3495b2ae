//! `weirgate doctor --acceptance`: tries what Weirgate promises on a table.
//!
//! - `contract`: requests and their answers, as data
//! - `checks`: processes on one key, a hot key, a killed process, usage
//! - `backend`: the table, and a local backend beside it
//! - `remains`: what was written, deleted
//! - `report`: rows and cost

mod backend;
mod checks;
mod contract;
mod remains;
mod report;

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use weirgate_local::LocalBackend;
use weirgate_shared::Namespace;
use weirgate_store::{ConnectOptions, Table, random_id};

use self::backend::Backend;
use self::contract::Contract;
use self::report::{Cost, Report, Row};
pub use self::report::{Outcome as State, Tried};
use super::alarms;
use super::aws;
use super::functions::{self, Deployed};
use crate::commands::confirm::Destroy;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::instant::{self, DAY};
use crate::stop::stopped;
use crate::streams::warn;

/// Options of an acceptance.
#[derive(Debug, Args)]
pub struct Acceptance {
    /// Tries all that Weirgate needs of the table, in a namespace of its own
    #[arg(long)]
    pub acceptance: bool,
    /// Waits at most so long for an hour's end, to read both hours back
    #[arg(
        long = "for",
        value_name = "SPAN",
        requires = "acceptance",
        value_parser = instant::span_within::<0, DAY>
    )]
    wait: Option<Duration>,
    /// Deletes what interrupted acceptances left, and tries nothing
    #[arg(long, requires = "acceptance")]
    clean: bool,
    #[command(flatten)]
    destroy: Destroy,
}

impl Acceptance {
    pub async fn run(self, context: &Context, stack: Option<String>) -> Result<Outcome, Failure> {
        let table = context.stored().await?;
        let output = context.output();
        let left = remains::runs(&table).await?;
        if self.clean {
            let deed = format!(
                "delete {} acceptances, also those that run: {}",
                left.len(),
                left.join(", ")
            );
            if !left.is_empty() {
                self.destroy.confirm(&deed, "yes")?;
            }
            if self.destroy.dry_run {
                output.print(&left, |left| left.join("\n"))?;
                return Ok(Outcome::Done);
            }
            let mut deleted = 0;
            for namespace in left {
                let backend = of(context, table.clone(), Namespace::new(namespace)?)?;
                deleted += remains::clean(&backend).await?;
            }
            output.print(&deleted, |deleted| format!("{deleted} items deleted"))?;
            return Ok(Outcome::Done);
        }
        for namespace in left {
            output.note(format!(
                "an acceptance in namespace {namespace} runs, or was interrupted: --acceptance \
                 --clean deletes what it left"
            ));
        }
        let namespace = Namespace::new(format!("acceptance-{}", random_id()))?;
        let contract = Contract::new(namespace.as_str());
        let estimate = estimate(&contract);
        let cents = estimate.cents();
        let cost = format!(
            "about {} write units and {} read units: {cents} cents on demand in us-east-1",
            estimate.write_units, estimate.read_units
        );
        if self.destroy.dry_run {
            output.print(&estimate, |_| cost)?;
            return Ok(Outcome::Done);
        }
        warn(cost);
        let deed = format!(
            "write to namespace {namespace} of table {}, and fill one partition for up to 40 s, so \
             that callers whose buckets share it are throttled",
            table.name()
        );
        self.destroy.confirm(&deed, "yes")?;
        let mut here = of(context, table, namespace.clone())?;
        let found = services(context, &here, stack).await;
        here.functions.clone_from(&found.functions);
        let report = tried(
            here,
            &contract,
            self.wait.unwrap_or_default(),
            found,
            estimate,
        )
        .await?;
        output.print(&report, Report::text)?;
        Ok(match report.rows.iter().any(Row::has_failed) {
            true => Outcome::Incomplete,
            false => Outcome::Done,
        })
    }
}

/// What runs beside the table.
struct Services {
    functions: Option<Deployed>,
    metrics: Tried,
}

async fn services(context: &Context, here: &Backend, stack: Option<String>) -> Services {
    if context.is_local() {
        return Services {
            functions: None,
            metrics: Tried::not_checked(
                "the alarms' metrics: this endpoint is a table on this machine",
            ),
        };
    }
    let elsewhere = ConnectOptions {
        endpoint_url: None,
        ..context.connection()
    };
    let aws = aws::Aws::new(weirgate_store::sdk_config(&elsewhere).await);
    let Ok(facts) = here.table.describe().await else {
        return Services {
            functions: None,
            metrics: Tried::not_checked("the alarms' metrics: dynamodb:DescribeTable failed"),
        };
    };
    let (_, found) = functions::findings(&aws, here.table.name(), &facts, stack).await;
    let metrics = match &found {
        None => Tried::not_checked("the alarms' metrics: the stack is not known; name it: --stack"),
        Some(deployed) => alarms::metrics(&aws, &deployed.stack).await,
    };
    Services {
        functions: found,
        metrics,
    }
}

/// Returns the table as the command line reaches it.
fn of(context: &Context, table: Table, namespace: Namespace) -> Result<Backend, Failure> {
    let options = context.options();
    let mut arguments: Vec<OsString> = vec!["--table".into(), context.place()?.to_string().into()];
    for (option, value) in [
        ("--region", &options.region),
        ("--profile", &options.profile),
        ("--endpoint-url", &options.endpoint_url),
    ] {
        arguments.extend(value.iter().flat_map(|value| [option.into(), value.into()]));
    }
    arguments.extend(["--namespace".into(), namespace.to_string().into()]);
    let endpoint = options.endpoint_url.clone();
    let endpoint = endpoint.or_else(|| std::env::var("AWS_ENDPOINT_URL").ok());
    let is_aws = endpoint.is_none_or(|url| is_of_aws(&url));
    Ok(Backend {
        is_aws,
        ..Backend::new(table, namespace, arguments)
    })
}

/// Returns whether a URL is an endpoint of AWS, in whatever network.
fn is_of_aws(url: &str) -> bool {
    let host = url
        .split("//")
        .last()
        .and_then(|rest| rest.split(['/', ':']).next());
    let names = [".amazonaws.com", ".amazonaws.com.cn", ".api.aws"];
    host.is_some_and(|host| names.iter().any(|name| host.ends_with(name)))
}

/// Returns about the units of a run without those of the functions. A placed item enters up to four indexes.
fn estimate(contract: &Contract) -> Cost {
    const PLACED: u64 = 6;
    let requests = u64::try_from(contract.requests()).unwrap_or(u64::MAX);
    let racers = u64::try_from(checks::RACERS).unwrap_or(u64::MAX);
    let raced = racers * u64::from(checks::RACER_ACQUIRES) * 2;
    // Placed, written, and deleted by a transaction.
    let contract = requests * (PLACED + 2 * PLACED + 2 * PLACED);
    let hot = checks::HOT_ACQUIRES * checks::HOT_UNITS;
    let few = u64::from(checks::STEADY) + 10 * checks::HELD + 1_000;
    Cost {
        write_units: contract + raced + hot + few,
        read_units: requests * 2 + raced + 1_000 + 10 * remains::PASS_READS,
    }
}

/// Runs all checks, and deletes what they wrote, also after Ctrl-C.
async fn tried(
    here: Backend,
    contract: &Contract,
    wait: Duration,
    services: Services,
    estimate: Cost,
) -> Result<Report, Failure> {
    let stopped = stopped()?;
    let local = LocalBackend::start(weirgate_local::Options::default()).await?;
    let beside = beside(&local, &here.namespace).await;
    remains::note(&here.table, here.namespace.as_str()).await?;
    let rows = tokio::select! {
        rows = rows(&here, &beside, contract, wait, services) => Ok(rows),
        () = stopped => Err(Failure::Failed("stopped; what was written is deleted".to_owned())),
    };
    let deleted = remains::clean(&here).await;
    local.stop().await;
    if let (Err(_), Err(failure)) = (&rows, &deleted) {
        return Err(Failure::Failed(format!(
            "stopped, and not all that was written is deleted: {}; run this again with --clean",
            failure.text()
        )));
    }
    let (mut rows, write_units) = rows?;
    let write_units = write_units + here.meter.take().total;
    let (cleaned, deleted) = match deleted {
        Ok(deleted) => (Tried::passed(format!("{deleted} items deleted")), deleted),
        Err(failure) => (Tried::failed("", failure.text()), 0),
    };
    rows.push(Row::new("clean-up", cleaned, None));
    Ok(Report {
        namespace: here.namespace.to_string(),
        estimate,
        write_units,
        rows,
        deleted,
    })
}

/// Returns the local backend, whose figures are shown beside the table's.
async fn beside(local: &LocalBackend, namespace: &Namespace) -> Backend {
    let connection = ConnectOptions {
        local_endpoint: Some(local.endpoint_url().to_owned()),
        ..ConnectOptions::default()
    };
    let name = &local.options().table;
    let table = Table::new(weirgate_store::connect(connection).await, name);
    let arguments = [
        "--table",
        name,
        "--endpoint-url",
        local.endpoint_url(),
        "--namespace",
        namespace.as_str(),
    ];
    let arguments = arguments.map(OsString::from).to_vec();
    Backend {
        functions: Some(Deployed::local()),
        is_beside: true,
        ..Backend::new(table, namespace.clone(), arguments)
    }
}

/// Runs the checks. One that meets an error fails, and the others go on.
async fn rows(
    here: &Backend,
    local: &Backend,
    contract: &Contract,
    wait: Duration,
    services: Services,
) -> (Vec<Row>, f64) {
    let mut rows = contract_rows(here, local, contract).await;
    let mut units = here.meter.take().total + f64::from(checks::STEADY);
    let one = |check, here, local| Row::new(check, told(here), Some(told(local)));
    let (a, b) = (checks::steady(here).await, checks::steady(local).await);
    rows.push(one("run without faults", a, b));
    let (a, b) = (checks::race(here).await, checks::race(local).await);
    rows.push(one("processes on one key", a, b));
    let (a, b) = (checks::leases(here).await, checks::leases(local).await);
    rows.push(one("key with many leases", a, b));
    let hot = async |backend| match checks::hot(backend).await {
        Ok([split, throttled]) => (Ok(split), Ok(throttled)),
        Err(failure) => (Err(failure), Ok(Tried::not_checked("see the hot key"))),
    };
    let (a, b) = (hot(here).await, hot(local).await);
    rows.push(one("hot key", a.0, b.0));
    rows.push(one("throttled run", a.1, b.1));
    let (a, b) = tokio::join!(checks::lease(here), checks::lease(local));
    rows.push(one("killed process", a, b));
    let (a, b) = tokio::join!(checks::usage(here, wait), checks::usage(local, wait));
    rows.push(one("usage", a, b));
    rows.push(Row::new("alarms' metrics", services.metrics, None));
    units += here.meter.take().total;
    (rows, units)
}

fn told(tried: Result<Tried, Failure>) -> Tried {
    tried.unwrap_or_else(|failure| Tried::failed("", failure.text()))
}

async fn contract_rows(here: &Backend, local: &Backend, contract: &Contract) -> Vec<Row> {
    let namespace = here.namespace.as_str();
    let one = contract.run(&here.table, namespace, |_| true).await;
    let two = contract.run(&local.table, namespace, |_| true).await;
    let rows = one.into_iter().map(|(group, tried)| {
        let there = &two[group];
        Row::new(
            format!("contract, {group}"),
            of_group(here, &tried),
            Some(of_group(local, there)),
        )
    });
    rows.collect()
}

/// Returns what a group found. An emulator may differ where the case has AWS's sentence.
fn of_group(backend: &Backend, tried: &contract::Tried) -> Tried {
    let differences = &tried.differences;
    let figure = format!("{} requests", tried.held);
    if differences.is_empty() {
        return Tried::passed(figure);
    }
    let lines = differences.iter().map(|difference| {
        let contract::Difference { case, found, aws } = difference;
        let aws = if aws.is_empty() {
            String::new()
        } else {
            format!("; AWS: {aws:?}")
        };
        format!("{case}: {found}{aws}")
    });
    let state = match !backend.is_aws
        && differences
            .iter()
            .all(|difference| !difference.aws.is_empty())
    {
        true => State::Differs,
        false => State::Failed,
    };
    Tried::of(
        state,
        format!("{figure}, {} differ", differences.len()),
        lines.collect::<Vec<_>>().join("\n"),
    )
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use tokio::net::TcpStream;
    use tokio::process::Command;
    use weirgate::{EpochMillis, FakeClock, SystemClock};
    use weirgate_store::{MemoryTable, RedisOptions};
    use weirgate_testkit::heat::Functions;
    use weirgate_testkit::server::{free_port, serve};
    use weirgate_testkit::{Dynamo, Fault, Limits, Partitions, RedisCluster, RedisServer};

    use super::contract::REFUSED;
    use super::*;

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
        let limits = Limits {
            units_per_second: UNITS,
            burst: UNITS,
            ..Limits::default()
        };
        let partitions = Partitions::over(dynamo.clone(), limits, 1);
        let table = partitions.table().await;
        let mut functions = Functions::new(table.clone(), dynamo, clock, UNITS);
        let namespace = Namespace::new("acceptance-1").expect("a name");
        let here = Backend {
            functions: Some(Deployed::local()),
            ..Backend::new(table, namespace, vec![])
        };
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
        assert!(
            rows.iter().all(|row| row.outcome == State::Passed),
            "{rows:?}"
        );
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

    #[test]
    fn endpoints_of_aws_are_known_by_their_hosts() {
        for url in [
            "https://dynamodb.eu-west-1.amazonaws.com",
            "https://vpce-1.dynamodb.eu-west-1.vpce.amazonaws.com/",
            "https://123456789012.ddb.us-east-1.amazonaws.com:443",
            "https://dynamodb.us-east-1.api.aws",
        ] {
            assert!(is_of_aws(url), "{url}");
        }
        for url in ["http://127.0.0.1:8000", "http://amazonaws.com.example:4566"] {
            assert!(!is_of_aws(url), "{url}");
        }
    }

    #[tokio::test]
    async fn the_contract_holds_on_the_table_in_memory() {
        let table = Table::in_memory(&MemoryTable::default(), SystemClock);
        let mut contract = Contract::new("contract");
        contract.repeats = false;
        // A request that DynamoDB refuses panics there.
        for (group, tried) in contract
            .run(&table, "contract", |case| case.group != REFUSED)
            .await
        {
            assert_eq!(tried.differences, [], "{group}");
            assert!(tried.held > 3, "{group}");
        }
    }

    #[tokio::test]
    async fn the_contract_holds_on_redis_and_on_a_cluster() {
        let (server, cluster) = (RedisServer::start(), RedisCluster::start());
        for (what, server) in [("alone", &server), ("of a cluster", &cluster.nodes()[1])] {
            let table = Table::on_redis(&RedisOptions::new(server.url())).expect("a URL");
            let contract = Contract::new("contract");
            // Lengths and sizes are DynamoDB's.
            for (group, tried) in contract
                .run(&table, "contract", |case| case.group != REFUSED)
                .await
            {
                assert_eq!(tried.differences, [], "{group} {what}");
                assert!(tried.held > 3, "{group} {what}");
            }
        }
    }

    #[tokio::test]
    async fn the_contract_holds_on_the_embedded_database() {
        let dynamo = Dynamo::new().await;
        let connection = ConnectOptions {
            local_endpoint: Some(serve(&dynamo)),
            ..ConnectOptions::default()
        };
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

    /// DynamoDB as another project wrote it, in Python.
    #[tokio::test]
    #[ignore = "needs .venv/moto: make e2e"]
    async fn the_contract_holds_on_moto_but_for_what_is_named() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        let known = include_str!("../../../../store/contract/moto.jsonl").lines();
        let known = known.map(|line| serde_json::from_str(line).expect("a difference"));
        let known: Vec<OfMoto> = known.collect();
        let port = free_port();
        let mut server = Command::new(format!("{root}/.venv/moto/bin/moto_server"));
        let server = server.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
        let server = server.stdout(Stdio::null()).stderr(Stdio::null());
        let _server = server
            .kill_on_drop(true)
            .spawn()
            .expect("moto is installed");
        let began = tokio::time::Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            assert!(began.elapsed() < Duration::from_secs(60), "moto answers");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let connection = weirgate_store::connect(ConnectOptions {
            local_endpoint: Some(format!("http://127.0.0.1:{port}")),
            ..ConnectOptions::default()
        });
        let connection = connection.await;
        let created = weirgate_store::create_table(&connection.client, "weirgate").await;
        created.expect("the table is created");
        let table = Table::new(connection, "weirgate");
        // Its transactions copy the whole table, and a failed one drops all writes beside it.
        let mut alone = Contract::new("contract");
        alone.concurrency = 1;
        let alone = alone
            .run(&table, "contract", |case| case.is_transaction())
            .await;
        // It parses slowly: of the planned writes, each fifth.
        let (contract, mut writes) = (Contract::new("contract"), 0);
        let runs = |case: &contract::Case| {
            writes += usize::from(case.group == "writes");
            !case.is_transaction() && (case.group != "writes" || writes % 5 == 0)
        };
        let others = contract.run(&table, "contract", runs).await;
        let mut left: Vec<_> = known
            .iter()
            .flat_map(|known| known.cases.iter().map(move |case| (known, case)))
            .collect();
        for found in alone
            .into_values()
            .chain(others.into_values())
            .flat_map(|tried| tried.differences)
        {
            let is_it = |(known, case): &(&OfMoto, &String)| {
                **case == found.case && found.found.contains(&known.found)
            };
            let at = left
                .iter()
                .position(is_it)
                .unwrap_or_else(|| panic!("not named: {found:?}"));
            let (known, _) = left.swap_remove(at);
            assert!(found.aws.is_empty() || found.aws == known.aws, "{found:?}");
            assert!(
                known.page.starts_with("https://docs.aws.amazon.com/"),
                "{known:?}"
            );
            assert!(!known.aws.is_empty(), "{known:?}");
        }
        assert!(left.is_empty(), "moto does as DynamoDB by now: {left:?}");
    }

    /// Settings of a stack with which nothing may be split, or of which nothing could be read: no check
    /// fails for that.
    #[tokio::test(start_paused = true)]
    async fn what_the_settings_of_a_stack_rule_out_or_hide_is_not_checked() {
        let limits = Limits {
            units_per_second: 200,
            burst: 200,
            ..Limits::default()
        };
        let one_shard = Deployed {
            max_shards: Some(1),
            ..Deployed::local()
        };
        let slow = Deployed {
            batch_window: Some(Duration::from_secs(300)),
            ..Deployed::local()
        };
        let unread = Deployed::of("limits".to_owned());
        for functions in [one_shard, slow, unread] {
            let clock = FakeClock::at(EpochMillis(1_795_198_200_000));
            let dynamo = Dynamo::new().await.with_clock(clock);
            let table = Partitions::over(dynamo, limits.clone(), 1).table().await;
            let namespace = Namespace::new("settings").unwrap();
            let is_slow = functions.batch_window == Some(Duration::from_secs(300));
            let here = Backend {
                functions: Some(functions),
                ..Backend::new(table, namespace, vec![])
            };
            let [split, run] = checks::hot(&here).await.unwrap();
            assert_eq!(split.outcome, State::NotChecked, "{split:?}");
            assert_eq!(run.outcome, State::Passed, "{run:?}");
            if !is_slow {
                let tried = checks::leases(&here).await.unwrap();
                assert_eq!(tried.outcome, State::NotChecked, "{tried:?}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn usage_is_read_within_an_hour_and_a_finished_one_needs_the_aggregator() {
        const HOUR: i64 = 472_223 * 3_600_000;
        for (before_ms, expected) in [(90_000, State::Passed), (30_000, State::NotChecked)] {
            let clock = FakeClock::at(EpochMillis(HOUR - before_ms));
            let table = Dynamo::new().await.with_clock(clock).table().await;
            let backend = Backend::new(table, Namespace::new("usage").unwrap(), vec![]);
            let tried = checks::usage(&backend, Duration::from_secs(60)).await;
            let tried = tried.unwrap();
            assert_eq!(tried.outcome, expected, "{tried:?}");
        }
    }

    #[test]
    fn a_run_costs_at_most_a_dollar() {
        let cost = estimate(&Contract::new("acceptance-1"));
        assert!((1..=100).contains(&cost.cents()), "{cost:?}");
    }
}
