//! I6: compares the shards of a bucket before and after a split or a merge.

use std::collections::{BTreeMap, BTreeSet};

use weirgate_shared::{
    BUCKET_SK, BucketKey, EpochMillis, LimitKind, LimitName, LimitState, MAX_SHARDS, MilliTokens,
    Shard, attr,
};
use weirgate_testkit::Request;

use crate::fault::Event;
use crate::stored_shard::{stored_shard, with_escrows};
use crate::stream_check::whole;
use crate::world::World;

/// Sums over the known shards of a bucket.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Available tokens of each limit.
    available: BTreeMap<LimitName, MilliTokens>,
    /// ClaimIds of leases that have not expired.
    leases: BTreeSet<String>,
}

impl Sums {
    /// Adds up the pools of the limits named.
    fn by_limit(self, limits: &BTreeSet<String>) -> Self {
        let mut available = BTreeMap::new();
        for (name, there) in self.available {
            let limit = whole(name.as_str());
            let limit = match limits.contains(&limit) {
                true => LimitName::new(limit).expect("a limit's name"),
                false => name,
            };
            *available.entry(limit).or_default() += there;
        }
        Self { available, ..self }
    }
}

/// Sums shards at an instant. Of a rate's tokens in a shard, adds at most what `ceiling` returns.
fn sums(
    shards: &[Shard],
    at: EpochMillis,
    with_expired: bool,
    ceiling: impl Fn(&Shard, &LimitName) -> Option<MilliTokens>,
) -> Sums {
    let mut sums = Sums::default();
    for shard in shards {
        for (name, state) in &shard.limits {
            let there = match (with_expired, state.rule.kind()) {
                (_, LimitKind::Quota) => of_window(shard, name, state, at, with_expired),
                (true, LimitKind::Rate | LimitKind::Slots) => shard.balance_at(name, at),
                (false, LimitKind::Rate) => shard.balance(state, at),
                (false, LimitKind::Slots) => state.available,
            };
            let most = ceiling(shard, name).filter(|_| state.rule.kind().refills());
            *sums.available.entry(name.clone()).or_default() +=
                most.map_or(there, |most| there.min(most));
        }
        let held = shard.leases.iter().flatten().filter(|(_, lease)| lease.expires_at > at);
        sums.leases.extend(held.map(|(id, _)| id.to_string()));
    }
    sums
}

/// The shards of one bucket that a request writes, as they were before it.
pub(crate) struct Resharding {
    before: Vec<Shard>,
    /// The written shard, if the write is for a split.
    split: Option<BucketKey>,
}

impl Resharding {
    /// Returns `None` if a request neither writes several shards of one bucket nor seems to be for
    /// a split.
    pub(crate) fn read(
        world: &World,
        request: &Request,
        parts: &[(String, String)],
    ) -> Option<Self> {
        if let [(pk, sk)] = parts {
            let names = request.body["ExpressionAttributeNames"].as_object()?;
            let may_split = names.values().any(|name| name == attr::ESCROW || name == attr::GSI2PK);
            let key = BucketKey::parse(pk).filter(|_| may_split && sk == BUCKET_SK)?;
            return Some(Self { before: all(world, &key), split: Some(key) });
        }
        if parts.len() < 2 || parts.iter().any(|(_, sk)| sk != BUCKET_SK) {
            return None;
        }
        let first = BucketKey::parse(&parts[0].0)?.with_shard(0);
        let is_same = |(pk, _): &(String, String)| {
            BucketKey::parse(pk).is_some_and(|key| key.with_shard(0) == first)
        };
        parts
            .iter()
            .all(is_same)
            .then(|| Self { before: uncovered(shards(world, parts)), split: None })
    }

    /// I6: checks that a shard, its new half and its escrow together have the same tokens as
    /// before.
    fn compare_split(&self, key: &BucketKey, world: &World, by_operator: bool) {
        let after = all(world, key);
        let find = |shards: &[Shard]| shards.iter().find(|shard| shard.key == *key).cloned();
        let (was, is) = (find(&self.before), find(&after));
        let escrow = |shard: &Option<Shard>| {
            shard.as_ref().and_then(|shard| shard.escrow.as_ref()?.key.shard.into())
        };
        let pair = match (escrow(&is).or(escrow(&was)), &is) {
            (Some(half), _) => [key.shard, half],
            (None, Some(half)) if was.is_none() && key.shard > 0 => {
                [half.shard().parent().map_or(0, |whole| whole.index), key.shard]
            }
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
        let Some(at) =
            after.iter().find(|shard| shard.key.shard == pair[0]).map(|shard| shard.refilled_at)
        else {
            return;
        };
        let (had, has) =
            (sums(&before, at, false, |_, _| None), sums(&after, at, false, |_, _| None));
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
        let after = uncovered(shards(world, parts));
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
            let states =
                self.before.iter().chain(&after).filter_map(|shard| shard.limits.get(name));
            if is_merge { states.map(|state| shard.share(state)).min() } else { None }
        };
        let mut least = sums(&self.before, at, is_merge, smallest);
        // A quota of a shard that new limits have not reached changes to those of the remaining one.
        for part in self.before.iter().filter(|_| is_merge) {
            for (name, state) in quotas(part) {
                let next = after.iter().find_map(|shard| shard.limits.get(name));
                let change =
                    next.map_or(MilliTokens::ZERO, |next| part.share(next) - part.share(state));
                if change > MilliTokens::ZERO {
                    *most.available.entry(name.clone()).or_default() += change;
                } else {
                    *least.available.entry(name.clone()).or_default() += change;
                }
            }
        }
        // What else makes shards fills holes, with the slots that the others do not have, and with a share of
        // the next window of a quota.
        for shard in after.iter().filter(|_| !is_merge) {
            for (name, state) in &shard.limits {
                let is_held = state.rule.kind().is_held();
                if is_held || state.has_ended(at) {
                    let missing = match is_held {
                        true => state.rule.capacity - held(&after, name),
                        false => state.rule.capacity,
                    };
                    most.available
                        .entry(name.clone())
                        .and_modify(|there| *there = (*there).max(missing));
                }
            }
        }
        // Where classes have not reached all shards, a merge moves tokens between the pools of a limit.
        let rule = |shard: &Shard, name: &LimitName| shard.limits.get(name).map(|state| state.rule);
        let differs =
            |shard: &Shard, part: &Shard, name: &LimitName| rule(shard, name) != rule(part, name);
        let mut moved = BTreeSet::new();
        for (shard, part) in
            after.iter().flat_map(|shard| self.before.iter().map(move |part| (shard, part)))
        {
            let names = shard.limits.keys().filter(|name| is_merge && differs(shard, part, name));
            moved.extend(names.map(|name| whole(name.as_str())));
        }
        // Each pool is within its share, whatever moved.
        for shard in after.iter().filter(|_| is_merge) {
            for (name, state) in &shard.limits {
                if state.rule.kind().refills() && state.available > shard.share(state) {
                    let key = &shard.key;
                    world.violated(format!("I6: a merge leaves {key:?} {state:?} of {name}"));
                }
            }
        }
        let [mut most, least, has] = [most, least, has].map(|sums| sums.by_limit(&moved));
        for shard in after.iter().filter(|_| is_merge) {
            let shares = shard.limits.iter().filter(|(_, state)| state.rule.kind().refills());
            let shares = shares.map(|(name, state)| (name.clone(), shard.share(state)));
            let (available, leases) = (shares.collect(), BTreeSet::new());
            for (name, share) in (Sums { available, leases }).by_limit(&moved).available {
                let there = most.available.entry(name);
                there.and_modify(|there| *there = (*there).min(share));
            }
        }
        let is_between = has.available.len() == most.available.len()
            && has.available.iter().all(|(name, there)| {
                least.available.get(name).is_some_and(|least| there >= least)
                    && most.available.get(name).is_some_and(|most| there <= most)
            });
        if !is_between || has.leases != most.leases {
            let had =
                if least == most { format!("{most:?}") } else { format!("{least:?} to {most:?}") };
            world.violated(format!(
                "I6: {} shards held {had}, and {} hold {has:?}",
                self.before.len(),
                after.len()
            ));
        }
    }
}

/// Returns what a shard has of a quota at `at`: its whole share once its window has ended, and else
/// its balance, with what expired leases return to their own window.
fn of_window(
    shard: &Shard,
    name: &LimitName,
    state: &LimitState,
    at: EpochMillis,
    with_expired: bool,
) -> MilliTokens {
    if state.window_end <= at {
        return shard.share(state);
    }
    let leases = shard.leases.iter().flatten().map(|(_, lease)| lease);
    let expired = leases.filter(|lease| with_expired && lease.expires_at <= at);
    let same = expired.filter(|lease| lease.windows.get(name) == Some(&state.window_end));
    let back = same.filter_map(|lease| lease.tokens.get(name).copied());
    state.available + back.sum::<MilliTokens>()
}

/// Returns the quotas of a shard.
fn quotas(shard: &Shard) -> impl Iterator<Item = (&LimitName, &LimitState)> {
    let limits = shard.limits.iter();
    limits.filter(|(_, state)| state.rule.kind().has_window())
}

/// Returns what leases have of a limit.
fn held(shards: &[Shard], limit: &LimitName) -> MilliTokens {
    let leases = shards.iter().flat_map(|shard| shard.leases.iter().flatten());
    leases.filter_map(|(_, lease)| lease.tokens.get(limit).copied()).sum()
}

/// Returns all shards of a bucket.
fn all(world: &World, key: &BucketKey) -> Vec<Shard> {
    let parts =
        (0..MAX_SHARDS).map(|shard| key.with_shard(shard).item_key()).map(|key| (key.pk, key.sk));
    shards(world, &parts.collect::<Vec<_>>())
}

/// Returns the shards without those that are left of an earlier life of the bucket: the tokens of
/// their parts are in a shard with fewer halvings.
fn uncovered(shards: Vec<Shard>) -> Vec<Shard> {
    let counts =
        shards.iter().map(|shard| (shard.key.shard, shard.shard_count)).collect::<Vec<_>>();
    let is_covered = |shard: &Shard| {
        counts
            .iter()
            .any(|(whole, count)| *count < shard.shard_count && shard.key.shard % count == *whole)
    };
    shards.into_iter().filter(|shard| !is_covered(shard)).collect()
}

fn shards(world: &World, parts: &[(String, String)]) -> Vec<Shard> {
    parts.iter().filter_map(|(pk, sk)| stored_shard(pk, &world.dynamo().item(pk, sk))).collect()
}
