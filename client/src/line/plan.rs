//! Who of the line goes into the next write: first come, first served, and a smaller one behind may pass. Pure.

use std::collections::VecDeque;
use weirgate_shared::{Bucket, EpochMillis};

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
    let limits = first.limits.clone();
    let mut left: Needs = match view {
        Some(bucket) => {
            bucket.advanced(&limits, now).limits.into_iter().map(|(name, state)| (name, state.tk)).collect()
        }
        None => limits.iter().map(|limit| (limit.name().clone(), limit.rule().capacity)).collect(),
    };
    let mut leases = 0;
    let (mut chosen, mut others) = (vec![], VecDeque::new());
    for caller in line {
        let fits = caller.needs.iter().all(|(limit, need)| left.get(limit).is_some_and(|left| left >= need));
        if caller.limits != limits || !fits || (caller.lease.is_some() && leases == LEASES_PER_WRITE) {
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
    status.iter().any(LimitStatus::is_short).then_some(status)
}
