//! A runtime whose clock waits for nothing.

/// Runs something on virtual time, on one thread of its own.
///
/// # Panics
/// If it panics, or a runtime cannot be made.
pub async fn on_virtual_time<T, F>(run: impl FnOnce() -> F + Send + 'static) -> T
where
    T: Send + 'static,
    F: Future<Output = T>,
{
    let done = tokio::task::spawn_blocking(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build();
        runtime.expect("a runtime").block_on(run())
    });
    done.await.expect("it ends")
}
