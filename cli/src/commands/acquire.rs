//! `weirgate acquire`.

mod child;
#[cfg(unix)]
mod signals;
#[cfg(windows)]
#[path = "acquire/console.rs"]
mod signals;

use std::convert::Infallible;
use std::ffi::OsString;
use std::fmt::Display;
use std::time::{Duration, Instant};

use clap::error::ErrorKind;
use clap::{ArgMatches, Args, Command};
use serde::Serialize;
use weirgate::{
    ClassName, Decision, Degraded, Denied, Disabled, Error, Grant, Limit, LimitStatus, NeverFits,
    PlanName, Settlement,
};
use weirgate_shared::{exact_span, rounded_span};

use self::child::{Held, OnLost};
use self::signals::Signals;
use super::balances::BucketArgs;
use super::peek;
use crate::amounts::{self, Amount};
use crate::context::Context;
use crate::failure::{Failure, NOT_GRANTED, NOT_RUN, Outcome};
use crate::instant::{self, DAY, HOUR};
use crate::output::Unwritten;
use crate::streams::warn;
use crate::text::one_line;

/// Time between two updates of a wait.
const SHOWN_EVERY: Duration = Duration::from_secs(1);

/// Takes tokens, for a command or for a script.
///
/// Exit code 3 if they are denied, 4 if they never fit, 5 if the level is stopped. With a COMMAND it
/// is the command's: 128 and the number of the signal that ended it, 127 if it was not found, 126 if
/// it cannot be run, 124 if the tokens were not granted, 125 if weirgate failed. Signals are
/// forwarded to the command. While it runs, its lease is renewed; when it ends, the slots are
/// released.
#[derive(Debug, Args)]
#[command(
    override_usage = "weirgate acquire <ENTITY> <RESOURCE> <NAME=TOKENS>... [OPTIONS]\n       \
                      weirgate acquire <ENTITY> <RESOURCE> <NAME=TOKENS>... -- <COMMAND>...",
    after_help = "Examples:\n  weirgate acquire user-1 gpt-4 rpm=1 tpm=500 --wait 10s\n  \
                  weirgate acquire openai gpt-4 tpm=1500 --queue 30s -- ./ask.sh\n  \
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
    /// Class of the caller, of limits with classes, unless the entity's configuration has one
    #[arg(long, value_name = "NAME", value_parser = |text: &str| ClassName::new(text))]
    class: Option<ClassName>,
    /// Waits for the tokens, at most so long
    #[arg(long, value_name = "SPAN", value_parser = instant::span_within::<0, DAY>)]
    wait: Option<Duration>,
    /// Queues for the tokens, at most so long: all callers that do so are served in order
    #[arg(long, value_name = "SPAN", value_parser = instant::span_within::<1, HOUR>, conflicts_with = "wait")]
    queue: Option<Duration>,
    /// Ends at once, and says when the tokens may be used
    #[arg(long, requires = "queue", conflicts_with = "command")]
    now: bool,
    /// Duration of the lease, 60s for slots if not given; a COMMAND's is renewed, and ends with it
    #[arg(long, value_name = "SPAN", value_parser = instant::span_within::<1, DAY>)]
    lease: Option<Duration>,
    /// What happens to a COMMAND whose lease is lost: stop sends it SIGTERM
    #[arg(long, value_name = "ACTION", default_value = "stop", requires = "command")]
    on_lost: OnLost,
    /// Runs a command with the tokens, then releases the slots; exits as the command does
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Checks that a `--` of `acquire` is followed by a command. A script whose variable is empty would
/// take slots that nothing releases.
///
/// # Errors
/// If none follows.
pub fn check_command_after_dashes(
    program: &mut Command,
    matches: &ArgMatches,
    arguments: &[OsString],
) -> Result<(), clap::Error> {
    let Some(("acquire", matches)) = matches.subcommand() else {
        return Ok(());
    };
    // clap reads what follows the first `--` as the command, so without one it is the last argument.
    let has_dashes = arguments.last().is_some_and(|last| last == "--");
    if !has_dashes || matches.contains_id("command") {
        return Ok(());
    }
    let text = "COMMAND must follow '--', got nothing; name a command, or leave '--' out";
    let command = program.find_subcommand_mut("acquire");
    let command = command.expect("it was matched");
    Err(command.error(ErrorKind::MissingRequiredArgument, text))
}

#[derive(Serialize)]
#[serde(tag = "decision", rename_all = "snake_case")]
enum Answer<'a> {
    Granted {
        lease_id: Option<&'a str>,
        expires_at_ms: Option<i64>,
        /// Of a request that queued.
        #[serde(skip_serializing_if = "Option::is_none")]
        starts_at_ms: Option<i64>,
        limits: Vec<LimitStatus>,
        #[serde(skip_serializing_if = "Option::is_none")]
        missing_plan: Option<&'a PlanName>,
        /// Of a grant without the table.
        #[serde(skip_serializing_if = "Option::is_none")]
        degraded: Option<&'a Degraded>,
        /// What shadow mode waived.
        #[serde(skip_serializing_if = "Option::is_none")]
        would_deny: Option<&'a Denied>,
    },
    Denied(&'a Denied),
    NeverFits(&'a NeverFits),
    Disabled(&'a Disabled),
}

impl Acquire {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let runs_command = !self.command.is_empty();
        let outcome = self.acquire(context).await;
        match outcome {
            Ok(Outcome::Denied | Outcome::NeverFits | Outcome::Stopped) if runs_command => {
                Ok(Outcome::Exit(NOT_GRANTED))
            }
            Err(Failure::Failed(text) | Failure::Refused(text) | Failure::Unavailable(text))
                if runs_command =>
            {
                Err(Failure::Exit(NOT_RUN, text))
            }
            outcome => outcome,
        }
    }

    /// Tells a denial. With a command, standard output is the command's alone.
    fn refused(
        &self,
        context: &Context,
        answer: &Answer<'_>,
        text: impl Display,
    ) -> Result<(), Unwritten> {
        let (output, line) = (context.output(), one_line(&text.to_string()));
        match self.command.is_empty() {
            true => output.print(answer, |_| line),
            false => output.warn(answer, |_| line),
        }
    }

    async fn acquire(self, context: &Context) -> Result<Outcome, Failure> {
        // A password may come from a pipe, and a signal ends the wait for it.
        let limiter = context.limiter().await?;
        // Before the first request, so that none leaves something behind that a signal ends.
        let mut signals = Signals::new()?;
        let BucketArgs { entity, resource } = &self.bucket;
        let mut acquire = limiter.acquire(entity.as_str(), resource.as_str());
        if !self.limits.is_empty() {
            acquire = acquire.limits(&self.limits);
        }
        for Amount { limit, tokens } in &self.takes {
            acquire = acquire.take(limit.as_str(), *tokens);
        }
        if let Some(class) = &self.class {
            acquire = acquire.class(class.as_str());
        }
        if let Some(wait) = self.wait {
            acquire = acquire.wait_up_to(wait);
        }
        if let Some(queue) = self.queue {
            acquire = acquire.queue_up_to(queue);
        }
        if let Some(lease) = self.lease {
            acquire = acquire.lease(lease);
        }
        let sent = async {
            match self.now {
                true => acquire.send_now().await,
                false => acquire.send().await,
            }
        };
        let decision = tokio::select! {
            biased;
            code = signals.end() => Err(code),
            decision = sent => Ok(decision?),
            never = show_wait(context, self.wait.or(self.queue)) => match never {},
        };
        match decision {
            // The dropped request returns what it took.
            Err(code) => Ok(Outcome::Exit(code)),
            Ok(Decision::Granted(grant)) if self.command.is_empty() => {
                note_missing_plan(context, grant.missing_plan());
                for remark in remarks(&grant) {
                    context.output().note(remark);
                }
                if let Err(unwritten) = granted(context, &grant) {
                    return Err(not_told(&unwritten, grant.roll_back().await));
                }
                // The caller of this command uses the slots now, until the lease expires.
                std::mem::forget(grant);
                Ok(Outcome::Done)
            }
            Ok(Decision::Granted(grant)) => {
                note_missing_plan(context, grant.missing_plan());
                // Nothing else tells them, so they are told beside JSON too.
                remarks(&grant).into_iter().for_each(warn);
                let held = Held::new(grant, self.lease, self.on_lost);
                held.run(&self.command, signals).await
            }
            Ok(Decision::Denied(denied)) => {
                note_missing_plan(context, denied.missing_plan.as_ref());
                let later = denied.starts_in.map(rounded_span);
                let later =
                    later.map(|starts| format!("; in a longer --queue it starts in {starts}"));
                let text = format!("{denied}{}", later.unwrap_or_default());
                self.refused(context, &Answer::Denied(&denied), text)?;
                Ok(Outcome::Denied)
            }
            Ok(Decision::NeverFits(never)) => {
                note_missing_plan(context, never.missing_plan.as_ref());
                self.refused(context, &Answer::NeverFits(&never), &never)?;
                Ok(Outcome::NeverFits)
            }
            Ok(Decision::Disabled(disabled)) => {
                self.refused(context, &Answer::Disabled(&disabled), &disabled)?;
                Ok(Outcome::Stopped)
            }
        }
    }
}

/// Shows how long the tokens have been awaited.
async fn show_wait(context: &Context, most: Option<Duration>) -> Infallible {
    let Some(most) = most else {
        return std::future::pending().await;
    };
    let (mut progress, began) = (context.output().progress(), Instant::now());
    let most = exact_span(most);
    loop {
        tokio::time::sleep(SHOWN_EVERY).await;
        let waited = began.elapsed().as_secs();
        progress.show(|| format!("waiting for tokens: {waited}s of {most}"));
    }
}

/// Says that a plan does not exist, whose limits the entity or an ancestor would have.
fn note_missing_plan(context: &Context, plan: Option<&PlanName>) {
    if let Some(plan) = plan {
        context.output().note(format!(
            "plan {plan} has no limits: run `weirgate limits set --plan {plan} rpm=600/minute`, or give \
             the entity another plan"
        ));
    }
}

/// Returns what a grant lacks: it was made without the table, or by a limit that denies nothing.
fn remarks(grant: &Grant) -> Vec<String> {
    let degraded = grant.degraded().map(|Degraded { reason }| {
        format!(
            "warning: granted without the table, which is unavailable ({reason}): nothing is counted there, and \
             no slot is held"
        )
    });
    let waived = grant.would_deny();
    let waived = waived.map(|denied| format!("warning: granted by shadow mode alone: {denied}"));
    degraded.into_iter().chain(waived).collect()
}

/// Returns the failure of a grant that was not printed: no caller knows its lease, so it ends.
fn not_told(unwritten: &Unwritten, rolled_back: Result<Settlement, Error>) -> Failure {
    Failure::Failed(match rolled_back {
        Ok(_) => format!("{unwritten}; the tokens were returned: run this again where it can be"),
        Err(error) => format!(
            "{unwritten}; the tokens could not be returned: {error}; a lease ends by itself when it expires"
        ),
    })
}

fn granted(context: &Context, grant: &Grant) -> Result<(), Unwritten> {
    let answer = Answer::Granted {
        lease_id: grant.lease_id(),
        expires_at_ms: grant.expires_at().map(|at| at.0),
        starts_at_ms: grant.starts_at().map(|at| at.0),
        limits: grant.limits(),
        missing_plan: grant.missing_plan(),
        degraded: grant.degraded(),
        would_deny: grant.would_deny(),
    };
    let output = context.output();
    output.print(&answer, |_| {
        let table = peek::table(output, &grant.limits());
        let lease = grant.lease_id().zip(grant.expires_at());
        let lease =
            lease.map(|(id, expires)| format!("\nlease {id}, expires {}", instant::text(expires)));
        let starts = grant.starts_at().map(|at| {
            let (at, left) = (instant::text(at), rounded_span(grant.starts_in()));
            format!("\nstarts {at}, in {left}")
        });
        let (lease, starts) = (lease.unwrap_or_default(), starts.unwrap_or_default());
        format!("granted\n{table}{lease}{starts}")
    })
}
