//! The stamp that a denied process writes for the others: the balances of all shards together, so
//! that one process reads the shards and not each.
//!
//! It is an item of its own beside shard 0, so it makes no write to the bucket larger.

use std::collections::BTreeMap;

use crate::write::{AttributeUpdate, Path, Update, Value};
use crate::{Bucket, BucketKey, EpochMillis, ItemKey, LimitName, MilliTokens, RefillRule, attr};

/// The sort key of stamps.
const STAMP_SK: &str = "#SHORT";
/// Time that DynamoDB keeps a stamp without renewal.
const KEPT_SECONDS: i64 = 3_600;

/// The balances of all shards of a bucket together, at an instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp {
    /// The instant.
    pub at: EpochMillis,
    /// Instant until which no shard is full and no lease expires, so that the sums grow as one
    /// shard would.
    pub until: EpochMillis,
    /// Number of shards.
    pub shards: u32,
    /// Rates of which no shard was full.
    pub available: BTreeMap<LimitName, (MilliTokens, RefillRule)>,
}

impl Stamp {
    /// Returns the key of a bucket's stamp.
    #[must_use]
    pub fn key(bucket: &BucketKey) -> ItemKey {
        ItemKey { pk: bucket.item_key().pk, sk: STAMP_SK.to_owned() }
    }

    /// Returns the stamp of `bucket` at `now`. Returns `None` if its shards do not add up: one is
    /// missing, has other rules, or is in debt, which does not reduce the others.
    #[must_use]
    pub fn of(bucket: &Bucket, now: EpochMillis) -> Option<Self> {
        let shards = bucket.shards();
        let first = shards.first().filter(|_| bucket.is_complete())?;
        let (mut until, mut held) = (EpochMillis(i64::MAX), BTreeMap::new());
        for (name, state) in first.limits.iter().filter(|(_, state)| state.rule.kind().refills()) {
            let (mut sum, mut is_full) = (MilliTokens::ZERO, false);
            let mut full_at = EpochMillis(i64::MAX);
            for shard in shards {
                let part = shard.limits.get(name).filter(|part| part.rule == state.rule)?;
                if part.available < MilliTokens::ZERO || shard.refilled_at != now {
                    return None;
                }
                is_full |= part.available >= shard.share(part);
                full_at = full_at.min(shard.ready_at(name, shard.share(part)).unwrap_or(full_at));
                sum += part.available;
            }
            if !is_full {
                held.insert(name.clone(), (sum, state.rule));
                until = until.min(full_at);
            }
        }
        let leases = shards.iter().flat_map(|shard| shard.leases.iter().flatten());
        let leases =
            leases.filter(|(_, lease)| lease.tokens.keys().any(|name| held.contains_key(name)));
        until = leases.map(|(_, lease)| lease.expires_at).fold(until, EpochMillis::min);
        let count = u32::try_from(shards.len()).unwrap_or(u32::MAX);
        (!held.is_empty()).then_some(Self { at: now, until, shards: count, available: held })
    }

    /// Returns the write of the stamp. The last write wins, because each stamp is true of its
    /// instant.
    #[must_use]
    pub fn update(&self, bucket: &BucketKey) -> Update {
        let number = |name: &str, number: i64| (name.to_owned(), Value::Int(number));
        let one = |(name, (tk, rule)): (&LimitName, &(MilliTokens, RefillRule))| {
            let RefillRule { capacity, refill_amount, refill_period_ms } = rule;
            let numbers = [
                ("tk", tk.0),
                ("cp", capacity.0),
                ("ra", refill_amount.0),
                ("rp", *refill_period_ms),
            ];
            (name.to_string(), Value::Map(numbers.map(|(name, value)| number(name, value)).into()))
        };
        let set = |name: &'static str, number: i64| {
            AttributeUpdate::Set(Path::of(name), Value::Int(number))
        };
        let changes = vec![
            set(attr::AT, self.at.0),
            set(attr::UNTIL, self.until.0),
            set(attr::SHARDS, i64::from(self.shards)),
            set(attr::TTL, self.at.0 / 1_000 + KEPT_SECONDS),
            AttributeUpdate::Set(
                Path::of(attr::LIMITS),
                Value::Map(self.available.iter().map(one).collect()),
            ),
        ];
        Update { key: Self::key(bucket), conditions: vec![], changes }
    }
}
