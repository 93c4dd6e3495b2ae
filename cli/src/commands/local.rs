//! `weirgate local`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use weirgate::{ConnectOptions, RateLimiter};
use weirgate_local::page::LivePage;
use weirgate_local::{Action, DatabaseError, HostName, LocalBackend, StartError, Work};

use crate::amounts;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::instant;
use crate::stop::stopped;
use crate::text::one_line;

/// Runs the whole backend on this machine, without AWS.
///
/// The table behind HTTP, the aggregator on its stream, the reconciler on a timer, and the live
/// page. It prints the environment that callers need, and ends with Ctrl-C.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  weirgate local --limits limits.yaml\n  \
                  weirgate local --port 0 --data ./table --json")]
pub struct Local {
    /// Address that the table and the page listen on; all that reach it can change the table
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    address: IpAddr,
    /// Port of the table; 0 is any free one
    #[arg(long, value_name = "PORT", default_value_t = 8000, value_parser = amounts::number::<u16>)]
    port: u16,
    /// Name that clients have for the table and the page, such as that of a container: NAME or
    /// NAME:PORT; repeat it for several
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<HostName>,
    /// Folder that keeps the table; without one it is in memory
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Limits file that is set in the namespace at the start
    #[arg(long, value_name = "FILE")]
    limits: Option<PathBuf>,
    /// Time between runs of the reconciler: 10s, 1m
    #[arg(long, value_name = "SPAN", default_value = "10s", value_parser = instant::span_argument)]
    reconcile_every: Duration,
    /// Port of the live page; 0 is any free one
    #[arg(long, value_name = "PORT", default_value_t = 0, value_parser = amounts::number::<u16>)]
    page_port: u16,
    /// Read units a second of the live page, on average; they cost nothing here but time
    #[arg(long, value_name = "UNITS", default_value = "500", value_parser = amounts::number::<NonZeroU32>)]
    read_units: NonZeroU32,
}

/// Where the backend is.
#[derive(Debug, Serialize)]
struct Started<'a> {
    endpoint_url: &'a str,
    page_url: String,
    table: &'a str,
    namespace: &'a str,
    data: Option<&'a PathBuf>,
    /// The environment of a caller.
    variables: BTreeMap<&'static str, &'a str>,
}

/// Time over which the work of the aggregator is told in one line.
const TOLD_EVERY: Duration = Duration::from_secs(1);

impl Local {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let defaults = weirgate_local::Options::default();
        let table = context.options().table.clone();
        let options = weirgate_local::Options {
            address: self.address,
            port: self.port,
            hosts: self.allow_host,
            data: self.data,
            limits: self.limits,
            table: table
                .filter(|table| !table.is_empty())
                .unwrap_or(defaults.table),
            namespace: context.options().namespace.clone(),
            reconcile_every: self.reconcile_every,
        };
        // Before the start, so that a signal during it ends the process in order too.
        let stopped = stopped()?;
        let backend = LocalBackend::start(options).await?;
        let page = page(&backend, self.page_port, self.read_units).await?;
        context
            .output()
            .print(&Started::of(&backend, &page), text)?;
        tokio::select! {
            () = stopped => {}
            () = tell(&backend, context) => {}
        }
        drop(page);
        backend.stop().await;
        Ok(Outcome::Done)
    }
}

/// Starts the live page of the backend.
async fn page(
    backend: &LocalBackend,
    port: u16,
    read_units: NonZeroU32,
) -> Result<LivePage, Failure> {
    let weirgate_local::Options {
        address,
        hosts,
        table,
        namespace,
        ..
    } = backend.options();
    let connection = ConnectOptions {
        local_endpoint: Some(backend.endpoint_url().to_owned()),
        ..ConnectOptions::default()
    };
    let limiter = RateLimiter::builder(table).namespace(namespace);
    let limiter = limiter.connection(connection).build().await?;
    let options = weirgate_local::page::Options {
        address: *address,
        hosts: hosts.clone(),
        port,
        read_units: read_units.get(),
        namespace: namespace.clone(),
        actions: Some(Arc::new(backend.actions().clone())),
        ..weirgate_local::page::Options::new(table)
    };
    super::page::start(limiter, options, "--page-port")
}

impl<'a> Started<'a> {
    fn of(backend: &'a LocalBackend, page: &LivePage) -> Self {
        let options = backend.options();
        Self {
            endpoint_url: backend.endpoint_url(),
            page_url: page.url(),
            table: &options.table,
            namespace: &options.namespace,
            data: options.data.as_ref(),
            variables: backend.variables().into_iter().collect(),
        }
    }
}

fn text(started: &Started<'_>) -> String {
    let Started {
        endpoint_url,
        page_url,
        table,
        data,
        variables,
        ..
    } = started;
    let place = match data {
        Some(folder) => format!("in {}", folder.display()),
        None => "in memory".to_owned(),
    };
    let exports: String = variables
        .iter()
        .map(|(name, value)| format!("export {name}={value}\n"))
        .collect();
    format!(
        "# Table {table}, {place}, at {endpoint_url}. Ctrl-C stops it.\n\
         # Live page: {page_url}\n\
         # Callers need this environment:\n{exports}"
    )
}

/// Tells what the functions do, for as long as they run.
async fn tell(backend: &LocalBackend, context: &Context) {
    let (actions, mut told) = (backend.actions(), 0);
    let mut changes = actions.subscribe();
    while changes.wait_for(|last| *last > told).await.is_ok() {
        let last = actions.after(told);
        told = last.last().map_or(told, |action| action.number);
        for line in lines(&last) {
            context.output().note(one_line(&line));
        }
        tokio::time::sleep(TOLD_EVERY).await;
    }
}

/// Returns the lines of actions: one of all that the aggregator did, and one of each other action.
fn lines(actions: &[Arc<Action>]) -> Vec<String> {
    let mut lines = vec![];
    let mut sum: Option<(&Action, weirgate_aggregator::Summary)> = None;
    for action in actions {
        let Work::Aggregated(summary) = &action.work else {
            lines.push(line(action, &action.work));
            continue;
        };
        let (_, sum) = sum.get_or_insert_with(|| (action, Default::default()));
        sum.records += summary.records;
        sum.undecodable += summary.undecodable;
        sum.copied += summary.copied;
        sum.refilled += summary.refilled;
        sum.splits += summary.splits;
        sum.refused += summary.refused;
        sum.failed += summary.failed;
    }
    let summed = sum.map(|(first, sum)| line(first, &Work::Aggregated(sum)));
    summed.into_iter().chain(lines).collect()
}

fn line(action: &Action, work: &Work) -> String {
    format!(
        "{} {:<10} {work}",
        instant::text(action.at),
        work.function()
    )
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        let text = error.to_string();
        match error {
            StartError::PortTaken(_) => Self::Refused(format!("{text} (--port)")),
            StartError::File(_) => Self::Refused(text),
            StartError::Database(DatabaseError::InUse(_)) => Self::Failed(text),
            StartError::Database(_) => Self::Refused(format!("{text} (--data)")),
            StartError::Limits(error) => error.into(),
            StartError::Store(error) => (&error).into(),
            StartError::Io { .. } => Self::Failed(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use weirgate::EpochMillis;

    use super::*;

    #[test]
    fn the_work_of_the_aggregator_is_one_line_and_each_other_action_has_its_own() {
        let action = |number, work| {
            Arc::new(Action {
                number,
                at: EpochMillis(1_795_198_200_000),
                took: Duration::ZERO,
                work,
            })
        };
        let batch = |records| {
            Work::Aggregated(weirgate_aggregator::Summary {
                records,
                copied: 1,
                ..Default::default()
            })
        };
        let failed = Work::Failed {
            function: "reconciler",
            reason: "no".to_owned(),
        };
        let actions = [action(1, batch(2)), action(2, failed), action(3, batch(5))];
        assert_eq!(
            lines(&actions),
            [
                "2026-11-20T18:10:00Z aggregator 7 records, 2 usage copies",
                "2026-11-20T18:10:00Z reconciler failed, and tries again: no",
            ]
        );
        assert!(lines(&[]).is_empty());
    }
}
