//! `weirgate acquire`.

use std::ffi::OsString;
use std::process::Stdio;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use weirgate::{Decision, Denied, Disabled, Grant, Limit, LimitStatus, NeverFits};

use super::balances::BucketArgs;
use super::peek;
use crate::amounts::{self, Amount};
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::instant;

/// Takes tokens, for a command or for a script.
///
/// Exit code 1 if they are denied.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  weirgate acquire user-1 gpt-4 rpm=1 tpm=500 --wait 10s\n  \
                  weirgate acquire batch gpu slots=1 --wait 5m --lease 1h -- ./train.sh"
)]
pub struct Acquire {
    #[command(flatten)]
    bucket: BucketArgs,
    /// Amounts to take
    #[arg(required = true, value_name = "NAME=TOKENS", value_parser = amounts::amount)]
    takes: Vec<Amount>,
    /// Limits instead of the configured ones: rpm=500/minute
    #[arg(long = "limit", value_name = "LIMIT", value_parser = amounts::limit)]
    limits: Vec<Limit>,
    /// Waits for the tokens, at most so long
    #[arg(long, value_name = "SPAN", value_parser = instant::span_argument)]
    wait: Option<Duration>,
    /// Duration of the lease on slots; it ends with the command
    #[arg(long, value_name = "SPAN", value_parser = instant::span_argument)]
    lease: Option<Duration>,
    /// Runs a command with the tokens, then releases the slots; exits as the command does
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Serialize)]
#[serde(tag = "decision", rename_all = "snake_case")]
enum Answer<'a> {
    Granted {
        lease_id: Option<&'a str>,
        expires_at_ms: Option<i64>,
        limits: Vec<LimitStatus>,
    },
    Denied(&'a Denied),
    NeverFits(&'a NeverFits),
    Disabled(&'a Disabled),
}

impl Acquire {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let limiter = context.limiter().await?;
        let BucketArgs { entity, resource } = &self.bucket;
        let mut acquire = limiter.acquire(entity, resource);
        if !self.limits.is_empty() {
            acquire = acquire.limits(&self.limits);
        }
        for Amount { limit, tokens } in &self.takes {
            acquire = acquire.take(limit, *tokens);
        }
        if let Some(wait) = self.wait {
            acquire = acquire.wait_up_to(wait);
        }
        if let Some(lease) = self.lease {
            acquire = acquire.lease(lease);
        }
        match acquire.send().await? {
            Decision::Granted(grant) if self.command.is_empty() => {
                granted(context, &grant)?;
                // The caller of this command uses the slots now, until the lease expires.
                std::mem::forget(grant);
                Ok(Outcome::Done)
            }
            Decision::Granted(grant) => run(&self.command, grant).await,
            Decision::Denied(denied) => {
                refused(context, &Answer::Denied(&denied), &denied.to_string())
            }
            Decision::NeverFits(never) => {
                refused(context, &Answer::NeverFits(&never), &never.to_string())
            }
            Decision::Disabled(disabled) => {
                refused(context, &Answer::Disabled(&disabled), &disabled.to_string())
            }
        }
    }
}

fn granted(context: &Context, grant: &Grant) -> Result<(), Failure> {
    let answer = Answer::Granted {
        lease_id: grant.lease_id(),
        expires_at_ms: grant.expires_at().map(|at| at.0),
        limits: grant.limits(),
    };
    let output = context.output();
    output.print(&answer, |_| {
        let table = output.table(&peek::COLUMNS, grant.limits().iter().map(peek::row));
        let lease = grant.lease_id().zip(grant.expires_at());
        let lease =
            lease.map(|(id, expires)| format!("\nlease {id}, expires {}", instant::text(expires)));
        format!("granted\n{table}{}", lease.unwrap_or_default())
    })
}

fn refused(context: &Context, answer: &Answer<'_>, text: &str) -> Result<Outcome, Failure> {
    context.output().print(answer, |_| text.to_owned())?;
    Ok(Outcome::Negative)
}

/// Runs a command while the grant is held, then releases it.
async fn run(command: &[OsString], grant: Grant) -> Result<Outcome, Failure> {
    let [program, arguments @ ..] = command else {
        unreachable!("the command is not empty")
    };
    let name = program.to_string_lossy();
    let mut process = tokio::process::Command::new(program);
    process.args(arguments).stdin(Stdio::inherit());
    let status = match process.status().await {
        Ok(status) => status,
        Err(error) => {
            // Nothing ran, so nothing was used.
            _ = grant.roll_back().await;
            return Err(Failure::Refused(format!("{name} cannot be run: {error}")));
        }
    };
    if let Err(error) = grant.release().await {
        let text = "the lease could not be released, and ends by itself when it expires";
        anstream::eprintln!("{text}: {error}");
    }
    Ok(match status.code() {
        Some(code) => Outcome::Exit(u8::try_from(code).unwrap_or(1)),
        None => Outcome::Negative,
    })
}
