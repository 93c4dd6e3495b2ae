//! `weirgate page`.

use std::io::{self, ErrorKind};
use std::num::NonZeroU32;

use clap::{Args, ValueHint};
use serde::Serialize;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use weirgate::{ConfigFilter, RateLimiter};
use weirgate_local::page::{LivePage, MetricsUrl, Options, PORT, PORTS};

use crate::amounts;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::stop::Stop;
use crate::streams;

/// Shows buckets and usage in a browser, live.
///
/// It only reads, and only while a page is open. It ends with Ctrl-C.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  weirgate page --table limits --read-units 50\n  \
                  weirgate page --table limits --metrics http://127.0.0.1:2774/metrics")]
pub struct Page {
    /// Port of 127.0.0.1, or 0 for any free one. By default it is 2775, or the next free one if that
    /// is in use; a port that is given is used, or the command fails
    #[arg(long, value_name = "PORT", value_parser = amounts::port)]
    port: Option<u16>,
    /// Metrics of an agent or another caller, for its denials, which the table does not count:
    /// http://127.0.0.1:2774/metrics; repeat it for several
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url)]
    metrics: Vec<MetricsUrl>,
    /// Read units a second, on average, for all viewers together
    #[arg(long, value_name = "UNITS", default_value = "25", value_parser = amounts::within::<1, 1_000_000, NonZeroU32>)]
    read_units: NonZeroU32,
}

/// Where the page is.
#[derive(Debug, Serialize)]
struct Started {
    page_url: String,
}

impl Page {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        // Before the start, so that a signal during it ends the process in order too.
        let stop = Stop::new()?;
        let limiter = context.limiter().await?;
        // A table that cannot be read is reported here, and not only in the browser.
        limiter.admin().configs(&ConfigFilter::Resources, None).await?;
        let options = Options {
            port: self.port,
            metrics: self.metrics,
            read_units: self.read_units.get(),
            namespace: context.options().namespace.clone(),
            ..Options::new(context.place()?.to_string())
        };
        let chosen = options.port;
        let page = start(limiter, options, "--port")?;
        let started = Started { page_url: page.url() };
        context.output().print(&started, |Started { page_url }| {
            let moved = moved(&page, chosen);
            format!("Open {page_url} in a browser.{moved} Ctrl-C stops it.")
        })?;
        stop.asked().await;
        Ok(Outcome::Done)
    }
}

/// Starts the page. `option` is the one that chooses its port.
pub fn start(limiter: RateLimiter, options: Options, option: &str) -> Result<LivePage, Failure> {
    let address = options.address;
    let ports = match options.port {
        Some(port) => format!("port {port} of {address} is"),
        None => format!("ports {PORT} to {} of {address} are", PORT + PORTS - 1),
    };
    show_warnings();
    LivePage::start(limiter, options).map_err(|error| not_served(&ports, &error, option))
}

/// Returns why ports cannot be listened on. `option` is the one that chooses them.
pub fn not_served(ports: &str, error: &io::Error, option: &str) -> Failure {
    match error.kind() {
        ErrorKind::AddrInUse => Failure::Refused(format!(
            "{ports} in use: choose another one ({option}), or 0 for any free one"
        )),
        ErrorKind::PermissionDenied => Failure::Refused(format!(
            "{ports} not allowed for this user: choose one from 1024 on ({option}), or 0 for any free one"
        )),
        ErrorKind::AddrNotAvailable => Failure::Refused(format!(
            "{ports} not on this machine: give an address that it has (--address)"
        )),
        _ => Failure::Failed(format!("{ports} not served: {error}; choose another one ({option})")),
    }
}

/// Returns a remark if the page is not on the port that is expected.
pub fn moved(page: &LivePage, chosen: Option<u16>) -> String {
    match chosen {
        None if page.port() != PORT => format!(" Port {PORT} is in use."),
        _ => String::new(),
    }
}

/// Shows on standard error what the servers warn of, connections that they cannot accept, and the errors of
/// the functions: the numbers that they could not write, which are nowhere else on a store.
pub fn show_warnings() {
    let shown = Targets::new()
        .with_target("weirgate_local::listen", LevelFilter::WARN)
        .with_target("weirgate_aggregator", LevelFilter::ERROR)
        .with_target("weirgate_worker", LevelFilter::ERROR);
    let lines = tracing_subscriber::fmt::layer()
        .with_target(false)
        .with_writer(|| streams::Warnings)
        .with_filter(shown);
    // A second call fails and leaves the first subscriber in place.
    let _ = tracing_subscriber::registry().with(lines).try_init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_cannot_be_listened_on_is_told_with_the_option_that_chooses_it() {
        for (kind, is_refused, remedy) in [
            (ErrorKind::AddrInUse, true, "another one (--port), or 0"),
            (ErrorKind::PermissionDenied, true, "1024 on (--port), or 0"),
            (ErrorKind::AddrNotAvailable, true, "(--address)"),
            (ErrorKind::Other, false, "another one (--port)"),
        ] {
            let failure = not_served("port 80 of ::1 is", &kind.into(), "--port");
            assert!(failure.text().starts_with("port 80 of ::1 is"), "{failure:?}");
            assert!(failure.text().contains(remedy), "{failure:?}");
            assert_eq!(matches!(failure, Failure::Refused(_)), is_refused);
        }
    }
}
