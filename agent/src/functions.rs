//! The functions of a table in Redis, in a thread of their own: the copies of usage, and the return of leases.

use std::io;
use std::thread::JoinHandle;

use tokio::sync::oneshot;
use weirgate::{RedisOptions, StoreError, Table};
use weirgate_worker::{Options, Report, Work, Worker};

/// Both functions, until they are stopped.
#[derive(Debug)]
pub struct Functions {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Functions {
    /// Starts both, with a connection of their own.
    ///
    /// # Errors
    /// A sentence, if the URL is none, or there is no thread.
    pub fn start(store: &RedisOptions) -> Result<Self, String> {
        let table = Table::on_redis(store).map_err(|error: StoreError| error.to_string())?;
        let no_thread = |error: io::Error| {
            format!("--functions need a thread, got {error}; allow the agent another one")
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(no_thread)?;
        let (stop, stopped) = oneshot::channel();
        let run = move || {
            if let Some(worker) = Worker::new(table, Options::default(), log) {
                runtime.block_on(worker.run(async {
                    let _ = stopped.await;
                }));
            }
        };
        let thread = std::thread::Builder::new().name("functions".to_owned());
        let thread = thread.spawn(run).map_err(no_thread)?;
        Ok(Self { stop, thread })
    }

    /// Stops both. Returns when another process can go on.
    pub async fn stop(self) {
        // They have ended already, if there is nothing to stop.
        let _ = self.stop.send(());
        let join = tokio::task::spawn_blocking(move || self.thread.join());
        if !matches!(join.await, Ok(Ok(()))) {
            tracing::error!("the functions ended by a panic");
        }
    }
}

/// Writes a line for what was done; at the level `debug` if nothing was changed.
fn log(report: Report) {
    let took_ms = u64::try_from(report.took.as_millis()).unwrap_or(u64::MAX);
    match report.work {
        Work::Began => tracing::info!("this agent runs the functions of the table"),
        Work::Aggregated(summary) => {
            let weirgate_worker::BatchSummary {
                records,
                copied,
                undecodable,
                refused,
                batch_age_ms,
                ..
            } = summary;
            match copied + undecodable + refused {
                0 => tracing::debug!(records, took_ms, "aggregator: batch done"),
                _ => tracing::info!(
                    records,
                    copied,
                    undecodable,
                    refused,
                    batch_age_ms,
                    took_ms,
                    "aggregator: batch done"
                ),
            }
        }
        Work::Reconciled(summary) => {
            let leases = summary.leases_restored;
            let (undecodable, left_over) = (summary.undecodable, summary.left_over);
            match leases + undecodable + left_over {
                0 => tracing::debug!(took_ms, "reconciler: run done"),
                _ => {
                    tracing::info!(leases, undecodable, left_over, took_ms, "reconciler: run done")
                }
            }
        }
        Work::Expired(items) => tracing::debug!(items, took_ms, "expired items were deleted"),
        Work::Failed { function, reason } => {
            tracing::warn!(function, error = reason, "the function failed, and tries again");
        }
    }
}
