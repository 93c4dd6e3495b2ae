//! The end of a command that runs until it is stopped.

use crate::failure::Failure;

/// Returns what waits for Ctrl-C or SIGTERM, from now on.
///
/// # Errors
/// If the system refuses.
#[cfg(unix)]
pub fn stopped() -> Result<impl Future<Output = ()>, Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminated = signal(SignalKind::terminate()).map_err(not_taken)?;
    let mut interrupted = signal(SignalKind::interrupt()).map_err(not_taken)?;
    Ok(async move {
        tokio::select! {
            _ = terminated.recv() => {}
            _ = interrupted.recv() => {}
        }
    })
}

/// Returns what waits for Ctrl-C, from now on.
///
/// # Errors
/// If the system refuses.
#[cfg(windows)]
pub fn stopped() -> Result<impl Future<Output = ()>, Failure> {
    let mut interrupted = tokio::signal::windows::ctrl_c().map_err(not_taken)?;
    Ok(async move {
        interrupted.recv().await;
    })
}

fn not_taken(error: std::io::Error) -> Failure {
    Failure::Failed(format!("Ctrl-C cannot be taken: {error}; run this again"))
}
