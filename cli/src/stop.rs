//! The end of a command that runs until it is stopped.

use std::io;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::stream::{Stream, StreamExt, poll_fn};
use tokio::sync::watch;

use crate::failure::{FAILED, Failure};

/// Time after the first signal in which others belong to it, 1 s: `timeout` signals a process, and then its
/// group, which has the process too.
const SAME: Duration = Duration::from_secs(1);

/// Whether Ctrl-C, SIGTERM or SIGHUP came.
#[derive(Debug, Clone)]
pub struct Stop(watch::Receiver<bool>);

impl Stop {
    /// Begins to take the signals. A second one, a second after the first or later, ends the process. So does a
    /// first one once nothing has this any more.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn new() -> Result<Self, Failure> {
        let signals = signals().map_err(refused)?;
        let (sender, receiver) = watch::channel(false);
        let mut first: Option<Instant> = None;
        tokio::spawn(signals.for_each(move |()| {
            let now = Instant::now();
            let is_end = first.map_or(sender.is_closed(), |first| is_second(first, now));
            if is_end {
                std::process::exit(FAILED.into());
            }
            first.get_or_insert(now);
            sender.send_replace(true);
            std::future::ready(())
        }));
        Ok(Self(receiver))
    }

    /// Returns whether one came.
    pub fn is_asked(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits for one.
    pub async fn asked(mut self) {
        // The task that sends it ends with the process.
        let _ = self.0.wait_for(|is_asked| *is_asked).await;
    }
}

/// Ctrl-C, SIGTERM and SIGHUP, for a command that ends in several steps: each signal ends one.
pub struct Signals {
    all: Pin<Box<dyn Stream<Item = ()> + Send>>,
    first: Option<Instant>,
}

impl Signals {
    /// Begins to take the signals.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn new() -> Result<Self, Failure> {
        let all = Box::pin(signals().map_err(refused)?);
        Ok(Self { all, first: None })
    }

    /// Waits for the next one.
    pub async fn next(&mut self) {
        loop {
            self.all.next().await;
            let now = Instant::now();
            if self.first.is_none_or(|first| is_second(first, now)) {
                self.first = Some(now);
                return;
            }
        }
    }
}

fn refused(error: io::Error) -> Failure {
    Failure::Failed(format!("Ctrl-C cannot be taken: {error}; run this again"))
}

/// Returns whether a signal at `now` is another one than that at `first`.
fn is_second(first: Instant, now: Instant) -> bool {
    now.duration_since(first) >= SAME
}

#[cfg(unix)]
fn signals() -> io::Result<impl Stream<Item = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut kinds = vec![SignalKind::terminate(), SignalKind::interrupt()];
    let hangup = SignalKind::hangup();
    // `nohup` ignores it.
    if ignored().is_some_and(|ignored| ignored & (1 << (hangup.as_raw_value() - 1)) == 0) {
        kinds.push(hangup);
    }
    let signals: io::Result<Vec<_>> = kinds.into_iter().map(signal).collect();
    let mut signals = signals?;
    Ok(poll_fn(move |context| {
        let mut received = signals.iter_mut().map(|signal| signal.poll_recv(context));
        received.find(Poll::is_ready).unwrap_or(Poll::Pending)
    }))
}

/// Returns the set of signals that this process ignores, a bit each; `None` where there is no `/proc`.
#[cfg(unix)]
pub fn ignored() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let set = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok())
}

#[cfg(windows)]
fn signals() -> io::Result<impl Stream<Item = ()>> {
    let mut interrupted = tokio::signal::windows::ctrl_c()?;
    Ok(poll_fn(move |context| interrupted.poll_recv(context)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_the_second_one_a_second_after_the_first() {
        let first = Instant::now();
        let after = |milliseconds| is_second(first, first + Duration::from_millis(milliseconds));
        assert_eq!([0, 999, 1_000].map(after), [false, false, true]);
    }
}
