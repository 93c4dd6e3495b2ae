//! Uses of some bucket shards at random, and the records they leave.

use proptest::prelude::*;
use serde_json::Value;
use weirgate_shared::{BucketKey, Millis};
use weirgate_tests::Dynamo;

use super::{HOUR, moved, settle, take};

/// One write to one of some bucket shards, and how long after the former one.
#[derive(Debug, Clone)]
pub struct Use {
    shard: usize,
    tokens: i64,
    is_take: bool,
    wait_ms: i64,
}

/// A use of one of so many shards, less than so long after the former one.
pub fn a_use(shards: usize, wait_ms: i64) -> impl Strategy<Value = Use> {
    (0..shards, -3_000..9_000i64, prop::bool::weighted(0.8), 0..wait_ms).prop_map(
        |(shard, tokens, is_take, wait_ms)| Use {
            shard,
            tokens: if is_take { tokens.abs() } else { tokens },
            is_take,
            wait_ms,
        },
    )
}

/// The records of making the `shards` and of their `uses`.
pub async fn written(dynamo: &Dynamo, shards: &[BucketKey], uses: &[Use]) -> Vec<Value> {
    let table = dynamo.table().await;
    let (mut at, mut records) = (HOUR, vec![]);
    for shard in shards {
        take(&table, shard, 1).await;
    }
    for used in uses {
        records.extend(dynamo.stream().into_iter().map(|record| moved(record, at)));
        at = at.after(Millis(used.wait_ms));
        let shard = &shards[used.shard];
        if used.is_take { take(&table, shard, used.tokens).await } else { settle(&table, shard, used.tokens).await }
    }
    records.extend(dynamo.stream().into_iter().map(|record| moved(record, at)));
    records
}
