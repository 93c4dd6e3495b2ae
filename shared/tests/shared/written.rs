//! Every kind of planned write: what it requires and what it changes.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use weirgate_shared::write::{
    Action, AttributeUpdate, Condition, LeaseChange, UsageCopy, clear_due, erase_shard,
    pause_ordered, pause_reported, recreate, remove_covered,
};
use weirgate_shared::{
    Counter, EditId, EpochMillis, Lease, Limit, MilliTokens, Millis, Pause, RefillRule, Shard,
    ShardIndex, ShardUsageCopy, Snapshot, Window, WriteId,
};

use crate::model::planned::{planned, reshaped};
use crate::model::{START, bucket, hours, limit_name, settle, take};
use crate::windows::{session, window};

fn limits() -> [Limit; 2] {
    [Limit::custom("rpm", 10, 1, 100).unwrap(), Limit::concurrent("slots", 6).unwrap()]
}

/// A quota of windows that begin with a second, and a session, under the names of the others: what does
/// not depend on the kind of a limit is the same write.
fn quotas(capacity: i64) -> [Limit; 2] {
    [("rpm", window(1_000)), ("slots", session(1_000))].map(|(name, code)| {
        let rule = RefillRule {
            capacity: MilliTokens::from_tokens(capacity),
            refill_amount: MilliTokens::ZERO,
            refill_period_ms: code.0,
        };
        Limit::of(limit_name(name), rule)
    })
}

/// Views that lead to different writes, by name, each with the limits that processes bring.
fn views() -> Vec<(&'static str, Shard, [Vec<Limit>; 3])> {
    let changed = vec![Limit::custom("rpm", 20, 3, 100).unwrap()];
    let rates = [limits().to_vec(), changed, vec![]];
    // From a quota to a rate, too.
    let other = vec![quotas(20)[0].clone(), Limit::custom("slots", 20, 3, 100).unwrap()];
    let of_quotas = [quotas(10).to_vec(), other, vec![]];
    let with_rates = views_of_rates().into_iter();
    let with_quotas = views_of_quotas().into_iter();
    let with_rates = with_rates.map(|(name, view)| (name, view, rates.clone()));
    let with_quotas = with_quotas.map(|(name, view)| (name, view, of_quotas.clone()));
    with_rates.chain(with_quotas).collect()
}

/// Views of quotas whose window has ended, or ends later than all that is planned.
fn views_of_quotas() -> Vec<(&'static str, Shard)> {
    let (ended, open) = (START, hours(100));
    let view = |shard, end, tokens| {
        let mut view = bucket(shard, &quotas(10), START);
        for state in view.limits.values_mut() {
            (state.window_end, state.available) = (end, MilliTokens(tokens));
        }
        view
    };
    let id = WriteId::from_bits(1);
    let lease = Lease {
        expires_at: START,
        tokens: [(limit_name("rpm"), MilliTokens(1_000))].into(),
        windows: [(limit_name("rpm"), open)].into(),
        ..Lease::default()
    };
    let unsplit = ShardIndex::UNSPLIT;
    let held = Shard {
        due_at: Some(START),
        leases: Some([(id, lease)].into()),
        ..view(unsplit, open, 5_000)
    };
    let half = ShardIndex { index: 0, count: 2 };
    vec![
        ("in a window", view(unsplit, open, 5_000)),
        ("after a window", view(unsplit, ended, 5_000)),
        ("in a window, in debt", view(unsplit, open, -1_000)),
        ("in a window, with a lease", held),
        ("half, in a window", view(half, open, 2_000)),
    ]
}

fn views_of_rates() -> Vec<(&'static str, Shard)> {
    let full = bucket(ShardIndex::UNSPLIT, &limits(), START);
    let with = |rpm, shard: &Shard| {
        let mut shard = shard.clone();
        shard.limits.get_mut("rpm").unwrap().available = MilliTokens(rpm);
        shard
    };
    let lease = |ms| Lease {
        expires_at: START.plus(Millis(ms)),
        tokens: ["rpm", "slots"].map(|name| (limit_name(name), MilliTokens(1_000))).into(),
        ..Lease::default()
    };
    let leases =
        BTreeMap::from([(1, 0), (300, 300)].map(|(id, ms)| (WriteId::from_bits(id), lease(ms))));
    let held = Shard { due_at: Some(START), leases: Some(leases), ..with(5_000, &full) };
    let departed = [(limit_name("tpm"), Counter::default())].into();
    let half = bucket(ShardIndex { index: 0, count: 2 }, &limits(), START);
    vec![
        ("half full", with(5_000, &full)),
        ("empty", with(0, &full)),
        ("with leases", held),
        ("with a limit that is gone", Shard { departed, ..full.clone() }),
        ("without a map of leases", Shard { leases: None, ..full.clone() }),
        ("half", with(2_000, &half)),
        ("full", full),
    ]
}

/// The writes of processes and functions that see `view`, and those that make or bury such an item.
fn actions(view: &Shard, limits: &[Vec<Limit>], at: EpochMillis, by_others: bool) -> Vec<Action> {
    let id = WriteId::from_bits(300);
    let mut updates = reshaped(view, at);
    for brought in limits {
        updates.extend(planned(view, brought, at, by_others));
        updates.push(take(&view.key, brought, BTreeMap::new(), id.clone(), at).create(at));
    }
    let end = settle(&view.key, id.clone(), Some((&id, LeaseChange::End)), BTreeMap::new(), at);
    let mut end = end.full(Some(view));
    clear_due(&mut end, view, &id);
    let names = ["v", "rf", "b_rpm_tk"].into_iter();
    let erased = [None, Some(view.write_seq)]
        .map(|v| erase_shard(&view.key, v, names.clone(), view.write_seq + 1, at));
    updates.extend(erased.into_iter().chain([end]));
    let pause = Pause { until: at.plus(Millis(9_000)), lasts: Millis(9_000) };
    updates.push(pause_reported(&view.key, pause));
    let ordered = [Some(pause.until), None].map(|until| pause_ordered(view, EditId(7), until));
    updates.extend(ordered.into_iter().flatten());
    for (is_final, birth) in [(false, 0), (true, 0), (false, 9), (true, 9)] {
        let copy =
            UsageCopy { v: 10, birth, ..UsageCopy::of(&view.meter(), Window::Hourly, is_final, 1) };
        updates.push(copy.first());
        for (write_seq, is_final) in [(5, false), (5, true), (10, false), (15, true)] {
            let usage = copy.usage.clone();
            let known = ShardUsageCopy { write_seq, usage: usage.clone(), is_final };
            let snapshot = Snapshot {
                shards: [(copy.shard, known)].into(),
                unfinished: [((copy.shard, 9), usage)].into(),
                ..Snapshot::default()
            };
            updates.extend(copy.after(&snapshot));
        }
    }
    let (hole, slots) = (view.shard().halves().1, |_: &Limit| MilliTokens::ZERO);
    let updates = updates.into_iter().map(Action::Update);
    let repairs = recreate(hole, view, slots, id, at).into_iter();
    updates.chain(repairs).chain(remove_covered(view, view)).collect()
}

/// Returns what an action requires, what it changes, and whether it only checks.
pub fn parts(action: &Action) -> (&[Condition], Option<&[AttributeUpdate]>, bool) {
    match action {
        Action::Update(update) => (&update.conditions, Some(&update.changes), false),
        Action::Delete(_, conditions) => (conditions, None, false),
        Action::Check(_, conditions) => (conditions, None, true),
    }
}

/// Returns the kind of a condition or of parts: their JSON without numbers.
pub fn kind(of: &impl Serialize) -> String {
    let is_word = |char: &char| !matches!(char, '0'..='9' | '-');
    serde_json::to_string(of).unwrap().chars().filter(is_word).collect()
}

/// Returns every write by the view that leads to it; of those that differ in numbers alone, the
/// first one.
pub fn written() -> Vec<(&'static str, Shard, Vec<Action>)> {
    let mut seen = BTreeSet::new();
    let day = hours(25);
    let instants = [(START.plus(Millis(200)), false), (day, false), (day, true)];
    let of_view = |(name, view, limits): (_, Shard, [Vec<Limit>; 3])| {
        let all = instants
            .iter()
            .flat_map(|(instant, by_others)| actions(&view, &limits, *instant, *by_others));
        let new = all.filter(|action| seen.insert(kind(&parts(action))));
        let new = new.collect();
        (name, view, new)
    };
    views().into_iter().map(of_view).collect()
}
