//! `weirgate local`.

mod actions;
mod demo;
mod started;
mod store;

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueHint};
use weirgate::{Builder, ConnectOptions, RateLimiter};
use weirgate_local::page::{LivePage, MetricsUrl};
use weirgate_local::{DatabaseError, Demo, HostName, LocalBackend, StartError, StoreOptions};
use weirgate_store::StoreUrl;

use crate::amounts;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::instant::{self, DAY};
use crate::stop::Stop;

use started::Started;

/// Port of the table, if no other one is chosen.
const PORT: u16 = 8000;

/// Runs the whole backend on this machine, without AWS.
///
/// The table behind HTTP, the aggregator on its stream, the reconciler on a timer, and the live
/// page. It prints the environment that callers need, and ends with Ctrl-C.
///
/// With --store, the functions and the live page of a table in Redis, which is not started here.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  weirgate local --demo\n  \
                  weirgate local --limits limits.yaml\n  weirgate local --store redis://127.0.0.1:6379/0\n  weirgate local --port 0 --data ./table --json")]
pub struct Local {
    /// Address that the table and the page listen on; all that reach it can change the table
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    address: IpAddr,
    /// Port of the table, by default 8000; 0 is any free one
    #[arg(long, value_name = "PORT", value_parser = amounts::port)]
    port: Option<u16>,
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
    /// Sets limits, and sends requests of three tenants, for a first look at a table in memory
    #[arg(long, conflicts_with_all = ["data", "limits"])]
    demo: bool,
    /// Time between runs of the reconciler: 10s, 1m
    #[arg(long, value_name = "SPAN", default_value = "10s", value_parser = instant::span_within::<10, DAY>)]
    reconcile_every: Duration,
    /// Port of the live page, or 0 for any free one. By default it is 2775, or the next free one if
    /// that is in use; a port that is given is used, or the command fails
    #[arg(long, value_name = "PORT", value_parser = amounts::port)]
    page_port: Option<u16>,
    /// Metrics of an agent or another caller, for its denials on the live page:
    /// http://127.0.0.1:2774/metrics; repeat it for several
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url)]
    metrics: Vec<MetricsUrl>,
    /// Read units a second of the live page, on average; they cost nothing here but time
    #[arg(long, value_name = "UNITS", default_value = "500", value_parser = amounts::within::<1, 1_000_000, NonZeroU32>)]
    read_units: NonZeroU32,
}

impl Local {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        if let Some(url) = context.store()? {
            return self.on_store(context, url).await;
        }
        let defaults = weirgate_local::Options::default();
        let table = context.options().table.clone();
        let options = weirgate_local::Options {
            address: self.address,
            port: self.port.unwrap_or(PORT),
            hosts: self.allow_host,
            data: self.data,
            limits: self.limits,
            table: table.filter(|table| !table.is_empty()).unwrap_or(defaults.table),
            namespace: context.options().namespace.clone(),
            reconcile_every: self.reconcile_every,
        };
        // Before the start, so that a signal during it ends the process in order too.
        let stop = Stop::new()?;
        let applies = context.limiter_of(RateLimiter::builder(&options.table));
        let backend = LocalBackend::start_with(options, applies).await?;
        let demo = limiter(&backend).config_ttl(demo::CONFIG_TTL).owner("demo");
        let demo = match self.demo {
            true => Some(demo.build().await?),
            false => None,
        };
        let page_options = weirgate_local::page::Options {
            port: self.page_port,
            metrics: self.metrics,
            callers: demo.iter().cloned().collect(),
            read_units: self.read_units.get(),
            ..weirgate_local::page::Options::new("")
        };
        let page = page(&backend, page_options).await?;
        let moved = super::page::moved(&page, self.page_port);
        let started = Started::of(&backend, &page);
        if let Some(limiter) = demo {
            let mut demo = Demo::start(limiter).await?;
            context.output().print(&started, |started| demo::text(started, &demo, &moved))?;
            tokio::select! {
                () = stop.asked() => {}
                () = demo::tell(&mut demo, &backend, context) => {}
            }
            context.output().note(demo::summary(&demo));
        } else {
            context.output().print(&started, |started| started::text(started, &moved))?;
            tokio::select! {
                () = stop.asked() => {}
                () = actions::tell(backend.actions(), context) => {}
            }
        }
        drop(page);
        backend.stop().await;
        Ok(Outcome::Done)
    }

    /// Runs the functions and the page of a table in Redis.
    async fn on_store(self, context: &Context, url: &StoreUrl) -> Result<Outcome, Failure> {
        for (is_given, option) in [
            (self.demo, "local --demo"),
            (self.data.is_some(), "local --data"),
            (self.port.is_some(), "local --port"),
        ] {
            if is_given {
                let reason = "the table is that of the store; leave the option out";
                context.needs_dynamodb(option, reason)?;
            }
        }
        let page = weirgate_local::page::Options {
            port: self.page_port,
            metrics: self.metrics,
            read_units: self.read_units.get(),
            address: self.address,
            hosts: self.allow_host,
            namespace: context.options().namespace.clone(),
            ..weirgate_local::page::Options::new(url.to_string())
        };
        let functions = StoreOptions {
            redis: url.options(),
            limits: self.limits,
            reconcile_every: self.reconcile_every,
        };
        store::run(functions, page, context, url).await
    }
}

/// Returns a limiter of the backend, to be built.
fn limiter(backend: &LocalBackend) -> Builder {
    let weirgate_local::Options { table, namespace, .. } = backend.options();
    let connection = ConnectOptions {
        local_endpoint: Some(backend.endpoint_url().to_owned()),
        ..ConnectOptions::default()
    };
    let limiter = RateLimiter::builder(table).namespace(namespace);
    limiter.connection(connection)
}

/// Starts the live page of the backend, whose table and namespace it shows.
async fn page(
    backend: &LocalBackend,
    options: weirgate_local::page::Options,
) -> Result<LivePage, Failure> {
    let limiter = limiter(backend).build().await?;
    let weirgate_local::Options { address, hosts, table, namespace, .. } = backend.options();
    let options = weirgate_local::page::Options {
        address: *address,
        hosts: hosts.clone(),
        table: table.clone(),
        namespace: namespace.clone(),
        actions: Some(Arc::new(backend.actions().clone())),
        ..options
    };
    super::page::start(limiter, options, "--page-port")
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        let text = error.to_string();
        match error {
            StartError::PortTaken(_) => Self::Refused(format!("{text} (--port)")),
            StartError::Io { address, error } => {
                let port = format!("port {} of {} is", address.port(), address.ip());
                super::page::not_served(&port, &error, "--port")
            }
            StartError::File(_) | StartError::Name(..) => Self::Refused(text),
            StartError::Database(DatabaseError::InUse(_)) => Self::Failed(text),
            StartError::Database(_) => Self::Refused(format!("{text} (--data)")),
            StartError::Limits(error) => error.into(),
            StartError::Store(error) => (&error).into(),
            StartError::Thread(_) => Self::Failed(text),
        }
    }
}
