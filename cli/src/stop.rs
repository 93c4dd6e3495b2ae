//! The end of a command that runs until it is stopped.

/// Returns what waits for Ctrl-C or SIGTERM, from now on.
///
/// # Errors
/// If the system refuses.
#[cfg(unix)]
pub fn stopped() -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminated = signal(SignalKind::terminate())?;
    let mut interrupted = signal(SignalKind::interrupt())?;
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
pub fn stopped() -> std::io::Result<impl Future<Output = ()>> {
    let mut interrupted = tokio::signal::windows::ctrl_c()?;
    Ok(async move {
        interrupted.recv().await;
    })
}
