//! Signals to this process.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpgid, getpgrp};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::Cause;
use tokio::process::Child;
use tokio::sync::mpsc;

use crate::failure::Failure;
use crate::stop::ignored;
use crate::streams::warn;

/// A signal to this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Its number; that of a real-time signal is no [`Signal`].
    number: i32,
    /// Whether a terminal sent it, to all processes in the foreground.
    is_of_terminal: bool,
}

/// Takes the signals to this process, from now to its end, instead of what they do by default.
#[derive(Debug)]
pub struct Signals(mpsc::UnboundedReceiver<Received>);

impl Signals {
    /// Begins to take all signals, except those that were ignored at the start, as `nohup` does it,
    /// that tell of a fault of this process, or that stop it: a shell has to see that it stopped.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn new() -> Result<Self, Failure> {
        let failed = |error: std::io::Error| {
            Failure::Failed(format!("signals cannot be forwarded: {error}; run this again"))
        };
        let ignored = ignored().unwrap_or_default();
        let taken = Signal::iterator()
            .filter(|signal| is_forwarded(*signal))
            .map(number)
            .chain(real_time())
            .filter(|number| ignored & (1 << (number - 1)) == 0);
        let mut signals = SignalsInfo::<WithOrigin>::new(taken).map_err(failed)?;
        let (sender, receiver) = mpsc::unbounded_channel();
        let forward = move || {
            for origin in signals.forever() {
                let received = Received {
                    number: origin.signal,
                    is_of_terminal: matches!(origin.cause, Cause::Kernel),
                };
                if sender.send(received).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("signals".to_owned());
        thread.spawn(forward).map_err(failed)?;
        Ok(Self(receiver))
    }

    /// Returns the next signal.
    pub async fn next(&mut self) -> Received {
        match self.0.recv().await {
            Some(received) => received,
            // The thread ends with the process.
            None => std::future::pending().await,
        }
    }

    /// Waits for a signal that ends a process by default. Returns the exit code that it leads to.
    pub async fn end(&mut self) -> u8 {
        loop {
            let Received { number, .. } = self.next().await;
            if !matches!(
                Signal::try_from(number),
                Ok(Signal::SIGCONT | Signal::SIGURG | Signal::SIGWINCH)
            ) {
                return exit_code(number);
            }
        }
    }
}

/// Sends a signal on to a command, unless the terminal has sent it to the command too.
pub fn forward(child: &Child, received: Received) {
    let Some(pid) = pid(child) else {
        return;
    };
    let Ok(signal) = Signal::try_from(received.number) else {
        warn(format!(
            "warning: signal {} is a real-time signal, which is not forwarded: the command gets SIGTERM",
            received.number
        ));
        send(pid, Signal::SIGTERM);
        return;
    };
    if !(received.is_of_terminal && is_of_keys(signal) && is_of_our_group(pid)) {
        send(pid, signal);
    }
}

/// Sends SIGTERM to a command.
pub fn terminate(child: &mut Child) {
    if let Some(pid) = pid(child) {
        send(pid, Signal::SIGTERM);
    }
}

fn send(pid: Pid, signal: Signal) {
    // A command that has just ended needs no signal.
    let _ = kill(pid, signal);
}

fn pid(child: &Child) -> Option<Pid> {
    let id = child.id().and_then(|id| i32::try_from(id).ok());
    id.map(Pid::from_raw)
}

/// Returns whether a terminal sends this signal to its foreground process group. Many programs end at
/// once at a second one, so a command of that group must not get it again.
const fn is_of_keys(signal: Signal) -> bool {
    matches!(signal, Signal::SIGINT | Signal::SIGQUIT | Signal::SIGWINCH)
}

/// Returns whether a process is in the group of this one. `timeout`, `setsid` and shells with job
/// control leave it, so a terminal's signals do not reach them. Read at each signal, because a
/// command leaves the group after its start.
fn is_of_our_group(process: Pid) -> bool {
    getpgid(Some(process)).is_ok_and(|group| group == getpgrp())
}

/// Returns the exit code that stands for the end of a command.
pub fn code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
        (None, Some(signal)) => exit_code(signal),
        (None, None) => u8::MAX,
    }
}

/// Returns the exit code of a process that a signal has ended, as shells have it.
fn exit_code(signal: i32) -> u8 {
    u8::try_from(signal).map_or(u8::MAX, |signal| signal.saturating_add(128))
}

/// Returns whether a command gets this signal too.
const fn is_forwarded(signal: Signal) -> bool {
    use Signal::{
        SIGABRT, SIGBUS, SIGCHLD, SIGFPE, SIGILL, SIGKILL, SIGPIPE, SIGSEGV, SIGSTOP, SIGSYS,
        SIGTRAP, SIGTSTP, SIGTTIN, SIGTTOU,
    };
    !matches!(
        signal,
        SIGABRT
            | SIGBUS
            | SIGCHLD
            | SIGFPE
            | SIGILL
            | SIGKILL
            | SIGPIPE
            | SIGSEGV
            | SIGSTOP
            | SIGSYS
            | SIGTRAP
            | SIGTSTP
            | SIGTTIN
            | SIGTTOU
    )
}

#[expect(clippy::as_conversions, reason = "the number of a variant")]
const fn number(signal: Signal) -> i32 {
    signal as i32
}

/// Returns the numbers of the real-time signals.
#[cfg(target_os = "linux")]
fn real_time() -> impl Iterator<Item = i32> {
    nix::libc::SIGRTMIN()..=nix::libc::SIGRTMAX()
}

/// Returns none, as others do not forward them.
#[cfg(not(target_os = "linux"))]
fn real_time() -> impl Iterator<Item = i32> {
    std::iter::empty()
}
