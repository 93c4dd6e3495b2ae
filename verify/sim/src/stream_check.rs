//! Checks each write by its record in the stream: I1, I3 and I4 in the items themselves.

use std::collections::BTreeMap;

use serde_json::Value;
use weirgate::{EpochMillis, Window};
use weirgate_shared::{
    BUCKET_SK, BucketKey, Counter, Hour, MAX_SHARDS, Meter, Millis, Shard, Usage, WriteId,
};

use crate::fault::Event;
use crate::quota::is_quota;
use crate::scenario::Scenario;
use crate::stored_shard::{stored_shard, with_escrows};
use crate::window_check::{ShardWrite, WindowCheck};

/// Consumed millitokens by entity, limit, and the start of the hour that they count for, in ms.
/// Acquires are a limit of their own, [`ACQUIRES`].
pub type Consumed = BTreeMap<(String, String, i64), i64>;

/// Usage that was read as final, by entity and window.
pub(crate) type Finals = BTreeMap<(String, Window, EpochMillis), Usage>;

/// Name under which acquires are consumed.
pub(crate) const ACQUIRES: &str = "acquires";

/// How far ahead a process's clock may be when it begins an hour. A clock that was changed after
/// its last comparison is trusted while its requests pass signing.
const WRONG_CLOCK: Millis = Millis(300_000);
/// The same for correct clocks: none is ahead of the responses' dates by more.
const RIGHT_CLOCK: Millis = Millis(1_000);

/// Name of the sender that deletes items with a past `ttl`.
pub(crate) const TTL: &str = "ttl";

/// The sender of a write.
pub(crate) struct Sender<'a> {
    /// Name of the process.
    pub(crate) name: &'a str,
    /// Whether it gets the response in time.
    pub(crate) is_told: bool,
    /// When it first sent the write.
    pub(crate) sent: EpochMillis,
    /// Whether it sends nothing else at the same time, so that its next write is a retry of this
    /// one.
    pub(crate) is_alone: bool,
}

/// Tokens of a limit that a write took, less those that it returned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taken {
    /// When the write was first sent.
    pub(crate) sent: EpochMillis,
    /// When it was applied.
    pub(crate) at: EpochMillis,
    /// Amount in millitokens.
    pub(crate) amount: i64,
}

/// Returns whether a write has counted, and its id was that of the write before. Functions write no
/// ids, and count only what leases return that they end.
fn is_same_write(before: &Shard, after: &Shard) -> bool {
    let consumed = |shard: &Shard| -> Vec<_> {
        let limits = shard.limits.values();
        limits.map(|state| state.consumed).collect()
    };
    after.last_write_id.is_some()
        && before.last_write_id == after.last_write_id
        && before.leases.iter().flatten().count() == after.leases.iter().flatten().count()
        && before.limits.len() == after.limits.len()
        && consumed(before) != consumed(after)
}

/// Shards as the stream shows them.
#[derive(Debug, Default)]
pub(crate) struct StreamCheck {
    live: BTreeMap<String, Shard>,
    /// Last write sequence of every item that ever existed.
    last: BTreeMap<String, i64>,
    /// The consumption so far.
    pub(crate) consumed: Consumed,
    /// Takes and returns of each limit, by entity, as they were applied.
    pub(crate) taken: BTreeMap<(String, String), Vec<Taken>>,
    /// Write sequence of each erased item's tombstone.
    buried: BTreeMap<String, i64>,
    /// Usage counters of every item.
    meters: BTreeMap<String, Meter>,
    /// Usage by the writes of its current hour and day, by limit.
    used: BTreeMap<String, [BTreeMap<String, i64>; 2]>,
    /// When each ended lease was removed: from the first shard, and from the last one.
    pub(crate) gone: BTreeMap<String, (i64, i64)>,
    /// What each ended lease held at its removal, by entity and limit.
    pub(crate) held: BTreeMap<String, BTreeMap<(String, String), i64>>,
    /// Last write of an item, if its sender got no response: the sender, and the consumption of
    /// each limit.
    doubts: BTreeMap<String, (String, Vec<(String, i64)>)>,
    /// Consumption by unconfirmed writes before other processes wrote, by entity and limit. It may
    /// be repeated.
    pub(crate) doubted: BTreeMap<(String, String), i64>,
    /// When the newest applied write of each item was first sent.
    newest: BTreeMap<String, EpochMillis>,
    events: Vec<Event>,
    /// Slots of each bucket, by entity.
    slots: BTreeMap<String, i64>,
    /// Whether some shards may lack the slots of the others: they were deleted, or have them as a
    /// rate.
    has_parts: bool,
    /// How far clocks may be ahead.
    ahead: Millis,
    /// What is taken in each window of a quota.
    pub(crate) windows: WindowCheck,
    violations: Vec<String>,
}

impl StreamCheck {
    pub(crate) fn of(scenario: &Scenario) -> Self {
        let slots = scenario.buckets.iter().filter_map(|plan| {
            let slots = plan.limits.iter().find(|limit| limit.rule().kind().is_held())?;
            Some((plan.entity.clone(), slots.rule().capacity.0))
        });
        let ahead = if scenario.has_wrong_clocks() { WRONG_CLOCK } else { RIGHT_CLOCK };
        Self {
            slots: slots.collect(),
            has_parts: scenario.deletes() || scenario.changes_kind,
            ahead,
            windows: WindowCheck::of(scenario, ahead),
            ..Self::default()
        }
    }

    /// Checks one write.
    pub(crate) fn record(&mut self, record: &Value, now: EpochMillis, sender: &Sender<'_>) {
        let keys = &record["dynamodb"]["Keys"];
        if keys["SK"]["S"] != BUCKET_SK {
            return;
        }
        let pk = keys["PK"]["S"].as_str().expect("keys are texts");
        let entity = BucketKey::parse(pk).map_or_else(String::new, |key| key.entity.to_string());
        if let Some((_, consumed)) =
            self.doubts.remove(pk).filter(|(first, _)| *first != sender.name || !sender.is_alone)
        {
            for (limit, amount) in consumed {
                *self.doubted.entry((entity.clone(), limit)).or_default() += amount;
            }
        }
        let image = &record["dynamodb"]["NewImage"];
        let meter = (record["eventName"] != "REMOVE").then(|| weirgate_testkit::live(image));
        // A merged shard keeps the counters of its limits; an erased one has no limits.
        let is_erased = |meter: &Meter| !image["rf"].is_object() && meter.limits.is_empty();
        if let Some(erased) = meter.as_ref().filter(|meter| is_erased(meter)) {
            self.advances(pk, erased, false);
            self.buried.insert(pk.to_owned(), erased.write_seq);
        }
        let Some(meter) = meter.filter(|meter| !is_erased(meter)) else {
            let shard = self.live.remove(pk);
            if let Some(shard) = &shard {
                self.windows.ends(shard, &[], sender.name == TTL, now);
            }
            self.ends(shard.as_ref(), None, now);
            self.meters.remove(pk);
            return;
        };
        let (consumed, is_take) = self.consume(pk, meter, now, sender.sent);
        let doubt: Vec<_> =
            consumed.iter().map(|(name, amount)| (name.clone(), *amount.max(&0))).collect();
        let shard = stored_shard(pk, image);
        let before = self.live.remove(pk);
        if let Some((before, after)) = before.as_ref().zip(shard.as_ref())
            && is_same_write(before, after)
        {
            let op = &after.last_write_id;
            self.violations.push(format!("I7: {pk} was written twice by {op:?}"));
        }
        self.ends(before.as_ref(), shard.as_ref(), now);
        match (&before, &shard) {
            (before, Some(after)) => {
                let write = ShardWrite {
                    before: before.as_ref(),
                    after,
                    consumed: &consumed,
                    is_take,
                    sent: sender.sent,
                    now,
                };
                self.windows.record(&write, self.live.values());
            }
            (Some(before), None) => self.windows.ends(before, &consumed, false, now),
            (None, None) => {}
        }
        let newest = self.newest.entry(pk.to_owned()).or_insert(sender.sent);
        let is_overtaken = !sender.is_told && sender.sent < *newest;
        *newest = sender.sent.max(*newest);
        if is_overtaken || has_late_lease(before.as_ref(), shard.as_ref(), now) {
            // Its process gave it up, and took again.
            for (limit, amount) in &doubt {
                *self.doubted.entry((entity.clone(), limit.clone())).or_default() += *amount;
            }
        }
        for (name, state) in shard.iter().flat_map(|shard| &shard.limits) {
            // Tokens taken from a shard before its split may return to the remaining half, and
            // overflow there.
            if !is_quota(&state.rule) && state.available > state.rule.capacity {
                let what = format!("{} of {}", state.available, state.rule.capacity);
                self.violations.push(format!("I1: {pk} holds {what} {name} at {}", now.0));
            }
        }
        if !sender.is_told {
            self.doubts.insert(pk.to_owned(), (sender.name.to_owned(), doubt));
        }
        self.live.extend(shard.map(|shard| (pk.to_owned(), shard)));
    }

    /// Checks that a write's sequence is above those of all writes before, and if its item is new,
    /// that the item is born above them. A new half on a tombstone goes on with its counters, which are
    /// zero, and so with its birth.
    fn advances(&mut self, pk: &str, meter: &Meter, is_new: bool) {
        let (v, birth) = (meter.write_seq, meter.birth_seq);
        let goes_on = self.buried.get(pk) == Some(&birth);
        if let Some(last) = self.last.insert(pk.to_owned(), v)
            && (v <= last || is_new && birth <= last && !goes_on)
        {
            self.violations.push(format!("I3: {pk} goes from v {last} to {v}, born {birth}"));
        }
    }

    /// Adds a write's consumption to the hour that its item counts then, and compares it with the
    /// item's own counters. Returns the consumption of each limit, and whether acquires were granted.
    fn consume(
        &mut self,
        pk: &str,
        meter: Meter,
        now: EpochMillis,
        sent: EpochMillis,
    ) -> (Vec<(String, i64)>, bool) {
        let hour = meter.hour;
        self.advances(pk, &meter, !self.meters.contains_key(pk));
        let before = self.meters.get(pk);
        let was = before.map_or(hour, |before| before.hour);
        if hour < was || hour > Hour::of(now.plus(self.ahead)) {
            self.violations
                .push(format!("I3: {pk} goes from hour {} to {} at {}", was.0, hour.0, now.0));
        }
        self.events.extend((hour > was).then_some(Event::Rolled));
        let entity = meter.key.entity.to_string();
        let counters = |meter: &Meter| -> BTreeMap<String, Counter> {
            let takes = (ACQUIRES.to_owned(), meter.acquires);
            meter
                .limits
                .iter()
                .map(|(name, counter)| (name.to_string(), *counter))
                .chain([takes])
                .collect()
        };
        let had = before.map(counters).unwrap_or_default();
        let used = self.used.entry(pk.to_owned()).or_default();
        if before.is_none() {
            *used = Default::default();
        }
        let is_take = meter.acquires.total > before.map_or(0, |before| before.acquires.total);
        let mut consumed = vec![];
        for (name, counter) in counters(&meter) {
            let limit = whole(&name);
            let amount = counter.total - had.get(&name).map_or(0, |counter| counter.total);
            let amount = i64::try_from(amount).expect("a simulated amount is small");
            for (window, used) in Window::ALL.into_iter().zip(used.iter_mut()) {
                let sum = used.entry(name.clone()).or_default();
                if window.start(was.start()) != window.start(hour.start()) {
                    *sum = 0;
                }
                *sum += amount;
                if counter.used(window) != i128::from(*sum) {
                    let says = counter.used(window);
                    self.violations
                        .push(format!("I3: {pk} says {says} {name} {window}, and {sum} consumed"));
                }
            }
            let amount = if name == ACQUIRES { amount * 1000 } else { amount };
            *self.consumed.entry((entity.clone(), limit.clone(), hour.start().0)).or_default() +=
                amount;
            // An adjustment may go into debt.
            if amount < 0 || is_take {
                let of = (entity.clone(), limit.clone());
                let taken = Taken { sent, at: now, amount };
                self.taken.entry(of).or_default().push(taken);
            }
            consumed.push((limit, amount));
        }
        self.meters.insert(pk.to_owned(), meter);
        (consumed, is_take)
    }

    /// Records the leases that a write removed, and what else the write was for.
    fn ends(&mut self, before: Option<&Shard>, after: Option<&Shard>, now: EpochMillis) {
        let Some(before) = before else { return };
        let is_there = |id: &WriteId| {
            after.is_some_and(|after| after.leases.iter().flatten().any(|(other, _)| other == id))
        };
        for (id, lease) in before.leases.iter().flatten().filter(|(id, _)| !is_there(id)) {
            self.gone.entry(id.to_string()).or_insert((now.0, now.0)).1 = now.0;
            let held = self.held.entry(id.to_string()).or_default();
            for (limit, amount) in &lease.tokens {
                *held
                    .entry((before.key.entity.to_string(), limit.base().to_owned()))
                    .or_default() += amount.0;
            }
            self.events.push(if lease.expires_at > now {
                Event::LeaseEnded
            } else {
                Event::LeaseExpired
            });
        }
        if let Some(after) = after
            && (after.acquires, after.shard_count) == (before.acquires, before.shard_count)
            && after.refilled_at > before.refilled_at
        {
            self.events.push(Event::Refilled);
        }
    }

    /// Returns the events since the last call.
    pub(crate) fn take_events(&mut self) -> Vec<Event> {
        self.events.append(&mut self.windows.events);
        std::mem::take(&mut self.events)
    }

    /// Returns the violations. Call it after all records of a write are checked: a transaction has
    /// several.
    pub(crate) fn take_violations(&mut self) -> Vec<String> {
        let mut there: BTreeMap<&str, (i64, u32, bool, u32)> = BTreeMap::new();
        let live: Vec<_> = self.live.values().cloned().collect();
        let all = with_escrows(&live);
        for shard in &all {
            let (slots, parts, has, shares) = there.entry(shard.key.entity.as_str()).or_default();
            *parts += 1;
            for (name, state) in
                shard.limits.iter().filter(|(_, state)| state.rule.kind().is_held())
            {
                let held =
                    shard.leases.iter().flatten().filter_map(|(_, lease)| lease.tokens.get(name));
                *has = true;
                *shares += MAX_SHARDS / shard.shard_count.max(1);
                *slots += state.available.0 + held.map(|held| held.0).sum::<i64>();
            }
        }
        for (entity, (slots, parts, has, shares)) in there {
            let all = self.slots.get(entity).copied().unwrap_or_default();
            let is_complete = shares == MAX_SHARDS || !self.has_parts;
            // A child of a configured parent may lack the limit until a request brings it.
            if has && is_complete && slots != all {
                self.violations.push(format!(
                    "I4: {entity} has {slots} of {all} slots free or held, in {parts} shards"
                ));
            }
        }
        let mut violations = std::mem::take(&mut self.violations);
        violations.extend(self.windows.take_violations());
        violations
    }
}

/// Returns the limit of a pool: what its classes take is of one limit.
pub(crate) fn whole(name: &str) -> String {
    name.split('@').next().unwrap_or_default().to_owned()
}

/// Returns whether a write took under a lease that had expired when it was applied.
fn has_late_lease(before: Option<&Shard>, after: Option<&Shard>, now: EpochMillis) -> bool {
    let is_new = |id: &WriteId| {
        before.is_none_or(|before| before.leases.iter().flatten().all(|(other, _)| other != id))
    };
    let leases = after.iter().flat_map(|after| after.leases.iter().flatten());
    leases.filter(|(_, lease)| lease.expires_at <= now).any(|(id, _)| is_new(id))
}
