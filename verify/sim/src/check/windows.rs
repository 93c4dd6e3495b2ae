//! I1 for quotas: no window of the items admits more than its capacity.

use std::collections::{BTreeMap, BTreeSet};

use crate::check::admitted::{CLOCKS_MS, backs, rules};
use crate::ledger::{Claim, Ledger, LimitIndex};
use crate::quota::is_quota;
use crate::world::World;

/// I1 for quotas: checks, of each window of the items, what callers were certainly granted in it
/// less what they may have returned. A claim counts if only one window was open from its request to
/// its response; no clock adds anything. Checks also that operators added no more than they asked
/// for.
pub fn windows(world: &World, ledger: &Ledger) {
    let scenario = world.scenario();
    if scenario.quotas.is_empty() {
        return;
    }
    let stream = world.stream_check();
    let gone = stream.gone.clone();
    let known = stream.windows.windows.clone();
    let history = stream.windows.history.clone();
    let edited = stream.windows.edited.clone();
    drop(stream);
    let early = if scenario.has_wrong_clocks() { 300_000 } else { CLOCKS_MS };
    for (of, claims) in ledger.by_limit() {
        if !rules(scenario, of).iter().all(is_quota) {
            continue;
        }
        let (entity, limit) = names(world, of);
        let Some(history) = history.get(&(entity.clone(), limit.clone())) else {
            continue;
        };
        let mut by_window: BTreeMap<i64, Vec<&Claim>> = BTreeMap::new();
        for claim in claims.into_iter().filter(|claim| !claim.is_bypass) {
            if let Some(end) = only_window(history, claim, early) {
                by_window.entry(end).or_default().push(claim);
            }
        }
        for (end, claims) in by_window {
            let window = (entity.clone(), limit.clone(), end);
            let there = known.get(&window).map_or(0, |sums| sums.capacity + sums.added);
            let backs = claims.iter().flat_map(|claim| backs(claim, early, &gone));
            let mut changes: Vec<_> = backs.map(|back| (back.from, -back.amount)).collect();
            changes.extend(claims.iter().map(|claim| (claim.answered, claim.amount)));
            // At one instant, returns come before grants.
            changes.sort_unstable();
            let mut admitted = 0;
            for (at, amount) in changes {
                admitted += amount;
                if admitted > there {
                    world.violated(format!(
                        "I1: {admitted} of {there} {limit} of {entity} were admitted by {at} in the window until {end}"
                    ));
                    break;
                }
            }
        }
    }
    for ((entity, limit), amount) in edited {
        let plans = scenario.buckets.iter().enumerate();
        let of = plans.filter(|(_, plan)| plan.entity == entity);
        let most: i64 = of
            .flat_map(|(at, plan)| plan.limits.iter().enumerate().map(move |(i, l)| (at, i, l)))
            .filter(|(_, _, known)| known.name().as_str() == limit)
            .flat_map(|(at, index, _)| ledger.additions((at, index)))
            .map(|back| back.amount)
            .sum();
        if amount > most {
            world.violated(format!(
                "I1: operators added {most} {limit} to {entity}, the table says {amount}"
            ));
        }
    }
}

fn names(world: &World, of: LimitIndex) -> (String, String) {
    let plan = &world.scenario().buckets[of.0];
    (plan.entity.clone(), plan.limits[of.1].name().to_string())
}

/// Returns the window that a claim was taken from, if only one can have been: those that had ended
/// `early` before the request have nothing to give.
fn only_window(history: &[(i64, String, Option<i64>)], claim: &Claim, early: i64) -> Option<i64> {
    let mut before: BTreeMap<&str, Option<i64>> = BTreeMap::new();
    let mut ends = BTreeSet::new();
    for (at, item, end) in history.iter().filter(|(at, ..)| *at <= claim.answered) {
        if *at < claim.sent {
            before.insert(item, *end);
        } else {
            ends.extend(*end);
        }
    }
    ends.extend(before.into_values().flatten());
    ends.retain(|end| *end > claim.sent - early);
    let mut ends = ends.into_iter();
    ends.next().filter(|_| ends.next().is_none())
}
