//! Steps of the processes that share a bucket of several shards, as data; dense around dangerous
//! values.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::Index;
use weirgate_shared::write::Contention;

use super::contention;

/// Age of a writer's view of a shard, in writes.
pub type Back = usize;

/// The next step.
#[derive(Debug, Clone)]
pub enum Op {
    Wait(i64),
    /// Takes from one shard, by a view or by none.
    Take {
        shard: Index,
        back: Option<Back>,
        ask: Ask,
    },
    /// Takes from the bucket as it was after some write: from one shard if one has it all and
    /// `alone`, from several else.
    Spread {
        back: Back,
        alone: bool,
        ask: Ask,
    },
    /// Ends a lease: slots go back, rate tokens were used.
    End(Index),
    Renew(Index, i64),
    /// Changes what a take used of the rate to a part (of 1000) of it, up to twice as much: under
    /// its lease or without.
    Adjust {
        grant: Index,
        part: i64,
        back: Option<Back>,
    },
    Expire {
        shard: Index,
        back: Back,
        look: bool,
    },
    Refill {
        shard: Index,
        back: Back,
    },
    Split {
        shard: Index,
        back: Back,
    },
    /// Goes on with a split, by an image of the old half: makes the new one, and removes the escrow
    /// if `clear`.
    Finish {
        shard: Index,
        back: Back,
        clear: bool,
    },
    Merge {
        pair: Index,
        backs: (Back, Back),
    },
    /// A split or a merge planned some time ago comes again, or only now: its answer was lost, or
    /// it was late.
    Repeat(Index),
    /// The same for a write that finishes a split.
    Late(Index),
}

/// The amounts of a take.
#[derive(Debug, Clone)]
pub struct Ask {
    pub rate: Much,
    pub slots: i64,
    /// Duration of the lease; without one, if no slots are requested.
    pub lease: Option<i64>,
    /// Assumes that another process has begun the hour.
    pub by_others: bool,
    pub contention: Contention,
}

/// Amount of a rate.
#[derive(Debug, Clone, Copy)]
pub enum Much {
    /// So many thousandths of the capacity, or of a shard's share.
    Part(i64),
    /// The balance plus this amount.
    There(i64),
    /// The most headroom that a take leaves, plus this amount.
    Headroom(i64),
}

fn back() -> impl Strategy<Value = Back> {
    prop_oneof![4 => Just(0), 3 => 1..4usize, 1 => 4..12usize]
}

fn ask() -> impl Strategy<Value = Ask> {
    let much = prop_oneof![
        6 => (0..=1000i64).prop_map(Much::Part),
        4 => (-1..=1i64).prop_map(Much::There),
        1 => (-1..=1i64).prop_map(Much::Headroom),
    ];
    let slots = prop_oneof![3 => Just(0), 2 => 1..3i64, 1 => 3..9i64];
    let lease = option::of(prop_oneof![0..200i64, 0..3000i64]);
    let by_others = prop::bool::weighted(0.1);
    (much, slots, lease, by_others, contention()).prop_map(
        |(rate, slots, lease, by_others, contention)| Ask {
            rate,
            slots,
            lease,
            by_others,
            contention,
        },
    )
}

pub fn op() -> impl Strategy<Value = Op> {
    let which = any::<Index>;
    let wait = prop_oneof![1..20i64, 200..600i64, 1..3000i64];
    let view = || prop_oneof![1 => Just(None), 7 => back().prop_map(Some)];
    prop_oneof![
        4 => wait.prop_map(Op::Wait),
        5 => (which(), view(), ask()).prop_map(|(shard, back, ask)| Op::Take { shard, back, ask }),
        4 => (back(), any::<bool>(), ask()).prop_map(|(back, alone, ask)| Op::Spread { back, alone, ask }),
        1 => which().prop_map(Op::End),
        1 => (which(), 0..1000i64).prop_map(|(lease, later)| Op::Renew(lease, later)),
        2 => (which(), 0..2000i64, view()).prop_map(|(grant, part, back)| Op::Adjust { grant, part, back }),
        2 => (which(), back(), any::<bool>()).prop_map(|(shard, back, look)| Op::Expire { shard, back, look }),
        2 => (which(), back()).prop_map(|(shard, back)| Op::Refill { shard, back }),
        4 => (which(), back()).prop_map(|(shard, back)| Op::Split { shard, back }),
        6 => (which(), back(), prop::bool::weighted(0.8))
            .prop_map(|(shard, back, clear)| Op::Finish { shard, back, clear }),
        4 => (which(), (back(), back())).prop_map(|(pair, backs)| Op::Merge { pair, backs }),
        1 => which().prop_map(Op::Late),
        1 => which().prop_map(Op::Repeat),
    ]
}

/// Returns operations, each with its writer's clock offset in ms: up to `skew`.
pub fn ops(skew: i64) -> impl Strategy<Value = Vec<(Op, i64)>> {
    let skew = prop_oneof![2 => Just(0), 1 => -skew..=skew];
    vec((op(), skew), 1..40)
}
