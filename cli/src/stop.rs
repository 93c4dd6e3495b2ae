//! The end of a command that runs until it is stopped.

use std::io;
use std::task::Poll;

use futures_util::stream::{Stream, StreamExt, poll_fn};
use tokio::sync::watch;

use crate::failure::{FAILED, Failure};

/// Whether Ctrl-C or SIGTERM came.
#[derive(Debug, Clone)]
pub struct Stop(watch::Receiver<bool>);

impl Stop {
    /// Begins to take the signals. A second one ends the process, as each does once nothing has this any more.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn new() -> Result<Self, Failure> {
        let signals = signals().map_err(|error| {
            Failure::Failed(format!("Ctrl-C cannot be taken: {error}; run this again"))
        })?;
        let (sender, receiver) = watch::channel(false);
        tokio::spawn(signals.for_each(move |()| {
            if sender.is_closed() || sender.send_replace(true) {
                std::process::exit(FAILED.into());
            }
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

#[cfg(unix)]
fn signals() -> io::Result<impl Stream<Item = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminated = signal(SignalKind::terminate())?;
    let mut interrupted = signal(SignalKind::interrupt())?;
    Ok(poll_fn(move |context| {
        match terminated.poll_recv(context) {
            Poll::Pending => interrupted.poll_recv(context),
            received => received,
        }
    }))
}

#[cfg(windows)]
fn signals() -> io::Result<impl Stream<Item = ()>> {
    let mut interrupted = tokio::signal::windows::ctrl_c()?;
    Ok(poll_fn(move |context| interrupted.poll_recv(context)))
}
