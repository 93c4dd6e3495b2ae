//! A hot shard becomes two, which divide its tokens, by three single writes: [`split`], and the two
//! of [`finish`]. A transaction would be cancelled by every other write to the shard.

use std::collections::BTreeMap;

use super::replace::{REVIEW_INTERVAL, make};
use super::{
    AttributeUpdate, Condition, Path, Update, Value, add_tokens, count_write, due,
    require_refilled_at, tokens,
};
use crate::attr::{self, Field};
use crate::limit::WCU;
use crate::math::refill_between;
use crate::{
    ActivitySample, Counter, EpochMillis, Hour, LimitName, LimitState, MilliTokens, Millis,
    Scaling, Shard, ShardIndex, WriteId, item,
};

/// How long a split may take before another process finishes it.
const UNFINISHED: Millis = Millis(1_000);

/// Whether the halves of `shard` would each have a share of every limit that holds one token, and
/// the `largest` request seen of it; and whether the bucket then has `max_shards` at most.
#[must_use]
pub fn may_split(
    shard: &Shard,
    max_shards: u32,
    largest: &BTreeMap<LimitName, MilliTokens>,
) -> bool {
    let (_, smaller) = shard.shard().halves();
    let fits = |(name, state): (&LimitName, &LimitState)| {
        let asked = largest
            .get(name)
            .copied()
            .unwrap_or_default()
            .max(MilliTokens::from_tokens(1));
        smaller.share(state.rule.capacity) >= asked
    };
    smaller.count <= max_shards && shard.limits.iter().all(fits)
}

/// Begins to split the shard `image` into its halves: divides the tokens that are there at `now`,
/// and keeps those of the new half in an escrow in the old one. Debts and leases stay in the old
/// one. [`finish_writes`] makes the new half.
///
/// One conditional write. It happens once, whatever others took since the image: what the new half
/// gets is fixed, the old one keeps the rest, if neither gets more than its share or goes into debt
/// by it. No other split of the shard happens until its escrow is gone.
///
/// `min_shards` is what an operator asked for, 0 for nothing. `op` signs the new half.
#[must_use]
pub fn split(image: &Shard, min_shards: u32, op: WriteId, now: EpochMillis) -> Update {
    let (kept, new) = image.shard().halves();
    let at = image.refilled_at.max(now);
    // The id of the split. It is above every `v` of a former shard of this number, because a merge
    // leaves no lower one behind in the old shard, which must be below; and no other split of the
    // old shard has it, because that counts on from here.
    let v = image
        .write_seq
        .max(now.0.saturating_mul(1000))
        .saturating_add(1);
    let look = ActivitySample {
        at: now,
        write_seq: v,
    };
    let count = Value::Int(i64::from(kept.count));
    let mut parent = Update {
        key: image.key.item_key(),
        conditions: require_refilled_at(image).into(),
        changes: vec![
            AttributeUpdate::Set(Path::of(attr::V), Value::Int(v)),
            AttributeUpdate::Set(Path::of(attr::SHARD_COUNT), count),
            AttributeUpdate::Set(Path::of(attr::RF), Value::Int(at.0)),
            AttributeUpdate::Set(Path::of(attr::LOOK_AT), Value::Int(look.at.0)),
            AttributeUpdate::Set(Path::of(attr::LOOK_V), Value::Int(look.write_seq)),
            AttributeUpdate::Set(
                Path::of(attr::SPLIT_BYTES),
                Value::Int(i64::try_from(image.lease_bytes).unwrap_or(i64::MAX)),
            ),
            AttributeUpdate::Remove(Path::of(attr::HOT)),
            AttributeUpdate::Remove(Path::of(attr::TTL)),
        ],
    };
    parent
        .conditions
        .push(Condition::Absent(Path::of(attr::ESCROW)));
    parent.conditions.push(Condition::AtMost(
        Path::of(attr::V),
        Value::Int(v.saturating_sub(1)),
    ));
    parent
        .changes
        .extend(set_min_shards(min_shards, image.scaling.min_shards));
    due::not_after(
        &mut parent,
        &image.key,
        image.due_at,
        now.plus(REVIEW_INTERVAL),
    );
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
        write_units_left: WCU.capacity,
        leases: Some(BTreeMap::new()),
        due_at: Some(now.plus(REVIEW_INTERVAL)),
        last_write_id: Some(op),
        scaling: Scaling {
            sample: Some(look),
            min_shards,
            ..Scaling::default()
        },
        escrow: None,
        size_bytes: 0,
        lease_bytes: 0,
    };
    for (name, state) in &image.limits {
        let tk = divide(
            &mut parent,
            name,
            state,
            image.shard(),
            refill_between(&state.rule, image.shard(), image.refilled_at, at),
        );
        child
            .limits
            .insert(name.clone(), LimitState::new(tk, state.rule));
    }
    // Both start full, so neither is hot before it was written to.
    child.write_units_left -= MilliTokens::from_tokens(image.write_units());
    parent.changes.push(AttributeUpdate::Set(
        Path::of(attr::WRITE_UNITS),
        Value::Int(child.write_units_left.0),
    ));
    parent.changes.push(AttributeUpdate::Set(
        Path::of(attr::ESCROW),
        item::write_escrow(&child),
    ));
    parent
}

/// Finishes the split of `parent`, which holds an escrow: makes the new half of it, then removes
/// it. `None` if `parent` holds none.
///
/// Two conditional writes, each of which can be repeated at any time by any process. The second one
/// must not be sent before it is known what became of the first. If the first fails, the new half
/// was made before: by this split, or by one from before items were deleted manually; then its
/// tokens are those that it has.
#[must_use]
pub fn finish_writes(parent: &Shard) -> Option<[Update; 2]> {
    let child = parent.escrow.as_deref()?;
    let id = Path::of(attr::ESCROW).then(attr::V);
    let mut changes = count_write(Some(parent), MilliTokens::ZERO);
    changes.push(AttributeUpdate::Remove(Path::of(attr::ESCROW)));
    let conditions = vec![Condition::Equals(id, Value::Int(child.write_seq))];
    Some([
        make(child),
        Update {
            key: parent.key.item_key(),
            conditions,
            changes,
        },
    ])
}

/// Whether the process that began the split of `parent` seems to have left it: the split is not
/// finished after a second.
#[must_use]
pub fn is_abandoned(parent: &Shard, now: EpochMillis) -> bool {
    let began = parent
        .escrow
        .as_ref()
        .and_then(|child| child.scaling.sample)
        .map(|look| look.at);
    began.is_some_and(|began| now.since(began).0.abs() >= UNFINISHED.0)
}

/// Has `shard` keep that an operator asked for `min_shards`, 0 for none, and be reviewed by that.
#[must_use]
pub fn update_min_shards(shard: &Shard, min_shards: u32, now: EpochMillis) -> Update {
    let mut changes = count_write(Some(shard), MilliTokens::ZERO);
    changes.extend(set_min_shards(min_shards, shard.scaling.min_shards));
    if min_shards > 0 {
        // What an operator asked for is kept.
        changes.push(AttributeUpdate::Remove(Path::of(attr::TTL)));
    }
    let conditions = vec![Condition::Present(Path::of(attr::RF))];
    let mut update = Update {
        key: shard.key.item_key(),
        conditions,
        changes,
    };
    if shard.shard().count > 1 {
        due::not_after(
            &mut update,
            &shard.key,
            shard.due_at,
            now.plus(REVIEW_INTERVAL),
        );
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

/// Takes the new half's part of one limit off the old shard; how much that is.
fn divide(
    parent: &mut Update,
    name: &LimitName,
    state: &LimitState,
    shard: ShardIndex,
    flowed: MilliTokens,
) -> MilliTokens {
    let (zero, two) = (MilliTokens::ZERO, 2);
    if state.rule.is_concurrent() {
        // Whole slots, so that each can be taken from one shard.
        let part = MilliTokens::from_tokens((state.available.max(zero) / two).whole_tokens());
        if part > zero {
            parent
                .conditions
                .push(Condition::AtLeast(tokens(name), Value::Int(part.0)));
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
        // Full, and still full if others gave back.
        parent.conditions.push(Condition::AtLeast(
            tokens(name),
            Value::Int((share - flowed).0),
        ));
        parent
            .changes
            .push(AttributeUpdate::Set(tokens(name), Value::Int(kept.0)));
        return new;
    }
    let part = (state.available + flowed).max(zero) / two;
    if part > zero {
        parent.conditions.push(Condition::AtLeast(
            tokens(name),
            Value::Int((part - flowed).0),
        ));
    }
    parent.conditions.push(Condition::AtMost(
        tokens(name),
        Value::Int((kept + part - flowed).0),
    ));
    if flowed != part {
        parent
            .changes
            .push(add_tokens(name, Field::Tokens, flowed - part));
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
        let limits = [
            Limit::custom("a", 9, 1, 1000).unwrap(),
            Limit::concurrent("b", 4).unwrap(),
        ];
        let shard = Shard::full(key, &limits, EpochMillis(0));
        let may = |shard: &Shard, most, of: &str, milli| {
            may_split(
                shard,
                most,
                &[(LimitName::new(of).unwrap(), MilliTokens(milli))].into(),
            )
        };
        assert!(
            may(&shard, 2, "a", 4500) && may(&shard, 2, "b", 2000) && may(&shard, 2, "c", 9000)
        );
        assert!(!may(&shard, 2, "a", 4501) && !may(&shard, 2, "b", 2001));
        assert!(!may(&shard, 1, "a", 1000));
        let quarter = Shard {
            shard_count: 4,
            ..shard.clone()
        };
        assert!(
            !may(&quarter, 64, "a", 0),
            "an eighth of four slots is none"
        );
    }
}
