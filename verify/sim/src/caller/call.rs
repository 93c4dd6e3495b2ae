//! What a caller asks next, and after which pause: drawn from the seed.

use std::time::Duration;

use crate::world::World;

/// A call's arguments.
pub(super) struct Call {
    pub(super) bucket: usize,
    pub(super) other: Option<usize>,
    pub(super) rate: i64,
    pub(super) slots: i64,
    pub(super) lease: Option<Duration>,
    pub(super) wait: Duration,
    /// Which of the requests bypass the limits.
    pub(super) bypasses: [bool; 2],
}

impl Call {
    /// Draws a call of one bucket, or of two.
    pub(super) fn draw(world: &World, comes_in_a_burst: bool) -> Self {
        let plans = &world.scenario().buckets;
        let mut rng = world.rng();
        let bucket = rng.usize(..plans.len());
        let plan = &plans[bucket];
        let capacity = plan.limits[0].rule().capacity.whole_tokens();
        // Sometimes a large part of the capacity.
        let is_large = rng.u32(..10) == 0 || comes_in_a_burst && rng.bool();
        let most = if is_large { capacity } else { (capacity / 4).max(1) };
        let takes_slots = plan.limits.len() > 1 && rng.bool();
        let slots = if takes_slots {
            rng.i64(1..=plan.limits[1].rule().capacity.whole_tokens().min(2))
        } else {
            0
        };
        let needs_lease = takes_slots && plan.limits[1].rule().kind().is_held();
        let lease =
            (needs_lease || rng.u32(..4) == 0).then(|| Duration::from_millis(rng.u64(300..20_000)));
        let wait = if rng.u32(..4) == 0 {
            Duration::from_millis(rng.u64(0..3000))
        } else {
            Duration::ZERO
        };
        let others =
            (0..plans.len()).filter(|other| *other != bucket && plans[*other].parent.is_none());
        let others: Vec<_> = others.filter(|_| plan.parent.is_none()).collect();
        let other = if others.is_empty() || rng.u32(..5) > 0 {
            None
        } else {
            Some(others[rng.usize(..others.len())])
        };
        Self {
            bucket,
            other,
            rate: rng.i64(1..=most),
            slots,
            lease,
            wait,
            bypasses: [(); 2].map(|()| bypasses(world)),
        }
    }
}

fn bypasses(world: &World) -> bool {
    let rate = world.scenario().bypass_rate;
    rate > 0 && world.aws_rng().u32(..1000) < rate
}
