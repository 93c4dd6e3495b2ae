//! What a table of DynamoDB takes: the embedded database with the limits of partitions and the
//! conflicts of transactions, on the runtime's clock, from a seed.
//!
//! - Each partition key of the table and of each index is a partition of its own. It has one
//!   balance of write units and one of read units, which refill at a rate up to a burst. A request
//!   to a partition whose balance is too low is throttled and changes nothing. Any other is applied
//!   and charged by item size, so a balance may fall below zero.
//! - A write that changes an entry of an index is throttled with the index's partition.
//! - A table can have limits in all: a new one takes 4,000 writes and 12,000 reads a second.
//! - `BatchGetItem` leaves out the keys of partitions that are spent, and fails only if all are.
//! - A transaction is cancelled if one of its items was written within the conflict window, or
//!   belongs to a running transaction. It runs for one window; a single write to its items
//!   conflicts meanwhile.
//!
//! Not modelled: keys that share a partition, partitions that split because they stay hot, tables
//! that grow.

mod balances;
mod conflicts;
mod indexes;
mod requests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{RangeInclusive, Sub};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_sdk_dynamodb::config::{HttpClient, RuntimeComponents};
use aws_smithy_runtime_api::client::http::{
    HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use tokio::time::{Instant, sleep_until};
use weirgate_store::{CapacityMeter, Table};

use crate::dynamo::{Dynamo, Fault, Request, TRANSACTION, connected, table};
use balances::{Balances, Of};
use conflicts::Conflicts;
use indexes::Scratch;

/// What partitions take, how transactions conflict, and how long answers take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Write units that flow into a partition's balance each second.
    pub units_per_second: u32,
    /// The most write units a balance holds, and what it begins with.
    pub burst: u32,
    /// Read units that flow into a partition's balance each second.
    pub reads_per_second: u32,
    /// The most read units a balance holds, and what it begins with.
    pub read_burst: u32,
    /// Limits of the whole table, and of each whole index; none by default.
    pub in_all: Option<InAll>,
    /// For how long a write to an item cancels transactions on it, and for how long a transaction
    /// runs; 0 by default.
    pub conflict_window: Duration,
    /// A request takes as long as is drawn from here, to the microsecond; the timer rounds it up to
    /// whole milliseconds. It arrives after half of it.
    pub latency: RangeInclusive<Duration>,
}

/// What a table, or an index, takes each second in all its partitions. It begins with as much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InAll {
    /// Write units.
    pub writes: u32,
    /// Read units.
    pub reads: u32,
}

impl InAll {
    /// A table on demand that was just created.
    pub const NEW: Self = Self {
        writes: 4_000,
        reads: 12_000,
    };
}

impl Default for Limits {
    /// DynamoDB's 1,000 write units and 3,000 read units a second, a second's worth of burst, and
    /// answers within 3 to 9 milliseconds; no limit in all, and no conflicts.
    fn default() -> Self {
        Self {
            units_per_second: 1000,
            burst: 1000,
            reads_per_second: 3000,
            read_burst: 3000,
            in_all: None,
            conflict_window: Duration::ZERO,
            latency: Duration::from_millis(3)..=Duration::from_millis(9),
        }
    }
}

/// What arrived, and what became of it. The difference of two counts is what arrived between them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests of any kind.
    pub requests: u64,
    /// Those of them that write; a transaction is one.
    pub writes: u64,
    /// Writes that were refused because a partition of theirs was spent.
    pub throttled: u64,
    /// Those of them whose spent partition was an index's.
    pub index_throttled: u64,
    /// Writes, transactions among them, that were refused because a transaction was in the way.
    pub conflicts: u64,
    /// Write units of the table, without its indexes.
    pub units: u64,
    /// Write units of the indexes.
    pub index_units: u64,
    /// Reads that were refused as a whole because all their partitions were spent.
    pub reads_throttled: u64,
    /// Keys that a `BatchGetItem` returned unprocessed.
    pub kept_back: u64,
    /// Read units, of the table and its indexes, in halves.
    pub half_reads: u64,
}

impl Counts {
    /// Throttled writes among all writes, 0 to 1; 0 if there were none.
    #[must_use]
    pub fn throttled_share(&self) -> f64 {
        let count = |writes| f64::from(u32::try_from(writes).unwrap_or(u32::MAX));
        if self.writes == 0 {
            0.0
        } else {
            count(self.throttled) / count(self.writes)
        }
    }
}

impl Sub for Counts {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            requests: self.requests - before.requests,
            writes: self.writes - before.writes,
            throttled: self.throttled - before.throttled,
            index_throttled: self.index_throttled - before.index_throttled,
            conflicts: self.conflicts - before.conflicts,
            units: self.units - before.units,
            index_units: self.index_units - before.index_units,
            reads_throttled: self.reads_throttled - before.reads_throttled,
            kept_back: self.kept_back - before.kept_back,
            half_reads: self.half_reads - before.half_reads,
        }
    }
}

/// A [`Dynamo`] behind partitions with limits. Clones share both. Faults of the database stand in
/// front: a request that is lost on its way costs nothing, one whose answer is lost costs what it
/// did.
///
/// Runs are the same for the same seed if their callers are: pauses before a second attempt are
/// drawn from the thread's `fastrand`, which a test that has some must seed too.
#[derive(Debug, Clone)]
pub struct Partitions {
    dynamo: Dynamo,
    limits: Limits,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    rng: fastrand::Rng,
    started: Instant,
    balances: Balances,
    conflicts: Conflicts,
    scratch: Option<Scratch>,
    total: Counts,
    seconds: BTreeMap<u64, Counts>,
    /// Nothing is refused any more.
    is_lifted: bool,
    /// Tokens of the transactions that happened: to ask for one again writes nothing.
    tokens: BTreeSet<String>,
}

impl Partitions {
    /// Partitions with these limits before the database. Their time begins now, their latencies
    /// come from `seed`.
    #[must_use]
    pub fn over(dynamo: Dynamo, limits: Limits, seed: u64) -> Self {
        let state = State {
            rng: fastrand::Rng::with_seed(seed),
            started: Instant::now(),
            balances: Balances::new(&limits),
            conflicts: Conflicts::new(limits.conflict_window),
            scratch: None,
            is_lifted: false,
            total: Counts::default(),
            seconds: BTreeMap::new(),
            tokens: BTreeSet::new(),
        };
        Self {
            dynamo,
            limits,
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// The table behind its partitions.
    pub async fn table(&self) -> Table {
        table(self.clone(), self.dynamo.clock()).await
    }

    /// The table behind its partitions, with a meter of what it consumes.
    pub async fn metered(&self) -> (Table, CapacityMeter) {
        let meter = CapacityMeter::default();
        (self.table().await.with_meter(meter.clone()), meter)
    }

    /// An SDK client of the database behind its partitions.
    pub async fn client(&self) -> aws_sdk_dynamodb::Client {
        connected(self.clone(), self.dynamo.clock()).await.client
    }

    /// What arrived so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.state().total
    }

    /// What arrived in each second since the partitions' time began; a second in which nothing did
    /// is not there.
    #[must_use]
    pub fn seconds(&self) -> BTreeMap<u64, Counts> {
        self.state().seconds.clone()
    }

    /// What arrived so far at one partition of the table; of a transaction, the units of its items
    /// there.
    #[must_use]
    pub fn partition(&self, pk: &str) -> Counts {
        self.state().balances.counts(Of::Table, pk)
    }

    /// What arrived so far at one partition of an index. `units` are the index's own.
    #[must_use]
    pub fn index_partition(&self, index: &'static str, pk: &str) -> Counts {
        self.state().balances.counts(Of::Index(index), pk)
    }

    /// Lifts all limits: from now on nothing is throttled, and nothing conflicts.
    pub fn lift(&self) {
        self.state().is_lifted = true;
    }

    /// Returns the answer to a request that meets this fault, or none. For transports of one's own,
    /// which [`Dynamo::reached_by`] builds a table on.
    ///
    /// # Errors
    /// If the fault loses the answer.
    pub fn meet(
        &self,
        request: &Request,
        fault: Option<Fault>,
    ) -> Result<HttpResponse, ConnectorError> {
        self.dynamo.meet_with(request, fault, || {
            self.run(&request.operation, &request.body)
        })
    }

    /// For how long a request runs after it has arrived: a transaction for one conflict window.
    #[must_use]
    pub fn runs_for(&self, request: &Request) -> Duration {
        if request.operation == TRANSACTION {
            self.limits.conflict_window
        } else {
            Duration::ZERO
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long the next request takes.
    fn latency(&self) -> Duration {
        let micros = |span: &Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        let (least, most) = (
            micros(self.limits.latency.start()),
            micros(self.limits.latency.end()),
        );
        Duration::from_micros(self.state().rng.u64(least..=most.max(least)))
    }
}

impl State {
    fn count(&mut self, count: impl Fn(&mut Counts)) {
        let second = Instant::now().duration_since(self.started).as_secs();
        count(&mut self.total);
        count(self.seconds.entry(second).or_default());
    }
}

impl HttpClient for Partitions {
    fn http_connector(
        &self,
        _: &HttpConnectorSettings,
        _: &RuntimeComponents,
    ) -> SharedHttpConnector {
        SharedHttpConnector::new(self.clone())
    }
}

impl HttpConnector for Partitions {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let (partitions, latency, request) =
            (self.clone(), self.latency(), Request::read(&request));
        HttpConnectorFuture::new(async move {
            let sent = Instant::now();
            sleep_until(sent + latency / 2).await;
            let answer = partitions.dynamo.answer(&request, || {
                partitions.run(&request.operation, &request.body)
            });
            sleep_until(sent + latency + partitions.runs_for(&request)).await;
            answer
        })
    }
}
