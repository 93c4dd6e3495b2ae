//! `make drill`: runs every command of `docs/operations.md` on a deployed stack, and fails if one
//! does not do what the page says. `make drill ARGS=on-call` runs the on-call exercise alone.

use std::process::ExitCode;
use std::time::Instant;

use weirgate_tools::drill::{self, Part};

#[tokio::main]
async fn main() -> ExitCode {
    let part = match std::env::args().nth(1).as_deref() {
        None => Part::All,
        Some("on-call") => Part::OnCall,
        Some(other) => {
            eprintln!("drill: the argument must be on-call or missing, got {other:?}");
            return ExitCode::FAILURE;
        }
    };
    let started = Instant::now();
    let progress = |line: &str| println!("[{:>4} s] {line}", started.elapsed().as_secs());
    let done = tokio::select! {
        done = drill::run(part, progress) => done,
        _ = tokio::signal::ctrl_c() => Err("stopped by Ctrl-C; everything it started is stopped too".to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("drill: {message}");
            ExitCode::FAILURE
        }
    }
}
