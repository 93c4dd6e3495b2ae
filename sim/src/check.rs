//! What must hold when all is over: the invariants of the design, section 10, by what callers were told.

use std::collections::BTreeMap;

use weirgate::{EpochMillis, Rule};
use weirgate_shared::{Shard, credit};

use crate::fleet::SHARE;
use crate::scenario::Scenario;
use crate::told::{Claim, Of, Told};
use crate::world::World;

/// What clocks may be off by after DynamoDB's answers have corrected them: a second, a request, and the other second for
/// those who look at it with another clock (`docs/architecture.md`, Clocks).
const CLOCKS_MS: i64 = 2_000;

/// I1 for rates: over any interval, what callers were told to have is no more than the capacity and what flowed in.
pub fn admitted(world: &World, told: &Told) {
    for (of, claims) in told.by_limit() {
        let rules = rules(world.scenario(), of);
        if rules[0].is_concurrent() {
            held(world, of, &claims, rules[0].capacity.0);
            continue;
        }
        let slack = slack(world.scenario(), &rules);
        for from in claims.iter().map(|claim| claim.sent) {
            if let Some(over) = over(&claims, from, &rules, slack) {
                world.violated(format!("I1: {} of {of:?} {over}", world.scenario().buckets[of.0].entity));
                break;
            }
        }
    }
}

/// The numbers that a limit had at any time.
fn rules(scenario: &Scenario, (bucket, limit): Of) -> Vec<Rule> {
    let plan = &scenario.buckets[bucket];
    let later = plan.later.as_ref().filter(|_| scenario.has_changes());
    [Some(&plan.limits), later].into_iter().flatten().map(|limits| *limits[limit].rule()).collect()
}

/// What may be admitted beyond capacity and credit, in millitokens.
fn slack(scenario: &Scenario, rules: &[Rule]) -> i64 {
    let most = |number: fn(&Rule) -> i64| rules.iter().map(number).max().unwrap_or_default();
    let capacity = most(|rule| rule.capacity.0);
    // What processes have taken ahead before the interval; `Prefetch` says so. Each that was ever born may have some.
    let ahead = i64::from(scenario.prefetching) * capacity * i64::from(SHARE) / 100;
    let clocks = if scenario.has_wrong_clocks() { flowed(rules, 0, CLOCKS_MS + request_ms(scenario)) } else { 0 };
    ahead + clocks
}

/// How long a request takes at most, if it is not delayed.
fn request_ms(scenario: &Scenario) -> i64 {
    i64::try_from(2 * scenario.latency.end()).unwrap_or(i64::MAX)
}

fn flowed(rules: &[Rule], from: i64, to: i64) -> i64 {
    let flowed = rules.iter().map(|rule| credit(rule, Shard::WHOLE, EpochMillis(from), EpochMillis(to)).0);
    flowed.max().unwrap_or_default()
}

/// What is wrong with the intervals that begin at `from`: of any, what was surely admitted in it, less what may have gone
/// back in it, is more than there was.
fn over(claims: &[&Claim], from: i64, rules: &[Rule], slack: i64) -> Option<String> {
    let capacity = rules.iter().map(|rule| rule.capacity.0).max().unwrap_or_default();
    let mut ends: Vec<(i64, i64)> = vec![];
    for claim in claims {
        if claim.sent >= from {
            ends.push((claim.told, claim.amount));
        }
        // By its lease, or by its holder: at any time from then on.
        let expiry = claim.expires.filter(|_| !claim.is_settled).map(|at| (at - 2 * CLOCKS_MS, claim.amount));
        let in_it = claim.backs.iter().filter(|back| back.until.is_none_or(|until| until >= from));
        ends.extend(in_it.map(|back| (back.from.max(from), -back.amount)));
        ends.extend(expiry.map(|(at, amount)| (at.max(from), claim.back() - amount)));
    }
    // What goes back at an instant goes before what is admitted then.
    ends.sort_unstable();
    let mut admitted = 0;
    for (at, amount) in ends {
        admitted += amount;
        let there = capacity + flowed(rules, from, at) + slack;
        if admitted > there {
            return Some(format!("from {from} to {at}: {admitted} admitted of {there}"));
        }
    }
    None
}

/// I1 for slots: at no instant more are held than there are.
fn held(world: &World, of: Of, claims: &[&Claim], slots: i64) {
    let early = if world.scenario().has_wrong_clocks() { 2 * CLOCKS_MS } else { 0 };
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
            world.violated(format!("I1: {now} of {slots} slots of {of:?} are held at {at}"));
            return;
        }
    }
}

/// I3: usage is exact. Of each limit, what all snapshots of each kind of window say is what the stream says was consumed.
pub fn counted(world: &World) {
    counted_since(world, &BTreeMap::new());
}

/// The same of what was consumed since `before`, if all snapshots of that time are gone.
pub fn counted_since(world: &World, before: &BTreeMap<(String, String), i64>) {
    let mut counted: BTreeMap<(String, String, String), i64> = BTreeMap::new();
    for item in world.dynamo().items() {
        let sk = item["SK"]["S"].as_str().unwrap_or_default();
        let Some(window) = sk.strip_prefix("#USAGE#").and_then(|of| of.split('#').nth(1)) else { continue };
        let entity = item["PK"]["S"].as_str().and_then(|pk| pk.split('#').nth(1)).unwrap_or_default().to_owned();
        for limit in ["rate", "slots"] {
            let text = item[limit]["N"].as_str().unwrap_or("0");
            *counted.entry((entity.clone(), window.to_owned(), limit.to_owned())).or_default() += milli(text);
        }
    }
    for ((entity, limit), consumed) in world.consumed() {
        let known = before.get(&(entity.clone(), limit.clone())).copied().unwrap_or_default();
        let consumed = consumed - known;
        for window in ["hourly", "daily"] {
            let counted = counted.get(&(entity.clone(), window.to_owned(), limit.clone())).copied().unwrap_or_default();
            if counted != consumed {
                world
                    .violated(format!("I3: {window} snapshots say {counted} {limit} of {entity}, {consumed} consumed"));
            }
        }
    }
}

/// A decimal number of tokens in millitokens.
fn milli(text: &str) -> i64 {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let part = format!("{part:0<3}");
    let (sign, whole) = whole.strip_prefix('-').map_or((1, whole), |whole| (-1, whole));
    let number = |text: &str| text.parse::<i64>().expect("a number of tokens with three decimals at most");
    sign * (number(whole) * 1000 + number(&part[..3]))
}

/// I7: what callers were told to have, and have not given back, is consumed in the table, and no more than that and what
/// was asked for without an answer, each once.
pub fn consumed(world: &World, told: &Told) {
    let consumed = world.consumed();
    for (of, claims) in told.by_limit() {
        let plan = &world.scenario().buckets[of.0];
        let limit = &plan.limits[of.1];
        if limit.rule().is_concurrent() {
            continue;
        }
        let surely = |claim: &&Claim| {
            if claim.expires.is_some() && !claim.is_settled { 0 } else { claim.amount - claim.back() }
        };
        let least: i64 = claims.iter().map(surely).sum();
        let key = (plan.entity.clone(), limit.name().to_string());
        let all = consumed.get(&key).copied().unwrap_or_default();
        if all < least {
            world.violated(format!("I7: callers have {least} {} of {}, the table says {all}", key.1, key.0));
        }
        let most: i64 = claims.iter().map(|claim| claim.amount + claim.more).sum();
        let most = most + told.unanswered(of);
        // What a process has taken ahead, nobody has asked for.
        if world.scenario().prefetching == 0 && all > most {
            world.violated(format!("I7: callers had {most} {} of {} at most, the table says {all}", key.1, key.0));
        }
    }
}
