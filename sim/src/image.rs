//! Reads the table's items: checks each one when it is written, and compares buckets before and
//! after splits and merges.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use weirgate::{EpochMillis, MilliTokens, Window};
use weirgate_shared::{
    BUCKET_SK, BucketKey, Counter, Hour, LimitName, MAX_SHARDS, Meter, Millis, Shard, WriteId, attr,
};
use weirgate_tests::Request;

use crate::fault::Event;
use crate::hostile::is_hostile;
use crate::scenario::Scenario;
use crate::world::World;

/// Returns the keys of the items that a request writes or, in a transaction, checks; none if it
/// only reads.
pub(crate) fn parts(request: &Request) -> Vec<(String, String)> {
    let text =
        |key: &Value, name: &str| key[name]["S"].as_str().expect("keys are texts").to_owned();
    let key = |key: &Value| (text(key, "PK"), text(key, "SK"));
    match request.operation.as_str() {
        "UpdateItem" | "DeleteItem" => vec![key(&request.body["Key"])],
        "PutItem" => vec![key(&request.body["Item"])],
        "TransactWriteItems" => {
            let actions = request.body["TransactItems"]
                .as_array()
                .map(Vec::as_slice)
                .unwrap_or_default();
            let actions = actions
                .iter()
                .flat_map(|action| action.as_object().into_iter().flat_map(|of| of.values()));
            actions
                .map(|action| key(action.get("Key").unwrap_or(&action["Item"])))
                .collect()
        }
        _ => vec![],
    }
}

/// Returns a live shard from DynamoDB JSON. Returns `None` for another item, a merged shard, and
/// the hostile tenant's.
fn bucket(pk: &str, item: &Value) -> Option<Shard> {
    BucketKey::parse(pk).filter(|_| !is_hostile(pk))?;
    item["rf"].is_object().then(|| weirgate_tests::bucket(item))
}

/// Sums over the known shards of a bucket.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Available tokens of each limit.
    available: BTreeMap<LimitName, MilliTokens>,
    /// Ids of leases that have not expired.
    leases: BTreeSet<String>,
}

/// Sums shards at an instant. Of a rate's tokens in a shard, adds at most what `cut` returns.
fn sums(
    shards: &[Shard],
    at: EpochMillis,
    with_expired: bool,
    cut: impl Fn(&Shard, &LimitName) -> Option<MilliTokens>,
) -> Sums {
    let mut sums = Sums::default();
    for shard in shards {
        for (name, state) in &shard.limits {
            let there = match (with_expired, state.rule.is_concurrent()) {
                (true, _) => shard.balance_at(name, at),
                (false, true) => state.available,
                (false, false) => shard.balance(state, at),
            };
            let most = cut(shard, name).filter(|_| !state.rule.is_concurrent());
            *sums.available.entry(name.clone()).or_default() +=
                most.map_or(there, |most| there.min(most));
        }
        let held = shard
            .leases
            .iter()
            .flatten()
            .filter(|(_, lease)| lease.expires_at > at);
        sums.leases.extend(held.map(|(id, _)| id.to_string()));
    }
    sums
}

/// The shards of one bucket that a request writes, as they were before it.
pub(crate) struct Parts {
    before: Vec<Shard>,
    /// The written shard, if the write is for a split.
    split: Option<BucketKey>,
}

impl Parts {
    /// Returns `None` if a request neither writes several shards of one bucket nor seems to be for
    /// a split.
    pub(crate) fn read(
        world: &World,
        request: &Request,
        parts: &[(String, String)],
    ) -> Option<Self> {
        if let [(pk, sk)] = parts {
            let names = request.body["ExpressionAttributeNames"].as_object()?;
            let may_split = names
                .values()
                .any(|name| name == attr::ESCROW || name == attr::GSI2PK);
            let key = BucketKey::parse(pk).filter(|_| may_split && sk == BUCKET_SK)?;
            return Some(Self {
                before: all(world, &key),
                split: Some(key),
            });
        }
        if parts.len() < 2 || parts.iter().any(|(_, sk)| sk != BUCKET_SK) {
            return None;
        }
        let first = BucketKey::parse(&parts[0].0)?.with_shard(0);
        let is_same = |(pk, _): &(String, String)| {
            BucketKey::parse(pk).is_some_and(|key| key.with_shard(0) == first)
        };
        parts.iter().all(is_same).then(|| Self {
            before: shards(world, parts),
            split: None,
        })
    }

    /// I6: checks that a shard, its new half and its escrow together have the same tokens as
    /// before.
    fn compare_split(&self, key: &BucketKey, world: &World, by_operator: bool) {
        let after = all(world, key);
        let find = |shards: &[Shard]| shards.iter().find(|shard| shard.key == *key).cloned();
        let (was, is) = (find(&self.before), find(&after));
        let escrow = |shard: &Option<Shard>| {
            shard
                .as_ref()
                .and_then(|shard| shard.escrow.as_ref()?.key.shard.into())
        };
        let pair = match (escrow(&is).or(escrow(&was)), &is) {
            (Some(half), _) => [key.shard, half],
            (None, Some(half)) if was.is_none() && key.shard > 0 => [
                half.shard().parent().map_or(0, |whole| whole.index),
                key.shard,
            ],
            _ => return,
        };
        let of = |shards: &[Shard]| -> Vec<Shard> {
            with_escrows(shards)
                .into_iter()
                .filter(|shard| pair.contains(&shard.key.shard))
                .collect()
        };
        let (before, after) = (of(&self.before), of(&after));
        if after.len() > before.len() {
            world.happened(if by_operator {
                Event::SplitByOperator
            } else {
                Event::SplitByFunction
            });
        }
        let Some(at) = after
            .iter()
            .find(|shard| shard.key.shard == pair[0])
            .map(|shard| shard.refilled_at)
        else {
            return;
        };
        let (had, has) = (
            sums(&before, at, false, |_, _| None),
            sums(&after, at, false, |_, _| None),
        );
        if had != has {
            world.violated(format!(
                "I6: before a write of a split there was {had:?}, and then {has:?}"
            ));
        }
    }

    /// I6: checks that shards together have the same tokens as before, if their number changed.
    pub(crate) fn compare(self, world: &World, parts: &[(String, String)], by_operator: bool) {
        if let Some(key) = &self.split {
            return self.compare_split(key, world, by_operator);
        }
        let after = shards(world, parts);
        if self.before.len() == after.len() || self.before.is_empty() {
            return;
        }
        world.happened(match (after.len() < self.before.len(), by_operator) {
            (false, true) => Event::SplitByOperator,
            (false, false) => Event::SplitByFunction,
            (true, true) => Event::MergedByOperator,
            (true, false) => Event::MergedByFunction,
        });
        // When the change was planned: a merge refills all shards up to then, a split changes no
        // refill. A full shard overflows later, and overflow need not be kept.
        let Some(at) = after.iter().map(|shard| shard.refilled_at).max() else {
            return;
        };
        // A merge returns expired leases. A split leaves leases in place: their later returns must
        // fit into the remaining share.
        let is_merge = after.len() < self.before.len();
        let (mut most, has) = (
            sums(&self.before, at, is_merge, |_, _| None),
            sums(&after, at, is_merge, |_, _| None),
        );
        // If new limits have not reached all shards, tokens above the capacity of the remaining
        // shard overflow. In a merge, this holds for each shard, or for several merged ones.
        let smallest = |shard: &Shard, name: &LimitName| {
            let states = self
                .before
                .iter()
                .chain(&after)
                .filter_map(|shard| shard.limits.get(name));
            if is_merge {
                states.map(|state| shard.share(state)).min()
            } else {
                None
            }
        };
        let least = sums(&self.before, at, is_merge, smallest);
        for shard in after.iter().filter(|_| is_merge) {
            for (name, state) in shard
                .limits
                .iter()
                .filter(|(_, state)| !state.rule.is_concurrent())
            {
                most.available
                    .entry(name.clone())
                    .and_modify(|there| *there = (*there).min(shard.share(state)));
            }
        }
        let is_between = has.available.len() == most.available.len()
            && has.available.iter().all(|(name, there)| {
                least
                    .available
                    .get(name)
                    .is_some_and(|least| there >= least)
                    && most.available.get(name).is_some_and(|most| there <= most)
            });
        if !is_between || has.leases != most.leases {
            let had = if least == most {
                format!("{most:?}")
            } else {
                format!("{least:?} to {most:?}")
            };
            world.violated(format!(
                "I6: {} shards held {had}, and {} hold {has:?}",
                self.before.len(),
                after.len()
            ));
        }
    }
}

/// Returns all shards of a bucket.
fn all(world: &World, key: &BucketKey) -> Vec<Shard> {
    let parts = (0..MAX_SHARDS)
        .map(|shard| key.with_shard(shard).item_key())
        .map(|key| (key.pk, key.sk));
    shards(world, &parts.collect::<Vec<_>>())
}

/// Returns the shards, and the halves that an escrow still contains.
fn with_escrows(shards: &[Shard]) -> Vec<Shard> {
    let is_there = |half: &&Shard| shards.iter().any(|shard| shard.key == half.key);
    let halves = shards
        .iter()
        .filter_map(|shard| shard.escrow.as_deref())
        .filter(|half| !is_there(half));
    shards.iter().chain(halves).cloned().collect()
}

fn shards(world: &World, parts: &[(String, String)]) -> Vec<Shard> {
    parts
        .iter()
        .filter_map(|(pk, sk)| bucket(pk, &world.dynamo().item(pk, sk)))
        .collect()
}

/// Returns a bucket's image in short, for the replay of a seed: available and consumed tokens of
/// each limit, and the leases.
pub(crate) fn told(record: &Value) -> String {
    let (record, what) = (&record["dynamodb"], &record["eventName"]);
    let keys = [&record["Keys"]["PK"]["S"], &record["Keys"]["SK"]["S"]]
        .map(|key| key.as_str().unwrap_or_default());
    let Some(shard) = bucket(keys[0], &record["NewImage"]).filter(|_| keys[1] == BUCKET_SK) else {
        return format!("  {what} {} {}", keys[0], keys[1]);
    };
    let limits = shard
        .limits
        .iter()
        .map(|(name, state)| format!(" {name} {} used {}", state.available, state.consumed));
    let leases: Vec<_> = shard
        .leases
        .iter()
        .flatten()
        .map(|(id, lease)| format!("{id} until {} {:?}", lease.expires_at.0, lease.tokens))
        .collect();
    let op = shard.last_write_id.as_ref().map_or("", |op| op.as_str());
    format!(
        "  {what} {} of {} rf {} op {op}{} {leases:?}",
        keys[0],
        shard.shard_count,
        shard.refilled_at.0,
        limits.collect::<String>()
    )
}

/// Consumed millitokens by entity, limit, and the start of the hour that they count for, in ms.
/// Acquires are a limit of their own, [`ACQUIRES`].
pub type Consumed = BTreeMap<(String, String, i64), i64>;

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
    /// Whether it sends nothing else at the same time, so that its next write is a retry of this
    /// one.
    pub(crate) is_alone: bool,
}

/// Shards as the stream shows them.
#[derive(Debug, Default)]
pub(crate) struct Images {
    live: BTreeMap<String, Shard>,
    /// Last write sequence of every item that ever existed.
    last: BTreeMap<String, i64>,
    consumed: Consumed,
    /// Usage counters of every item.
    meters: BTreeMap<String, Meter>,
    /// Usage by the writes of its current hour and day, by limit.
    used: BTreeMap<String, [BTreeMap<String, i64>; 2]>,
    /// When each ended lease was removed: from the first shard, and from the last one.
    gone: BTreeMap<String, (i64, i64)>,
    /// What each ended lease held at its removal, by entity and limit.
    held: BTreeMap<String, BTreeMap<(String, String), i64>>,
    /// Last write of an item, if its sender got no response: the sender, and the consumption of
    /// each limit.
    doubts: BTreeMap<String, (String, Vec<(String, i64)>)>,
    /// Consumption by unconfirmed writes before other processes wrote, by entity and limit. It may
    /// be repeated.
    doubted: BTreeMap<(String, String), i64>,
    events: Vec<Event>,
    /// Slots of each bucket, by entity.
    slots: BTreeMap<String, i64>,
    /// How far clocks may be ahead.
    ahead: Millis,
    violations: Vec<String>,
}

impl Images {
    pub(crate) fn of(scenario: &Scenario) -> Self {
        let slots = scenario.buckets.iter().filter_map(|plan| {
            let slots = plan
                .limits
                .iter()
                .find(|limit| limit.rule().is_concurrent())?;
            Some((plan.entity.clone(), slots.rule().capacity.0))
        });
        let ahead = if scenario.has_wrong_clocks() {
            WRONG_CLOCK
        } else {
            RIGHT_CLOCK
        };
        Self {
            slots: slots.collect(),
            ahead,
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
        if let Some((_, consumed)) = self
            .doubts
            .remove(pk)
            .filter(|(first, _)| *first != sender.name || !sender.is_alone)
        {
            for (limit, amount) in consumed {
                *self.doubted.entry((entity.clone(), limit)).or_default() += amount;
            }
        }
        if record["eventName"] == "REMOVE" {
            let shard = self.live.remove(pk);
            self.ends(shard.as_ref(), None, now);
            self.meters.remove(pk);
            return;
        }
        let image = &record["dynamodb"]["NewImage"];
        let doubt = self.consume(pk, weirgate_tests::live(image).meter, now);
        let shard = bucket(pk, image);
        let before = self.live.remove(pk);
        self.ends(before.as_ref(), shard.as_ref(), now);
        for (name, state) in shard.iter().flat_map(|shard| &shard.limits) {
            // Tokens taken from a shard before its split may return to the remaining half, and
            // overflow there.
            if state.available > state.rule.capacity {
                let what = format!("{} of {}", state.available, state.rule.capacity);
                self.violations
                    .push(format!("I1: {pk} holds {what} {name} at {}", now.0));
            }
        }
        if !sender.is_told {
            self.doubts
                .insert(pk.to_owned(), (sender.name.to_owned(), doubt));
        }
        self.live.extend(shard.map(|shard| (pk.to_owned(), shard)));
    }

    /// Adds a write's consumption to the hour that its item counts then, and compares it with the
    /// item's own counters. Returns the consumption of each limit.
    fn consume(&mut self, pk: &str, meter: Meter, now: EpochMillis) -> Vec<(String, i64)> {
        let before = self.meters.get(pk);
        let Meter {
            write_seq: v,
            birth_seq: birth,
            hour,
            ..
        } = meter;
        if self
            .last
            .get(pk)
            .is_some_and(|last| v <= *last || before.is_none() && birth <= *last)
        {
            self.violations.push(format!(
                "I3: {pk} goes from v {:?} to {v}, born {birth}",
                self.last.get(pk)
            ));
        }
        self.last.insert(pk.to_owned(), v);
        let was = before.map_or(hour, |before| before.hour);
        if hour < was || hour > Hour::of(now.plus(self.ahead)) {
            self.violations.push(format!(
                "I3: {pk} goes from hour {} to {} at {}",
                was.0, hour.0, now.0
            ));
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
        let mut consumed = vec![];
        for (name, counter) in counters(&meter) {
            let amount = counter.total - had.get(&name).map_or(0, |counter| counter.total);
            for (window, used) in Window::ALL.into_iter().zip(used.iter_mut()) {
                let sum = used.entry(name.clone()).or_default();
                if window.start(was.start()) != window.start(hour.start()) {
                    *sum = 0;
                }
                *sum += amount;
                if counter.used(window) != *sum {
                    let says = counter.used(window);
                    self.violations.push(format!(
                        "I3: {pk} says {says} {name} {window}, and {sum} consumed"
                    ));
                }
            }
            let amount = if name == ACQUIRES {
                amount * 1000
            } else {
                amount
            };
            *self
                .consumed
                .entry((entity.clone(), name.clone(), hour.start().0))
                .or_default() += amount;
            consumed.push((name, amount.max(0)));
        }
        self.meters.insert(pk.to_owned(), meter);
        consumed
    }

    /// Records the leases that a write removed, and what else the write was for.
    fn ends(&mut self, before: Option<&Shard>, after: Option<&Shard>, now: EpochMillis) {
        let Some(before) = before else { return };
        let is_there = |id: &WriteId| {
            after.is_some_and(|after| after.leases.iter().flatten().any(|(other, _)| other == id))
        };
        for (id, lease) in before
            .leases
            .iter()
            .flatten()
            .filter(|(id, _)| !is_there(id))
        {
            self.gone.entry(id.to_string()).or_insert((now.0, now.0)).1 = now.0;
            let held = self.held.entry(id.to_string()).or_default();
            for (limit, amount) in &lease.tokens {
                *held
                    .entry((before.key.entity.to_string(), limit.to_string()))
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

    /// Returns the consumption so far.
    pub(crate) fn consumed(&self) -> &Consumed {
        &self.consumed
    }

    /// Returns when each ended lease was removed: from the first shard, and from the last one.
    pub(crate) fn gone(&self) -> &BTreeMap<String, (i64, i64)> {
        &self.gone
    }

    /// Returns the consumption by unconfirmed writes before other processes wrote, by entity and
    /// limit.
    pub(crate) fn doubted(&self) -> &BTreeMap<(String, String), i64> {
        &self.doubted
    }

    /// Returns what each ended lease held at its removal, by entity and limit.
    pub(crate) fn held(&self) -> &BTreeMap<String, BTreeMap<(String, String), i64>> {
        &self.held
    }

    /// Returns the events since the last call.
    pub(crate) fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Returns the violations. Call it after all records of a write are checked: a transaction has
    /// several.
    pub(crate) fn take_violations(&mut self) -> Vec<String> {
        let mut there: BTreeMap<&str, (i64, u32, bool)> = BTreeMap::new();
        let live: Vec<_> = self.live.values().cloned().collect();
        let all = with_escrows(&live);
        for shard in &all {
            let (slots, parts, has) = there.entry(shard.key.entity.as_str()).or_default();
            *parts += 1;
            for (name, state) in shard
                .limits
                .iter()
                .filter(|(_, state)| state.rule.is_concurrent())
            {
                let held = shard
                    .leases
                    .iter()
                    .flatten()
                    .filter_map(|(_, lease)| lease.tokens.get(name));
                *has = true;
                *slots += state.available.0 + held.map(|held| held.0).sum::<i64>();
            }
        }
        for (entity, (slots, parts, has)) in there {
            let all = self.slots.get(entity).copied().unwrap_or_default();
            // A child of a configured parent may lack the limit until a request brings it.
            if has && slots != all {
                self.violations.push(format!(
                    "I4: {entity} has {slots} of {all} slots free or held, in {parts} shards"
                ));
            }
        }
        std::mem::take(&mut self.violations)
    }
}
