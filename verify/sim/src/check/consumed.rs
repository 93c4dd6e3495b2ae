//! I7: the table consumed what callers were granted, and no more than they may have been.

use std::collections::BTreeMap;

use crate::ledger::{Claim, Ledger};
use crate::world::World;

/// I7: checks the table's consumption. It is at least what callers were granted and have not
/// returned. It is at most that plus unanswered requests, each once. An unconfirmed take before a
/// write of another process may be repeated and lost: the item no longer shows it.
pub fn consumed(world: &World, ledger: &Ledger) {
    let mut consumed: BTreeMap<(String, String), i64> = BTreeMap::new();
    let by_hour = world.stream_check().consumed.clone();
    for ((entity, limit, _), amount) in by_hour {
        *consumed.entry((entity, limit)).or_default() += amount;
    }
    let doubted = world.stream_check().doubted.clone();
    for (of, claims) in ledger.by_limit() {
        let plan = &world.scenario().buckets[of.0];
        let limit = &plan.limits[of.1];
        let mut same = plan.all_limits().filter(|other| other.name() == limit.name());
        if same.any(|limit| limit.rule().kind().is_held()) {
            continue;
        }
        let surely = |claim: &&Claim| {
            if claim.expires.is_some() && !claim.is_settled {
                0
            } else {
                claim.amount - claim.back()
            }
        };
        let least: i64 = claims.iter().map(surely).sum();
        let key = (plan.entity.clone(), limit.name().to_string());
        let all = consumed.get(&key).copied().unwrap_or_default();
        if all < least {
            world.violated(format!(
                "I7: callers have {least} {} of {}, the table says {all}",
                key.1, key.0
            ));
        }
        let most: i64 = claims.iter().map(|claim| claim.amount + claim.more).sum();
        let most = most + ledger.unanswered(of) + doubted.get(&key).copied().unwrap_or_default();
        // Prefetched tokens belong to no request. A take planned with a clock set ahead may be
        // returned, and a return may be lost.
        let is_known = world.scenario().prefetching == 0 && !world.scenario().has_wrong_clocks();
        if is_known && all > most {
            world.violated(format!(
                "I7: callers had {most} {} of {} at most, the table says {all}",
                key.1, key.0
            ));
        }
    }
}
