//! Splitting a shard into two halves, by three single writes: [`split`], and the two of
//! [`finish_writes`]. A transaction would be cancelled by every other write to the shard.
//!
//! An interrupted split is finished by the aggregator's next batch with an image that has an escrow,
//! the reconciler within a minute, a client that asks all shards after a second, or `set_shards`.

use std::collections::BTreeMap;

use super::pause::same_pause;
use super::replace::{REVIEW_INTERVAL, make};
use super::{
    AttributeUpdate, Condition, Path, Update, Value, add_tokens, count_write, due, require_limits,
    require_refilled_at, same_window, tokens,
};
use crate::attr::{self, Field};
use crate::math::refill_between;
use crate::{
    ActivitySample, Counter, EpochMillis, Hour, LimitKind, LimitName, LimitState, MilliTokens,
    Millis, Pause, Scaling, Shard, ShardIndex, WriteId, item,
};

/// Time after which another process may finish a split.
const UNFINISHED: Millis = Millis(1_000);

/// Returns whether each half of `shard` would have a share of every limit that covers one token and
/// the `largest` request seen, and whether the bucket would have at most `max_shards`. Each half of a
/// session would begin with a first use of its own, so such a bucket is not split.
#[must_use]
pub fn may_split(
    shard: &Shard,
    max_shards: u32,
    largest: &BTreeMap<LimitName, MilliTokens>,
) -> bool {
    let (_, smaller) = shard.shard().halves();
    let fits = |(name, state): (&LimitName, &LimitState)| {
        let asked = largest.get(name).copied().unwrap_or_default().max(MilliTokens::from_tokens(1));
        let is_enough = smaller.share(state.rule.capacity) >= asked;
        shard.is_gone(name) || is_enough && !state.rule.is_session()
    };
    smaller.count <= max_shards && shard.limits.iter().all(fits)
}

/// Begins to split the shard `image` into its halves. Divides the balance at `now`, and stores the
/// new half's part as an escrow in the old half. Debts and leases stay in the old half.
/// [`finish_writes`] creates the new half.
///
/// One conditional write, applied once, whatever other processes took since the image. The amount
/// of the new half is fixed, and the old half keeps the rest. It fails if a half would get more
/// than its share, or a debt by the split. The shard cannot split again until the escrow is
/// removed.
///
/// `min_shards` is the number that an operator set, 0 for none. `op` is the write id of the new
/// half.
#[must_use]
pub fn split(image: &Shard, min_shards: u32, op: WriteId, now: EpochMillis) -> Update {
    let (kept, new) = image.shard().halves();
    let at = image.refilled_at.max(now);
    // Id of the split. It is above every `v` of a former shard of this number, because a merge
    // raises the old shard's `v` above both. No other split of the old shard has the same id,
    // because `v` continues from here.
    let v = image.write_seq.max(now.0.saturating_mul(1000)).saturating_add(1);
    let look = ActivitySample { at: now, write_seq: v };
    let count = Value::Int(i64::from(kept.count));
    let mut parent = Update {
        key: image.key.item_key(),
        conditions: require_refilled_at(image).into(),
        changes: vec![
            AttributeUpdate::Set(Path::of(attr::WRITE_SEQ), Value::Int(v)),
            AttributeUpdate::Set(Path::of(attr::SHARD_COUNT), count),
            AttributeUpdate::Set(Path::of(attr::REFILLED_AT), Value::Int(at.0)),
            AttributeUpdate::Set(Path::of(attr::SAMPLE_AT), Value::Int(look.at.0)),
            AttributeUpdate::Set(Path::of(attr::SAMPLE_WRITE_SEQ), Value::Int(look.write_seq)),
            AttributeUpdate::Set(
                Path::of(attr::SPLIT_BYTES),
                Value::Int(i64::try_from(image.lease_bytes).unwrap_or(i64::MAX)),
            ),
            AttributeUpdate::Remove(Path::of(attr::HOT)),
            AttributeUpdate::Remove(Path::of(attr::TTL)),
        ],
    };
    parent.conditions.push(Condition::Absent(Path::of(attr::ESCROW)));
    // The new half has its copy of both.
    let edit = Path::of(attr::EDIT);
    parent.conditions.push(match image.edit {
        Some(known) => Condition::Equals(edit, Value::Int(known.0)),
        None => Condition::Absent(edit),
    });
    parent.conditions.push(same_pause(image));
    parent
        .conditions
        .push(Condition::AtMost(Path::of(attr::WRITE_SEQ), Value::Int(v.saturating_sub(1))));
    parent.changes.extend(set_min_shards(min_shards, image.scaling.min_shards));
    due::not_after(&mut parent, &image.key, image.due_at, now.plus(REVIEW_INTERVAL));
    let mut child = Shard {
        key: image.key.with_shard(new.index),
        shard_count: new.count,
        refilled_at: at,
        write_seq: v,
        birth_seq: v,
        hour: Hour::of(now),
        acquires: Counter::default(),
        limits: BTreeMap::new(),
        departed: BTreeMap::new(),
        config_version: image.config_version,
        limits_changed_at: image.limits_changed_at,
        ttl: None,
        leases: Some(BTreeMap::new()),
        due_at: Some(now.plus(REVIEW_INTERVAL)),
        last_write_id: Some(op),
        edit: image.edit,
        pause: image.pause,
        scaling: Scaling { sample: Some(look), min_shards, ..Scaling::default() },
        escrow: None,
        size_bytes: 0,
        lease_bytes: 0,
    };
    for (name, state) in &image.limits {
        let refill = refill_between(&state.rule, image.shard(), image.refilled_at, at);
        let tk = divide(&mut parent, (name, state), image.shard(), refill, at);
        let mut half = LimitState::new(tk, state.rule);
        half.window_end = state.window_end;
        child.limits.insert(name.clone(), half);
    }
    parent.changes.push(AttributeUpdate::Set(Path::of(attr::ESCROW), item::write_escrow(&child)));
    require_limits(&mut parent, image);
    parent
}

/// Returns the two writes that finish the split of `parent`: the first creates the new half from
/// the escrow, the second removes the escrow. Returns `None` if `parent` has no escrow.
///
/// Any process can repeat each conditional write at any time. Send the second one only after the
/// outcome of the first is known. If the first fails its condition, the new half exists: from this
/// split, or from one before items were deleted manually. It then keeps its own tokens.
#[must_use]
pub fn finish_writes(parent: &Shard) -> Option<[Update; 2]> {
    let child = parent.escrow.as_deref()?;
    let id = Path::of(attr::ESCROW).then(attr::WRITE_SEQ);
    let mut changes = count_write();
    changes.push(AttributeUpdate::Remove(Path::of(attr::ESCROW)));
    let conditions = vec![Condition::Equals(id, Value::Int(child.write_seq))];
    // The old half may have been paused since.
    let child = Shard { pause: Pause::later(child.pause, parent.pause), ..child.clone() };
    Some([make(&child), Update { key: parent.key.item_key(), conditions, changes }])
}

/// Returns whether the split of `parent` seems abandoned: it is unfinished after a second.
#[must_use]
pub fn is_abandoned(parent: &Shard, now: EpochMillis) -> bool {
    let began = parent.escrow.as_ref().and_then(|child| child.scaling.sample).map(|look| look.at);
    began.is_some_and(|began| now.since(began).0.abs() >= UNFINISHED.0)
}

/// Stores `min_shards` as set by an operator, 0 for none, in `shard`, and schedules its review.
#[must_use]
pub fn update_min_shards(shard: &Shard, min_shards: u32, now: EpochMillis) -> Update {
    let mut changes = count_write();
    changes.extend(set_min_shards(min_shards, shard.scaling.min_shards));
    if min_shards > 0 {
        // A bucket with a number set by an operator is kept.
        changes.push(AttributeUpdate::Remove(Path::of(attr::TTL)));
    }
    let conditions = vec![Condition::Present(Path::of(attr::REFILLED_AT))];
    let mut update = Update { key: shard.key.item_key(), conditions, changes };
    if shard.shard().count > 1 {
        due::not_after(&mut update, &shard.key, shard.due_at, now.plus(REVIEW_INTERVAL));
    }
    update
}

fn set_min_shards(asked: u32, known: u32) -> Option<AttributeUpdate> {
    let path = Path::of(attr::MIN_SHARDS);
    match asked {
        same if same == known => None,
        0 => Some(AttributeUpdate::Remove(path)),
        asked => Some(AttributeUpdate::Set(path, Value::Int(i64::from(asked)))),
    }
}

/// Subtracts the new half's part of one limit from the old shard. Returns that part.
fn divide(
    parent: &mut Update,
    (name, state): (&LimitName, &LimitState),
    shard: ShardIndex,
    flowed: MilliTokens,
    now: EpochMillis,
) -> MilliTokens {
    let (zero, two) = (MilliTokens::ZERO, 2);
    let there = state.available.max(zero);
    let part = match state.rule.kind() {
        LimitKind::Rate => None,
        LimitKind::Quota => {
            parent.conditions.push(same_window(name, state));
            // After it has ended, both halves are whole, whatever they have.
            Some(if state.has_ended(now) { zero } else { there / two })
        }
        // Divides whole slots, so that each can be taken from one shard.
        LimitKind::Slots => Some(MilliTokens::from_tokens((there / two).whole_tokens())),
    };
    if let Some(part) = part {
        if part > zero {
            parent.conditions.push(Condition::AtLeast(tokens(name), Value::Int(part.0)));
            parent.changes.push(add_tokens(name, Field::Tokens, -part));
        }
        return part;
    }
    let (kept, new) = shard.halves();
    let (share, kept, new) = {
        let of = |shard: ShardIndex| shard.share(state.rule.capacity);
        (of(shard), of(kept), of(new))
    };
    if state.available + flowed > share {
        // Full, and still full after concurrent returns.
        parent.conditions.push(Condition::AtLeast(tokens(name), Value::Int((share - flowed).0)));
        parent.changes.push(AttributeUpdate::Set(tokens(name), Value::Int(kept.0)));
        return new;
    }
    // Of a debt too: those that queue behind it start by the refill of both halves.
    let part = (state.available + flowed) / two;
    if part > zero {
        parent.conditions.push(Condition::AtLeast(tokens(name), Value::Int((part - flowed).0)));
    }
    parent.conditions.push(Condition::AtMost(tokens(name), Value::Int((kept + part - flowed).0)));
    if flowed != part {
        parent.changes.push(add_tokens(name, Field::Tokens, flowed - part));
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BucketKey, Limit};

    #[test]
    fn a_shard_is_split_while_its_halves_bear_what_is_asked_and_are_not_too_many() {
        let key = BucketKey::parse("default/BUCKET#e-1#gpt-4#0").unwrap();
        let limits = [Limit::custom("a", 9, 1, 1000).unwrap(), Limit::concurrent("b", 4).unwrap()];
        let shard = Shard::full(key, &limits, EpochMillis(0));
        let may = |shard: &Shard, most, of: &str, milli| {
            may_split(shard, most, &[(LimitName::new(of).unwrap(), MilliTokens(milli))].into())
        };
        assert!(
            may(&shard, 2, "a", 4500) && may(&shard, 2, "b", 2000) && may(&shard, 2, "c", 9000)
        );
        assert!(!may(&shard, 2, "a", 4501) && !may(&shard, 2, "b", 2001));
        assert!(!may(&shard, 1, "a", 1000));
        let quarter = Shard { shard_count: 4, ..shard.clone() };
        assert!(!may(&quarter, 64, "a", 0), "an eighth of four slots is none");
    }
}
