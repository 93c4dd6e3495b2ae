//! An erased or purged bucket does not come back, whatever arrives late: records that come again, processes that
//! finish a split of which they have an image, runs of the reconciler.

use std::collections::BTreeSet;
use weirgate_tests::stored::{start, stop};

use fastrand::Rng;
use serde_json::Value;
use weirgate::{ConfigLevel, LiveLeases, RateLimiter};
use weirgate_shared::Shard;
use weirgate_shared::write::{finish_writes, split};
use weirgate_store::ReturnValues;
use weirgate_testkit::batches;

use weirgate_tests::aggregator::{deliver_text, event, new_id};
use weirgate_tests::fleet::shards::shards;
use weirgate_tests::fleet::{Fleet, granted, pass, secs};
use weirgate_tests::sharded;
use weirgate_tests::stored::{entity, rpm};

/// All that processes and the stream know of the bucket's past.
#[derive(Default)]
struct Past {
    records: Vec<Value>,
    /// Shards with an escrow.
    images: Vec<Shard>,
}

impl Past {
    async fn see(&mut self, fleet: &Fleet) {
        self.records.extend(batches::stream(&fleet.dynamo, fleet.now()));
        let seen = shards(fleet).await.into_iter();
        self.images.extend(seen.filter(|shard| shard.escrow.is_some()));
    }

    /// Everything comes late, and the reconciler runs until its reviews are over.
    async fn comes_again(&self, fleet: &Fleet) {
        let table = fleet.dynamo.table().await;
        for update in self.images.iter().filter_map(finish_writes).flatten() {
            table.update(&update, ReturnValues::None).await.unwrap();
        }
        let handled = deliver_text(&table, &event(&self.records), fleet.now()).await;
        assert_eq!(handled.summary.undecodable, 0);
        for _ in 0..3 {
            pass(secs(61)).await;
            sharded::run(&table, fleet.now()).await;
        }
    }
}

/// Splits, finished or not, merges and acquires in any order.
async fn live(fleet: &Fleet, limiter: &RateLimiter, random: &mut Rng) -> Past {
    let (table, mut past) = (fleet.dynamo.table().await, Past::default());
    drop(granted(limiter, &[rpm(600)], &[("rpm", 1)]).await);
    for _ in 0..random.usize(1..12) {
        past.see(fleet).await;
        let seen = shards(fleet).await;
        let shard = &seen[random.usize(..seen.len())];
        match random.u8(..8) {
            0..4 if shard.escrow.is_none() && shard.shard_count < 16 => {
                let first = split(shard, 0, new_id(), fleet.now());
                table.update(&first, ReturnValues::None).await.unwrap();
            }
            0..6 => {
                let writes = finish_writes(shard).into_iter().flatten();
                for update in writes.take(random.usize(1..3)) {
                    table.update(&update, ReturnValues::None).await.unwrap();
                }
            }
            6 => {
                pass(secs(61)).await;
                sharded::run(&table, fleet.now()).await;
            }
            _ => drop(granted(limiter, &[rpm(600)], &[("rpm", 1)]).await),
        }
        pass(secs(1)).await;
    }
    past.see(fleet).await;
    past
}

/// What ends the bucket.
#[derive(Debug, Clone, Copy)]
enum End {
    Erased,
    Purged,
}

/// Ends the bucket. Returns how many shards it had.
async fn end(how: End, limiter: &RateLimiter) -> usize {
    let system = ConfigLevel::System;
    match how {
        End::Erased => {
            let id = entity("e-1");
            let erased = limiter.admin().erase_entity(&id, LiveLeases::Refuse);
            erased.await.unwrap().shards
        }
        End::Purged => {
            stop(limiter, &system).await;
            let page = limiter.admin().purge_namespace("default").send().await.unwrap();
            assert_eq!(page.next, None);
            start(limiter, &system).await;
            page.shards
        }
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_late_brings_an_erased_or_purged_bucket_back() {
    let mut unfinished = 0;
    for (how, seed) in
        [End::Erased, End::Purged].into_iter().flat_map(|how| (0..8).map(move |seed| (how, seed)))
    {
        let at = format!("{how:?}, seed {seed}");
        let (fleet, mut random) = (Fleet::new().await, Rng::with_seed(seed));
        let limiter = fleet.limiter().await;
        let past = live(&fleet, &limiter, &mut random).await;
        let seen = shards(&fleet).await;
        unfinished += seen.iter().filter(|shard| shard.escrow.is_some()).count();
        let ended = end(how, &limiter).await;
        assert!(ended >= seen.len(), "{at}");
        past.comes_again(&fleet).await;
        assert_eq!(shards(&fleet).await, [], "{at}");
        assert_eq!(end(how, &limiter).await, 0, "{at}: once");
        let rest = limiter.admin().purge_namespace("default").dry_run().send();
        assert_eq!(rest.await.unwrap().shards, 0, "{at}: a tombstone is no shard");

        // The next acquire begins a new bucket, which splits as any other.
        let other = fleet.limiter().await;
        let limits = [rpm(600)];
        match seed % 2 {
            0 => drop(granted(&other, &limits, &[("rpm", 600)]).await),
            _ => assert_eq!(other.admin().set_shards("e-1", "gpt-4", &limits, 1).await.unwrap(), 1),
        }
        past.comes_again(&fleet).await;
        assert_eq!(shards(&fleet).await.len(), 1, "{at}");
        let set = other.admin().set_shards("e-1", "gpt-4", &limits, 16);
        assert_eq!(set.await.unwrap(), 16, "{at}");
        let before = shards(&fleet).await;
        let table = fleet.dynamo.table().await;
        for update in past.images.iter().filter_map(finish_writes).flatten() {
            table.update(&update, ReturnValues::None).await.unwrap();
        }
        assert_eq!(shards(&fleet).await, before, "{at}");
    }
    assert!(unfinished > 2, "{unfinished} splits were unfinished");
}

/// A replay of older records, or a stream that is read again: the pages say to erase once more after it.
#[tokio::test(start_paused = true)]
async fn usage_that_old_records_bring_back_goes_with_the_next_erasure() {
    let (fleet, [limiter]) = Fleet::of().await;
    let past = live(&fleet, &limiter, &mut Rng::with_seed(1)).await;
    for _ in 0..2 {
        end(End::Erased, &limiter).await;
        pass(secs(300)).await;
    }
    let snapshots = || {
        let items = fleet.dynamo.items().into_iter();
        let sks = items.map(|item| item["SK"]["S"].as_str().unwrap().to_owned());
        sks.filter(|sk| sk.starts_with("#USAGE#")).count()
    };
    assert_eq!(snapshots(), 0);
    let table = fleet.dynamo.table().await;
    let handled = deliver_text(&table, &event(&past.records), fleet.now()).await;
    assert_eq!(handled.summary.failed, 0);
    assert!(snapshots() > 0);
    end(End::Erased, &limiter).await;
    assert_eq!(snapshots(), 0);
}

/// Nothing of the bucket is left but its key, numbers and when they go.
#[tokio::test(start_paused = true)]
async fn what_remains_of_an_erased_or_purged_shard_expires_and_counts_no_usage() {
    for how in [End::Erased, End::Purged] {
        let (fleet, [limiter]) = Fleet::of().await;
        let past = live(&fleet, &limiter, &mut Rng::with_seed(1)).await;
        end(how, &limiter).await;
        let items = fleet.dynamo.items();
        let of_bucket = |item: &&Value| item["PK"]["S"].as_str().unwrap().contains("/BUCKET#e-1#");
        let names: BTreeSet<_> = items
            .iter()
            .filter(of_bucket)
            .flat_map(|item| item.as_object().unwrap().keys())
            .collect();
        let names: Vec<_> = names.into_iter().map(String::as_str).collect();
        assert_eq!(names, ["PK", "SK", "birth", "takes", "td", "th", "ttl", "uh", "v"]);
        // The record of the erasure brings no usage back, and hides that of records in its batch.
        let mut records = past.records;
        records.extend(batches::stream(&fleet.dynamo, fleet.now()));
        let table = fleet.dynamo.table().await;
        let handled = deliver_text(&table, &event(&records), fleet.now()).await;
        assert_eq!((handled.summary.undecodable, handled.summary.failed), (0, 0));
        let is_snapshot = |item: &Value| item["SK"]["S"].as_str().unwrap().starts_with("#USAGE#");
        assert!(!fleet.dynamo.items().iter().any(is_snapshot));
    }
}
