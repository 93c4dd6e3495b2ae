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
use super::aws::Aws;
use super::functions::{self, Deployed};
use super::table;
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
        let metrics = services(context, &mut here, stack).await?;
        let wait = self.wait.unwrap_or_default();
        let report = tried(here, &contract, wait, metrics, estimate).await?;
        output.print(&report, Report::text)?;
        Ok(match report.rows.iter().any(Row::has_failed) {
            true => Outcome::Incomplete,
            false => Outcome::Done,
        })
    }
}

/// The metrics of the stack's alarms, which are read after the run: some begin with it.
enum Metrics {
    Of(Aws, String),
    NotChecked(&'static str),
}

impl Metrics {
    async fn tried(&self) -> Tried {
        match self {
            Self::Of(aws, stack) => alarms::metrics(aws, stack).await,
            Self::NotChecked(why) => Tried::not_checked(format!("the alarms' metrics: {why}")),
        }
    }
}

/// Finds what runs beside the table.
async fn services(
    context: &Context,
    here: &mut Backend,
    stack: Option<String>,
) -> Result<Metrics, Failure> {
    if context.is_local() {
        return Ok(Metrics::NotChecked(
            "this endpoint is a table on this machine",
        ));
    }
    let elsewhere = ConnectOptions {
        endpoint_url: None,
        ..context.connection()
    };
    let aws = Aws::new(weirgate_store::sdk_config(&elsewhere).await);
    let Ok(facts) = here.table.describe().await else {
        return Ok(Metrics::NotChecked("dynamodb:DescribeTable failed"));
    };
    if let Some(finding) = table::replicas(&facts) {
        return Err(Failure::Refused(format!(
            "{}; {}",
            finding.found, finding.remedy
        )));
    }
    let (_, found) = functions::findings(&aws, here.table.name(), &facts, stack).await;
    here.functions = found;
    Ok(match &here.functions {
        None => Metrics::NotChecked("the stack is not known; name it: --stack"),
        Some(deployed) => Metrics::Of(aws, deployed.stack.clone()),
    })
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
    let contract_reads = contract.read_units();
    // Placed, written, and deleted by a transaction.
    let contract = requests * (PLACED + 2 * PLACED + 2 * PLACED);
    let hot = checks::HOT_ACQUIRES * checks::HOT_UNITS;
    let few = u64::from(checks::STEADY) + 10 * checks::HELD + 1_000;
    Cost {
        write_units: contract + raced + hot + few,
        read_units: requests * 2 + contract_reads + raced + 1_000 + 10 * remains::PASS_READS,
    }
}

/// Runs all checks, and deletes what they wrote, also after Ctrl-C.
async fn tried(
    here: Backend,
    contract: &Contract,
    wait: Duration,
    metrics: Metrics,
    estimate: Cost,
) -> Result<Report, Failure> {
    let stop = stopped()?;
    remains::may_delete(&here).await?;
    let local = LocalBackend::start(weirgate_local::Options::default()).await?;
    let beside = beside(&local, &here.namespace).await;
    remains::note(&here.table, here.namespace.as_str()).await?;
    let rows = async {
        let contract = contract_rows(&here, &beside, contract).await;
        let (checks, units) = check_rows(&here, &beside, wait, &metrics).await;
        (
            contract.into_iter().chain(checks).collect::<Vec<_>>(),
            units,
        )
    };
    let ended = cleaned(&here, rows, stop, stopped).await;
    local.stop().await;
    let ((mut rows, write_units), deleted) = ended?;
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

/// Runs checks until they end or `stop` does, and deletes what they wrote, until `stopped` ends too:
/// once a process handles a signal, none ends it by itself. Returns what the checks did, and how much
/// was deleted.
async fn cleaned<T, S: Future<Output = ()>>(
    here: &Backend,
    checks: impl Future<Output = T>,
    stop: impl Future<Output = ()>,
    stopped: impl FnOnce() -> std::io::Result<S>,
) -> Result<(T, Result<usize, Failure>), Failure> {
    let done = tokio::select! {
        done = checks => Some(done),
        () = stop => None,
    };
    let again = stopped()?;
    warn("deleting what was written; Ctrl-C leaves it for --acceptance --clean");
    let deleted = tokio::select! {
        deleted = remains::clean(here) => deleted,
        () = again => Err(Failure::Failed(
            "stopped before all was deleted: delete it with --acceptance --clean".to_owned(),
        )),
    };
    match (done, deleted) {
        (Some(done), deleted) => Ok((done, deleted)),
        (None, Ok(_)) => Err(Failure::Failed(
            "stopped; what was written is deleted".to_owned(),
        )),
        (None, Err(failure)) => Err(Failure::Failed(format!(
            "stopped, and not all that was written is deleted: {}; run this again with --clean",
            failure.text()
        ))),
    }
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

/// Runs the checks. One that meets an error fails, and the others go on. Returns also the write units
/// so far.
async fn check_rows(
    here: &Backend,
    local: &Backend,
    wait: Duration,
    metrics: &Metrics,
) -> (Vec<Row>, f64) {
    let mut rows = vec![];
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
    let (a, b) = (checks::usage(here).await, checks::usage(local).await);
    rows.push(one("usage", a, b));
    let (a, b) = tokio::join!(checks::hour_end(here, wait), checks::hour_end(local, wait));
    rows.push(one("usage over an hour's end", a, b));
    rows.push(Row::new("alarms' metrics", metrics.tried().await, None));
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
    if differences.is_empty() && tried.not_allowed.is_empty() {
        return Tried::passed(figure);
    }
    if differences.is_empty() {
        let lines = tried.not_allowed.join("\n");
        return Tried::of(State::NotChecked, figure, lines);
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

    use futures_util::future::{BoxFuture, join_all};
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
        let run = tried(
            here,
            &contract,
            Duration::ZERO,
            metrics,
            estimate(&contract),
        );
        let Err(Failure::Refused(text)) = run.await else {
            panic!("it may not delete all that it writes");
        };
        for named in ["AdminPolicy", "PurgePolicy"] {
            assert!(text.contains(named), "{text}");
        }
        assert_eq!(dynamo.items(), [] as [serde_json::Value; 0]);
        assert_eq!(dynamo.stream(), [] as [serde_json::Value; 0]);
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
        assert!(
            found.values().all(|tried| tried.differences.is_empty()),
            "{found:?}"
        );
        for tried in [checks::steady(&here).await, checks::usage(&here).await] {
            let tried = tried.expect("it may");
            assert_eq!(tried.outcome, State::Passed, "{tried:?}");
        }
        let _ = checks::leases(&here).await.expect("it may");
        let deleted = remains::clean(&here).await.expect("it may");
        assert!(deleted > 20, "{deleted}");
        assert_eq!(dynamo.items(), [] as [serde_json::Value; 0]);
    }

    /// Errors that stay end it in one pass; the others are tried until a second signal.
    #[tokio::test(start_paused = true)]
    async fn the_clean_up_ends_at_once_where_it_cannot_succeed_and_at_a_second_signal() {
        let rest = async |fault, stopped: fn() -> std::io::Result<BoxFuture<'static, ()>>| {
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
            let ended = cleaned(&here, std::future::pending::<()>(), stop, stopped).await;
            let Err(Failure::Failed(text)) = ended else {
                panic!("not all is deleted: {ended:?}");
            };
            assert!(text.contains("--clean"), "{text}");
            let left = remains::runs(&here.table).await.expect("they are listed");
            assert_eq!(left, ["acceptance-1"]);
            (text, began.elapsed())
        };
        let (text, time) = rest(Fault::Forbidden, || Ok(Box::pin(std::future::pending()))).await;
        assert!(
            text.contains("PurgePolicy") && time < SECOND,
            "{text} {time:?}"
        );
        let (text, time) = rest(Fault::Conflict, || Ok(Box::pin(std::future::pending()))).await;
        assert!(text.contains("passes") && time > SECOND, "{text} {time:?}");
        let second = || {
            let second = tokio::time::sleep(SECOND);
            Ok(Box::pin(second) as BoxFuture<'static, ()>)
        };
        let (text, time) = rest(Fault::Conflict, second).await;
        assert!(
            text.contains("stopped before") && time == SECOND,
            "{text} {time:?}"
        );
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
            for (group, tried) in contract
                .run(&table, "contract", |case| case.group != REFUSED)
                .await
            {
                assert_eq!(tried.differences, [], "{group} {what}");
                assert!(tried.held > 2, "{group} {what}");
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
        const SERIAL: &str = "import moto.server as server; run = server.run_simple; \
            server.run_simple = lambda *all, **options: run(*all, **{**options, 'threaded': False}); \
            server.main()";
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
        lines
            .map(|line| serde_json::from_str(line).expect("a line"))
            .collect()
    }

    #[tokio::test(flavor = "multi_thread")]
    #[ignore = "needs .venv/moto: make e2e"]
    async fn the_contract_holds_on_moto_but_for_what_is_named() {
        let known: Vec<OfMoto> = lines(include_str!("../../../../store/contract/moto.jsonl"));
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
            tried
                .into_values()
                .flat_map(|tried| tried.differences)
                .collect::<Vec<_>>()
        }));
        let mut left: Vec<_> = known
            .iter()
            .flat_map(|known| known.cases.iter().map(move |case| (known, case)))
            .collect();
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
            assert!(
                known.page.starts_with("https://docs.aws.amazon.com/"),
                "{known:?}"
            );
            assert!(!known.aws.is_empty(), "{known:?}");
        }
        assert_eq!(unnamed, []);
        assert!(left.is_empty(), "moto does as DynamoDB by now: {left:?}");
    }

    #[tokio::test(flavor = "multi_thread")]
    #[ignore = "needs .venv/moto and the built weirgate: make e2e"]
    async fn an_acceptance_holds_on_moto_but_for_what_is_named() {
        let known: Vec<RowOfMoto> =
            lines(include_str!("../../../../store/contract/moto-rows.jsonl"));
        let (_server, options, table) = moto().await;
        let endpoint = options.local_endpoint.expect("it has one");
        let namespace = Namespace::new("acceptance-1").expect("a name");
        let program = std::env::current_exe().ok();
        let program = program.and_then(|own| Some(own.parent()?.parent()?.join("weirgate")));
        let program = program.filter(|program| program.exists());
        assert!(
            program.is_some(),
            "the command line must be built: make e2e"
        );
        let arguments = ["--table", "weirgate", "--endpoint-url", &endpoint];
        let arguments = arguments.into_iter().chain(["--namespace", "acceptance-1"]);
        let here = Backend {
            program: program.clone(),
            is_beside: true,
            ..Backend::new(table, namespace, arguments.map(OsString::from).collect())
        };
        let local = LocalBackend::start(weirgate_local::Options::default()).await;
        let local = local.expect("it starts");
        let beside = Backend {
            program,
            ..beside(&local, &here.namespace).await
        };
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
}
