//! The command: wiring only.

use std::process::ExitCode;

use clap::Parser;
use weirgate_replay::{Args, replay};
use weirgate_store::{ConnectOptions, Table, connect};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let args = Args::parse();
    let table = Table::new(connect(ConnectOptions::default()).await, &args.table);
    match replay(
        &args,
        &table,
        std::io::stdin().lock(),
        &mut std::io::stdout().lock(),
    )
    .await
    {
        Ok(sum) if sum.is_complete() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("weirgate-replay: {error}");
            ExitCode::FAILURE
        }
    }
}
