//! What is to be done about the shards of one bucket: mended where a hand has broken them, merged
//! where they are cold, and looked at. Pure, nothing is sent.
//!
//! The shards were read one by one, so together they may be what the bucket never was. Every
//! transaction asks that what it takes for granted still holds.

use weirgate_shared::write::{
    Action, REVIEW_INTERVAL, merge, merged, recreate, remove_covered, require_unchanged,
};
use weirgate_shared::{
    EpochMillis, Limit, LimitName, MAX_SHARDS, MilliTokens, Millis, Shard, ShardIndex, WriteId,
};

use crate::tree::{Node, tree};

/// Thousandths of write units a second of one partition, of all that would be merged together, that
/// are still cold: a quarter of the 1,000 units that it takes. So what was merged may grow fourfold
/// before it is split again.
const COLD: i128 = 250_000;

/// A look this old is made anew along with those that are due, so that the shards of a bucket come
/// together.
const OLD: Millis = Millis(REVIEW_INTERVAL.0 / 2);

/// How many shards become one at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// As many as are cold together.
    All,
    /// Two. A transaction of few shards is seldom disturbed.
    Pairs,
}

/// A transaction, and how many shards it deletes or makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// What is sent.
    pub actions: Vec<Action>,
    /// How many shards there are more or less by it.
    pub shards: usize,
}

/// What is to be done about the shards of one bucket. No shard is in both `merges` and `looks`.
#[derive(Debug, Default)]
pub struct Review<'a> {
    /// Holes filled, and shards removed that another one holds again.
    pub repairs: Vec<Change>,
    /// Cold shards that become one.
    pub merges: Vec<Change>,
    /// Shards whose writes are counted anew from now.
    pub looks: Vec<&'a Shard>,
}

/// Whether `bucket` is due for a look, and with it its whole bucket: not only for its leases.
#[must_use]
pub fn is_reviewed(shard: &Shard, now: EpochMillis) -> bool {
    shard.shard().count > 1 && shard.key.shard < MAX_SHARDS && is_old(shard, REVIEW_INTERVAL, now)
}

/// What is to be done about `shards`, which are all that could be read of one bucket. `is_all` says
/// whether there are no others.
#[must_use]
pub fn review(
    shards: &[Shard],
    is_all: bool,
    depth: Depth,
    now: EpochMillis,
    mut new_id: impl FnMut() -> WriteId,
) -> Review<'_> {
    let mut review = Review::default();
    let mut merged = vec![];
    // A half that is yet to be made is no hole.
    let is_whole = is_all && shards.iter().all(|shard| shard.escrow.is_none());
    if let Some(tree) = tree(shards).filter(|_| is_whole) {
        review.repairs.extend(filled(&tree, now, &mut new_id));
        for (gone, whole) in tree.covered() {
            if gone.leases.iter().flatten().next().is_none() {
                review.repairs.push(Change {
                    actions: remove_covered(gone, whole),
                    shards: 1,
                });
                merged.push(gone.key.shard);
            }
        }
        let mut groups = vec![];
        let last = join(&tree, depth, now, &mut groups);
        for Group {
            merged: shard,
            members,
            ..
        } in groups.into_iter().chain(last)
        {
            if let [lower, gone @ ..] = &*members
                && !gone.is_empty()
            {
                review.merges.push(Change {
                    actions: merge(lower, shard, gone),
                    shards: gone.len(),
                });
                merged.extend(members.iter().map(|member| member.key.shard));
            }
        }
    }
    let is_left = |shard: &&Shard| shard.shard().count > 1 && !merged.contains(&shard.key.shard);
    review.looks = shards
        .iter()
        .filter(is_left)
        .filter(|shard| is_old(shard, OLD, now))
        .collect();
    review
}

fn is_old(shard: &Shard, age: Millis, now: EpochMillis) -> bool {
    shard
        .scaling
        .sample
        .is_none_or(|look| look.at.plus(age) <= now)
}

/// All holes filled in one transaction, if all leaves are still what they are: what slots the holes
/// lack follows from what all the others have.
fn filled(
    tree: &Node<'_>,
    now: EpochMillis,
    new_id: &mut impl FnMut() -> WriteId,
) -> Option<Change> {
    let (leaves, holes) = (tree.leaves(), tree.holes());
    // Its limits are as new as any, and `v` goes on above it.
    let other = *leaves.iter().max_by_key(|leaf| leaf.write_seq)?;
    let holes_count = u32::try_from(holes.len()).ok().filter(|count| *count > 0)?;
    let mut actions = vec![];
    for (index, hole) in (0..).zip(&holes) {
        let slots = |limit: &Limit| {
            let missing = missing(limit, &holes, &leaves).whole_tokens();
            // Whole slots, so that each can be taken from one shard.
            MilliTokens::from_tokens(
                ShardIndex {
                    index,
                    count: holes_count,
                }
                .share(MilliTokens(missing))
                .0,
            )
        };
        let make = recreate(*hole, other, slots, new_id(), now);
        actions.extend(
            make.into_iter()
                .filter(|action| matches!(action, Action::Update(_))),
        );
    }
    actions.extend(leaves.into_iter().map(require_unchanged));
    Some(Change {
        actions,
        shards: holes.len(),
    })
}

/// The slots that the holes must have for all slots to be there: their shares, less what the leaves
/// have above their own. (Splits divide what is free; so a shard that holds leases has more than
/// its share, and another one less.)
fn missing(limit: &Limit, holes: &[ShardIndex], leaves: &[&Shard]) -> MilliTokens {
    let shares: MilliTokens = holes
        .iter()
        .map(|hole| hole.share(limit.rule().capacity))
        .sum();
    let above = |leaf: &&Shard| {
        // One that has the limit not yet, or not as slots, will have its share of it.
        let state = leaf
            .limits
            .get(limit.name())
            .filter(|state| state.rule.is_concurrent())?;
        Some(state.available + held(leaf, limit.name()) - leaf.share(state))
    };
    (shares - leaves.iter().filter_map(above).sum()).max(MilliTokens::ZERO)
}

fn held(shard: &Shard, limit: &LimitName) -> MilliTokens {
    shard
        .leases
        .iter()
        .flatten()
        .filter_map(|(_, lease)| lease.tokens.get(limit))
        .copied()
        .sum()
}

/// Shards that become one.
struct Group<'a> {
    /// What they become.
    merged: Shard,
    /// The one that stays, and those that go.
    members: Vec<&'a Shard>,
    /// Thousandths of write units a second, together.
    heat: i128,
}

/// What the node becomes as one shard, if all of it can be one; otherwise what its parts become is
/// in `groups`.
fn join<'a>(
    node: &Node<'a>,
    depth: Depth,
    now: EpochMillis,
    groups: &mut Vec<Group<'a>>,
) -> Option<Group<'a>> {
    match node {
        Node::Hole(_) => None,
        Node::Leaf { shard, .. } => heat(shard, now).map(|heat| Group {
            merged: (*shard).clone(),
            members: vec![*shard],
            heat,
        }),
        Node::Split(halves) => {
            let (lower, upper) = (
                join(&halves[0], depth, now, groups),
                join(&halves[1], depth, now, groups),
            );
            if let (Some(lower), Some(upper)) = (&lower, &upper)
                && let Some(whole) = lower.with(upper, depth, now)
            {
                return Some(whole);
            }
            groups.extend(lower.into_iter().chain(upper));
            None
        }
    }
}

impl<'a> Group<'a> {
    fn with(&self, upper: &Self, depth: Depth, now: EpochMillis) -> Option<Self> {
        let heat = self.heat + upper.heat;
        let members = [&*self.members, &*upper.members].concat();
        if heat >= COLD || depth == Depth::Pairs && members.len() > 2 {
            return None;
        }
        let merged = merged(&self.merged, &upper.merged, now)?;
        // Nobody asked for more shards, and it is not to be split again at once.
        let stays = merged.shard_count >= merged.scaling.min_shards && !merged.has_heavy_leases();
        stays.then_some(Self {
            merged,
            members,
            heat,
        })
    }
}

/// How often the shard was written to since its last look, in thousandths of write units a second.
/// `None` if that cannot be said, or if it must stay as it is: a client asks for a split, or leases
/// have expired.
fn heat(shard: &Shard, now: EpochMillis) -> Option<i128> {
    let look = shard
        .scaling
        .sample
        .filter(|look| look.at.plus(REVIEW_INTERVAL) <= now)?;
    if shard.scaling.is_hot || shard.expired(now).next().is_some() {
        return None;
    }
    let writes = i128::from(shard.write_seq.saturating_sub(look.write_seq).max(0));
    Some(
        writes * i128::from(shard.write_units()) * 1_000_000
            / i128::from(now.since(look.at).0.max(1)),
    )
}
