//! I1: no more is admitted than the limits allow, at any instant and over any interval.

use std::collections::{BTreeMap, BTreeSet};

use weirgate::RefillRule;
use weirgate_shared::LimitKind;

use crate::ledger::{Back, Claim, Ledger, LimitIndex};
use crate::limiter::SHARE;
use crate::scenario::Scenario;
use crate::world::World;

/// Largest difference between two clocks after corrections by DynamoDB's responses: a second, a
/// request, and another second for a reader with a different clock (`docs/architecture.md`,
/// Clocks).
pub(super) const CLOCKS_MS: i64 = 2_000;

/// I1 for rates: checks that over any interval, callers are granted no more than the capacity and
/// the refill. What bypasses the limits does not count, and returns nothing.
pub fn admitted(world: &World, ledger: &Ledger) {
    let gone = world.stream_check().gone.clone();
    let held = world.stream_check().held.clone();
    // How early a lease may be taken for expired.
    let early = if world.scenario().has_wrong_clocks() { 2 * CLOCKS_MS } else { 0 };
    for (of, mut claims) in ledger.by_limit() {
        claims.retain(|claim| !claim.is_bypass);
        let rules = rules(world.scenario(), of);
        let kinds: BTreeSet<_> = rules.iter().map(RefillRule::kind).collect();
        if kinds.len() > 1 {
            // What a claim took is not known.
            continue;
        }
        if rules[0].kind() == LimitKind::Quota {
            // By window: see `check::windows`.
            continue;
        }
        if rules[0].kind().is_held() {
            let remade = |claim: &Claim| ledger.remade_after(of.0, claim.sent);
            slots_held(world, of, &claims, remade, rules[0].capacity.0, early);
            continue;
        }
        let slack = slack(world.scenario(), &rules);
        let plan = &world.scenario().buckets[of.0];
        let name = (plan.entity.clone(), plan.limits[of.1].name().to_string());
        let mut backs: Vec<_> =
            claims.iter().flat_map(|claim| backs(claim, early, &gone)).collect();
        backs.extend(ledger.additions(of).iter().cloned());
        // An unreported lease returns its tokens too.
        let known: BTreeSet<_> = claims.iter().filter_map(|claim| claim.lease.as_ref()).collect();
        backs.extend(held.iter().filter(|(id, _)| !known.contains(id)).filter_map(|(id, held)| {
            let (amount, (from, until)) = (*held.get(&name)?, *gone.get(id)?);
            Some(Back { from, until: Some(until), amount })
        }));
        for from in claims.iter().map(|claim| claim.sent) {
            if let Some(over) = over(&claims, &backs, from, &rules, slack) {
                world.violated(format!(
                    "I1: {} of {of:?} {over}",
                    world.scenario().buckets[of.0].entity
                ));
                break;
            }
        }
    }
}

/// I1 for rates, in the table: checks that over any interval, no more is taken than the capacity and
/// the refill. A take is decided by the balance of when it was sent, so the interval begins then.
/// Prefetched tokens are taken when they are fetched. Runs with requests that bypass the limits are
/// left out.
pub fn taken(world: &World, ledger: &Ledger) {
    let scenario = world.scenario();
    if scenario.bypass_rate > 0 {
        return;
    }
    let taken = world.stream_check().taken.clone();
    for (bucket, plan) in scenario.buckets.iter().enumerate() {
        for (limit, of) in plan.rates() {
            let rules = rules(scenario, (bucket, limit));
            let Some(taken) = taken.get(&(plan.entity.clone(), of.name().to_string())) else {
                continue;
            };
            if !rules.iter().all(|rule| rule.kind().refills()) {
                continue;
            }
            let over = (0..taken.len()).find_map(|first| {
                let from = taken[first].sent.0;
                let mut net = 0;
                taken[first..].iter().find_map(|part| {
                    net += part.amount;
                    let added = ledger.additions((bucket, limit)).iter().filter(|back| {
                        back.from <= part.at.0 && back.until.is_none_or(|until| until >= from)
                    });
                    let added: i64 = added.map(|back| back.amount).sum();
                    let there = plan.most(limit)
                        + most_flowed(&rules, part.at.0 - from)
                        + clocks(scenario, &rules)
                        + added;
                    (net > there)
                        .then(|| format!("from {from} to {}: {net} taken of {there}", part.at.0))
                })
            });
            if let Some(over) = over {
                world.violated(format!("I1: {} of {} {over}", of.name(), plan.entity));
            }
        }
    }
}

/// Returns all rules that a limit had during the run.
pub(super) fn rules(scenario: &Scenario, (bucket, limit): LimitIndex) -> Vec<RefillRule> {
    let plan = &scenario.buckets[bucket];
    let later = plan.later.as_ref().filter(|_| scenario.has_changes());
    [Some(&plan.limits), later]
        .into_iter()
        .flatten()
        .filter_map(|limits| Some(*limits.get(limit)?.rule()))
        .collect()
}

/// Returns the tokens that may be granted beyond capacity and refill, in millitokens.
fn slack(scenario: &Scenario, rules: &[RefillRule]) -> i64 {
    let capacity = rules.iter().map(|rule| rule.capacity.0).max().unwrap_or_default();
    // Tokens that concurrent processes have prefetched before the interval, as documented at
    // `Prefetch`.
    let ahead = i64::from(scenario.prefetching) * capacity * i64::from(SHARE) / 100;
    ahead + clocks(scenario, rules)
}

/// Returns the tokens that wrong clocks add, in millitokens.
fn clocks(scenario: &Scenario, rules: &[RefillRule]) -> i64 {
    if scenario.has_wrong_clocks() {
        most_flowed(rules, CLOCKS_MS + request_ms(scenario))
    } else {
        0
    }
}

/// Returns the longest time of a request that is not delayed, in ms.
fn request_ms(scenario: &Scenario) -> i64 {
    i64::try_from(2 * scenario.latency.end()).unwrap_or(i64::MAX)
}

/// Returns the largest refill of a bucket within `ms`, in millitokens. Computed without the
/// product's own arithmetic.
pub(crate) fn refill_in(rule: &RefillRule, ms: i64) -> i64 {
    if rule.refill_amount.0 == 0 {
        return 0;
    }
    let (amount, period) = (i128::from(rule.refill_amount.0), i128::from(rule.refill_period_ms));
    let flowed = (amount * i128::from(ms) + period - 1) / period;
    i64::try_from(flowed).unwrap_or(i64::MAX)
}

fn most_flowed(rules: &[RefillRule], ms: i64) -> i64 {
    rules.iter().map(|rule| refill_in(rule, ms)).max().unwrap_or_default()
}

/// Returns what may have been returned of a claim: by its holder, or when its lease was found
/// expired.
pub(super) fn backs(claim: &Claim, early: i64, gone: &BTreeMap<String, (i64, i64)>) -> Vec<Back> {
    let gone = claim.lease.as_ref().and_then(|id| gone.get(id)).copied();
    let is_by_lease =
        |expires: &i64| !claim.is_settled && gone.is_none_or(|(_, last)| last >= expires - early);
    let by_lease = claim.expires.filter(is_by_lease).map(|expires| {
        let from = gone.map_or(expires - early, |(first, _)| first.max(expires - early));
        Back { from, until: gone.map(|(_, last)| last), amount: claim.amount - claim.back() }
    });
    // If there is a lease, nothing is returned after it is removed.
    let by_holder = claim.backs.iter().cloned().map(|back| match gone {
        Some((first, last)) => Back {
            from: back.from.min(first),
            until: Some(back.until.map_or(last, |at| at.min(last))),
            ..back
        },
        None => back,
    });
    by_holder.chain(by_lease).collect()
}

/// Returns the violation among the intervals that begin at `from`, if there is one: the tokens that
/// were certainly granted, less those perhaps returned, exceed the allowed amount.
fn over(
    claims: &[&Claim],
    backs: &[Back],
    from: i64,
    rules: &[RefillRule],
    slack: i64,
) -> Option<String> {
    let capacity = rules.iter().map(|rule| rule.capacity.0).max().unwrap_or_default();
    let admitted = claims
        .iter()
        .filter(|claim| claim.sent >= from)
        .map(|claim| (claim.answered, claim.amount));
    let back = backs.iter().filter(|back| back.until.is_none_or(|until| until >= from));
    let mut changes: Vec<_> =
        admitted.chain(back.map(|back| (back.from.max(from), -back.amount))).collect();
    // At one instant, returns come before grants.
    changes.sort_unstable();
    let mut admitted = 0;
    for (at, amount) in changes {
        admitted += amount;
        let there = capacity + most_flowed(rules, at - from) + slack;
        if admitted > there {
            return Some(format!("from {from} to {at}: {admitted} admitted of {there}"));
        }
    }
    None
}

/// I1 for slots: checks that at no instant more slots are held than exist. A deleted item has none.
fn slots_held(
    world: &World,
    of: LimitIndex,
    claims: &[&Claim],
    remade: impl Fn(&Claim) -> Option<i64>,
    slots: i64,
    early: i64,
) {
    let mut changes = vec![];
    for claim in claims {
        let expires = claim.expires.map_or(i64::MAX, |at| at - early);
        let until = [claim.ended, remade(claim)].into_iter().flatten();
        let until = until.fold(expires, i64::min);
        if until > claim.answered {
            changes.push((claim.answered, claim.amount));
            changes.push((until, -claim.amount));
        }
    }
    changes.sort_unstable();
    let mut now = 0;
    for (at, change) in changes {
        now += change;
        if now > slots {
            world.violated(format!("I1: {now} of {slots} slots of {of:?} are held at {at}"));
            return;
        }
    }
}
