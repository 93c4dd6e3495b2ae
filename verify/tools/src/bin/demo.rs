//! Deploys to an emulated account, drives it for a minute, and reports: `make e2e`, longer. Exits
//! non-zero if usage differs from what was consumed by a single token.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};
use weirgate_tools::demo::{self, Options};

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["hold", endpoint, table] => demo::hold(endpoint, table).await,
        [] => tokio::select! {
            done = run() => done,
            signal = interrupted() => Err(format!("stopped by {signal}; everything it started is stopped too")),
        },
        _ => Err(format!(
            "demo takes no arguments, it was given {arguments:?}"
        )),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("demo: {message}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), String> {
    let port = match std::env::var("DEMO_PORT") {
        Ok(port) => Some(
            port.parse()
                .map_err(|_| format!("DEMO_PORT is {port:?}, must be a port number"))?,
        ),
        Err(_) => None,
    };
    let holder = std::env::current_exe()
        .map_err(|error| format!("this program's own path is unknown: {error}"))?;
    let started = Instant::now();
    let options = Options {
        drive: Duration::from_secs(50),
        port,
        holder,
    };
    let report = demo::run(&options, |line| {
        println!("[{:>4} s] {line}", started.elapsed().as_secs())
    })
    .await?;
    println!("\n{report}");
    if report.is_good() {
        Ok(())
    } else {
        Err("the table does not say what was driven; see the report".to_owned())
    }
}

async fn interrupted() -> &'static str {
    let (terminated, hung_up) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::hangup()),
    );
    let (Ok(mut terminated), Ok(mut hung_up)) = (terminated, hung_up) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => "Ctrl-C",
        _ = terminated.recv() => "a signal",
        _ = hung_up.recv() => "its terminal",
    }
}
