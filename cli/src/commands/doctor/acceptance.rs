//! `weirgate doctor --acceptance`: tries what Weirgate promises on a table.
//!
//! - `contract`: requests and their answers, as data; `reads`: those that read; `answers`: what is found
//! - `checks`: processes on one key, a hot key, a killed process, usage
//! - `backend`: the table, and a local backend beside it
//! - `remains`: what was written, deleted
//! - `report`: rows and cost

mod answers;
mod backend;
mod checks;
mod contract;
mod reads;
mod remains;
mod report;

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use weirgate::Page;
use weirgate_local::LocalBackend;
use weirgate_shared::{Namespace, docs};
use weirgate_store::{ConnectOptions, ErrorKind, StoreError, Table, random_id};

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
use crate::stop::Stop;
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

#[derive(Serialize)]
struct Deleted {
    deleted: usize,
}

#[derive(Serialize)]
struct Estimated {
    estimate: Cost,
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
                let list = Page { items: left, unreadable: vec![], next: None };
                output.print(&list, |list| list.items.join("\n"))?;
                return Ok(Outcome::Done);
            }
            let mut deleted = 0;
            for namespace in left {
                output.note(format!("deleting what acceptance {namespace} wrote"));
                let backend = of(context, table.clone(), Namespace::new(namespace)?)?;
                deleted += remains::clean(&backend).await?;
            }
            let deleted = Deleted { deleted };
            output.print(&deleted, |Deleted { deleted }| format!("{deleted} items deleted"))?;
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
            output.print(&Estimated { estimate }, |_| cost)?;
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
    Of(Box<Aws>, String),
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
        return Ok(Metrics::NotChecked("this endpoint is a table on this machine"));
    }
    let elsewhere = ConnectOptions { endpoint_url: None, ..context.connection() };
    let aws = Aws::new(weirgate_store::sdk_config(&elsewhere).await);
    let facts = here.table.describe().await;
    let facts = facts.map_err(|error| undescribed(&error))?;
    if let Some(finding) = table::replicas(&facts) {
        return Err(Failure::Refused(format!("{}; {}", finding.found, finding.remedy)));
    }
    let (_, found) = functions::findings(&aws, here.table.name(), &facts, stack).await;
    here.functions = found;
    Ok(match &here.functions {
        None => Metrics::NotChecked("the stack is not known; name it: --stack"),
        Some(deployed) => Metrics::Of(Box::new(aws), deployed.stack.clone()),
    })
}

/// Returns the error of a table of which it is not known whether it has replicas.
fn undescribed(error: &StoreError) -> Failure {
    if error.kind != ErrorKind::AccessDenied {
        return Failure::from(error);
    }
    Failure::Refused(format!(
        "a table must be known to have no replicas, got {}: {}; use a role that also allows \
         dynamodb:DescribeTable: {}",
        error.meaning(),
        error.reason,
        docs!("deployment", "acceptance")
    ))
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
    Ok(Backend::new(table, namespace, arguments))
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
    let stop = Stop::new()?;
    remains::may_delete(&here).await?;
    let local = LocalBackend::start(weirgate_local::Options::default()).await?;
    let beside = beside(&local, &here.namespace).await;
    remains::note(&here.table, here.namespace.as_str()).await?;
    let rows = async {
        let contract = contract_rows(&here, &beside, contract).await;
        let (checks, units) = check_rows(&here, &beside, wait, &metrics).await;
        (contract.into_iter().chain(checks).collect::<Vec<_>>(), units)
    };
    let ended = cleaned(&here, rows, stop.asked()).await;
    local.stop().await;
    let ((mut rows, write_units), deleted) = ended?;
    let write_units = write_units + here.meter.take().total;
    let (cleaned, deleted) = match deleted {
        Ok(deleted) => (Tried::passed(format!("{deleted} items deleted")), deleted),
        Err(failure) => (Tried::failed("", failure.text()), 0),
    };
    rows.push(Row::new("clean-up", cleaned, None));
    Ok(Report { namespace: here.namespace.to_string(), estimate, write_units, rows, deleted })
}

/// Runs checks until they end or `stop` does, and deletes what they wrote. Returns what the checks did, and
/// how much was deleted.
async fn cleaned<T>(
    here: &Backend,
    checks: impl Future<Output = T>,
    stop: impl Future<Output = ()>,
) -> Result<(T, Result<usize, Failure>), Failure> {
    let done = tokio::select! {
        done = checks => Some(done),
        () = stop => None,
    };
    warn("deleting what was written; Ctrl-C leaves it for --acceptance --clean");
    match (done, remains::clean(here).await) {
        (Some(done), deleted) => Ok((done, deleted)),
        (None, Ok(_)) => Err(Failure::Failed("stopped; what was written is deleted".to_owned())),
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
        Row::new(format!("contract, {group}"), of_group(here, &tried), Some(of_group(local, there)))
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
        let aws = if aws.is_empty() { String::new() } else { format!("; AWS: {aws:?}") };
        format!("{case}: {found}{aws}")
    });
    let state = match !backend.is_aws()
        && differences.iter().all(|difference| !difference.aws.is_empty())
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
mod tests;
