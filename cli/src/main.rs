//! `weirgate`: the command line.
//!
//! # Layout
//!
//! - `options`: what every command takes, and where else it may come from
//! - `commands`: one file for each command, or group of commands
//! - `context`: the connection and the output of one run
//! - `output`: tables for terminals, JSON for programs
//! - `streams`: what writes to the streams of this process
//! - `text`: text without what a terminal would obey
//! - `duplicates`: what is given twice
//! - `progress`: a line that shows how far long work is
//! - `stop`: what ends a command that runs until then
//! - `help`: commands in groups
//! - `failure`: the one line of an error, and the exit code
//! - `level`, `amounts`, `instant`: arguments with a syntax of their own

mod amounts;
mod commands;
mod context;
mod duplicates;
mod failure;
mod help;
mod instant;
mod level;
mod options;
mod output;
mod progress;
mod stop;
mod streams;
mod text;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{ArgAction, CommandFactory, FromArgMatches, Parser};

use commands::Command;
use context::Context;
use failure::Failure;
use options::{Options, without_empty_variable};
use output::Unwritten;

#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Rate limits that a fleet shares through one table in DynamoDB or Redis.
#[derive(Debug, Parser)]
#[command(
    name = "weirgate",
    version,
    max_term_width = 100,
    after_help = help::END,
    after_long_help = failure::codes() + "\n" + help::END
)]
struct Cli {
    /// Shows the options of every command
    #[arg(id = "help-global", long = "help-global", global = true, action = ArgAction::HelpLong, display_order = 1_000)]
    _help_global: Option<bool>,
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    command: Command,
}

impl Cli {
    /// Reads the arguments, and the variables that are not empty.
    fn read(arguments: &[OsString]) -> Result<Self, clap::Error> {
        let command = Self::command().mut_args(without_empty_variable);
        let mut command = help::grouped(command);
        let matches = command.try_get_matches_from_mut(arguments)?;
        duplicates::check(&mut command, &matches, arguments)?;
        commands::check_command_after_dashes(&mut command, &matches, arguments)?;
        let mut cli =
            Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
        cli.options.choose(&command, &matches)?;
        Ok(cli)
    }
}

// With a worker, because the live page uses the limiter from a thread of its own.
#[tokio::main(worker_threads = 1)]
async fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    if help::is_about_global(&arguments) {
        return match streams::to_stdout(&help::global(&Cli::command())) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => Failure::from(Unwritten::from(error)).report(false),
        };
    }
    let cli = match Cli::read(&arguments) {
        Ok(cli) => cli,
        Err(error) => return failure::usage(&error, &Cli::command()),
    };
    let context = Context::new(cli.options, Cli::command);
    let code = match cli.command.run(&context).await {
        Ok(outcome) => outcome.into(),
        Err(failure) => failure.report(context.output().is_json()),
    };
    context.shut_down().await;
    code
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;

    use super::*;

    /// Every argument with a number takes `_`, and every one with a span or a time takes several
    /// units.
    #[test]
    fn numbers_and_spans_have_one_notation_in_all_arguments() {
        let mut seen = 0;
        let mut program = Cli::command();
        // Arguments have their index then.
        program.build();
        let mut open = vec![(program, vec!["weirgate".to_owned()])];
        while let Some((command, path)) = open.pop() {
            for below in command.get_subcommands() {
                let path = [&path[..], &[below.get_name().to_owned()]].concat();
                open.push((below.clone(), path));
            }
            for argument in command.get_arguments() {
                let names = argument.get_value_names().unwrap_or_default();
                let values: &[&str] = match names.first().map_or("", |name| name.as_str()) {
                    "NUMBER" | "COUNT" | "UNITS" | "DAYS" | "PORT" => &["1_6"],
                    // At least three days.
                    "SPAN" if argument.get_long() == Some("kept") => &["3d12h"],
                    "SPAN" => &["1m30s", "5s"],
                    "WHEN" => &["1h30m", "1d12h", "2026-11-23"],
                    "LIMIT" if argument.get_long() != Some("top") => {
                        &["rpm=1_000/minute", "rpm=5/1h30m,burst=1_0", "slots=1_0"]
                    }
                    "NAME=TOKENS" => &["rpm=1_0"],
                    _ => &[],
                };
                for value in values {
                    let option = argument.get_long().map(|name| format!("--{name}={value}"));
                    let option = option.unwrap_or_else(|| (*value).to_owned());
                    // Words for the arguments before it.
                    let at = argument.get_index().unwrap_or(1) - 1;
                    let words =
                        vec!["word".to_owned(); if argument.is_positional() { at } else { 0 }];
                    let all = [&path[..], &words, &[option]].concat();
                    let read = Cli::command().try_get_matches_from(&all);
                    let kind =
                        read.map_or_else(|error| error.kind(), |_| ErrorKind::DisplayVersion);
                    assert_ne!(kind, ErrorKind::ValueValidation, "{all:?}");
                    assert_ne!(kind, ErrorKind::InvalidValue, "{all:?}");
                    seen += 1;
                }
            }
        }
        assert!(seen > 40, "{seen}");
    }
}
