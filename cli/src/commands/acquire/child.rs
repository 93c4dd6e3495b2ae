//! A command that runs while a grant is held.

use std::ffi::OsString;
use std::pin::pin;
use std::process::ExitStatus;
use std::time::Duration;

use clap::ValueEnum;
use tokio::process::{Child, Command};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout_at};
use weirgate::{Error, Grant, Settlement};

use super::signals::{Signals, code, forward, terminate};
use crate::failure::{Failure, Outcome};
use crate::streams::warn;

/// Duration of a lease on slots for which none was requested.
const DEFAULT_LEASE: Duration = Duration::from_secs(60);
/// Shortest and longest time between a renewal that failed and the next one.
const RETRY: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(5)];

/// What happens to a command whose lease is lost: another one may have its slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnLost {
    /// Sends SIGTERM to the command, once.
    Stop,
    /// Lets the command go on, with a warning.
    Keep,
}

/// A grant, for as long as a command runs.
#[derive(Debug)]
pub struct Held {
    grant: Grant,
    /// Duration of its lease.
    lasts: Duration,
    on_lost: OnLost,
    /// Instant at which the lease expires, at the earliest.
    until: Instant,
}

impl Held {
    pub fn new(grant: Grant, lease: Option<Duration>, on_lost: OnLost) -> Self {
        let lasts = lease.unwrap_or(DEFAULT_LEASE);
        Self { grant, lasts, on_lost, until: Instant::now() + lasts }
    }

    /// Runs a command, and releases the grant when it has ended.
    ///
    /// # Errors
    /// [`Failure::Exit`] if the command cannot be run.
    pub async fn run(
        mut self,
        command: &[OsString],
        mut signals: Signals,
    ) -> Result<Outcome, Failure> {
        let [program, arguments @ ..] = command else { unreachable!("the command is not empty") };
        let mut child = match Command::new(program).args(arguments).spawn() {
            Ok(child) => child,
            Err(error) => {
                // Nothing ran, so nothing was used.
                settled(self.grant.roll_back().await);
                let code = match error.kind() {
                    std::io::ErrorKind::NotFound => 127,
                    _ => 126,
                };
                let program = program.to_string_lossy();
                let text = format!(
                    "command {program:?} cannot be run: {error}; check its name and permissions"
                );
                return Err(Failure::Exit(code, text));
            }
        };
        let status = self.attend(&mut child, &mut signals).await;
        settled(self.grant.release().await);
        let status = status.map_err(|error| {
            Failure::Failed(format!("the end of the command is not known: {error}; look for it"))
        })?;
        Ok(Outcome::Exit(code(status)))
    }

    /// Forwards signals to a command and renews the lease, until the command has ended.
    async fn attend(
        &mut self,
        child: &mut Child,
        signals: &mut Signals,
    ) -> std::io::Result<ExitStatus> {
        let on_lost = self.on_lost;
        let (ended, end) = oneshot::channel();
        let mut lost = pin!(self.renew(end));
        let mut is_lost = false;
        let status = loop {
            tokio::select! {
                biased;
                status = child.wait() => break status,
                received = signals.next() => forward(child, received),
                why = &mut lost, if !is_lost => {
                    is_lost = true;
                    let Some(why) = why else { continue };
                    let what = match on_lost {
                        OnLost::Stop => "the command gets SIGTERM",
                        OnLost::Keep => "the command goes on",
                    };
                    warn(format!(
                        "warning: the lease is lost ({why}), and others may have its slots: {what} (--on-lost)"
                    ));
                    if on_lost == OnLost::Stop {
                        terminate(child);
                    }
                }
            }
        };
        drop(ended);
        if !is_lost {
            // A renewal that was sent is not cut off, so the release comes after it.
            lost.await;
        }
        status
    }

    /// Renews the lease, each time when a third of it is over, until `end`. Returns why it is lost;
    /// `None` if it is not, or there is none.
    async fn renew(&mut self, mut end: oneshot::Receiver<()>) -> Option<String> {
        self.grant.lease_id()?;
        let [shortest, longest] = RETRY;
        let retry = (self.lasts / 12).clamp(shortest, longest);
        let mut at = self.until - self.lasts * 2 / 3;
        let mut last_error: Option<Error> = None;
        loop {
            tokio::select! {
                biased;
                _ = &mut end => return None,
                () = sleep_until(at.min(self.until)) => {}
            }
            let sent = Instant::now();
            if sent >= self.until {
                let error = last_error.map(|error| format!(": {error}"));
                return Some(format!("not renewed in time{}", error.unwrap_or_default()));
            }
            match timeout_at(self.until, self.grant.renew(self.lasts)).await {
                Ok(Ok(Settlement::Applied)) => {
                    self.until = sent + self.lasts;
                    at = sent + self.lasts / 3;
                }
                Ok(Ok(Settlement::LeaseGone)) => {
                    return Some("it has ended, by an operator or because it expired".to_owned());
                }
                Ok(Err(error)) => {
                    last_error = Some(error);
                    at = Instant::now() + retry;
                }
                Err(_) => at = Instant::now(),
            }
        }
    }
}

fn settled(outcome: Result<Settlement, Error>) {
    if let Err(error) = outcome {
        warn(format!(
            "warning: the tokens could not be returned: {error}; a lease ends by itself when it expires"
        ));
    }
}
