//! Checks I1 to I7 at the end of a run, from the callers' record.

use std::collections::{BTreeMap, BTreeSet};

use weirgate::{EpochMillis, RefillRule, Window, WindowUsage};
use weirgate_shared::{BUCKET_SK, Iso8601, ItemKey, LiveShard, Millis, Snapshot, SnapshotKey};

use crate::fleet::SHARE;
use crate::ledger::{Back, Claim, Ledger, LimitIndex};
use crate::scenario::Scenario;
use crate::stored_shard::is_hostile;
use crate::stream_check::ACQUIRES;
use crate::world::World;

/// Largest difference between two clocks after corrections by DynamoDB's responses: a second, a
/// request, and another second for a reader with a different clock (`docs/architecture.md`,
/// Clocks).
const CLOCKS_MS: i64 = 2_000;

/// I1 for rates: checks that over any interval, callers are granted no more than the capacity and
/// the refill. What bypasses the limits does not count, and returns nothing.
pub fn admitted(world: &World, ledger: &Ledger) {
    let gone = world.stream_check().gone().clone();
    let held = world.stream_check().held().clone();
    // How early a lease may be taken for expired.
    let early = if world.scenario().has_wrong_clocks() {
        2 * CLOCKS_MS
    } else {
        0
    };
    for (of, mut claims) in ledger.by_limit() {
        claims.retain(|claim| !claim.is_bypass);
        let rules = rules(world.scenario(), of);
        if rules[0].is_concurrent() {
            slots_held(world, of, &claims, rules[0].capacity.0, early);
            continue;
        }
        let slack = slack(world.scenario(), &rules);
        let plan = &world.scenario().buckets[of.0];
        let name = (plan.entity.clone(), plan.limits[of.1].name().to_string());
        let mut backs: Vec<_> = claims
            .iter()
            .flat_map(|claim| backs(claim, early, &gone))
            .collect();
        backs.extend(ledger.additions(of).iter().cloned());
        // An unreported lease returns its tokens too.
        let known: BTreeSet<_> = claims
            .iter()
            .filter_map(|claim| claim.lease.as_ref())
            .collect();
        backs.extend(
            held.iter()
                .filter(|(id, _)| !known.contains(id))
                .filter_map(|(id, held)| {
                    let (amount, (from, until)) = (*held.get(&name)?, *gone.get(id)?);
                    Some(Back {
                        from,
                        until: Some(until),
                        amount,
                    })
                }),
        );
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

/// Returns all rules that a limit had during the run.
fn rules(scenario: &Scenario, (bucket, limit): LimitIndex) -> Vec<RefillRule> {
    let plan = &scenario.buckets[bucket];
    let later = plan.later.as_ref().filter(|_| scenario.has_changes());
    [Some(&plan.limits), later]
        .into_iter()
        .flatten()
        .map(|limits| *limits[limit].rule())
        .collect()
}

/// Returns the tokens that may be granted beyond capacity and refill, in millitokens.
fn slack(scenario: &Scenario, rules: &[RefillRule]) -> i64 {
    let capacity = rules
        .iter()
        .map(|rule| rule.capacity.0)
        .max()
        .unwrap_or_default();
    // Tokens that concurrent processes have prefetched before the interval, as documented at
    // `Prefetch`.
    let ahead = i64::from(scenario.prefetching) * capacity * i64::from(SHARE) / 100;
    let clocks = if scenario.has_wrong_clocks() {
        most_flowed(rules, CLOCKS_MS + request_ms(scenario))
    } else {
        0
    };
    ahead + clocks
}

/// Returns the longest time of a request that is not delayed, in ms.
fn request_ms(scenario: &Scenario) -> i64 {
    i64::try_from(2 * scenario.latency.end()).unwrap_or(i64::MAX)
}

/// Returns the largest refill of a bucket within `ms`, in millitokens. Computed without the
/// product's own arithmetic.
pub(crate) fn refill_in(rule: &RefillRule, ms: i64) -> i64 {
    let (amount, period) = (
        i128::from(rule.refill_amount.0),
        i128::from(rule.refill_period_ms),
    );
    let flowed = (amount * i128::from(ms) + period - 1) / period;
    i64::try_from(flowed).unwrap_or(i64::MAX)
}

fn most_flowed(rules: &[RefillRule], ms: i64) -> i64 {
    rules
        .iter()
        .map(|rule| refill_in(rule, ms))
        .max()
        .unwrap_or_default()
}

/// Returns what may have been returned of a claim: by its holder, or when its lease was found
/// expired.
fn backs(claim: &Claim, early: i64, gone: &BTreeMap<String, (i64, i64)>) -> Vec<Back> {
    let gone = claim.lease.as_ref().and_then(|id| gone.get(id)).copied();
    let is_by_lease =
        |expires: &i64| !claim.is_settled && gone.is_none_or(|(_, last)| last >= expires - early);
    let by_lease = claim.expires.filter(is_by_lease).map(|expires| {
        let from = gone.map_or(expires - early, |(first, _)| first.max(expires - early));
        Back {
            from,
            until: gone.map(|(_, last)| last),
            amount: claim.amount - claim.back(),
        }
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
    let capacity = rules
        .iter()
        .map(|rule| rule.capacity.0)
        .max()
        .unwrap_or_default();
    let admitted = claims
        .iter()
        .filter(|claim| claim.sent >= from)
        .map(|claim| (claim.answered, claim.amount));
    let back = backs
        .iter()
        .filter(|back| back.until.is_none_or(|until| until >= from));
    let mut changes: Vec<_> = admitted
        .chain(back.map(|back| (back.from.max(from), -back.amount)))
        .collect();
    // At one instant, returns come before grants.
    changes.sort_unstable();
    let mut admitted = 0;
    for (at, amount) in changes {
        admitted += amount;
        let there = capacity + most_flowed(rules, at - from) + slack;
        if admitted > there {
            return Some(format!(
                "from {from} to {at}: {admitted} admitted of {there}"
            ));
        }
    }
    None
}

/// I1 for slots: checks that at no instant more slots are held than exist.
fn slots_held(world: &World, of: LimitIndex, claims: &[&Claim], slots: i64, early: i64) {
    let mut changes = vec![];
    for claim in claims {
        let expires = claim.expires.map_or(i64::MAX, |at| at - early);
        let until = claim.ended.unwrap_or(i64::MAX).min(expires);
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
            world.violated(format!(
                "I1: {now} of {slots} slots of {of:?} are held at {at}"
            ));
            return;
        }
    }
}

/// I3: checks that usage is exact. In each window and for each limit, and for acquires, the usage
/// from snapshots and shards equals what the stream shows as consumed. Checks also that rested
/// windows are reported as final.
pub fn counted(world: &World) {
    counted_since(world, EpochMillis(0));
}

/// Does the same for windows that began at `since` or later; earlier snapshots are deleted.
pub fn counted_since(world: &World, since: EpochMillis) {
    let items = world.dynamo().items();
    let mut live = BTreeMap::<String, Vec<LiveShard>>::new();
    let mut snapshots = BTreeMap::<_, BTreeMap<EpochMillis, Snapshot>>::new();
    for item in &items {
        let text = |name: &str| item[name]["S"].as_str().unwrap_or_default().to_owned();
        let key = ItemKey {
            pk: text("PK"),
            sk: text("SK"),
        };
        if is_hostile(&key.pk) {
            continue;
        }
        if key.sk == BUCKET_SK {
            let shard = weirgate_testkit::live(item);
            live.entry(shard.meter.key.entity.to_string())
                .or_default()
                .push(shard);
        } else if let Some(key) = SnapshotKey::parse(&key) {
            snapshots
                .entry((key.entity.to_string(), key.window))
                .or_default()
                .insert(key.start, weirgate_testkit::snapshot(item));
        }
    }
    let mut consumed: BTreeMap<(String, Window, EpochMillis), BTreeMap<String, i64>> =
        BTreeMap::new();
    let by_hour = world.stream_check().consumed().clone();
    for ((entity, limit, at), amount) in by_hour {
        for window in Window::ALL {
            let start = window.start(EpochMillis(at));
            *consumed
                .entry((entity.clone(), window, start))
                .or_default()
                .entry(limit.clone())
                .or_default() += amount;
        }
    }
    let copied = snapshots.iter().flat_map(|((entity, window), starts)| {
        let of = |start: &EpochMillis| (entity.clone(), *window, *start);
        starts.keys().map(of)
    });
    let all: BTreeSet<_> = copied
        .chain(consumed.keys().cloned())
        .filter(|(_, _, start)| *start >= since)
        .collect();
    let (no_snapshots, no_items) = (BTreeMap::new(), vec![]);
    for of in &all {
        let (entity, window, start) = of;
        let snapshots = snapshots
            .get(&(entity.clone(), *window))
            .unwrap_or(&no_snapshots);
        let items = live.get(entity).unwrap_or(&no_items);
        let WindowUsage { usage, is_final } =
            weirgate_shared::usage(*window, *start, snapshots, items, world.now());
        let mut counted: BTreeMap<_, _> = usage
            .tokens
            .iter()
            .map(|(name, amount)| (name.to_string(), amount.0))
            .collect();
        counted.insert(ACQUIRES.to_owned(), usage.acquires * 1000);
        let mut consumed = consumed.get(of).cloned().unwrap_or_default();
        [&mut counted, &mut consumed]
            .into_iter()
            .for_each(|usage| usage.retain(|_, amount| *amount != 0));
        let start = Iso8601(*start);
        if counted != consumed {
            world.violated(format!(
                "I3: the {window} of {start} says {counted:?} of {entity}, {consumed:?} consumed"
            ));
        }
        let rests_since = rests_since(*window, of.2, snapshots, items);
        if !is_final && world.now() > rests_since.plus(RESTED) {
            world.violated(format!(
                "I3: the {window} of {start} of {entity} rests, and is not final: {snapshots:?} {items:?}"
            ));
        }
    }
}

/// Time after [`rests_since`] when a window is final, if all records are delivered and no lease is
/// held.
const RESTED: Millis = Millis(25 * 3_600_000);

/// Returns the instant since which nothing can be added to a window: its end, or the end of the
/// next window in which each shard without a copy was used again.
fn rests_since(
    window: Window,
    start: EpochMillis,
    snapshots: &BTreeMap<EpochMillis, Snapshot>,
    items: &[LiveShard],
) -> EpochMillis {
    let end = window.end(start);
    let has_copy = |snapshot: &Snapshot, shard: u32| snapshot.shards.contains_key(&shard);
    let used_again = |item: &LiveShard| {
        let shard = item.meter.key.shard;
        let is_copied = snapshots
            .get(&start)
            .is_some_and(|own| has_copy(own, shard));
        let mut later = snapshots.range(end..);
        let next = later.find(|(_, snapshot)| has_copy(snapshot, shard));
        let next = next.map(|(start, _)| window.end(*start));
        let hour = Window::Hourly.end(item.meter.hour.start());
        (!is_copied).then(|| next.unwrap_or(hour).min(hour))
    };
    items
        .iter()
        .filter_map(used_again)
        .fold(end, EpochMillis::max)
}

/// I7: checks the table's consumption. It is at least what callers were granted and have not
/// returned. It is at most that plus unanswered requests, each once. An unconfirmed take before a
/// write of another process may be repeated and lost: the item no longer shows it.
pub fn consumed(world: &World, ledger: &Ledger) {
    let mut consumed: BTreeMap<(String, String), i64> = BTreeMap::new();
    let by_hour = world.stream_check().consumed().clone();
    for ((entity, limit, _), amount) in by_hour {
        *consumed.entry((entity, limit)).or_default() += amount;
    }
    let doubted = world.stream_check().doubted().clone();
    for (of, claims) in ledger.by_limit() {
        let plan = &world.scenario().buckets[of.0];
        let limit = &plan.limits[of.1];
        if limit.rule().is_concurrent() {
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
        // Prefetched tokens belong to no request. A take planned with a slow clock is retaken, and
        // its first tokens may be lost.
        let is_known = world.scenario().prefetching == 0 && !world.scenario().has_wrong_clocks();
        if is_known && all > most {
            world.violated(format!(
                "I7: callers had {most} {} of {} at most, the table says {all}",
                key.1, key.0
            ));
        }
    }
}
