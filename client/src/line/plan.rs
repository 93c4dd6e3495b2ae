//! Who of the line goes into the next write: first come, first served, and a smaller one behind may pass. Pure.

use std::collections::VecDeque;
use std::sync::Arc;

use weirgate_shared::{Bucket, EpochMillis, Limit};

use super::{Caller, Needs};
use crate::decision::{self, LimitStatus};

/// The most leases one write carries: an expression holds 4 KB.
const LEASES_PER_WRITE: usize = 50;

/// Splits the line into those whose sum fits into what is there, and the others, both in order.
///
/// Without a view the limits' own capacities are what is there. Callers who bring other limits than the first wait
/// for a write of their own.
pub(super) fn select(
    view: Option<&Bucket>,
    line: VecDeque<Caller>,
    now: EpochMillis,
) -> (Vec<Caller>, VecDeque<Caller>) {
    let Some(first) = line.front() else { return (vec![], line) };
    let limits = Arc::clone(&first.limits);
    let mut left: Needs = match view {
        Some(bucket) => {
            bucket.advanced(&limits, now).limits.into_iter().map(|(name, state)| (name, state.tk)).collect()
        }
        None => limits.iter().map(|limit| (limit.name().clone(), limit.rule().capacity)).collect(),
    };
    let mut leases = 0;
    let (mut chosen, mut others) = (vec![], VecDeque::new());
    for caller in line {
        let same_limits = Arc::ptr_eq(&caller.limits, &limits) || caller.limits == limits;
        let fits = caller.needs.iter().all(|(limit, need)| left.get(limit).is_some_and(|left| left >= need));
        if !same_limits || !fits || (caller.lease.is_some() && leases == LEASES_PER_WRITE) {
            others.push_back(caller);
            continue;
        }
        for (limit, need) in &caller.needs {
            if let Some(left) = left.get_mut(limit) {
                *left -= *need;
            }
        }
        leases += usize::from(caller.lease.is_some());
        chosen.push(caller);
    }
    (chosen, others)
}

/// Why `bucket` does not have what the caller asks at `now`; `None` if it has.
pub(super) fn shortage(bucket: &Bucket, caller: &Caller, now: EpochMillis) -> Option<Vec<LimitStatus>> {
    let status = decision::status(bucket, &caller.limits, &caller.needs, now);
    status.iter().any(|limit| limit.requested > limit.available).then_some(status)
}

/// Whether slots are among what is short: they come back at any moment, by releases nobody here sees.
pub(crate) fn lacks_slots(limits: &[Limit], shortage: &[LimitStatus]) -> bool {
    let is_short =
        |name: &str| shortage.iter().any(|status| status.limit == name && status.requested > status.available);
    limits.iter().any(|limit| limit.rule().is_concurrent() && is_short(limit.name().as_str()))
}
