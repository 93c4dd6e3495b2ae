//! The shards of a bucket as the tree of their splits, with manual damage: pure.

use std::collections::BTreeMap;

use weirgate_shared::{MAX_SHARDS, Shard, ShardIndex};

/// A node of the tree.
#[derive(Debug, PartialEq, Eq)]
pub enum Node<'a> {
    /// A shard that was not split further, and the `covered` items below it. Its item was deleted
    /// manually, and then created again by a process without a view of them.
    Leaf {
        /// The shard.
        shard: &'a Shard,
        /// Shards from before the deletion.
        covered: Vec<&'a Shard>,
    },
    /// A shard that was split, and its halves.
    Split(Box<[Node<'a>; 2]>),
    /// A half without an item: deleted manually.
    Hole(ShardIndex),
}

/// Returns the tree of all `shards` of one bucket; `None` if one of them fits in no tree.
#[must_use]
pub fn tree(shards: &[Shard]) -> Option<Node<'_>> {
    let is_sound = |shard: &Shard| {
        let ShardIndex { index, count } = shard.shard();
        count.is_power_of_two() && index < count && count <= MAX_SHARDS
    };
    let by_index: BTreeMap<_, _> = shards.iter().map(|shard| (shard.key.shard, shard)).collect();
    shards.iter().all(is_sound).then(|| node(ShardIndex::UNSPLIT, &by_index))
}

/// Returns the node `at`, whose items are those with its index modulo its count.
fn node<'a>(at: ShardIndex, shards: &BTreeMap<u32, &'a Shard>) -> Node<'a> {
    let own = shards.get(&at.index).copied();
    let others = || {
        shards
            .values()
            .copied()
            .filter(|other| other.key.shard % at.count == at.index && other.key.shard != at.index)
    };
    match own {
        Some(shard) if shard.shard() == at => Node::Leaf { shard, covered: others().collect() },
        None if others().next().is_none() => Node::Hole(at),
        _ => {
            let (lower, upper) = at.halves();
            Node::Split(Box::new([node(lower, shards), node(upper, shards)]))
        }
    }
}

impl<'a> Node<'a> {
    /// Returns all leaves, lowest first within a half.
    #[must_use]
    pub fn leaves(&self) -> Vec<&'a Shard> {
        match self {
            Self::Leaf { shard, .. } => vec![*shard],
            Self::Split(halves) => halves.iter().flat_map(Self::leaves).collect(),
            Self::Hole(_) => vec![],
        }
    }

    /// Returns all covered shards, each with the leaf that covers it.
    #[must_use]
    pub fn covered(&self) -> Vec<(&'a Shard, &'a Shard)> {
        match self {
            Self::Leaf { shard, covered } => covered.iter().map(|gone| (*gone, *shard)).collect(),
            Self::Split(halves) => halves.iter().flat_map(Self::covered).collect(),
            Self::Hole(_) => vec![],
        }
    }

    /// Returns all holes.
    #[must_use]
    pub fn holes(&self) -> Vec<ShardIndex> {
        match self {
            Self::Leaf { .. } => vec![],
            Self::Split(halves) => halves.iter().flat_map(Self::holes).collect(),
            Self::Hole(at) => vec![*at],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weirgate_shared::{BucketKey, EpochMillis, Limit};

    fn shard(index: u32, count: u32) -> Shard {
        let key = BucketKey::parse(&format!("default/BUCKET#e-1#gpt-4#{index}")).unwrap();
        let limits = [Limit::custom("rpm", 1, 1, 1000).unwrap()];
        Shard { shard_count: count, ..Shard::full(key, &limits, EpochMillis(0)) }
    }

    #[test]
    fn shards_that_no_splits_make_are_in_no_tree() {
        assert!(tree(&[shard(0, 2), shard(1, 2)]).is_some());
        assert!(tree(&[shard(MAX_SHARDS - 1, MAX_SHARDS)]).is_some());
        for wrong in [shard(0, 3), shard(5, 5), shard(0, MAX_SHARDS * 2)] {
            assert_eq!(tree(&[shard(0, 2), wrong.clone()]), None, "{:?}", wrong.shard());
        }
    }
}
