//! What a table of DynamoDB takes: the embedded database with the limits of partitions and the
//! conflicts of transactions, on the runtime's clock, from a seed.
//!
//! - Each partition key of the table and of each index is a partition of its own, or belongs to
//!   one of a few by its hash. A partition has one balance of write units and one of read units, which
//!   refill at a rate up to a burst. A request to a partition whose balance is too low is throttled and
//!   changes nothing. Any other is applied and charged by item size, so a balance may fall below zero.
//! - A shared partition that is throttled for long enough splits in two, each with limits of its own.
//! - A write that changes an entry of an index is throttled with the index's partition.
//! - `BatchGetItem` leaves out the keys of partitions that are spent, and fails only if all are.
//! - A transaction is cancelled if one of its items was written within the conflict window, or
//!   belongs to a running transaction. It runs for one window; a single write to its items
//!   conflicts meanwhile.
//!
//! Not modelled: that DynamoDB chooses where it splits by the heat of the keys, tables that grow
//! before they are hot.

mod balances;
mod conflicts;
mod counts;
mod indexes;
mod limits;
mod requests;
mod state;
mod target;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_smithy_runtime_api::client::http::{HttpConnector, HttpConnectorFuture};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use tokio::time::{Instant, sleep_until};
use weirgate_store::{CapacityMeter, Table};

use crate::dynamo::{Dynamo, Fault, Request, TRANSACTION, connected, table};
use balances::Of;
use state::State;

pub use counts::Counts;
pub use limits::Limits;

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

impl Partitions {
    /// Partitions with these limits before the database. Their time begins now, their latencies
    /// come from `seed`.
    pub fn over(dynamo: Dynamo, limits: Limits, seed: u64) -> Self {
        let state = State::new(&limits, seed);
        Self { dynamo, limits, state: Arc::new(Mutex::new(state)) }
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
    pub fn counts(&self) -> Counts {
        self.state().total
    }

    /// What arrived in each second since the partitions' time began; a second in which nothing did
    /// is not there.
    pub fn seconds(&self) -> BTreeMap<u64, Counts> {
        self.state().seconds.clone()
    }

    /// What arrived so far at one partition of the table; of a transaction, the units of its items
    /// there.
    pub fn partition(&self, pk: &str) -> Counts {
        self.state().balances.counts(Of::Table, pk)
    }

    /// What arrived so far at one partition of an index. `units` are the index's own.
    pub fn index_partition(&self, index: &'static str, pk: &str) -> Counts {
        self.state().balances.counts(Of::Index(index), pk)
    }

    /// How many partitions the table's keys share now; 0 if each has its own.
    pub fn shared(&self) -> u64 {
        self.state().balances.of_table()
    }

    /// Lifts all limits: from now on nothing is throttled, and nothing conflicts.
    pub fn lift(&self) {
        self.state().is_lifted = true;
    }

    /// Returns the answer to a request that meets this fault, or none. For transports of one's own,
    /// which [`Dynamo::reached_by`] builds a table on.
    pub fn meet(
        &self,
        request: &Request,
        fault: Option<Fault>,
    ) -> Result<HttpResponse, ConnectorError> {
        self.dynamo.meet_with(request, fault, |body| self.run(&request.operation, body))
    }

    /// For how long a request runs after it has arrived: a transaction for one conflict window.
    pub fn runs_for(&self, request: &Request) -> Duration {
        if request.operation == TRANSACTION { self.limits.conflict_window } else { Duration::ZERO }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long the next request takes.
    fn latency(&self) -> Duration {
        let micros = |span: &Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        let (least, most) =
            (micros(self.limits.latency.start()), micros(self.limits.latency.end()));
        Duration::from_micros(self.state().rng.u64(least..=most.max(least)))
    }
}

impl HttpConnector for Partitions {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let (partitions, latency, request) =
            (self.clone(), self.latency(), Request::read(&request));
        HttpConnectorFuture::new(async move {
            let sent = Instant::now();
            sleep_until(sent + latency / 2).await;
            let answer =
                partitions.dynamo.answer(&request, |body| partitions.run(&request.operation, body));
            sleep_until(sent + latency + partitions.runs_for(&request)).await;
            answer
        })
    }
}
