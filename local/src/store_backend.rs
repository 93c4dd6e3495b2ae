//! The functions of a table in Redis, run by this process.

use std::io;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::oneshot;
use weirgate::{Builder, LimitsFileContents};
use weirgate_store::{RedisOptions, Table};
use weirgate_worker::{Options, Report, Work, Worker};

use crate::actions::Actions;
use crate::backend::StartError;
use crate::limits;

/// How the functions of a table in Redis run.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// The server, and the table on it.
    pub redis: RedisOptions,
    /// Limits file that is applied at the start.
    pub limits: Option<PathBuf>,
    /// Time between runs of the reconciler.
    pub reconcile_every: Duration,
}

/// The functions of a table in Redis. They work unless another process does. They end when this is dropped;
/// [`stop`](Self::stop) also waits for the end.
#[derive(Debug)]
pub struct StoreBackend {
    actions: Actions,
    /// Stops the thread when it is dropped, too.
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl StoreBackend {
    /// Applies the limits by a limiter of these settings, and starts the functions.
    ///
    /// # Errors
    /// [`StartError`] if the limits file is wrong, or the server refuses or does not answer.
    pub async fn start(options: StoreOptions, limiter: Builder) -> Result<Self, StartError> {
        let contents = match &options.limits {
            Some(path) => LimitsFileContents::read(path)?,
            None => LimitsFileContents::default(),
        };
        let table = Table::on_redis(&options.redis)?;
        table.warm().await?;
        limits::apply(&limiter.table(table).build().await?, &contents).await?;
        let actions = Actions::default();
        let (stop, stopped) = oneshot::channel();
        let thread = start(&options, actions.clone(), stopped)?;
        Ok(Self { actions, stop, thread })
    }

    /// What the functions did last.
    #[must_use]
    pub const fn actions(&self) -> &Actions {
        &self.actions
    }

    /// Stops the functions. Another process can go on at once.
    pub async fn stop(self) {
        drop(self.stop);
        // A thread is joined, which must not block the runtime of the caller.
        let stopped = tokio::task::spawn_blocking(move || self.thread.join());
        let _ = stopped.await;
    }
}

/// Starts the functions, with a connection of their own.
fn start(
    options: &StoreOptions,
    actions: Actions,
    stopped: oneshot::Receiver<()>,
) -> Result<JoinHandle<()>, StartError> {
    let table = Table::on_redis(&options.redis)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(StartError::Thread)?;
    let options = Options { reconcile_every: options.reconcile_every, ..Options::default() };
    // Made on its thread: the futures of the functions stay on one.
    let run = move || {
        if let Some(worker) = Worker::new(table, options, move |report| push(&actions, report)) {
            runtime.block_on(worker.run(async {
                let _ = stopped.await;
            }));
        }
    };
    let thread = std::thread::Builder::new().name("functions".to_owned());
    let started: io::Result<_> = thread.spawn(run);
    started.map_err(StartError::Thread)
}

/// Remembers work, if any was done.
fn push(actions: &Actions, report: Report) {
    let Report { at, took, work } = report;
    if !matches!(work, Work::Began) && !work.to_string().is_empty() {
        actions.push(at, took, work);
    }
}
