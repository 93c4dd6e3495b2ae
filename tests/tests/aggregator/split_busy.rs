//! A shard that is written to all the time is split in the first batch that asks for it: no
//! transaction is in the way of the writes, and no write in the way of the split.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::fixtures::aggregator::{
    HOUR, bucket, counts, deliver_text, event, held, limits, name, new_id, records, take, take_hot,
};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use weirgate_shared::write::{LimitDelta, Roll, Settle};
use weirgate_shared::{EpochMillis, Hour, MilliTokens};
use weirgate_store::{ReturnValues, Table};
use weirgate_testkit::{Dynamo, Limits, Partitions};

/// Writes that change no balance to the first shard of bucket `a`, at an even pace, also while they
/// are throttled.
fn writes(table: &Table, per_second: u32) -> JoinSet<()> {
    let (began, table, mut all) = (Instant::now(), table.clone(), JoinSet::new());
    all.spawn(async move {
        let mut running = JoinSet::new();
        for at in 0_u32.. {
            sleep_until(began + Duration::from_secs(1) * at / per_second).await;
            let table = table.clone();
            running.spawn(async move {
                let key = bucket("a", 0);
                let none = LimitDelta {
                    available: MilliTokens::ZERO,
                    consumed: MilliTokens(1),
                    ceiling: None,
                };
                let (amounts, roll) = (
                    BTreeMap::from([(name("tpm"), none)]),
                    Roll::to(Hour::of(HOUR)),
                );
                let write = Settle {
                    key: &key,
                    write_id: new_id(),
                    lease: None,
                    amounts,
                    acquires: 0,
                    roll,
                };
                let _ = table.update(&write.full(None), ReturnValues::None).await;
            });
            while running.try_join_next().is_some() {}
        }
    });
    all
}

#[tokio::test(start_paused = true)]
async fn a_busy_shard_is_split_in_the_first_batch_that_asks_for_it() {
    for per_second in [500, 800, 1_000] {
        for seed in 0..2 {
            let dynamo = Dynamo::new().await;
            let takes = Limits {
                conflict_window: Duration::from_millis(10),
                burst: 100,
                ..Limits::default()
            };
            let partitions = Partitions::over(dynamo.clone(), takes, seed);
            let table = partitions.table().await;
            take(&table, &bucket("a", 0), 1_500).await;
            let _writes = writes(&table, per_second);
            sleep(Duration::from_millis(500)).await;
            take_hot(&dynamo.table().await, &bucket("a", 0)).await;
            let now = EpochMillis(HOUR.0 + 500);
            let handled = deliver_text(&table, &event(&records(&dynamo)), now).await;
            assert_eq!(
                handled.response.unwrap(),
                Default::default(),
                "{per_second}/s, seed {seed}: nothing has failed"
            );
            assert_eq!(
                handled.summary.splits, 1,
                "{per_second}/s, seed {seed}: {:?}",
                handled.summary
            );
            let there = dynamo.table().await;
            assert_eq!(
                counts(&there).await,
                [(0, 2), (1, 2)],
                "{per_second}/s, seed {seed}"
            );
            // What was taken has flowed in again by then.
            let full: Vec<_> = limits().iter().map(|limit| limit.rule().capacity).collect();
            assert_eq!(held(&there).await, full, "{per_second}/s, seed {seed}");
            assert_eq!(partitions.counts().conflicts, 0);
        }
    }
}
