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
//! The futures run on one thread for all limiters that are built so. The first wait starts it, and it
//! lives as long as the process. So callers on different threads share writes as tasks do. The calls of
//! a limiter that was built on another runtime run on that one: see
//! [`Builder::build`](crate::Builder::build).

use std::sync::OnceLock;

use tokio::runtime::{Builder, Runtime};
use tokio::task::block_in_place;

/// Waits for a future.
pub trait Wait: Future + Sized {
    /// Blocks this thread until the future is ready, and returns its output. `spawn_blocking` is the
    /// place for it in async code; on a worker of a multi-thread runtime, another thread takes over the
    /// worker's tasks.
    ///
    /// # Panics
    /// On the thread of a current-thread runtime or of a `LocalSet`, which nothing else would drive: use
    /// `.await` there. Also if the operating system cannot start the thread.
    fn wait(self) -> Self::Output {
        block_in_place(|| runtime().block_on(self))
    }
}

impl<F: Future> Wait for F {}

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let mut runtime = Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).thread_name("weirgate").enable_all().build();
        runtime.unwrap_or_else(|error| panic!("no thread for waiting could be started: {error}"))
    })
}
