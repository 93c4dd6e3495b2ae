//! What tests of the replay share: discarded batches as Lambda leaves them, and the command run on
//! them.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::path::PathBuf;

use clap::Parser;
use serde_json::{Value, json};
use weirgate_replay::{Args, ReplayError, Sum, replay};
use weirgate_shared::{BUCKET_SK, Millis};
use weirgate_tests::Dynamo;

use crate::aggregator::{HOUR, bucket, event, limits, name, records, settle, take_at, take_in};

/// What a run did and said.
#[derive(Debug)]
pub struct Run {
    pub sum: Sum,
    pub out: String,
}

impl Run {
    /// Copies made, and copies that were there already. Nothing may be left.
    #[track_caller]
    pub fn copies(&self) -> [usize; 2] {
        assert!(self.sum.is_complete(), "{}", self.out);
        [self.sum.copied, self.sum.superseded]
    }
}

/// Runs the command with `input` on its standard input.
pub async fn try_run(dynamo: &Dynamo, input: &str, flags: &[&str]) -> Result<Run, ReplayError> {
    started(dynamo, input, &[&["-"], flags].concat()).await
}

/// Runs the command on files and folders.
pub async fn try_run_on(dynamo: &Dynamo, paths: &[PathBuf]) -> Result<Run, ReplayError> {
    let paths: Vec<_> = paths
        .iter()
        .map(|path| path.to_str().expect("the path is text"))
        .collect();
    started(dynamo, "", &paths).await
}

async fn started(dynamo: &Dynamo, input: &str, flags: &[&str]) -> Result<Run, ReplayError> {
    let line = [&["weirgate-replay", "--table", "weirgate"], flags].concat();
    let args = Args::try_parse_from(line).expect("the flags are right");
    let mut out = vec![];
    // By the clock of the records, which are of another year than the machine's.
    let table = dynamo.table_by(weirgate::FakeClock::at(HOUR)).await;
    let sum = replay(&args, &table, input.as_bytes(), &mut out).await?;
    Ok(Run {
        sum,
        out: String::from_utf8(out).expect("the output is text"),
    })
}

pub async fn run_on(dynamo: &Dynamo, paths: &[PathBuf]) -> Run {
    try_run_on(dynamo, paths).await.expect("the table is there")
}

pub async fn run(dynamo: &Dynamo, input: &str, flags: &[&str]) -> Run {
    try_run(dynamo, input, flags)
        .await
        .expect("the table is there")
}

/// The object that Lambda writes about a batch it gave up.
pub fn wrapped(records: &[Value]) -> String {
    let arn =
        "arn:aws:dynamodb:us-east-1:123456789012:table/weirgate/stream/2026-11-20T00:00:00.000";
    let named = |record: &Value| {
        let mut record = record.clone();
        record["eventSourceARN"] = json!(arn);
        record
    };
    let records: Vec<_> = records.iter().map(named).collect();
    json!({
        "requestContext": {"condition": "RetryAttemptsExhausted", "approximateInvokeCount": 101},
        "responseContext": {"statusCode": 200, "executedVersion": "$LATEST", "functionError": null},
        "version": "1.0",
        "timestamp": "2026-11-20T18:10:00.000Z",
        "DDBStreamBatchInfo": {"streamArn": arn, "batchSize": records.len()},
        "payload": event(&records),
    })
    .to_string()
}

/// Copies that the records of [`used`] ask for: of each shard two hours and a day.
pub const COPIES: usize = 12;

/// Three entities, one of them with two shards, used in two hours of one day and one of the next.
pub async fn used() -> (Dynamo, Vec<Value>) {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    for (round, hour) in [(0, 0), (1, 1), (2, 8)] {
        for (entity, shard) in [("a", 0), ("b", 0), ("b", 1), ("c", 0)] {
            let key = bucket(entity, shard);
            take_in(&table, &key, 1_250 + round, hour).await;
            if round == 1 {
                settle(&table, &key, -2_001).await;
            }
        }
    }
    let records = records(&dynamo);
    (dynamo, records)
}

/// A bucket that is made, used and deleted, so many times within one hour: the records of each
/// life.
pub async fn lives(count: i64) -> (Dynamo, Vec<Vec<Value>>) {
    let dynamo = Dynamo::new().await;
    let (table, key) = (dynamo.table().await, bucket("a", 0));
    let mut lives = vec![];
    for life in 0..count {
        let needs = [(
            name("rpm"),
            weirgate_shared::MilliTokens::from_tokens(1 + life),
        )]
        .into();
        take_at(
            &table,
            &key,
            &limits(),
            needs,
            HOUR.plus(Millis(life * 10_000)),
        )
        .await;
        dynamo.delete(&key.item_key().pk, BUCKET_SK);
        lives.push(records(&dynamo));
    }
    (dynamo, lives)
}
