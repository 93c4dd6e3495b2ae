//! What must hold when all is over: I1 to I7, by what callers were told.

use std::collections::{BTreeMap, BTreeSet};

use weirgate::{EpochMillis, RefillRule, Window, WindowUsage};
use weirgate_shared::{BUCKET_SK, Iso8601, ItemKey, LiveShard, Millis, Snapshot, SnapshotKey};

use crate::fleet::SHARE;
use crate::hostile::is_hostile;
use crate::image::ACQUIRES;
use crate::scenario::Scenario;
use crate::told::{Back, Claim, Of, Told};
use crate::world::World;

/// What clocks may be off by after DynamoDB's answers have corrected them: a second, a request, and
/// the other second for those who look at it with another clock (`docs/architecture.md`, Clocks).
const CLOCKS_MS: i64 = 2_000;

/// I1 for rates: over any interval, what callers were told to have is no more than the capacity and
/// what flowed in.
pub fn admitted(world: &World, told: &Told) {
    let (gone, held) = (world.gone(), world.held());
    // How early a lease may be found expired.
    let early = if world.scenario().has_wrong_clocks() {
        2 * CLOCKS_MS
    } else {
        0
    };
    for (of, claims) in told.by_limit() {
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
        // A lease of which nobody was told gives back all the same.
        let told: BTreeSet<_> = claims
            .iter()
            .filter_map(|claim| claim.lease.as_ref())
            .collect();
        backs.extend(
            held.iter()
                .filter(|(id, _)| !told.contains(id))
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

/// The numbers that a limit had at any time.
fn rules(scenario: &Scenario, (bucket, limit): Of) -> Vec<RefillRule> {
    let plan = &scenario.buckets[bucket];
    let later = plan.later.as_ref().filter(|_| scenario.has_changes());
    [Some(&plan.limits), later]
        .into_iter()
        .flatten()
        .map(|limits| *limits[limit].rule())
        .collect()
}

/// What may be admitted beyond capacity and credit, in millitokens.
fn slack(scenario: &Scenario, rules: &[RefillRule]) -> i64 {
    let capacity = rules
        .iter()
        .map(|rule| rule.capacity.0)
        .max()
        .unwrap_or_default();
    // What processes that live at the same time have taken ahead before the interval; `Prefetch`
    // says so.
    let ahead = i64::from(scenario.prefetching) * capacity * i64::from(SHARE) / 100;
    let clocks = if scenario.has_wrong_clocks() {
        most_flowed(rules, CLOCKS_MS + request_ms(scenario))
    } else {
        0
    };
    ahead + clocks
}

/// How long a request takes at most, if it is not delayed.
fn request_ms(scenario: &Scenario) -> i64 {
    i64::try_from(2 * scenario.latency.end()).unwrap_or(i64::MAX)
}

/// What flows into a bucket within `ms` at most, in millitokens, computed without the product's own
/// arithmetic.
pub(crate) fn flowed(rule: &RefillRule, ms: i64) -> i64 {
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
        .map(|rule| flowed(rule, ms))
        .max()
        .unwrap_or_default()
}

/// What may have gone back of a claim: by its holder, or by its lease, when that was found expired.
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
    // Where there is a lease, nothing goes back once that is gone.
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

/// What is wrong with the intervals that begin at `from`: of any, what was surely admitted in it,
/// less what may have gone back in it, is more than there was.
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
        .map(|claim| (claim.told, claim.amount));
    let back = backs
        .iter()
        .filter(|back| back.until.is_none_or(|until| until >= from));
    let mut changes: Vec<_> = admitted
        .chain(back.map(|back| (back.from.max(from), -back.amount)))
        .collect();
    // What goes back at an instant goes before what is admitted then.
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

/// I1 for slots: at no instant more are held than there are.
fn slots_held(world: &World, of: Of, claims: &[&Claim], slots: i64, early: i64) {
    let mut changes = vec![];
    for claim in claims {
        let expires = claim.expires.map_or(i64::MAX, |at| at - early);
        let until = claim.ended.unwrap_or(i64::MAX).min(expires);
        if until > claim.told {
            changes.push((claim.told, claim.amount));
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

/// I3: usage is exact. Of each limit, and of the acquires, what readers see of each window, from
/// snapshots and items together, is what the stream says was consumed in it; and once a window has
/// rested, readers are told that it is final.
pub fn counted(world: &World) {
    counted_since(world, EpochMillis(0));
}

/// The same of the windows that began at `since` or later: snapshots of earlier ones are gone.
pub fn counted_since(world: &World, since: EpochMillis) {
    let items = world.dynamo().items();
    let (mut live, mut snapshots) = (BTreeMap::<String, Vec<LiveShard>>::new(), BTreeMap::new());
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
            let shard = weirgate_tests::live(item);
            live.entry(shard.meter.key.entity.to_string())
                .or_default()
                .push(shard);
        } else if let Some(key) = SnapshotKey::parse(&key) {
            snapshots.insert(
                (key.entity.to_string(), key.window, key.start),
                weirgate_tests::snapshot(item),
            );
        }
    }
    let mut consumed: BTreeMap<(String, Window, EpochMillis), BTreeMap<String, i64>> =
        BTreeMap::new();
    for ((entity, limit, at), amount) in world.consumed() {
        for window in Window::ALL {
            let start = window.start(EpochMillis(at));
            *consumed
                .entry((entity.clone(), window, start))
                .or_default()
                .entry(limit.clone())
                .or_default() += amount;
        }
    }
    let all: BTreeSet<_> = snapshots
        .keys()
        .chain(consumed.keys())
        .filter(|(_, _, start)| *start >= since)
        .collect();
    let (no_snapshot, no_items) = (Snapshot::default(), vec![]);
    for of in all {
        let (entity, window, start) = of;
        let snapshot = snapshots.get(of).unwrap_or(&no_snapshot);
        let items = live.get(entity).unwrap_or(&no_items);
        let WindowUsage { usage, is_final } =
            weirgate_shared::usage(*window, *start, snapshot, items, world.now());
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
        if !is_final && world.now() > window.end(of.2).plus(RESTED) {
            world.violated(format!(
                "I3: the {window} of {start} of {entity} rests, and is not final: {snapshot:?} {items:?}"
            ));
        }
    }
}

/// How long after its end a window is final, if everything was delivered and no lease is held.
const RESTED: Millis = Millis(25 * 3_600_000);

/// I7: what callers were told to have, and have not given back, is consumed in the table, and no
/// more than that and what was asked for without an answer, each once. What was in doubt when
/// somebody else wrote is lost if it is taken again: the item no longer shows it.
pub fn consumed(world: &World, told: &Told) {
    let mut consumed: BTreeMap<(String, String), i64> = BTreeMap::new();
    for ((entity, limit, _), amount) in world.consumed() {
        *consumed.entry((entity, limit)).or_default() += amount;
    }
    let doubted = world.doubted();
    for (of, claims) in told.by_limit() {
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
        let most = most + told.unanswered(of) + doubted.get(&key).copied().unwrap_or_default();
        // What a process has taken ahead, nobody has asked for; what was taken by a clock that
        // turns out to be behind is taken anew, and may be forfeit.
        let is_known = world.scenario().prefetching == 0 && !world.scenario().has_wrong_clocks();
        if is_known && all > most {
            world.violated(format!(
                "I7: callers had {most} {} of {} at most, the table says {all}",
                key.1, key.0
            ));
        }
    }
}
