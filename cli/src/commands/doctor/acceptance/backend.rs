//! What is tried: the table that was named, and a backend of this machine beside it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use weirgate::{Builder, Limit, RateLimiter, Resource};
use weirgate_shared::{BucketKey, EntityId, Namespace, Shard, exact_span};
use weirgate_store::{CapacityMeter, Table, ThrottleMeter};

use super::super::aws;
use super::super::functions::Deployed;
use crate::failure::Failure;

/// Time within which a function that was called does its work, with a cold start and a repeat.
const RUN: Duration = Duration::from_secs(60);
/// Time to wait for functions of which it is not known whether they run.
const DOUBTFUL: Duration = Duration::from_secs(20);
/// Resource of all buckets.
pub const RESOURCE: &str = "acceptance";

/// A table, and how processes reach it.
#[derive(Debug)]
pub struct Backend {
    pub table: Table,
    pub meter: CapacityMeter,
    pub throttles: ThrottleMeter,
    pub namespace: Namespace,
    /// File of the command line; `None` for this process's.
    pub program: Option<PathBuf>,
    /// Options of the command line for this table and namespace.
    pub arguments: Vec<OsString>,
    /// The functions, if they are known to run.
    pub functions: Option<Deployed>,
    /// Whether it is the backend of this machine, which no credentials are for.
    pub is_beside: bool,
}

impl Backend {
    pub fn new(table: Table, namespace: Namespace, arguments: Vec<OsString>) -> Self {
        let (meter, throttles) = (CapacityMeter::default(), ThrottleMeter::default());
        let table = table.with_meter(meter.clone()).with_throttle_meter(throttles.clone());
        Self {
            table,
            meter,
            throttles,
            namespace,
            program: None,
            arguments,
            functions: None,
            is_beside: false,
        }
    }

    /// Returns whether it is DynamoDB itself, as far as the address tells that a request was sent to.
    pub fn is_aws(&self) -> bool {
        aws::is_of_aws(self.table.endpoint())
    }

    /// Returns how long to wait for what the aggregator does.
    pub fn aggregator_patience(&self) -> Duration {
        self.batch_window().map_or(DOUBTFUL, |window| window + RUN)
    }

    /// Returns how long to wait for what the reconciler does.
    pub fn reconciler_patience(&self) -> Duration {
        self.interval().map_or(DOUBTFUL, |interval| interval + RUN)
    }

    /// Returns how long a record of the stream may wait for others, if it is known.
    pub fn batch_window(&self) -> Option<Duration> {
        self.functions.as_ref()?.batch_window
    }

    /// Returns the time between two runs of the reconciler, if it is known.
    pub fn interval(&self) -> Option<Duration> {
        self.functions.as_ref()?.interval
    }

    /// Returns whether a bucket may be split, if it is known.
    pub fn may_split(&self) -> Option<bool> {
        let most = self.functions.as_ref()?.max_shards;
        most.map(|most| most > 1)
    }

    /// Returns whether the aggregator splits what has to be split, as far as it is known.
    pub fn splits(&self) -> bool {
        self.batch_window().is_some() && self.may_split() == Some(true)
    }

    /// Tells that an aggregator, of which not enough is known, did nothing in this time.
    pub fn none_in(&self, time: Duration) -> String {
        let why = match self.functions {
            Some(_) => "and the settings of its stack are not known",
            None => "and the stack is not known: name it with --stack",
        };
        format!("no aggregator acted within {}, {why}", exact_span(time))
    }

    /// Returns a limiter with nothing in common with others, as another process has.
    pub async fn limiter(&self) -> Result<RateLimiter, Failure> {
        Ok(self.builder().build().await?)
    }

    /// Returns a limiter that reads what a load has left, while the table still answers late.
    pub async fn reader(&self) -> Result<RateLimiter, Failure> {
        Ok(self.builder().timeout(Duration::from_secs(60)).build().await?)
    }

    fn builder(&self) -> Builder {
        RateLimiter::builder(self.table.name())
            .table(self.table.clone())
            .namespace(self.namespace.as_str())
            .owner("acceptance")
    }

    /// Returns the command line on this table, as another process. It ends with its value.
    pub fn process(&self, arguments: &[&str]) -> Result<Command, Failure> {
        let program = self.program.clone().map_or_else(std::env::current_exe, Ok);
        let program = program.map_err(|error| {
            Failure::Failed(format!("the program's own file must be known: {error}"))
        })?;
        let mut command = Command::new(program);
        command.args(&self.arguments).args(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.stdin(Stdio::null()).kill_on_drop(true);
        if self.is_beside {
            for name in ["PROFILE", "ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN"] {
                command.env_remove(format!("AWS_{name}"));
            }
        }
        Ok(command)
    }

    /// Returns the key of a bucket's first shard.
    pub fn bucket(&self, entity: &str) -> Result<BucketKey, Failure> {
        Ok(BucketKey {
            namespace: self.namespace.clone(),
            entity: EntityId::new(entity)?,
            resource: Resource::new(RESOURCE)?,
            shard: 0,
        })
    }

    /// Returns a bucket's first shard, if it was created.
    pub async fn shard(&self, entity: &str) -> Result<Option<Shard>, Failure> {
        let key = self.bucket(entity)?.item_key();
        let found = self.table.read(&[key]).await;
        let found = found.map_err(|error| Failure::from(&error))?;
        let shard = found.first().map(|item| item.bucket()).transpose();
        shard.map_err(|error| Failure::Failed(format!("bucket {entity}: {error}")))
    }
}

/// Returns the limit `t` with a capacity, and next to no refill.
pub fn limit(capacity: u32) -> Result<Limit, Failure> {
    const DAY_MS: u32 = 86_400_000;
    let limit = Limit::custom("t", i64::from(capacity), 1, i64::from(DAY_MS));
    limit.map_err(|error| Failure::Failed(error.to_string()))
}
