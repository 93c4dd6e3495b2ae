//! Uses of some bucket shards at random, and the records they leave.

use proptest::prelude::*;
use serde_json::Value;
use weirgate_shared::BucketKey;
use weirgate_tests::Dynamo;

use super::{records, settle_in, take, take_in};

/// One write to one of some bucket shards, and how many hours after the former one.
#[derive(Debug, Clone)]
pub struct Use {
    shard: usize,
    tokens: i64,
    is_take: bool,
    hours: i64,
}

/// A use of one of so many shards, up to so many hours after the former one.
pub fn a_use(shards: usize, hours: i64) -> impl Strategy<Value = Use> {
    let hours = prop_oneof![3 => Just(0), 1 => 1..=hours];
    (
        0..shards,
        -3_000..9_000i64,
        prop::bool::weighted(0.8),
        hours,
    )
        .prop_map(|(shard, tokens, is_take, hours)| Use {
            shard,
            tokens: if is_take { tokens.abs() } else { tokens },
            is_take,
            hours,
        })
}

/// The records of making the `shards` and of their `uses`.
pub async fn written(dynamo: &Dynamo, shards: &[BucketKey], uses: &[Use]) -> Vec<Value> {
    let table = dynamo.table().await;
    let mut hours = 0;
    for shard in shards {
        take(&table, shard, 1).await;
    }
    for used in uses {
        hours += used.hours;
        let shard = &shards[used.shard];
        if used.is_take {
            take_in(&table, shard, used.tokens, hours).await;
        } else {
            settle_in(&table, shard, used.tokens, hours).await;
        }
    }
    records(dynamo)
}
