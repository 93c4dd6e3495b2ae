//! I1 for quotas, write by write: what is taken in each window of the items, and what returns to it.
//! A window is known by its end in the item; when it may end, [`QuotaSpan`] says.

use std::collections::{BTreeMap, BTreeSet};

use weirgate::EpochMillis;
use weirgate_shared::{LimitName, LimitState, Millis, Shard};

use crate::fault::Event;
use crate::quota::{QuotaSpan, Quotas, is_quota};
use crate::scenario::Scenario;

/// A window of an entity's quota: the entity, the limit, and the end.
pub(crate) type WindowOf = (String, String, i64);

/// What happened in one window, in millitokens.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WindowSums {
    /// Takes, less what came back into this window.
    pub(crate) net: i64,
    /// Largest capacity that the limit had in it.
    pub(crate) capacity: i64,
    /// What operators added, what a deleted item had, and what was carried into it again.
    pub(crate) added: i64,
}

/// A write of one shard, and what the check of the stream knows of it.
pub(crate) struct ShardWrite<'a> {
    pub(crate) before: Option<&'a Shard>,
    pub(crate) after: &'a Shard,
    /// What the write consumed of each limit.
    pub(crate) consumed: &'a [(String, i64)],
    /// Whether it granted acquires.
    pub(crate) is_take: bool,
    /// When it was first sent, and when it was applied.
    pub(crate) sent: EpochMillis,
    pub(crate) now: EpochMillis,
}

/// One limit in that write.
struct LimitWrite<'a> {
    name: &'a LimitName,
    old: Option<&'a LimitState>,
    new: &'a LimitState,
    consumed: i64,
    /// What leases returned, or lost, of this window, and of others.
    gone: [i64; 2],
}

/// The windows of the run.
#[derive(Debug, Default)]
pub(crate) struct WindowCheck {
    quotas: Quotas,
    bypasses: bool,
    ahead: Millis,
    pub(crate) windows: BTreeMap<WindowOf, WindowSums>,
    /// Window that each lease's tokens were taken from.
    leases: BTreeMap<(String, LimitName), i64>,
    /// Windows that each item has had.
    had: BTreeSet<(String, LimitName, i64)>,
    /// Ends of windows that an earlier life of a bucket had, by entity and limit, where the present one
    /// began without a window: they begin whole once more.
    of_earlier: BTreeMap<(String, LimitName), BTreeSet<i64>>,
    /// Shards that the same transaction merges into others.
    retired: Vec<Shard>,
    /// What operators added in all, by entity and limit.
    pub(crate) edited: BTreeMap<(String, String), i64>,
    /// Windows of each entity's limit as its items had them.
    pub(crate) history: BTreeMap<(String, String), Vec<Had>>,
    violations: Vec<String>,
    /// What happened to windows.
    pub(crate) events: Vec<Event>,
}

/// The window that an item has from an instant on: instant, item, and end.
type Had = (i64, String, Option<i64>);

/// Returns the share of one shard of `count` in `all`.
fn share(shard: &Shard, count: u32, all: i64) -> i64 {
    let count = i64::from(count.max(1));
    all.div_euclid(count) + i64::from(i64::from(shard.key.shard) < all.rem_euclid(count))
}

/// Returns what a write consumed of a limit.
fn of_limit(consumed: &[(String, i64)], name: &LimitName) -> i64 {
    let of = consumed.iter().find(|(limit, _)| *limit == name.as_str());
    of.map_or(0, |(_, amount)| *amount)
}

impl WindowCheck {
    pub(crate) fn of(scenario: &Scenario, ahead: Millis) -> Self {
        Self {
            quotas: scenario.quotas.clone(),
            bypasses: scenario.bypass_rate > 0,
            ahead,
            ..Self::default()
        }
    }

    /// Records that a shard is gone: deleted, or merged away, which returns what its expired leases held
    /// to the window of the shard that it was merged into.
    pub(crate) fn ends(
        &mut self,
        before: &Shard,
        consumed: &[(String, i64)],
        is_deleted_by_ttl: bool,
        now: EpochMillis,
    ) {
        for (name, state) in &before.limits {
            if !is_quota(&state.rule) {
                continue;
            }
            let end = state.window_end.0;
            let [of_this, _] = self.gone(before, None, name, end);
            let of = (before.key.entity.to_string(), name.to_string(), end);
            if let Some(sums) = self.windows.get_mut(&of) {
                sums.net -= of_this.min((-of_limit(consumed, name)).max(0));
            }
            if is_deleted_by_ttl && state.window_end > now {
                self.violated(format!(
                    "I1: {:?} has ended by `ttl` at {}, and its window of {name} ends at {}",
                    before.key, now.0, state.window_end.0
                ));
            }
            self.note(before, name, None, now);
        }
        self.retired.push(before.clone());
    }

    /// Returns the violations. Call it after all records of a write are checked.
    pub(crate) fn take_violations(&mut self) -> Vec<String> {
        self.retired.clear();
        std::mem::take(&mut self.violations)
    }

    fn violated(&mut self, what: String) {
        self.violations.push(what);
    }

    fn note(&mut self, shard: &Shard, name: &LimitName, end: Option<i64>, now: EpochMillis) {
        let of = (shard.key.entity.to_string(), name.to_string());
        let item = shard.key.item_key().pk;
        let history = self.history.entry(of).or_default();
        let last = history.iter().rev().find(|(_, known, _)| *known == item);
        if last.and_then(|(_, _, end)| *end) != end {
            history.push((now.0, item, end));
        }
    }

    /// Checks one write to a shard; `live` are the shards of its bucket as they are now.
    pub(crate) fn record<'s>(
        &mut self,
        write: &ShardWrite<'_>,
        live: impl Iterator<Item = &'s Shard>,
    ) {
        if self.quotas.is_empty() {
            return;
        }
        let parts = self.parts(write, live);
        for (name, new) in &write.after.limits {
            if !is_quota(&new.rule) {
                self.note(write.after, name, None, write.now);
                continue;
            }
            let limit = LimitWrite {
                name,
                old: write.before.and_then(|before| before.limits.get(name)),
                new,
                consumed: of_limit(write.consumed, name),
                gone: write.before.map_or([0; 2], |before| {
                    self.gone(before, Some(write.after), name, new.window_end.0)
                }),
            };
            self.limit(write, &limit, &parts);
            let pk = write.after.key.item_key().pk;
            self.had.insert((pk, name.clone(), new.window_end.0));
            self.note(write.after, name, Some(new.window_end.0), write.now);
            if let Some(ttl) = write.after.ttl
                && ttl.0 * 1000 < new.window_end.0
            {
                self.violated(format!(
                    "I1: {:?} may be deleted at {}, and its window of {name} ends at {}",
                    write.after.key, ttl.0, new.window_end.0
                ));
            }
        }
        let leases = write.after.leases.iter().flatten();
        for (id, name) in leases.flat_map(|(id, lease)| lease.tokens.keys().map(move |n| (id, n))) {
            let Some(state) = write.after.limits.get(name) else {
                continue;
            };
            if is_quota(&state.rule) {
                let of = (id.to_string(), name.clone());
                // A rate's tokens are of no window.
                let was_there = write.before.is_some_and(|before| {
                    before
                        .leases
                        .iter()
                        .flatten()
                        .any(|(known, lease)| known == id && lease.tokens.contains_key(name))
                });
                if !was_there {
                    self.leases.insert(of, state.window_end.0);
                }
            }
        }
    }

    /// Returns the shards that a merge joins, as they were before it, if the write is one.
    fn parts<'s>(
        &self,
        write: &ShardWrite<'_>,
        live: impl Iterator<Item = &'s Shard>,
    ) -> Vec<Shard> {
        let (Some(before), after) = (write.before, write.after) else {
            return vec![];
        };
        if before.shard_count <= after.shard_count {
            return vec![];
        }
        let is_part = |shard: &&Shard| {
            shard.key.with_shard(0) == after.key.with_shard(0)
                && shard.key.shard % after.shard_count == after.key.shard
                && shard.key != after.key
        };
        let live = live.filter(is_part).cloned();
        let retired = self.retired.iter().filter(is_part).cloned();
        live.chain(retired).chain([before.clone()]).collect()
    }

    /// Returns what leases held before a write and do not after it: of the window that ends at `end`,
    /// and of others.
    fn gone(&self, before: &Shard, after: Option<&Shard>, name: &LimitName, end: i64) -> [i64; 2] {
        let mut gone = [0; 2];
        for (id, lease) in before.leases.iter().flatten() {
            let held = lease.tokens.get(name).map_or(0, |held| held.0);
            let left = after.and_then(|after| after.leases.as_ref()?.get(id));
            let left = left.and_then(|lease| lease.tokens.get(name));
            let less = held - left.map_or(0, |left| left.0);
            let from = self.leases.get(&(id.to_string(), name.clone()));
            if less > 0 {
                gone[usize::from(from != Some(&end))] += less;
            }
        }
        gone
    }

    fn limit(&mut self, write: &ShardWrite<'_>, limit: &LimitWrite<'_>, parts: &[Shard]) {
        let (after, LimitWrite { name, new, .. }) = (write.after, limit);
        let (tk, end, consumed) = (new.available.0, new.window_end.0, limit.consumed);
        let of = (after.key.entity.to_string(), name.to_string(), end);
        let is_known = self.windows.contains_key(&of);
        let capacity = new.rule.capacity.0;
        let here = share(after, after.shard_count, capacity);
        let has_edit = write.before.is_some_and(|before| before.edit != after.edit);
        let old = limit.old.filter(|old| is_quota(&old.rule));
        let is_same_rule =
            old.is_some_and(|old| old.rule.refill_period_ms == new.rule.refill_period_ms);
        let had = (after.key.item_key().pk, (*name).clone(), end);
        let had = self.had.contains(&had);
        let count = |shard: Option<&Shard>| shard.map_or(0, |shard| shard.shard_count);
        // What bypasses the limits is consumed, and is of no balance.
        let is_exact = !(self.bypasses && (write.is_take || consumed > 0));
        // What this write adds to what may be taken in the window, and takes in it.
        let (mut added, mut net) = (0, 0);
        // What an operator gave back of a debt that a lowered capacity made.
        let mut forgiven = 0;
        let [of_this, of_others] = limit.gone;
        let what = || format!("{name} of {} until {end} at {}", of.0, write.now.0);
        let mut violated: Option<String> = None;
        let is_over = |end: i64| end <= write.now.0 + self.ahead.0;
        match old {
            _ if !parts.is_empty() => {
                let is_open = |end: i64| end > write.now.0 + self.ahead.0;
                let ends = parts.iter().filter_map(|part| part.limits.get(*name));
                let ends: Vec<_> = ends.map(|state| state.window_end.0).collect();
                if ends.iter().any(|other| *other != end && is_open(*other)) || !ends.contains(&end)
                {
                    violated = Some(format!("a merge of windows {ends:?} is {}", what()));
                }
                net = -of_this.min((-consumed).max(0));
                self.events.push(Event::WindowMerged);
            }
            None if limit.old.is_none() && after.key.shard == 0 => {
                // A new item begins with a whole balance.
                added = if is_known && end > 0 { here } else { 0 };
                if end == 0 {
                    let same = |(entity, limit, _): &&(String, String, i64)| {
                        *entity == of.0 && *limit == of.1
                    };
                    let ends = self.windows.keys().filter(same).map(|(.., end)| *end);
                    let ends = ends.collect();
                    self.of_earlier.insert((of.0.clone(), (*name).clone()), ends);
                }
                net = if is_exact { consumed } else { here - tk };
                if tk + net > here {
                    violated = Some(format!("{tk} left of {here} after {net}: {}", what()));
                }
            }
            // The new half of a split.
            None if limit.old.is_none() && consumed == 0 => {}
            Some(old) if count(write.before) < after.shard_count && write.before.is_some() => {
                self.events.push(Event::WindowSplit);
                if old.window_end.0 != end {
                    violated = Some(format!("a split begins {}", what()));
                }
            }
            Some(old) if is_same_rule && old.window_end.0 == end => {
                let change = here - share(after, after.shard_count, old.rule.capacity.0);
                // A session that has ended has no balance to change, and may get it or not.
                let came = tk - old.available.0;
                let change = match is_over(end) {
                    true if is_exact => change.max(0),
                    true => came.clamp(change.min(0), change.max(0)),
                    false => change,
                };
                // A release leaves both as they are.
                let is_return = consumed != 0 || came != change;
                let lost = if is_return { of_others } else { 0 };
                if consumed < 0 && came == change {
                    self.events.push(Event::ReturnedToNoWindow);
                }
                let most = match is_exact {
                    true => change - lost - consumed,
                    false => change + of_this,
                };
                if has_edit {
                    // Of a debt that ends, nothing can be taken, except what a higher capacity
                    // brings back after a lower one.
                    added = (tk - old.available.0.max(0) + consumed).max(0);
                    let largest = self.windows.get(&of).map_or(0, |sums| sums.capacity);
                    let debt_paid = tk.min(0) - old.available.0.min(0);
                    forgiven = debt_paid.min(largest - capacity).max(0);
                } else if came > most {
                    violated = Some(format!(
                        "{consumed} consumed, {came} came of {most}, {of_others} of other windows: {}",
                        what()
                    ));
                }
                net = match write.is_take || consumed > 0 && tk >= 0 {
                    true if is_exact => consumed + of_others,
                    true => change - came,
                    false if consumed < 0 => -(came - change).clamp(0, -consumed),
                    false => 0,
                };
                if write.is_take && net > 0 && end <= write.sent.0 - self.ahead.0 {
                    violated = Some(format!("{net} taken after its end: {}", what()));
                }
            }
            // A session that has ended gets another capacity, and nothing is taken.
            Some(old) if is_same_rule && end == 0 && consumed <= 0 && is_over(old.window_end.0) => {
            }
            Some(old) if is_same_rule => {
                self.events.push(Event::WindowBegun);
                net = match is_exact {
                    true => consumed + of_this + of_others,
                    false => here - tk,
                };
                let bound = write.now.0 + self.ahead.0;
                if old.window_end.0 > bound || end <= old.window_end.0 {
                    violated = Some(format!("follows one until {}: {}", old.window_end.0, what()));
                }
                let earlier = self.of_earlier.get(&(of.0.clone(), (*name).clone()));
                if has_edit {
                    (added, net) = ((tk - here).max(0), 0);
                } else if old.window_end.0 == 0 && earlier.is_some_and(|ends| ends.contains(&end)) {
                    added = here;
                }
                if !has_edit && tk + net > here {
                    violated = Some(format!("{tk} left of {here} after {net}: {}", what()));
                }
            }
            // Another window, or a rate became a quota: what was used is carried over.
            _ => {
                let is_open = |end: i64| end > write.sent.0 - self.ahead.0;
                let room = match old {
                    Some(old) if is_open(old.window_end.0) => {
                        let was = share(after, after.shard_count, old.rule.capacity.0);
                        let carried = old.available.0 + (here - was) + of_this + of_others;
                        // A session that got shorter may be over.
                        let kept = self.kept_end(old, new);
                        if is_over(old.window_end.0) || kept.is_some_and(is_over) {
                            carried.max(here)
                        } else {
                            carried
                        }
                    }
                    _ => here,
                };
                net = match is_exact {
                    true => consumed.max(0),
                    false => (room - tk).clamp(0, consumed.max(0)),
                };
                if tk + net > room {
                    violated = Some(format!("{tk} left of {room} after {net}: {}", what()));
                }
                self.events.push(Event::WindowChanged);
                added = match had {
                    true => (tk + net).max(0),
                    false => (tk + net - here).max(0),
                };
            }
        }
        let is_put_off = end == 0 && net == 0;
        let begins = limit.old.is_none_or(|old| old.window_end.0 != end) && parts.is_empty();
        let kept = limit.old.and_then(|old| self.kept_end(old, new));
        let begins = begins && !is_put_off && kept != Some(end);
        let is_half = limit.old.is_none() && after.key.shard > 0;
        if begins
            && !is_half
            && let Some(text) = self.wrong_end(write, new)
        {
            violated = violated.or(Some(format!("{text}: {}", what())));
        }
        if let Some(text) = violated {
            self.violated(format!("I1: {text}"));
        }
        if has_edit {
            let of = (of.0.clone(), of.1.clone());
            *self.edited.entry(of).or_default() += added;
        }
        let sums = self.windows.entry(of.clone()).or_default();
        sums.capacity = sums.capacity.max(capacity);
        sums.added += added + forgiven;
        sums.net += net;
        let sums = *sums;
        if net > 0 && end > 0 && sums.net > sums.capacity + sums.added {
            self.violated(format!("I1: in a window {sums:?}: {name} of {} until {end}", of.0));
        }
    }

    /// Returns the end of a session that gets another length: it keeps its begin.
    fn kept_end(&self, old: &LimitState, new: &LimitState) -> Option<i64> {
        let [was, is] = [old, new].map(|state| self.quotas.span(&state.rule));
        match (was?, is?) {
            (QuotaSpan::Session(was), QuotaSpan::Session(is)) => Some(old.window_end.0 - was + is),
            _ => None,
        }
    }

    /// Returns what is wrong with the end of a window that begins with this write: it must be the
    /// end of one that contains the time of the writer's clock.
    fn wrong_end(&self, write: &ShardWrite<'_>, new: &LimitState) -> Option<String> {
        let end = new.window_end.0;
        let Some(span) = self.quotas.span(&new.rule) else {
            return Some("a window of an unknown code".to_owned());
        };
        let (first, last, step) =
            span.ends(write.sent.0 - self.ahead.0, write.now.0 + self.ahead.0);
        let is_end = (first..=last).contains(&end) && (end - first) % step == 0;
        // A session begins with its first use, and an operator that makes a bucket uses nothing.
        let is_session = matches!(span, QuotaSpan::Session(_));
        let is_unused = end == 0 && (is_session || write.before.is_none());
        (!is_end && !is_unused).then(|| format!("{span:?} ends between {first} and {last}"))
    }
}
