//! Tasks that go on after their caller has gone, such as what a dropped request returns.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::Session;

/// Number of tasks that return tokens, or take some.
#[derive(Debug, Default)]
pub(crate) struct Background {
    tasks: watch::Sender<usize>,
}

/// One of them, until it is dropped.
struct Counted(Arc<Session>);

impl Session {
    /// Runs a task that [`idle`](Background::idle) waits for. Without a runtime, drops it.
    pub(crate) fn spawn(
        self: &Arc<Self>,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> Option<JoinHandle<()>> {
        let runtime = self.runtime()?;
        self.background.tasks.send_modify(|tasks| *tasks += 1);
        let counted = Counted(Arc::clone(self));
        Some(runtime.spawn(async move {
            let _counted = counted;
            task.await;
        }))
    }
}

impl Background {
    /// Waits until no task runs.
    pub(crate) async fn idle(&self) {
        // It fails only without a sender, which `self` is.
        let _ = self.tasks.subscribe().wait_for(|tasks| *tasks == 0).await;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.background.tasks.send_modify(|tasks| *tasks -= 1);
    }
}
