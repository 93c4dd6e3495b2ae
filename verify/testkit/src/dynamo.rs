//! An embedded DynamoDB under the real SDK: the SDK signs, serialises and classifies; no socket is
//! opened.

mod faults;
mod items;
mod transport;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use aws_smithy_runtime_api::client::http::{HttpConnector, HttpConnectorFuture};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use dynoxide::{Database, DynoxideError};
use serde::de::DeserializeOwned;
use serde_json::Value;
use weirgate_local::{Embedded, StreamReader};
use weirgate_store::{CapacityMeter, Clock, SystemClock, Table, create_table};

pub use faults::Fault;
use faults::Faults;
use faults::untimely;
pub(crate) use faults::{TRANSACTION, cancelled, conflict, throttled_by};
pub use items::import;
pub use transport::Request;
use transport::response;
pub(crate) use transport::{TABLE, connected, table};

/// An embedded DynamoDB with one table. Clones share it.
#[derive(Clone)]
pub struct Dynamo {
    db: Database,
    faults: Arc<Mutex<Faults>>,
    cursor: Arc<Mutex<StreamReader>>,
    latency: Option<std::time::Duration>,
    clock: Option<Arc<dyn Clock>>,
    /// Whether it takes signatures of any time.
    is_tolerant: bool,
}

impl fmt::Debug for Dynamo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Dynamo")
    }
}

impl Dynamo {
    /// A fresh database with the table as `store` defines it, and the mark of its functions.
    pub async fn new() -> Self {
        let dynamo = Self::empty();
        create_table(&dynamo.client().await, TABLE)
            .await
            .expect("an empty database takes the table");
        dynamo.mark_functions();
        dynamo
    }

    /// A fresh database without a table.
    pub fn empty() -> Self {
        let embedded = Embedded::in_memory().expect("SQLite opens in memory");
        let db = embedded.database().clone();
        Self {
            faults: Arc::default(),
            cursor: Arc::new(Mutex::new(StreamReader::after(&db, TABLE, 0))),
            db,
            latency: None,
            clock: None,
            is_tolerant: false,
        }
    }

    /// The same database, answering each request after this long on the runtime's clock.
    pub fn with_latency(mut self, latency: std::time::Duration) -> Self {
        self.latency = (!latency.is_zero()).then_some(latency);
        self
    }

    /// The same database by a clock of its own: it dates its answers, and refuses what was signed
    /// five minutes off.
    pub fn with_clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// The same database, which takes signatures of any time.
    pub const fn tolerant(mut self) -> Self {
        self.is_tolerant = true;
        self
    }

    /// The database itself.
    pub const fn db(&self) -> &Database {
        &self.db
    }

    /// The table, through the one constructor of SDK clients.
    pub async fn table(&self) -> Table {
        table(self.clone(), self.clock()).await
    }

    /// The table, by another name of it.
    pub async fn named(&self, name: &str) -> Table {
        Table::new(connected(self.clone(), self.clock()).await, name)
    }

    /// The table as a process with this clock reaches it.
    pub async fn table_by(&self, clock: impl Clock + 'static) -> Table {
        table(self.clone(), Arc::new(clock)).await
    }

    /// The database's clock; the machine's, if it has none.
    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        self.clock.clone().unwrap_or_else(|| Arc::new(SystemClock))
    }

    /// The table, with a meter of what it consumes.
    pub async fn metered(&self) -> (Table, CapacityMeter) {
        let meter = CapacityMeter::default();
        (self.table().await.with_meter(meter.clone()), meter)
    }

    /// An SDK client of this database.
    pub async fn client(&self) -> aws_sdk_dynamodb::Client {
        connected(self.clone(), self.clock()).await.client
    }

    /// The next writes meet these faults, one each; `None` lets one pass.
    pub fn fail_next(&self, faults: impl IntoIterator<Item = Option<Fault>>) {
        self.faults().next.extend(faults);
    }

    /// Writes pass again: the faults of [`Self::fail_next`] that none has met are forgotten.
    pub fn forget_faults(&self) {
        self.faults().next.clear();
    }

    /// Every write is shown to `decide`, which may fail it. Faults of [`Self::fail_next`] come
    /// first.
    pub fn fail_when(&self, decide: impl FnMut(&Value) -> Option<Fault> + Send + 'static) {
        self.faults().decide = Some(Box::new(decide));
    }

    /// Every transaction is shown to `decide`, which may fail it.
    pub fn fail_transactions(&self, decide: impl FnMut(&Value) -> Option<Fault> + Send + 'static) {
        self.faults().decide_transactions = Some(Box::new(decide));
    }

    /// Every other request is shown to `decide` with its operation; it may fail it, or change the
    /// table first.
    pub fn fail_reads(&self, decide: impl FnMut(&str, &Value) -> Option<Fault> + Send + 'static) {
        self.faults().decide_reads = Some(Box::new(decide));
    }

    /// Every request is shown to `decide` with its operation; it may keep it from the table, without
    /// an answer.
    pub fn stall_when(&self, decide: impl FnMut(&str, &Value) -> bool + Send + 'static) {
        self.faults().stalls = Some(Box::new(decide));
    }

    /// How many requests of any kind arrived since the last call.
    pub fn take_requests(&self) -> u64 {
        self.take_operations().values().sum()
    }

    /// How many requests of each kind arrived since the last call, by operation.
    pub fn take_operations(&self) -> BTreeMap<String, u64> {
        std::mem::take(&mut self.faults().requests)
    }

    fn faults(&self) -> std::sync::MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a request is answered that meets this fault, or none. For transports of one's own,
    /// which [`Self::reached_by`] builds a table on; the faults of the other methods do not count
    /// here.
    pub fn meet(
        &self,
        request: &Request,
        fault: Option<Fault>,
    ) -> Result<HttpResponse, ConnectorError> {
        self.meet_with(request, fault, |body| self.run(&request.operation, body))
    }

    /// [`Self::meet`] for a request that `run` runs.
    pub(crate) fn meet_with(
        &self,
        request: &Request,
        fault: Option<Fault>,
        run: impl Fn(&Value) -> (u16, String),
    ) -> Result<HttpResponse, ConnectorError> {
        let now = self.clock.as_ref().map(|clock| clock.now());
        let strict = now.filter(|_| !self.is_tolerant);
        let answer = match strict.and_then(|now| untimely(&request.signed, now)) {
            Some(refused) => Ok(refused),
            None => fault.map_or_else(
                || Ok(run(&request.body)),
                |fault| fault.answer(&request.operation, &request.body, &run),
            ),
        };
        answer.map(|answer| response(answer, now))
    }

    /// The table as a process with this clock reaches it through a transport of its own.
    pub async fn reached_by(
        transport: impl HttpConnector + 'static,
        clock: impl Clock + 'static,
    ) -> Table {
        table(transport, Arc::new(clock)).await
    }

    /// The answer to a request: what the next fault makes of it, or what `run` does.
    pub(crate) fn answer(
        &self,
        request: &Request,
        run: impl Fn(&Value) -> (u16, String),
    ) -> Result<HttpResponse, ConnectorError> {
        let fault = self.faults().of(&request.operation, &request.body);
        self.meet_with(request, fault, run)
    }

    /// Status and body of the answer to a request, by the faults to come. One that is lost is an error
    /// of the server.
    pub(crate) fn told(&self, operation: &str, request: &Value) -> (u16, String) {
        let fault = self.faults().of(operation, request);
        let run = |request: &Value| self.run(operation, request);
        match fault {
            None => run(request),
            Some(fault) => {
                fault.answer(operation, request, run).unwrap_or_else(|_| (500, String::new()))
            }
        }
    }

    /// Runs a request, whatever faults are to come.
    pub(crate) fn run(&self, operation: &str, request: &Value) -> (u16, String) {
        let db = &self.db;
        let request = request.clone();
        let answer = match operation {
            "UpdateItem" => text(db.update_item(from(request))),
            TRANSACTION => text(db.transact_write_items(from(request))),
            "GetItem" => text(db.get_item(from(request))),
            "PutItem" => text(db.put_item(from(request))),
            "BatchGetItem" => text(db.batch_get_item(from(request))),
            "Query" => text(db.query(from(request))),
            "Scan" => text(db.scan(from(request))),
            "CreateTable" => text(db.create_table(from(request))),
            "UpdateTimeToLive" => text(db.update_time_to_live(from(request))),
            other => panic!("no code of Weirgate calls {other}; add it here if it now does"),
        };
        match answer {
            Ok(body) => (200, body),
            Err(error) => (error.status_code(), error.to_json()),
        }
    }
}

fn from<T: DeserializeOwned>(request: Value) -> T {
    serde_json::from_value(request).expect("the SDK sends what DynamoDB takes")
}

fn text<T: serde::Serialize>(answer: Result<T, DynoxideError>) -> Result<String, DynoxideError> {
    answer.map(|answer| serde_json::to_string(&answer).expect("an answer is JSON"))
}

impl HttpConnector for Dynamo {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let (dynamo, request) = (self.clone(), Request::read(&request));
        HttpConnectorFuture::new(async move {
            if dynamo.faults().stalls(&request.operation, &request.body) {
                return std::future::pending().await;
            }
            if let Some(latency) = dynamo.latency {
                tokio::time::sleep(latency).await;
            }
            dynamo.answer(&request, |body| dynamo.run(&request.operation, body))
        })
    }
}
