//! Plans the work on the shards of one bucket: repairs of manual damage, merges of idle shards,
//! activity samples. Pure, sends nothing.
//!
//! The shards were read one by one, so together they may be a state that the bucket never had.
//! Every transaction therefore requires the state it depends on.

use weirgate_shared::write::{
    Action, REVIEW_INTERVAL, merge, merged, recreate, remove_covered, require_unchanged,
};
use weirgate_shared::{
    EpochMillis, Limit, LimitName, MAX_SHARDS, MilliTokens, Millis, Shard, ShardIndex, WriteId,
};

use crate::shard_tree::{Node, tree};

/// Maximum write rate of a group of shards that is merged, in thousandths of write units a second:
/// a quarter of the 1,000 units of a partition. A merged shard can thus get four times the writes
/// before it is split again.
const COLD: i128 = 250_000;

/// Age from which a sample is renewed along with the due ones, so that the shards of a bucket
/// become due together.
const OLD: Millis = Millis(REVIEW_INTERVAL.0 / 2);

/// Maximum number of shards merged into one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// As many as are idle together.
    All,
    /// Two, because concurrent writes seldom disturb a transaction of few shards.
    Pairs,
}

/// A transaction, and the number of shards it deletes or creates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Actions of the transaction.
    pub actions: Vec<Action>,
    /// Number of shards deleted or created.
    pub shards: usize,
}

/// The planned work on the shards of one bucket. No shard is in both `merges` and `samples`.
#[derive(Debug, Default)]
pub struct Review<'a> {
    /// Transaction that fills all holes. A namespace in which everything is stopped keeps them: it may be
    /// purged.
    pub fill: Option<Change>,
    /// Transactions that remove shards whose tokens another shard has.
    pub repairs: Vec<Change>,
    /// Transactions that merge idle shards.
    pub merges: Vec<Change>,
    /// Shards that need a new activity sample.
    pub samples: Vec<&'a Shard>,
}

/// Returns whether `shard`, and with it its bucket, is due for a review, not only for its leases.
#[must_use]
pub fn is_reviewed(shard: &Shard, now: EpochMillis) -> bool {
    shard.shard().count > 1 && shard.key.shard < MAX_SHARDS && is_old(shard, REVIEW_INTERVAL, now)
}

/// Returns the planned work on `shards`, which are all readable shards of one bucket. `is_all`
/// tells whether there are no others.
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
    // A half that is still in an escrow is no hole.
    let is_whole = is_all && shards.iter().all(|shard| shard.escrow.is_none());
    if let Some(tree) = tree(shards).filter(|_| is_whole) {
        review.fill = filled(&tree, now, &mut new_id);
        for (gone, whole) in tree.covered() {
            if gone.leases.iter().flatten().next().is_none() {
                review.repairs.push(Change { actions: remove_covered(gone, whole), shards: 1 });
                merged.push(gone.key.shard);
            }
        }
        let mut groups = vec![];
        let last = join(&tree, depth, now, &mut groups);
        for Group { merged: shard, members, .. } in groups.into_iter().chain(last) {
            if let [lower, gone @ ..] = &*members
                && !gone.is_empty()
            {
                review
                    .merges
                    .push(Change { actions: merge(lower, shard, gone), shards: gone.len() });
                merged.extend(members.iter().map(|member| member.key.shard));
            }
        }
    }
    let is_left = |shard: &&Shard| shard.shard().count > 1 && !merged.contains(&shard.key.shard);
    review.samples =
        shards.iter().filter(is_left).filter(|shard| is_old(shard, OLD, now)).collect();
    review
}

fn is_old(shard: &Shard, age: Millis, now: EpochMillis) -> bool {
    shard.scaling.sample.is_none_or(|sample| sample.at.plus(age) <= now)
}

/// Returns one transaction that fills all holes, on condition that all leaves are unchanged: the
/// slots of the holes follow from the slots of all others.
fn filled(
    tree: &Node<'_>,
    now: EpochMillis,
    new_id: &mut impl FnMut() -> WriteId,
) -> Option<Change> {
    let (leaves, holes) = (tree.leaves(), tree.holes());
    // Its limits are the newest, and the new `v` is above its own.
    let other = *leaves.iter().max_by_key(|leaf| leaf.write_seq)?;
    let holes_count = u32::try_from(holes.len()).ok().filter(|count| *count > 0)?;
    let mut actions = vec![];
    for (index, hole) in (0..).zip(&holes) {
        let slots = |limit: &Limit| {
            let missing = missing(limit, &holes, &leaves).whole_tokens();
            // Divides whole slots, so that each can be taken from one shard.
            MilliTokens::from_tokens(
                ShardIndex { index, count: holes_count }.share(MilliTokens(missing)).0,
            )
        };
        let make = recreate(*hole, other, slots, new_id(), now);
        actions.extend(make.into_iter().filter(|action| matches!(action, Action::Update(_))));
    }
    actions.extend(leaves.into_iter().map(require_unchanged));
    Some(Change { actions, shards: holes.len() })
}

/// Returns the slots that the holes need to complete the limit: their shares, less the slots that
/// the leaves have above their own. (Splits divide free slots; so a shard with leases has more than
/// its share, and another one less.)
fn missing(limit: &Limit, holes: &[ShardIndex], leaves: &[&Shard]) -> MilliTokens {
    let shares: MilliTokens = holes.iter().map(|hole| hole.share(limit.rule().capacity)).sum();
    let above = |leaf: &&Shard| {
        // A leaf without the limit, or with a rate of that name, will get its share of it.
        let state = leaf.limits.get(limit.name()).filter(|state| state.rule.kind().is_held())?;
        Some(state.available + held(leaf, limit.name()) - leaf.share(state))
    };
    (shares - leaves.iter().filter_map(above).sum()).max(MilliTokens::ZERO)
}

fn held(shard: &Shard, limit: &LimitName) -> MilliTokens {
    shard.leases.iter().flatten().filter_map(|(_, lease)| lease.tokens.get(limit)).copied().sum()
}

/// Shards that are merged into one.
struct Group<'a> {
    /// Merged shard.
    merged: Shard,
    /// Shard that stays, and those that are merged away.
    members: Vec<&'a Shard>,
    /// Write rate of all, in thousandths of write units a second.
    heat: i128,
}

/// Returns the shard that the whole node merges into, if it can. Otherwise adds the groups of its
/// parts to `groups`.
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
            let (lower, upper) =
                (join(&halves[0], depth, now, groups), join(&halves[1], depth, now, groups));
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
        // Requires that no operator set a higher number of shards, and that the merged shard would
        // not be split again at once.
        let stays = merged.shard_count >= merged.scaling.min_shards && !merged.has_heavy_leases();
        stays.then_some(Self { merged, members, heat })
    }
}

/// Returns the write rate since the last sample, in thousandths of write units a second. Returns
/// `None` if it is unknown, or if the shard must stay: a client requests a split, or leases have
/// expired.
fn heat(shard: &Shard, now: EpochMillis) -> Option<i128> {
    let sample = shard.scaling.sample.filter(|sample| sample.at.plus(REVIEW_INTERVAL) <= now)?;
    if shard.scaling.is_hot(now) || shard.expired(now).next().is_some() {
        return None;
    }
    let writes = i128::from(shard.write_seq.saturating_sub(sample.write_seq).max(0));
    Some(
        writes * i128::from(shard.write_units()) * 1_000_000
            / i128::from(now.since(sample.at).0.max(1)),
    )
}
