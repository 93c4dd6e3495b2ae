//! Buckets of several shards in the table.

use weirgate::{Limit, MilliTokens, RateLimiter};
use weirgate_shared::{Bucket, BucketKey, Shard};

use super::Fleet;

pub fn per_minute(rate: i64) -> Vec<Limit> {
    vec![Limit::per_minute("rpm", rate).unwrap()]
}

pub async fn split(limiter: &RateLimiter, limits: &[Limit], shards: u32) {
    assert_eq!(
        limiter
            .set_shards("e-1", "gpt-4", limits, shards)
            .await
            .unwrap(),
        shards
    );
}

/// All shards that the table has.
pub async fn shards(fleet: &Fleet) -> Vec<Shard> {
    let keys = (0..64)
        .map(|shard| key(shard).item_key())
        .collect::<Vec<_>>();
    let items = fleet.dynamo.table().await.read(&keys).await.unwrap();
    let mut shards: Vec<_> = items.iter().map(|item| item.bucket().unwrap()).collect();
    shards.sort_by_key(|shard| shard.key.shard);
    shards
}

pub fn key(shard: u32) -> BucketKey {
    BucketKey::parse("default/BUCKET#e-1#gpt-4#0")
        .unwrap()
        .with_shard(shard)
}

/// What all shards have of a limit now.
pub async fn holds(fleet: &Fleet, limit: &str) -> MilliTokens {
    let shards = shards(fleet).await;
    let whole = Bucket::new(shards);
    assert!(whole.is_complete(), "{whole:?}");
    whole
        .shards()
        .iter()
        .map(|shard| shard.balance_at(&limit.try_into().unwrap(), fleet.now()))
        .sum()
}

/// A write to an item, as somebody by hand makes it.
pub fn drain(fleet: &Fleet, shard: u32, limit: &str, left: MilliTokens) {
    let pk = key(shard).item_key().pk;
    let mut item = fleet.dynamo.item(&pk, "#STATE");
    item[format!("b_{limit}_tk")] = serde_json::json!({"N": left.0.to_string()});
    item["rf"] = serde_json::json!({"N": fleet.now().0.to_string()});
    let v: i64 = item["v"]["N"].as_str().unwrap().parse().unwrap();
    item["v"] = serde_json::json!({"N": (v + 1).to_string()});
    fleet.dynamo.put(&item);
}
