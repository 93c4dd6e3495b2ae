//! Signals to this process.

use nix::libc::{SIGRTMAX, SIGRTMIN};
use nix::sys::signal::Signal;
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::Cause;
use tokio::sync::mpsc;

use crate::failure::Failure;

/// A signal to this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Its number; that of a real-time signal is no [`Signal`].
    pub number: i32,
    /// Whether a terminal sent it, to all processes in the foreground.
    pub is_of_terminal: bool,
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
            Failure::Failed(format!(
                "signals cannot be forwarded: {error}; run this again"
            ))
        };
        let ignored = ignored().map_err(failed)?;
        let taken = Signal::iterator()
            .filter(|signal| is_forwarded(*signal))
            .map(number)
            .chain(SIGRTMIN()..=SIGRTMAX())
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

/// Returns the exit code of a process that a signal has ended, as shells have it.
pub fn exit_code(signal: i32) -> u8 {
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

/// Returns the set of signals that this process ignores, a bit each.
fn ignored() -> std::io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let set = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    Ok(set.unwrap_or_default())
}
