//! Gives the stream to the aggregator in batches, as Lambda's event source mapping of the template does it: in
//! order; reported records and all later ones come again, and a batch that fails as a whole is halved, also one that
//! cannot be read.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;
use weirgate_aggregator::execute::Throttles;
use weirgate_aggregator::report::finished;
use weirgate_aggregator::{
    Config, DEFAULT_TTL_DAYS, HOT_UNITS, Handled, Invocation, LogBudget, REFILL_WRITES, handle_next,
};
use weirgate_store::{RecordStream, StoreError, StreamRecord, Table, Unread};

use crate::event::event;
use crate::report::Work;

/// Maximum number of records in a batch: the template's `BatchSize`.
const BATCH_SIZE: usize = 1_000;
/// Time that a batch has: the template's `Timeout`.
const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct Reader {
    table: Table,
    stream: RecordStream,
    config: Config,
    throttles: Throttles,
    /// Whether the stream is known to exist.
    is_open: bool,
    /// Records that were read and not finished.
    waiting: VecDeque<StreamRecord>,
    batch_size: usize,
}

/// How a turn ended.
#[derive(Debug)]
pub(crate) enum Turn {
    /// Handled a batch, and there may be another one.
    Handled(weirgate_aggregator::Summary),
    /// There was nothing to do.
    Done,
    /// A batch failed at least in part, and the rest comes again.
    Failed {
        reason: String,
        /// Number of records that are finished.
        done: usize,
    },
}

impl Reader {
    pub(crate) fn new(table: Table, stream: RecordStream, snapshot_ttl_days: i64) -> Self {
        Self {
            config: Config {
                table_name: table.name().to_owned(),
                snapshot_ttl_days,
                write_concurrency: 32,
                // A key has no bound of its own, so no shard is hot.
                max_shards: 1,
                refill_writes: REFILL_WRITES,
                hot_units: HOT_UNITS,
            },
            table,
            stream,
            throttles: Throttles::default(),
            is_open: false,
            waiting: VecDeque::new(),
            batch_size: BATCH_SIZE,
        }
    }

    /// Forgets what was read, which comes again. Makes the stream, if it does not exist.
    pub(crate) async fn begin(&mut self) -> Result<(), StoreError> {
        self.is_open = false;
        self.waiting.clear();
        self.stream.open().await?;
        self.is_open = true;
        Ok(())
    }

    /// Handles one batch.
    pub(crate) async fn turn(&mut self) -> Turn {
        match self.fill().await {
            Ok(()) => {
                let turn = self.invoke().await;
                if matches!(turn, Turn::Failed { done: 0, .. }) {
                    // A successor of the server may not have these records.
                    self.is_open = false;
                }
                turn
            }
            Err(error) => {
                // The stream may be gone.
                self.is_open = false;
                Turn::failed(error)
            }
        }
    }

    /// Reads records if none waits: first those that were read and not finished, by this process or by another one,
    /// which may have read them after it lost the lock.
    async fn fill(&mut self) -> Result<(), StoreError> {
        if !self.is_open {
            self.begin().await?;
        }
        for unread in [Unread::Again, Unread::New] {
            if !self.waiting.is_empty() {
                break;
            }
            let records = self.stream.read(unread, self.batch_size).await;
            if records.is_err() {
                // So many may not arrive in time.
                self.batch_size = self.batch_size.div_ceil(2);
            }
            self.waiting.extend(records?);
        }
        Ok(())
    }

    /// Gives a batch to the aggregator, and finishes what was handled.
    async fn invoke(&mut self) -> Turn {
        let batch = self.batch_size.min(self.waiting.len());
        if batch == 0 {
            return Turn::Done;
        }
        let records = &self.waiting.make_contiguous()[..batch];
        let invocation =
            Invocation { now: self.table.skew().now(), deadline: Instant::now() + TIMEOUT };
        let event = event(records);
        let handled = handle_next(
            &event,
            &self.table,
            &self.config,
            &self.throttles,
            invocation,
            // A record that is finished is deleted, and with it the numbers of a refused copy.
            LogBudget::unlimited(),
        );
        let Handled { summary, response } = match handled.await {
            Ok(handled) => handled,
            Err(error) => return Turn::failed(error),
        };
        let ids: Vec<_> = records.iter().map(|record| record.id.clone()).collect();
        let response = match response {
            Ok(response) => response,
            Err(error) => {
                self.batch_size = batch.div_ceil(2);
                return Turn::failed(error);
            }
        };
        self.batch_size = (self.batch_size * 2).min(BATCH_SIZE);
        let done = finished(ids.iter().map(String::as_str), &response);
        match self.stream.finish(&ids[..done]).await {
            Ok(0) => {}
            Ok(dropped) => tracing::error!(
                dropped,
                "records are gone that were not handled, because the stream was full: the usage of their windows is too \
                 low"
            ),
            Err(error) => return Turn::failed(error),
        }
        self.waiting.drain(..done);
        match done < batch {
            true => Turn::Failed {
                reason: format!("{} of {batch} records come again", batch - done),
                done,
            },
            false => Turn::Handled(summary),
        }
    }
}

impl Turn {
    /// A turn that finished no record.
    fn failed(error: impl ToString) -> Self {
        Self::Failed { reason: error.to_string(), done: 0 }
    }

    pub(crate) fn work(self) -> Option<Work> {
        match self {
            Self::Handled(summary) => Some(Work::Aggregated(summary)),
            Self::Done => None,
            Self::Failed { reason, .. } => Some(Work::Failed { function: "aggregator", reason }),
        }
    }
}

/// Days that usage is kept by default.
pub(crate) const TTL_DAYS: i64 = DEFAULT_TTL_DAYS;
