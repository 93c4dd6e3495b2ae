//! A change of an operator over all shards of a bucket, while it is under way.
//!
//! Its item stands beside shard 0 and has the plan, so any process can finish the change, and it
//! happens once. Each shard gets its part with one conditional write, which leaves the change's id.

use std::collections::BTreeMap;

use crate::write::{AttributeUpdate, BalanceChange, Condition, Path, Update, Value};
use crate::{
    BucketKey, Config, EditId, EpochMillis, EpochSeconds, ItemKey, Limit, LimitName, LimitsVersion,
    MilliTokens, Millis, ShardIndex, attr, item,
};

/// The sort key of changes under way.
const EDIT_SK: &str = "#EDIT";
/// Time that DynamoDB keeps the item of a change that has ended.
const KEPT: Millis = Millis(3_600_000);

/// A change over all shards of a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketEdit {
    /// Id that each changed shard gets.
    pub id: EditId,
    /// What is changed.
    pub change: EditChange,
}

/// What a change over all shards changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EditChange {
    /// Balances of rates, by limit.
    Balances(BTreeMap<LimitName, BalanceStep>),
    /// The limits of the bucket.
    Limits {
        /// The limits.
        limits: Vec<Limit>,
        /// Version of the configuration that they are from.
        version: Option<LimitsVersion>,
        /// Whether they are configured for exactly this entity and resource.
        is_own: bool,
    },
    /// End of the pause; `None` ends it at once.
    Pause(Option<EpochMillis>),
}

/// A change of one limit's balance over all shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BalanceStep {
    /// To the capacity.
    Fill,
    /// To an amount.
    Set(MilliTokens),
    /// By an amount for each shard, as they were when the change began. A power of two of them.
    Raise(Vec<MilliTokens>),
}

impl BalanceStep {
    /// Returns the part of a shard whose share of the capacity is `share`. The parts of a shard's
    /// halves add up to its own, so splits and merges since the plan do not matter.
    #[must_use]
    pub fn part(&self, shard: ShardIndex, share: MilliTokens) -> BalanceChange {
        match self {
            Self::Fill => BalanceChange::SetTo(share),
            Self::Set(amount) => BalanceChange::SetTo(shard.share(*amount)),
            Self::Raise(parts) => {
                let planned = u32::try_from(parts.len()).unwrap_or(u32::MAX).max(1);
                let (index, count) = (shard.index, shard.count.max(1));
                let has = |at: &usize| {
                    u32::try_from(*at).is_ok_and(|at| at % count == index % planned % count)
                };
                let whole = (0..parts.len()).filter(has).map(|at| parts[at]).sum();
                let within = ShardIndex { index: index / planned, count: count.div_ceil(planned) };
                BalanceChange::Raise(within.share(whole))
            }
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Fill => "fill".to_owned(),
            Self::Set(amount) => format!("set {}", amount.0),
            Self::Raise(parts) => {
                let parts: Vec<_> = parts.iter().map(|part| part.0.to_string()).collect();
                format!("raise {}", parts.join(" "))
            }
        }
    }

    /// Returns the change that an item has as text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let amount = |word: &str| word.parse().ok().map(MilliTokens);
        match (words.next()?, words) {
            ("fill", mut rest) => rest.next().is_none().then_some(Self::Fill),
            ("set", mut rest) => amount(rest.next()?).map(Self::Set),
            ("raise", rest) => {
                let parts: Vec<_> = rest.map(amount).collect::<Option<_>>()?;
                parts.len().is_power_of_two().then_some(Self::Raise(parts))
            }
            _ => None,
        }
    }
}

impl BucketEdit {
    /// Returns the key of a bucket's change.
    #[must_use]
    pub fn key(bucket: &BucketKey) -> ItemKey {
        ItemKey { pk: bucket.with_shard(0).item_key().pk, sk: EDIT_SK.to_owned() }
    }

    /// Begins the change. Requires that no other one is under way.
    #[must_use]
    pub fn begin(&self, bucket: &BucketKey) -> Update {
        let set = |name: &'static str, value| AttributeUpdate::Set(Path::of(name), value);
        let mut changes = vec![
            set(attr::EDIT, Value::Int(self.id.0)),
            AttributeUpdate::Remove(Path::of(attr::TTL)),
        ];
        match &self.change {
            EditChange::Balances(balances) => {
                let text = |(name, edit): (&LimitName, &BalanceStep)| {
                    (name.to_string(), Value::Text(edit.text()))
                };
                let plan = Value::Map(balances.iter().map(text).collect());
                changes.push(set(attr::PLAN, plan));
            }
            EditChange::Limits { limits, version, is_own } => {
                let mut plan = item::write_config(&Config::of(limits.clone()));
                if let Some(version) = version {
                    plan.insert(attr::VERSION.to_owned(), Value::Int(version.number));
                    let since = version.scaled_since();
                    plan.extend(since.map(|at| (attr::BOUNDARY.to_owned(), Value::Int(at.0))));
                }
                plan.insert(attr::OWN.to_owned(), Value::Bool(*is_own));
                changes.push(set(attr::PLAN, Value::Map(plan)));
            }
            EditChange::Pause(until) => {
                let until = Value::Int(until.unwrap_or_default().0);
                let plan = [(attr::PAUSED_UNTIL.to_owned(), until)];
                changes.push(set(attr::PLAN, Value::Map(plan.into())));
            }
        }
        Update {
            key: Self::key(bucket),
            conditions: vec![Condition::Absent(Path::of(attr::PLAN))],
            changes,
        }
    }

    /// Ends the change, after all shards have it.
    #[must_use]
    pub fn end(&self, bucket: &BucketKey, now: EpochMillis) -> Update {
        let EpochSeconds(ttl) = EpochSeconds::not_before(now.plus(KEPT));
        let id = Path::of(attr::EDIT);
        Update {
            key: Self::key(bucket),
            conditions: vec![Condition::Equals(id, Value::Int(self.id.0))],
            changes: vec![
                AttributeUpdate::Remove(Path::of(attr::PLAN)),
                AttributeUpdate::Set(Path::of(attr::TTL), Value::Int(ttl)),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the shards are by now, in any mixture.
    #[test]
    fn the_parts_of_a_shards_halves_add_up_to_its_own() {
        let amounts = |count: i64| (0..count).map(|at| MilliTokens(at * at + 3)).collect();
        for planned in [1, 2, 8, 64] {
            let edits =
                [BalanceStep::Set(MilliTokens(12_345)), BalanceStep::Raise(amounts(planned))];
            for edit in edits {
                assert_eq!(BalanceStep::parse(&edit.text()), Some(edit.clone()));
                let amount = |shard| match edit.part(shard, MilliTokens::ZERO) {
                    BalanceChange::SetTo(amount) | BalanceChange::Raise(amount) => amount,
                };
                for count in [1, 2, 4, 16, 32] {
                    for index in 0..count {
                        let shard = ShardIndex { index, count };
                        let (lower, upper) = shard.halves();
                        assert_eq!(
                            amount(lower) + amount(upper),
                            amount(shard),
                            "{shard:?} {edit:?}"
                        );
                    }
                }
            }
        }
        assert_eq!(BalanceStep::parse("fill"), Some(BalanceStep::Fill));
        for bad in ["", "fill 1", "set", "set x", "raise", "raise 1 2 3", "drop"] {
            assert_eq!(BalanceStep::parse(bad), None, "{bad}");
        }
    }
}
