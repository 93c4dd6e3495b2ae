//! The lock, and both functions while this process has it.

use std::fmt;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use weirgate_reconciler::{Config, Deadline, reconcile};
use weirgate_store::{RecordStream, StoreError, Table};

use crate::reader::{Reader, TTL_DAYS, Turn};
use crate::report::{Report, Work};

/// Time that a run of the reconciler has: the template's `Timeout`.
const RECONCILER_TIMEOUT: Duration = Duration::from_secs(50);
/// Due shards that the reconciler reads at a time.
const PAGE: i32 = 100;
/// Expired items that are deleted by one request. One with fewer is the last of a run.
const EXPIRED: usize = 100;
/// Longest time between two attempts after failures.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How the functions run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Time between reads of a stream with nothing new, and between attempts to take the lock. Default: 1 s.
    pub window: Duration,
    /// Time between runs of the reconciler. Default: a minute.
    pub reconcile_every: Duration,
    /// Time for which a process has the lock without a sign of life. Default: 30 s.
    pub lock: Duration,
    /// Days that a snapshot of usage is kept after its window. Default: 90.
    pub snapshot_ttl_days: i64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            window: Duration::from_secs(1),
            reconcile_every: Duration::from_secs(60),
            lock: Duration::from_secs(30),
            snapshot_ttl_days: TTL_DAYS,
        }
    }
}

/// Both functions of a table in Redis.
pub struct Worker {
    table: Table,
    stream: RecordStream,
    reader: Reader,
    options: Options,
    report: Box<dyn Fn(Report)>,
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("table", &self.table.name())
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Worker {
    /// Returns the functions of a table, which call `report` for all that they do; `None` if the table is not in
    /// Redis.
    #[must_use]
    pub fn new(table: Table, options: Options, report: impl Fn(Report) + 'static) -> Option<Self> {
        let stream = table.records()?;
        Some(Self {
            reader: Reader::new(table.clone(), stream.clone(), options.snapshot_ttl_days),
            table,
            stream,
            options,
            report: Box::new(report),
        })
    }

    /// Runs until `stop` ends. What is under way is then dropped: each write is whole, and what is not finished
    /// comes again. Another process can go on at once.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        tokio::select! {
            () = stop => {}
            () = self.work() => {}
        }
        if let Err(error) = self.stream.unlock().await {
            tracing::debug!(%error, "the lock of the stream ends by itself");
        }
    }

    /// Works whenever this process has the lock. Does not end.
    async fn work(&mut self) {
        let mut pause = Pause::new(self.options.window);
        loop {
            match self.stream.lock(self.options.lock).await {
                Ok(true) => match self.hold().await {
                    true => pause.succeeded(),
                    // Another process may be able to.
                    false => drop(self.stream.unlock().await),
                },
                Ok(false) => pause.succeeded(),
                Err(error) => failed(&self.table, &self.report, "table", &error),
            }
            pause.rest().await;
        }
    }

    /// Runs both functions until this process does not have the lock any more. Returns whether they began.
    async fn hold(&mut self) -> bool {
        let Self { table, stream, reader, options, report } = self;
        let started = Instant::now();
        if let Err(error) = reader.begin().await {
            failed(table, report, "table", &error);
            return false;
        }
        say(table, report, started, Work::Began);
        let aggregator = async {
            let mut pause = Pause::new(options.window);
            loop {
                let started = Instant::now();
                let turn = reader.turn().await;
                let is_handled = matches!(turn, Turn::Handled(_));
                pause.after(&turn);
                if let Some(work) = turn.work() {
                    say(table, report, started, work);
                }
                if !is_handled {
                    pause.rest().await;
                }
            }
        };
        let reconciler = async {
            let mut is_marked = false;
            loop {
                let started = Instant::now();
                is_marked = is_marked || mark(table, report).await;
                run_reconciler(table, report).await;
                expire(table, report).await;
                sleep(options.reconcile_every.saturating_sub(started.elapsed())).await;
            }
        };
        tokio::select! {
            () = lost(stream, options.lock) => {}
            () = async { tokio::join!(aggregator, reconciler); } => {}
        }
        true
    }
}

/// Keeps the lock. Ends when this process does not have it any more, or cannot know.
async fn lost(stream: &RecordStream, time: Duration) {
    let mut kept = Instant::now();
    loop {
        sleep(time / 3).await;
        let asked = Instant::now();
        match stream.lock(time).await {
            Ok(true) => kept = asked,
            Ok(false) => return,
            Err(_) if kept.elapsed() >= time => return,
            Err(_) => {}
        }
    }
}

/// Marks what the functions know: clients write no quota before. Returns whether it is marked.
async fn mark(table: &Table, report: &dyn Fn(Report)) -> bool {
    let marked = table.mark_functions().await;
    let marked = marked.inspect_err(|error| failed(table, report, "table", error));
    marked.is_ok()
}

async fn run_reconciler(table: &Table, report: &dyn Fn(Report)) {
    let config = Config { table_name: table.name().to_owned(), page: PAGE };
    let (clock, started) = (|| table.skew().now(), Instant::now());
    let deadline = Deadline::after(RECONCILER_TIMEOUT);
    match reconcile(table, &config, &clock, deadline).await {
        Ok(summary) => say(table, report, started, Work::Reconciled(summary)),
        Err(error) => failed(table, report, "reconciler", &error),
    }
}

/// Deletes what has expired, in turns with other requests.
async fn expire(table: &Table, report: &dyn Fn(Report)) {
    let (started, mut deleted) = (Instant::now(), 0);
    loop {
        match table.remove_expired(EXPIRED).await {
            Ok(some) => {
                deleted += some;
                if some < EXPIRED || started.elapsed() >= RECONCILER_TIMEOUT {
                    break;
                }
            }
            Err(error) => {
                failed(table, report, "table", &error);
                break;
            }
        }
    }
    if deleted > 0 {
        say(table, report, started, Work::Expired(deleted));
    }
}

fn say(table: &Table, report: &dyn Fn(Report), started: Instant, work: Work) {
    report(Report { at: table.skew().now(), took: started.elapsed(), work });
}

fn failed(table: &Table, report: &dyn Fn(Report), function: &'static str, error: &StoreError) {
    let reason = error.to_string();
    say(table, report, Instant::now(), Work::Failed { function, reason });
}

/// The time between two attempts, which doubles with each failure.
struct Pause {
    first: Duration,
    next: Duration,
}

impl Pause {
    const fn new(first: Duration) -> Self {
        Self { first, next: first }
    }

    /// Takes note of a turn. One that finished some records is no failure: in a long stream, a record of each batch
    /// may fail.
    const fn after(&mut self, turn: &Turn) {
        match turn {
            Turn::Failed { done: 0, .. } => {}
            Turn::Failed { .. } | Turn::Handled(_) | Turn::Done => self.succeeded(),
        }
    }

    const fn succeeded(&mut self) {
        self.next = self.first;
    }

    fn next(&mut self) -> Duration {
        let now = self.next;
        self.next = (now * 2).min(LONGEST_PAUSE.max(self.first));
        now
    }

    async fn rest(&mut self) {
        sleep(self.next()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_grows_with_failures_in_a_row_that_finish_nothing() {
        let mut pause = Pause::new(Duration::from_secs(1));
        let mut rests = |done: &[usize]| {
            let of = |done: &usize| {
                let reason = String::new();
                pause.after(&Turn::Failed { reason, done: *done });
                pause.next().as_secs()
            };
            done.iter().map(of).collect::<Vec<_>>()
        };
        assert_eq!(rests(&[999; 20]), [1; 20]);
        assert_eq!(rests(&[0; 7]), [2, 4, 8, 16, 30, 30, 30]);
        assert_eq!(rests(&[1, 0]), [1, 2]);
    }
}
