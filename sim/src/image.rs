//! What the table's items say: each one as it is written, and buckets before and after they are split or merged.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use weirgate::{EpochMillis, MilliTokens};
use weirgate_shared::{Attr, BUCKET_SK, Bucket, BucketKey, LimitName, read_bucket};
use weirgate_tests::Request;

use crate::scenario::Scenario;
use crate::world::World;

/// The keys of the items that a request writes or, in a transaction, checks; none if it only reads.
pub(crate) fn parts(request: &Request) -> Vec<(String, String)> {
    let text = |key: &Value, name: &str| key[name]["S"].as_str().expect("keys are texts").to_owned();
    let key = |key: &Value| (text(key, "PK"), text(key, "SK"));
    match request.operation.as_str() {
        "UpdateItem" | "DeleteItem" => vec![key(&request.body["Key"])],
        "PutItem" => vec![key(&request.body["Item"])],
        "TransactWriteItems" => {
            let actions = request.body["TransactItems"].as_array().map(Vec::as_slice).unwrap_or_default();
            let actions = actions.iter().flat_map(|action| action.as_object().into_iter().flat_map(|of| of.values()));
            actions.map(|action| key(action.get("Key").unwrap_or(&action["Item"]))).collect()
        }
        _ => vec![],
    }
}

/// A bucket shard from DynamoDB JSON.
fn bucket(pk: &str, item: &Value) -> Option<Bucket> {
    BucketKey::parse(pk)?;
    let entries = item.as_object()?.iter().map(|(name, value)| (name.as_str(), attr(value)));
    Some(read_bucket(entries).expect("the buckets of a run can be read"))
}

fn attr(value: &Value) -> Attr<'_> {
    let Some((kind, value)) = value.as_object().and_then(|of| of.iter().next()) else { return Attr::Other };
    match (kind.as_str(), value) {
        ("N", Value::String(text)) => Attr::N(text),
        ("S", Value::String(text)) => Attr::S(text),
        ("BOOL", Value::Bool(is)) => Attr::Bool(*is),
        ("M", Value::Object(of)) => Attr::M(of.iter().map(|(name, value)| (name.as_str(), attr(value))).collect()),
        _ => Attr::Other,
    }
}

/// What all shards of a bucket hold together, as far as they are known.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Available of each limit.
    available: BTreeMap<LimitName, MilliTokens>,
    /// Ids of leases that have not expired.
    leases: BTreeSet<String>,
}

fn sums(shards: &[Bucket], at: EpochMillis, with_expired: bool) -> Sums {
    let mut sums = Sums::default();
    for shard in shards {
        for (name, state) in &shard.limits {
            let there = match (with_expired, state.rule.is_concurrent()) {
                (true, _) => shard.holds(name, at),
                (false, true) => state.tk,
                (false, false) => shard.balance(state, at),
            };
            *sums.available.entry(name.clone()).or_default() += there;
        }
        let held = shard.leases.iter().flatten().filter(|(_, lease)| lease.expires > at);
        sums.leases.extend(held.map(|(id, _)| id.to_string()));
    }
    sums
}

/// The parts of one bucket that a transaction writes, as they were before it.
pub(crate) struct Parts(Vec<Bucket>);

impl Parts {
    /// `None` if a request does not write several shards of one bucket.
    pub(crate) fn read(world: &World, parts: &[(String, String)]) -> Option<Self> {
        if parts.len() < 2 || parts.iter().any(|(_, sk)| sk != BUCKET_SK) {
            return None;
        }
        let first = BucketKey::parse(&parts[0].0)?.with_shard(0);
        let is_same = |(pk, _): &(String, String)| BucketKey::parse(pk).is_some_and(|key| key.with_shard(0) == first);
        parts.iter().all(is_same).then(|| Self(shards(world, parts)))
    }

    /// I6: if there are more or fewer of them now, they hold together what they did.
    pub(crate) fn compare(self, world: &World, parts: &[(String, String)]) {
        let after = shards(world, parts);
        if self.0.len() == after.len() || self.0.is_empty() {
            return;
        }
        // When the change was planned: a merge credits all shards up to then, a split leaves that as it is. What was full
        // flows over later, and what has become of it need not.
        let Some(at) = after.iter().map(|shard| shard.rf).max() else { return };
        // A merge gives back what has expired. A split leaves leases where they are: what they give back later must fit
        // into what is left there.
        let is_merge = after.len() < self.0.len();
        let (had, has) = (sums(&self.0, at, is_merge), sums(&after, at, is_merge));
        if had != has {
            world.violated(format!("I6: {} shards held {had:?}, and {} hold {has:?}", self.0.len(), after.len()));
        }
    }
}

fn shards(world: &World, parts: &[(String, String)]) -> Vec<Bucket> {
    parts.iter().filter_map(|(pk, sk)| bucket(pk, &world.dynamo().item(pk, sk))).collect()
}

/// The buckets as the stream shows them.
#[derive(Debug, Default)]
pub(crate) struct Images {
    live: BTreeMap<String, Bucket>,
    /// The last `v` of every item there ever was.
    last: BTreeMap<String, i64>,
    /// What was consumed by all writes so far, by entity and limit.
    consumed: BTreeMap<(String, String), i64>,
    /// Slots of each bucket, by entity.
    slots: BTreeMap<String, i64>,
    violations: Vec<String>,
}

impl Images {
    pub(crate) fn of(scenario: &Scenario) -> Self {
        let slots = scenario.buckets.iter().filter_map(|plan| {
            let slots = plan.limits.iter().find(|limit| limit.rule().is_concurrent())?;
            Some((plan.entity.clone(), slots.rule().capacity.0))
        });
        Self { slots: slots.collect(), ..Self::default() }
    }

    /// Looks at one write.
    pub(crate) fn record(&mut self, record: &Value, now: EpochMillis) {
        let keys = &record["dynamodb"]["Keys"];
        if keys["SK"]["S"] != BUCKET_SK {
            return;
        }
        let pk = keys["PK"]["S"].as_str().expect("keys are texts");
        if record["eventName"] == "REMOVE" {
            self.live.remove(pk);
            return;
        }
        let Some(shard) = bucket(pk, &record["dynamodb"]["NewImage"]) else { return };
        let v = shard.v.expect("our buckets count their writes");
        let is_next = self.last.get(pk).is_none_or(|last| v > *last);
        if !is_next {
            self.violations.push(format!("I3: {pk} goes from v {:?} to {v}", self.last.get(pk)));
        }
        self.last.insert(pk.to_owned(), v);
        let before = self.live.get(pk);
        for (name, state) in &shard.limits {
            // As the design has it: from 0 when an item is made, by the difference when it changes, nothing when it goes.
            let known = before.and_then(|before| before.limits.get(name)).map_or(0, |state| state.tc.0);
            let of = (shard.key.entity.to_string(), name.to_string());
            *self.consumed.entry(of).or_default() += state.tc.0 - known;
            // What was taken of a shard before it was split may go back to what is left of it, and flows over there.
            if state.tk > state.rule.capacity {
                let what = format!("{} of {}", state.tk, state.rule.capacity);
                self.violations.push(format!("I1: {pk} holds {what} {name} at {}", now.0));
            }
        }
        self.live.insert(pk.to_owned(), shard);
    }

    /// What was consumed so far, in millitokens, by entity and limit.
    pub(crate) fn consumed(&self) -> &BTreeMap<(String, String), i64> {
        &self.consumed
    }

    /// What does not hold. To be asked for when all records of a write have been looked at: a transaction has several.
    pub(crate) fn take_violations(&mut self) -> Vec<String> {
        let mut there: BTreeMap<&str, (i64, u32)> = BTreeMap::new();
        for shard in self.live.values() {
            let (slots, parts) = there.entry(shard.key.entity.as_str()).or_default();
            *parts += 1;
            for (name, state) in shard.limits.iter().filter(|(_, state)| state.rule.is_concurrent()) {
                let held = shard.leases.iter().flatten().filter_map(|(_, lease)| lease.tokens.get(name));
                *slots += state.tk.0 + held.map(|held| held.0).sum::<i64>();
            }
        }
        for (entity, (slots, parts)) in there {
            let all = self.slots.get(entity).copied().unwrap_or_default();
            // A child of a configured parent may lack the limit until somebody brings it.
            if slots != all && slots != 0 {
                self.violations
                    .push(format!("I4: {entity} has {slots} of {all} slots free or held, in {parts} shards"));
            }
        }
        std::mem::take(&mut self.violations)
    }
}
