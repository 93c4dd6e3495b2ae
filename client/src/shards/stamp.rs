//! What a denied process leaves for the others: how much all shards held together, so one process reads them and not each.
//!
//! The stamp is an item of its own beside shard 0, so it makes no write to the bucket larger. It only repeats what a process
//! has read, and it is believed for as long as a remembered denial is.

use std::collections::BTreeMap;
use std::time::Duration;

use weirgate_shared::write::{Change, Path, Update, Value};
use weirgate_shared::{
    Attr, Bucket, BucketKey, EpochMillis, ItemKey, LimitName, MilliTokens, Millis, Rule, Whole, attr,
};
use weirgate_store::Item;

use super::Request;
use crate::decision::{self, Denied, LimitStatus};
use crate::line::memory;

/// So many shards are worth a stamp: to read fewer costs two units at most.
pub(super) const WORTH: u32 = 8;
/// A stamp from further ahead was dated by a clock that is off.
const AHEAD: Millis = Millis(1_000);
/// How long DynamoDB keeps a stamp that nobody renews.
const KEPT_SECONDS: i64 = 3_600;

/// What all shards of a bucket held together at an instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) at: EpochMillis,
    /// Until then no shard is full and no lease expires, so the sums grow as those of one shard do.
    until: EpochMillis,
    shards: u32,
    /// The rates of which no shard was full.
    held: BTreeMap<LimitName, (MilliTokens, Rule)>,
}

impl Stamp {
    /// Returns where the stamp of a bucket is.
    pub(super) fn key(bucket: &BucketKey) -> ItemKey {
        ItemKey { pk: bucket.item_key().pk, sk: "#SHORT".to_owned() }
    }

    /// Returns what the `whole` bucket holds at `now`; `None` if its shards do not add up: one is missing, has other rules,
    /// or is in debt, which takes nothing from the others.
    pub(super) fn of(whole: &Whole, now: EpochMillis) -> Option<Self> {
        let shards = whole.shards();
        let first = shards.first().filter(|_| whole.is_complete())?;
        let (mut until, mut held) = (EpochMillis(i64::MAX), BTreeMap::new());
        for (name, state) in first.limits.iter().filter(|(_, state)| !state.rule.is_concurrent()) {
            let (mut sum, mut is_full) = (MilliTokens::ZERO, false);
            let mut full_at = EpochMillis(i64::MAX);
            for shard in shards {
                let part = shard.limits.get(name).filter(|part| part.rule == state.rule)?;
                if part.tk < MilliTokens::ZERO || shard.rf != now {
                    return None;
                }
                is_full |= part.tk >= shard.share(part);
                full_at = full_at.min(shard.ready_at(name, shard.share(part)).unwrap_or(full_at));
                sum += part.tk;
            }
            if !is_full {
                held.insert(name.clone(), (sum, state.rule));
                until = until.min(full_at);
            }
        }
        let leases = shards.iter().flat_map(|shard| shard.leases.iter().flatten());
        let ends = leases.filter(|(_, lease)| lease.tokens.keys().any(|name| held.contains_key(name)));
        until = ends.map(|(_, lease)| lease.expires).fold(until, EpochMillis::min);
        let count = u32::try_from(shards.len()).unwrap_or(u32::MAX);
        (!held.is_empty()).then_some(Self { at: now, until, shards: count, held })
    }

    /// Returns the write that leaves the stamp. The last one stays: all of them are true of their instant.
    pub(super) fn update(&self, bucket: &BucketKey) -> Update {
        let number = |name: &str, number: i64| (name.to_owned(), Value::Int(number));
        let one = |(name, (tk, rule)): (&LimitName, &(MilliTokens, Rule))| {
            let Rule { capacity, refill_amount, refill_period_ms } = rule;
            let numbers = [("tk", tk.0), ("cp", capacity.0), ("ra", refill_amount.0), ("rp", *refill_period_ms)];
            (name.to_string(), Value::Map(numbers.map(|(name, value)| number(name, value)).into()))
        };
        let set = |name: &'static str, number: i64| Change::Set(Path::of(name), Value::Int(number));
        let changes = vec![
            set(attr::AT, self.at.0),
            set("until", self.until.0),
            set("n", i64::from(self.shards)),
            set(attr::TTL, self.at.0 / 1_000 + KEPT_SECONDS),
            Change::Set(Path::of(attr::LIMITS), Value::Map(self.held.iter().map(one).collect())),
        ];
        Update { key: Self::key(bucket), conditions: vec![], changes }
    }

    /// Reads a stamp. One that makes no sense is none: it is only a hint.
    pub(super) fn read(item: &Item) -> Option<Self> {
        let attributes: BTreeMap<_, _> = item.attributes().collect();
        let number = |name: &str| attributes.get(name).and_then(whole_number);
        let Some(Attr::M(limits)) = attributes.get(attr::LIMITS) else { return None };
        let limit = |(name, value): &(&str, Attr<'_>)| {
            let Attr::M(fields) = value else { return None };
            let field =
                |wanted: &str| fields.iter().find(|(name, _)| *name == wanted).and_then(|(_, it)| whole_number(it));
            let rule = Rule {
                capacity: MilliTokens(field("cp")?),
                refill_amount: MilliTokens(field("ra")?),
                refill_period_ms: field("rp")?,
            };
            Some((LimitName::new(*name).ok()?, (MilliTokens(field("tk")?), rule)))
        };
        let held = limits.iter().map(limit).collect::<Option<_>>()?;
        let (at, until) = (EpochMillis(number(attr::AT)?), EpochMillis(number("until")?));
        Some(Self { at, until, shards: u32::try_from(number("n")?).ok()?, held })
    }

    /// Returns the denial that the stamp implies for a request on a bucket of so many shards, whatever its age.
    pub(super) fn denies(&self, key: &BucketKey, request: &Request, shards: u32, now: EpochMillis) -> Option<Denied> {
        if self.shards != shards || self.at > now.after(AHEAD) {
            return None;
        }
        let mut bucket = Bucket::full(key.clone(), &request.limits, self.at);
        for limit in request.limits.iter() {
            let Some((tk, rule)) = self.held.get(limit.name()) else { continue };
            let state = bucket.limits.get_mut(limit.name()).filter(|_| rule == limit.rule())?;
            state.tk = *tk;
        }
        let denied = decision::denied(decision::status(&bucket, &request.limits, &request.needs, now));
        let is_sure = |short: &LimitStatus| {
            let ready_at = short.retry_after.map(|after| now.after(after.into()));
            self.held.contains_key(short.limit.as_str()) && ready_at.is_some_and(|at| at <= self.until)
        };
        (denied.short().next().is_some() && denied.short().all(is_sure)).then_some(denied)
    }

    /// Whether a denial by it is not remembered any more by a process that has drawn `salt`.
    ///
    /// A process stops to believe it in the second half of its life, the more probably the nearer its end is. So about one
    /// of any number of processes reads all shards again and renews it before the others need that.
    pub(super) fn is_over(&self, denied: &Denied, salt: u64, most: Duration, now: EpochMillis) -> bool {
        let age = Duration::from(now.since(self.at));
        let draw = draw(&mut fastrand::Rng::with_seed(salt ^ self.at.0.unsigned_abs()));
        denied.short().any(|short| {
            let life = memory(short, age, most);
            age >= life - life * draw / 20_000
        })
    }
}

/// A number from 0 to 10,000 that is 1,000 smaller half as often as not: 0 for most, 10,000 for one of a thousand.
pub(super) fn draw(rng: &mut fastrand::Rng) -> u32 {
    rng.u64(..).trailing_zeros().min(9) * 1_000 + rng.u32(0..=1_000)
}

fn whole_number(value: &Attr<'_>) -> Option<i64> {
    match value {
        Attr::N(text) => text.parse().ok(),
        _ => None,
    }
}
