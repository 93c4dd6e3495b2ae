//! What tests of the replay share: discarded batches as Lambda leaves them, and the command run on them.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::path::PathBuf;

use clap::Parser;
use serde_json::{Value, json};
use weirgate_replay::{Args, ReplayError, Sum, replay};
use weirgate_tests::Dynamo;

use crate::aggregator::{HOUR, bucket, event, moved, settle, take};

/// What a run did and said.
#[derive(Debug)]
pub struct Run {
    pub sum: Sum,
    pub out: String,
}

/// Runs the command with `input` on its standard input.
pub async fn try_run(dynamo: &Dynamo, input: &str, flags: &[&str]) -> Result<Run, ReplayError> {
    started(dynamo, input, &[&["-"], flags].concat()).await
}

/// Runs the command on files and folders.
pub async fn try_run_on(dynamo: &Dynamo, paths: &[PathBuf]) -> Result<Run, ReplayError> {
    let paths: Vec<_> = paths.iter().map(|path| path.to_str().expect("the path is text")).collect();
    started(dynamo, "", &paths).await
}

async fn started(dynamo: &Dynamo, input: &str, flags: &[&str]) -> Result<Run, ReplayError> {
    let mut line = vec!["weirgate-replay", "--table", "weirgate"];
    for (flag, value) in [("--windows", "hourly,daily,monthly"), ("--ttl-days", "90")] {
        if !flags.contains(&flag) {
            line.extend([flag, value]);
        }
    }
    line.extend(flags);
    let args = Args::try_parse_from(line).expect("the flags are right");
    let mut out = vec![];
    // By the clock of the records, as nobody replays what is years ahead.
    let table = dynamo.table_by(weirgate::FakeClock::at(HOUR)).await;
    let sum = replay(&args, &table, input.as_bytes(), &mut out).await?;
    Ok(Run { sum, out: String::from_utf8(out).expect("the output is text") })
}

pub async fn run_on(dynamo: &Dynamo, paths: &[PathBuf]) -> Run {
    try_run_on(dynamo, paths).await.expect("the table is there")
}

pub async fn run(dynamo: &Dynamo, input: &str, flags: &[&str]) -> Run {
    try_run(dynamo, input, flags).await.expect("the table is there")
}

/// The object that Lambda writes about a batch it gave up.
pub fn wrapped(records: &[Value]) -> String {
    let arn = "arn:aws:dynamodb:us-east-1:123456789012:table/weirgate/stream/2026-11-20T00:00:00.000";
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

/// Three entities, one of them with two shards, used some times.
pub async fn used() -> (Dynamo, Vec<Value>) {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    for round in 0..3 {
        for (entity, shard) in [("a", 0), ("b", 0), ("b", 1), ("c", 0)] {
            let key = bucket(entity, shard);
            take(&table, &key, 1_250 + round).await;
            if round == 1 {
                settle(&table, &key, -2_001).await;
            }
        }
    }
    let records = dynamo.stream().into_iter().map(|record| moved(record, HOUR)).collect();
    (dynamo, records)
}
