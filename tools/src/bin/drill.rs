//! `make drill`: runs every command of `docs/operations.md` on a deployed stack, and fails if one
//! does not do what the page says.

use std::process::ExitCode;
use std::time::Instant;

use weirgate_tools::drill;

#[tokio::main]
async fn main() -> ExitCode {
    let started = Instant::now();
    let progress = |line: &str| println!("[{:>4} s] {line}", started.elapsed().as_secs());
    let done = tokio::select! {
        done = drill::run(progress) => done,
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
