//! The table's stream to the aggregator, as Lambda's event source mapping of the template does it:
//! in order, in batches, filtered; reported records and all later ones are redelivered, and a batch
//! that fails as a whole is halved.

use std::collections::VecDeque;
use std::time::Duration;

use dynoxide::actions::get_records::Record;
use dynoxide::{AttributeValue, DynoxideError};
use serde::Serialize;
use tokio::time::Instant;
use weirgate_aggregator::execute::Throttles;
use weirgate_aggregator::report::finished;
use weirgate_aggregator::{Config, Handled, Invocation, LogBudget, handle_next};
use weirgate_shared::{BUCKET_SK, attr};
use weirgate_store::Table;
use weirgate_worker::Work;

use crate::actions::Actions;
use crate::checkpoint::Checkpoint;
use crate::stream::{StreamReader, position_of};

/// Maximum number of records in a batch: the template's `BatchSize`.
pub const BATCH_SIZE: usize = 1_000;
/// Time between reads of a stream without a full batch. The template's window is a second; here a
/// page shows what happens.
const WINDOW: Duration = Duration::from_millis(250);
/// Time before a failed batch is redelivered.
const RETRY: Duration = Duration::from_secs(1);
/// Time that an invocation of the aggregator has: the template's `Timeout`.
pub const AGGREGATOR_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct Mapping {
    pub(crate) stream: StreamReader,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) table: Table,
    pub(crate) config: Config,
    pub(crate) actions: Actions,
    throttles: Throttles,
    /// Records that were read and not handled.
    waiting: VecDeque<Record>,
    /// Position of the last record that was read.
    read: i64,
    /// Position of the checkpoint.
    written: i64,
    batch_size: usize,
}

/// The event, as Lambda sends it.
#[derive(Serialize)]
struct Event<'a> {
    #[serde(rename = "Records")]
    records: &'a [Record],
}

/// How a turn ended.
enum Turn {
    /// There is more to do.
    Full,
    /// All records are handled.
    Done,
    /// A batch failed at least in part.
    Failed,
}

impl Mapping {
    pub(crate) fn new(
        stream: StreamReader,
        (checkpoint, position): (Checkpoint, i64),
        (table, config): (Table, Config),
        actions: Actions,
    ) -> Self {
        Self {
            stream,
            checkpoint,
            table,
            config,
            actions,
            throttles: Throttles::default(),
            waiting: VecDeque::new(),
            read: position,
            written: position,
            batch_size: BATCH_SIZE,
        }
    }

    /// Handles what is in the stream. Returns when to come again.
    pub(crate) async fn turn(&mut self) -> Duration {
        let turn = match self.fill() {
            Ok(is_full) => {
                let turn = self.invoke().await;
                if is_full && matches!(turn, Turn::Done) { Turn::Full } else { turn }
            }
            Err(error) => {
                self.failed(error.to_string());
                Turn::Failed
            }
        };
        if let Err(error) = self.save() {
            self.failed(error.to_string());
        }
        match turn {
            Turn::Full => Duration::ZERO,
            Turn::Done => WINDOW,
            Turn::Failed => RETRY,
        }
    }

    /// Reads records if none waits. Returns whether as many came as fit into a batch.
    fn fill(&mut self) -> Result<bool, DynoxideError> {
        if !self.waiting.is_empty() {
            return Ok(true);
        }
        let records = self.stream.read(BATCH_SIZE)?;
        let is_full = records.len() == BATCH_SIZE;
        self.read = records.last().map_or(self.read, position_of);
        self.waiting.extend(records.into_iter().filter(is_of_bucket));
        Ok(is_full)
    }

    /// Gives a batch to the aggregator.
    async fn invoke(&mut self) -> Turn {
        let batch = self.batch_size.min(self.waiting.len());
        if batch == 0 {
            return Turn::Done;
        }
        let records = &self.waiting.make_contiguous()[..batch];
        let event = serde_json::to_string(&Event { records });
        let (now, started) = (self.table.skew().now(), Instant::now());
        let invocation = Invocation { now, deadline: started + AGGREGATOR_TIMEOUT };
        let handled = match event {
            Ok(event) => {
                let handled = handle_next(
                    &event,
                    &self.table,
                    &self.config,
                    &self.throttles,
                    invocation,
                    LogBudget::default(),
                );
                handled.await.map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        let Handled { summary, response } = match handled {
            Ok(handled) => handled,
            Err(error) => {
                self.failed(error);
                return Turn::Failed;
            }
        };
        let numbers = records.iter().map(|record| &*record.dynamodb.sequence_number);
        let done = response.as_ref().map_or(0, |response| finished(numbers, response));
        if let Err(error) = &response {
            self.batch_size = batch.div_ceil(2);
            let reason = error.to_string();
            self.failed(reason);
        } else {
            self.batch_size = BATCH_SIZE;
            let work = Work::Aggregated(summary);
            self.actions.push(now, started.elapsed(), work);
        }
        self.waiting.drain(..done);
        if done < batch {
            Turn::Failed
        } else if self.waiting.is_empty() {
            Turn::Done
        } else {
            Turn::Full
        }
    }

    /// Writes the checkpoint, if it has moved.
    fn save(&mut self) -> Result<(), DynoxideError> {
        let next = self.waiting.front().map(|record| position_of(record) - 1);
        let handled = next.unwrap_or(self.read);
        if handled > self.written {
            self.checkpoint.write(handled)?;
            self.written = handled;
        }
        Ok(())
    }

    fn failed(&self, reason: String) {
        let function = "aggregator";
        let work = Work::Failed { function, reason };
        self.actions.push(self.table.skew().now(), Duration::ZERO, work);
    }
}

/// Whether the template's filter lets the record pass.
fn is_of_bucket(record: &Record) -> bool {
    let sort_key = record.dynamodb.keys.get(attr::SK);
    matches!(sort_key, Some(AttributeValue::S(key)) if key == BUCKET_SK)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use weirgate::{Limit, RateLimiter, SystemClock, Window};
    use weirgate_store::{Clock, ConnectOptions, Connection, connect, create_table};

    use super::*;
    use crate::database::Embedded;
    use crate::server::Server;

    const NAME: &str = "weirgate";

    async fn connection(endpoint: &str) -> Connection {
        let local_endpoint = Some(endpoint.to_owned());
        connect(ConnectOptions { local_endpoint, ..ConnectOptions::default() }).await
    }

    #[tokio::test]
    async fn a_batch_that_fails_is_halved_and_comes_again_until_it_is_counted() {
        let embedded = Embedded::in_memory().unwrap();
        let checkpoint = Checkpoint::open(&embedded, NAME).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Server::start(listener, embedded.database(), vec![]).unwrap();
        let connected = connection(server.endpoint()).await;
        let client = connected.client.clone();
        create_table(&client, NAME).await.unwrap();
        let good = Table::new(connected, NAME);
        let limiter = RateLimiter::builder(NAME).table(good.clone()).build();
        let limiter = limiter.await.unwrap();
        let limits = [Limit::per_minute("rpm", 60).unwrap()];
        for user in ["a", "b", "c", "d"] {
            let acquire = limiter.acquire(user, "gpt-4").limits(&limits);
            let decision = acquire.take("rpm", 1).send().await.unwrap();
            assert!(decision.is_granted());
            let text = aws_sdk_dynamodb::types::AttributeValue::S;
            let request = client.delete_item().table_name(NAME);
            let request = request.key("PK", text(format!("default/BUCKET#{user}#gpt-4#0")));
            let request = request.key("SK", text(BUCKET_SK.to_owned()));
            request.send().await.unwrap();
        }

        // No table of this name exists, which no retry mends.
        let bad = Table::new(connection(server.endpoint()).await, "missing");
        let config = Config::read(|name| (name == "TABLE_NAME").then(|| NAME.to_owned()));
        let mut mapping = Mapping::new(
            StreamReader::after(embedded.database(), NAME, 0),
            (checkpoint.clone(), 0),
            (bad, config.unwrap()),
            Actions::default(),
        );
        for size in [4, 2, 1, 1] {
            assert_eq!(mapping.turn().await, RETRY);
            let state = (mapping.waiting.len(), mapping.batch_size);
            assert_eq!(state, (8, size));
        }
        let handled = checkpoint.read().unwrap();
        let mut left = StreamReader::after(embedded.database(), NAME, handled);
        let left = left.read(BATCH_SIZE).unwrap();
        assert_eq!(left.iter().filter(|record| is_of_bucket(record)).count(), 8);

        mapping.table = good;
        assert_eq!(mapping.turn().await, Duration::ZERO, "one");
        assert_eq!(mapping.turn().await, Duration::ZERO, "seven");
        assert_eq!(mapping.turn().await, WINDOW, "none");
        let now = SystemClock.now();
        for user in ["a", "b", "c", "d"] {
            let usage = limiter.usage(user, "gpt-4", Window::Daily, now).await;
            assert_eq!(usage.unwrap().usage.acquires, 1, "of {user}");
        }
        let mut left = StreamReader::after(embedded.database(), NAME, checkpoint.read().unwrap());
        let left = left.read(BATCH_SIZE).unwrap();
        assert!(!left.iter().any(is_of_bucket), "all are handled");
        server.stop();
    }
}
