//! Splits at the ends of what may be: a shard that has nothing free to divide, and one that was hot
//! long ago.

use crate::fixtures::aggregator;
use crate::fixtures::aggregator::{HOUR, bucket, counts, deliver_text, event, held, marked};
use crate::fixtures::fleet;
use crate::fixtures::fleet::{Fleet, denied, leased, pass, secs, tokens};
use crate::fixtures::sharded;
use weirgate::Limit;
use weirgate_shared::write::REVIEW_INTERVAL;
use weirgate_shared::{BucketKey, EpochMillis};

/// The new half has no slot then. Those that come back stay with the shard they were taken from,
/// and each can be had.
#[tokio::test(start_paused = true)]
async fn i2_a_shard_whose_slots_are_all_held_is_split_and_every_slot_that_comes_back_is_given() {
    let fleet = Fleet::new().await;
    let (table, limits) = (
        fleet.dynamo.table().await,
        [Limit::concurrent("slots", 4).unwrap()],
    );
    let limiter = fleet.limiter().await;
    let mut grants = vec![];
    for _ in 0..4 {
        grants.push(leased(&limiter, &limits, &[("slots", 1)], secs(600)).await);
    }
    assert_eq!(
        limiter
            .set_shards("e-1", "gpt-4", &limits, 2)
            .await
            .unwrap(),
        2
    );
    let key = BucketKey::parse(fleet::PK).unwrap();
    let free = async || {
        sharded::shards(&table, &key)
            .await
            .into_iter()
            .map(|shard| shard.limits["slots"].available)
    };
    assert!(
        free().await.all(|slots| slots == tokens(0)),
        "all are held in the old half"
    );
    denied(&fleet.limiter().await, &limits, &[("slots", 1)]).await;
    for grant in grants {
        let _ = grant.release().await.unwrap();
        pass(secs(1)).await;
    }
    assert_eq!(
        free().await.fold(tokens(0), |sum, slots| sum + slots),
        tokens(4)
    );
    // By processes that know nothing of it, one by one, and then all at once.
    let mut held = vec![];
    for _ in 0..4 {
        held.push(leased(&fleet.limiter().await, &limits, &[("slots", 1)], secs(600)).await);
    }
    denied(&fleet.limiter().await, &limits, &[("slots", 1)]).await;
    for grant in held {
        let _ = grant.release().await.unwrap();
    }
    let _ = leased(&fleet.limiter().await, &limits, &[("slots", 4)], secs(600)).await;
}

/// The stream was late, or began again at its horizon: the split is as exact as any, and the
/// reconciler takes it back.
#[tokio::test]
async fn i6_a_shard_that_was_hot_hours_ago_is_split_once_and_merged_again() {
    for hours in [1, 6, 23] {
        let (dynamo, table, records) = marked().await;
        let before = held(&table).await;
        let now = aggregator::later(hours);
        let splits = deliver_text(&table, &event(&records), now)
            .await
            .summary
            .splits;
        assert_eq!((splits, counts(&table).await), (1, vec![(0, 2), (1, 2)]));
        // The same records again, and those of the split.
        let all = [records, aggregator::records(&dynamo)].concat();
        assert_eq!(
            deliver_text(&table, &event(&all), now).await.summary.splits,
            0
        );
        let looked = EpochMillis(now.0 + REVIEW_INTERVAL.0);
        assert_eq!(sharded::run(&table, looked).await.shards_merged, 1);
        assert_eq!(sharded::counts(&table, &bucket("a", 0)).await, [(0, 1)]);
        let after = held(&table).await;
        assert!(
            after
                .iter()
                .zip(&before)
                .all(|(after, before)| after >= before),
            "{before:?} at {HOUR:?}, {after:?}"
        );
    }
}
