//! Shards as the table stores them, without those of the hostile tenant.

use serde_json::Value;
use weirgate_shared::{BUCKET_SK, BucketKey, Shard};

/// Prefix of the hostile tenant's keys.
pub(crate) const HOSTILE_NAMESPACE: &str = "hostile/";

/// Returns whether an item is the hostile tenant's.
pub(crate) fn is_hostile(pk: &str) -> bool {
    pk.starts_with(HOSTILE_NAMESPACE)
}

/// Returns a live shard from DynamoDB JSON. Returns `None` for another item, a merged shard, and
/// the hostile tenant's.
pub(crate) fn stored_shard(pk: &str, item: &Value) -> Option<Shard> {
    BucketKey::parse(pk).filter(|_| !is_hostile(pk))?;
    item["rf"].is_object().then(|| weirgate_testkit::bucket(item))
}

/// Returns the shards, and the halves that an escrow still contains.
pub(crate) fn with_escrows(shards: &[Shard]) -> Vec<Shard> {
    let is_there = |half: &&Shard| shards.iter().any(|shard| shard.key == half.key);
    let halves =
        shards.iter().filter_map(|shard| shard.escrow.as_deref()).filter(|half| !is_there(half));
    shards.iter().chain(halves).cloned().collect()
}

/// Returns a short description of a written shard, for the replay of a seed: available and consumed tokens of
/// each limit, and the leases.
pub(crate) fn describe(record: &Value) -> String {
    let (record, what) = (&record["dynamodb"], &record["eventName"]);
    let keys = [&record["Keys"]["PK"]["S"], &record["Keys"]["SK"]["S"]]
        .map(|key| key.as_str().unwrap_or_default());
    let Some(shard) = stored_shard(keys[0], &record["NewImage"]).filter(|_| keys[1] == BUCKET_SK)
    else {
        return format!("  {what} {} {}", keys[0], keys[1]);
    };
    let limits = shard
        .limits
        .iter()
        .map(|(name, state)| format!(" {name} {} used {}", state.available, state.consumed));
    let leases: Vec<_> = shard
        .leases
        .iter()
        .flatten()
        .map(|(id, lease)| format!("{id} until {} {:?}", lease.expires_at.0, lease.tokens))
        .collect();
    let op = shard.last_write_id.as_ref().map_or("", |op| op.as_str());
    format!(
        "  {what} {} of {} rf {} op {op}{} {leases:?}",
        keys[0],
        shard.shard_count,
        shard.refilled_at.0,
        limits.collect::<String>()
    )
}
