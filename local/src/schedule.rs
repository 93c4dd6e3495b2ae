//! The reconciler on its timer, and what DynamoDB does by itself: the deletion of expired items.

use std::time::Duration;

use dynoxide::Database;
use tokio::time::Instant;
use weirgate_reconciler::{Config, Deadline, reconcile};
use weirgate_store::Table;
use weirgate_worker::Work;

use crate::actions::Actions;

/// Time that a run of the reconciler has: the template's `Timeout`.
pub const RECONCILER_TIMEOUT: Duration = Duration::from_secs(50);
/// Time between deletions of expired items. DynamoDB takes up to days.
const EXPIRE_EVERY: Duration = Duration::from_secs(600);

pub(crate) struct Schedule {
    pub(crate) database: Database,
    pub(crate) table: Table,
    pub(crate) config: Config,
    pub(crate) actions: Actions,
    pub(crate) every: Duration,
    /// When expired items are deleted next.
    pub(crate) expire_at: Instant,
}

impl Schedule {
    /// Runs the reconciler, and deletes expired items if it is time. Returns when to come again.
    pub(crate) async fn turn(&mut self) -> Duration {
        let (clock, started) = (|| self.table.skew().now(), Instant::now());
        let deadline = Deadline::after(RECONCILER_TIMEOUT);
        let work = match reconcile(&self.table, &self.config, &clock, deadline).await {
            Ok(summary) => Work::Reconciled(summary),
            Err(error) => failed("reconciler", &error),
        };
        self.push(work, started);
        if Instant::now() >= self.expire_at {
            self.expire_at = Instant::now() + EXPIRE_EVERY;
            let started = Instant::now();
            let work = match self.database.sweep_ttl() {
                Ok(deleted) => Work::Expired(deleted),
                Err(error) => failed("table", &error),
            };
            self.push(work, started);
        }
        self.every.saturating_sub(started.elapsed())
    }

    /// Remembers work, if any was done.
    fn push(&self, work: Work, started: Instant) {
        if !work.to_string().is_empty() {
            let (took, now) = (started.elapsed(), self.table.skew().now());
            self.actions.push(now, took, work);
        }
    }
}

fn failed(function: &'static str, error: &dyn std::error::Error) -> Work {
    Work::Failed { function, reason: error.to_string() }
}
