//! Waits for futures of this crate, for callers without an async runtime.
//!
//! ```no_run
//! use weirgate::blocking::Wait;
//! use weirgate::{Limit, RateLimiter};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let limiter = RateLimiter::builder("weirgate").build().wait()?;
//! let limits = [Limit::per_minute("rpm", 600)?];
//! if let Some(grant) = limiter.acquire("openai", "gpt-4").limits(&limits).take("rpm", 1).send().wait()?.granted() {
//!     // ... call the vendor ...
//!     let _ = grant.release().wait()?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The futures run on one thread for all limiters. The first wait starts it, and it lives as long
//! as the process. So callers on different threads share writes as tasks do.

use std::sync::OnceLock;

use tokio::runtime::{Builder, Runtime};

/// Waits for a future.
pub trait Wait: Future + Sized {
    /// Blocks this thread until the future is ready, and returns its output.
    ///
    /// # Panics
    /// On a thread of an async runtime, which must not be blocked: use `.await` there. Also if the
    /// operating system cannot start the thread.
    fn wait(self) -> Self::Output {
        assert!(
            tokio::runtime::Handle::try_current().is_err(),
            "wait() was called on a thread of an async runtime, which it would block: use .await there"
        );
        runtime().block_on(self)
    }
}

impl<F: Future> Wait for F {}

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let mut runtime = Builder::new_multi_thread();
        let runtime = runtime
            .worker_threads(1)
            .thread_name("weirgate")
            .enable_all()
            .build();
        runtime.unwrap_or_else(|error| panic!("no thread for waiting could be started: {error}"))
    })
}
