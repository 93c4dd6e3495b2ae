//! A bucket's whole life as a hot one: split while it is, one shard again soon after, every token
//! and every use counted.

use crate::fixtures::aggregator;
use std::collections::BTreeMap;
use weirgate_tests::{assert_has, fresh};

use crate::fixtures::aggregator::{HOUR, deliver_text, event, name, new_id, usage};
use crate::fixtures::sharded::{counts, later, run, shards};
use serde_json::{Value, json};
use weirgate_shared::write::{REVIEW_INTERVAL, Take};
use weirgate_shared::{
    Bucket, BucketKey, EpochMillis, Lease, Limit, MAX_PERIOD_MS, MilliTokens, MilliTotal, Window,
    WriteId,
};
use weirgate_store::Table;
use weirgate_testkit::Dynamo;
use weirgate_testkit::leased::tokens;

/// They refill next to nothing, so that what is there can be added up.
fn limits() -> [Limit; 2] {
    ["rpm", "tpm"].map(|name| Limit::custom(name, 1_000_000, 1, MAX_PERIOD_MS).unwrap())
}

/// One acquire of `amount` of the limit `tpm`: in the books, unless a lease will give it back.
async fn take(
    table: &Table,
    key: &BucketKey,
    amount: i64,
    is_hot: bool,
    lease: Option<EpochMillis>,
    at: EpochMillis,
) {
    let needs = BTreeMap::from([(name("rpm"), tokens(1)), (name("tpm"), MilliTokens(amount))]);
    let hold = |expires| {
        let tokens = BTreeMap::from([(name("tpm"), MilliTokens(amount))]);
        (
            new_id(),
            Lease {
                expires_at: expires,
                tokens,
                owner: "test".to_owned(),
            },
        )
    };
    let (limits, leases): (_, Vec<(WriteId, _)>) =
        (&limits(), lease.map(hold).into_iter().collect());
    let take = Take {
        amounts: needs,
        acquires: 1,
        leases,
        request_split: is_hot,
        ..Take::nothing(key, limits, new_id(), at)
    };
    aggregator::run(table, &take, at).await;
}

/// What happened since the last call, as of `at`.
fn records(dynamo: &Dynamo, at: EpochMillis) -> Vec<Value> {
    let dated = |mut record: Value| {
        record["dynamodb"]["ApproximateCreationDateTime"] = json!(at.0 / 1000);
        record
    };
    dynamo.stream().into_iter().map(dated).collect()
}

async fn deliver(table: &Table, records: &[Value], at: EpochMillis) -> usize {
    // The filter of the stream takes no snapshots.
    let is_ours = |record: &&Value| record["dynamodb"]["Keys"]["SK"]["S"] == "#STATE";
    let records: Vec<_> = records.iter().filter(is_ours).cloned().collect();
    let handled = deliver_text(table, &event(&records), at).await;
    assert_has!(handled.summary, failed: 0, undecodable: 0, splits_put_off: 0);
    handled.summary.splits
}

#[tokio::test]
async fn i3_i6_a_bucket_is_one_shard_again_within_three_reviews_of_its_load() {
    let (dynamo, table) = fresh().await;
    let key = aggregator::bucket("a", 0);
    let mut random = fastrand::Rng::with_seed(7);
    let (mut used, mut takes, mut splits, mut all) = (0, 0, 0, vec![]);
    // The load goes on over the end of an hour.
    let begin = later(HOUR, 3_590_000);
    let mut at = begin;
    take(&table, &key, 1_234, false, None, at).await;
    (used, takes) = (used + 1_234, takes + 1);

    // Load: callers on all buckets; some are throttled, and some never end their lease.
    for second in 0..20 {
        at = later(begin, second * 1_000);
        for shard in shards(&table, &key).await {
            let is_hot = second < 4;
            for amount in [random.i64(1..5_000), random.i64(1..5_000)] {
                take(&table, &shard.key, amount, is_hot, None, at).await;
                (used, takes) = (used + amount, takes + 1);
            }
            if random.u8(..10) == 0 {
                take(
                    &table,
                    &shard.key,
                    700,
                    false,
                    Some(later(at, random.i64(1_000..70_000))),
                    at,
                )
                .await;
                takes += 1;
            }
        }
        let new = records(&dynamo, at);
        all.extend(new.clone());
        splits += deliver(&table, &new[..new.len() / 3], at).await;
        splits += deliver(&table, &new, at).await;
        // Again, with some of what came before, cut elsewhere.
        splits += deliver(&table, &all[all.len().saturating_sub(new.len() + 5)..], at).await;
    }
    assert_eq!((shards(&table, &key).await.len(), splits), (16, 15));

    // It ends.
    let mut after = vec![];
    for _ in 0..3 {
        at = at.plus(REVIEW_INTERVAL);
        let summary = run(&table, at).await;
        assert_has!(summary, lost_races: 0, left_over: 0);
        assert_eq!(summary.errors.len(), 0);
        after.push(shards(&table, &key).await.len());
        let new = records(&dynamo, at);
        all.extend(new.clone());
        deliver(&table, &new, at).await;
    }
    assert_eq!(
        counts(&table, &key).await,
        [(0, 1)],
        "shards after each run: {after:?}"
    );

    let whole = Bucket::new(shards(&table, &key).await);
    assert_eq!(
        whole.balance_at(&name("tpm"), at),
        tokens(1_000_000) - MilliTokens(used),
        "what is there is what is left"
    );
    assert_eq!(
        whole.balance_at(&name("rpm"), at),
        tokens(1_000_000 - takes)
    );
    for batch in all.chunks(37) {
        deliver(&table, batch, at).await;
    }
    assert_eq!(counts(&table, &key).await, [(0, 1)], "no replay splits it");
    usage::assert_exact(&dynamo, &all);
    assert_eq!(usage::read(&dynamo, Window::Hourly).len(), 2);
    let day = &usage::read(&dynamo, Window::Daily)[&(key, Window::Daily.start(HOUR))];
    assert_eq!(day.tokens["tpm"], MilliTotal::from(MilliTokens(used)));
    assert_eq!(day.tokens["rpm"], MilliTotal::from(tokens(takes)));
    assert_eq!(day.acquires, i128::from(takes));
}
