//! Resets, drains and tops up buckets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use weirgate_shared::write::BalanceChange;
use weirgate_shared::{
    AuditChange, BalanceStep, EditChange, EpochMillis, LimitKind, LimitName, MilliTokens, Shard,
    ShardIndex,
};

use super::operation::{Operating, OperationOutcome, Options, Read, operation_options};
use crate::api::admin::Admin;
use crate::session::CacheKey;
use crate::values::{Amounts, Error, check_next_windows, parse_amount};

impl Admin {
    /// Changes the balances of rates and quotas of one bucket, in all its shards: one write each, after
    /// one that records the plan. Callers may go on; each shard is changed once.
    ///
    /// Usage stays as it was counted. Tokens that callers hold, or have prefetched, stay theirs. A
    /// caller elsewhere that was denied may rely on that for up to
    /// [`Builder::denial_cache_ttl`](crate::Builder::denial_cache_ttl), at most 30 s by default.
    ///
    /// ```no_run
    /// # async fn example(limiter: weirgate::RateLimiter) -> Result<(), weirgate::Error> {
    /// let report = limiter
    ///     .admin()
    ///     .edit_balances("customer-1", "gpt-4")
    ///     .top_up("tpm", 50_000)
    ///     .idempotency_key("ticket-4711")
    ///     .send()
    ///     .await?;
    /// println!("{:?}: {:?}, then {:?}", report.outcome, report.before, report.after);
    /// # Ok(())
    /// # }
    /// ```
    pub fn edit_balances(&self, entity: &str, resource: &str) -> BalanceEdit<'_> {
        BalanceEdit {
            admin: self,
            entity: entity.to_owned(),
            resource: resource.to_owned(),
            changes: vec![],
            options: Options::default(),
        }
    }
}

/// A change of a bucket's balances. Nothing happens until [`send`](Self::send).
#[derive(Debug, Clone)]
#[must_use = "a change does nothing until it is sent"]
pub struct BalanceEdit<'a> {
    admin: &'a Admin,
    entity: String,
    resource: String,
    changes: Vec<(Option<String>, Change)>,
    options: Options,
}

#[derive(Debug, Clone, Copy)]
enum Change {
    Fill,
    Set(i64),
    Add(i64),
}

/// What a [`BalanceEdit`] found and did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct BalanceReport {
    /// What became of the change.
    pub outcome: OperationOutcome,
    /// Number of shards of the bucket; 0 if it has no item, and so is full.
    pub shards: usize,
    /// Balances of the changed limits before, negative for a debt.
    #[cfg_attr(feature = "serde", serde(rename = "before_tokens"))]
    pub before: BTreeMap<LimitName, MilliTokens>,
    /// Balances after, if nothing was taken in between.
    #[cfg_attr(feature = "serde", serde(rename = "after_tokens"))]
    pub after: BTreeMap<LimitName, MilliTokens>,
}

impl BalanceEdit<'_> {
    /// Sets a limit to its capacity.
    pub fn reset(self, limit: &str) -> Self {
        self.with(Some(limit), Change::Fill)
    }

    /// Sets every rate to its capacity. Quotas stay as they are.
    pub fn reset_all(self) -> Self {
        self.with(None, Change::Fill)
    }

    /// Sets a limit to an amount of 0 to its capacity. A debt ends.
    pub fn set(self, limit: &str, tokens: i64) -> Self {
        self.with(Some(limit), Change::Set(tokens))
    }

    /// Sets a limit to 0. It refills as before.
    pub fn drain(self, limit: &str) -> Self {
        self.set(limit, 0)
    }

    /// Sets every rate to 0. Quotas stay as they are.
    pub fn drain_all(self) -> Self {
        self.with(None, Change::Set(0))
    }

    /// Adds an amount to a limit: to a rate at most to its capacity, because every refill cuts a balance
    /// there; to a quota any amount, which lasts until the end of its window.
    pub fn top_up(self, limit: &str, tokens: i64) -> Self {
        self.with(Some(limit), Change::Add(tokens))
    }

    operation_options!();

    fn with(mut self, limit: Option<&str>, change: Change) -> Self {
        self.changes.push((limit.map(str::to_owned), change));
        self
    }

    /// Makes the change.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a limit that the bucket lacks or that has slots, for an amount above
    /// the capacity, for a bucket without an item that is to be lowered, and for a key that was used
    /// for another change; nothing is changed then. [`Error::Contended`] or [`Error::Store`] if it is
    /// incomplete, or the outcome is not known: a second call with the same key within a day finishes it.
    pub async fn send(self) -> Result<BalanceReport, Error> {
        self.admin
            .session
            .at_home(async {
                let session = &self.admin.session;
                let changes = self.changes()?;
                let bucket = self
                    .admin
                    .buckets
                    .bucket(self.entity.as_str().try_into()?, self.resource.as_str().try_into()?);
                let mut operating =
                    Operating::new(session, self.what(), CacheKey::Nothing, &self.options)?;
                loop {
                    let (Read { known, mark, .. }, shards) = operating.read_bucket(&bucket).await?;
                    if let Some(outcome) = known {
                        let found = balances(&shards, &changes, session.now());
                        return Ok(BalanceReport {
                            outcome,
                            shards: shards.len(),
                            before: found.clone(),
                            after: found,
                        });
                    }
                    if shards.is_empty() {
                        self.require_full()?;
                    }
                    let BalancePlan { steps, before, after } =
                        BalancePlan::of(&shards, &changes, session.now())?;
                    let event = AuditChange::Balances {
                        entity: bucket.key.entity.clone(),
                        resource: bucket.key.resource.clone(),
                        before: before.clone(),
                        after: after.clone(),
                    };
                    let change =
                        (!shards.is_empty()).then_some((EditChange::Balances(steps), event));
                    if let Some(outcome) =
                        operating.write_bucket(&bucket, &shards, change, mark).await?
                    {
                        return Ok(BalanceReport { outcome, shards: shards.len(), before, after });
                    }
                }
            })
            .await
    }

    fn changes(&self) -> Result<Vec<(Option<LimitName>, AmountChange)>, Error> {
        if self.changes.is_empty() {
            return Err(Error::Invalid(
                "nothing to change: reset, set, drain or top up a limit".to_owned(),
            ));
        }
        let change = |(limit, change): &(Option<String>, Change)| {
            let name = limit.as_deref().map(LimitName::new).transpose()?;
            let text = limit.as_deref().unwrap_or("every rate");
            let change = match change {
                Change::Fill => AmountChange::Fill,
                Change::Set(tokens) => AmountChange::Set(parse_amount(text, *tokens)?),
                Change::Add(tokens) => AmountChange::Add(parse_amount(text, *tokens)?),
            };
            Ok((name, change))
        };
        self.changes.iter().map(change).collect()
    }

    /// Returns the description of the change.
    fn what(&self) -> String {
        let change = |(limit, change): &(Option<String>, Change)| {
            let limit = limit.as_deref().unwrap_or("every rate");
            match change {
                Change::Fill => format!("reset {limit}"),
                Change::Set(tokens) => format!("set {limit} to {tokens}"),
                Change::Add(tokens) => format!("add {tokens} to {limit}"),
            }
        };
        let changes: Vec<_> = self.changes.iter().map(change).collect();
        let (entity, resource) = (&self.entity, &self.resource);
        format!("{} of {entity} on {resource}", changes.join(", "))
    }

    /// Requires that the change leaves a bucket without an item, which is full, as it is.
    fn require_full(&self) -> Result<(), Error> {
        let is_full = |(_, change): &(Option<String>, Change)| matches!(change, Change::Fill);
        if self.changes.iter().all(is_full) {
            return Ok(());
        }
        let (entity, resource) = (&self.entity, &self.resource);
        Err(Error::Invalid(format!(
            "bucket of {entity} on {resource} has no item, so it is full and its limits are not known: acquire from it first, or stop it"
        )))
    }
}

/// Change of one limit's balance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AmountChange {
    /// To the capacity.
    Fill,
    /// To an amount.
    Set(MilliTokens),
    /// By an amount: a rate at most to the capacity, a quota until the end of its window.
    Add(MilliTokens),
}

/// The steps of a change, and the balances that it finds and leaves.
#[derive(Debug, Default)]
struct BalancePlan {
    steps: BTreeMap<LimitName, BalanceStep>,
    before: Amounts,
    after: Amounts,
}

impl BalancePlan {
    /// Plans `changes`; without a limit's name, for every rate.
    fn of(
        shards: &[Arc<Shard>],
        changes: &[(Option<LimitName>, AmountChange)],
        now: EpochMillis,
    ) -> Result<Self, Error> {
        let changes = named(shards, changes)?;
        for shard in shards {
            check_next_windows(shard, changes.keys(), now)?;
        }
        let mut plan = Self::default();
        for (name, change) in changes {
            let balances: Vec<_> =
                shards.iter().map(|shard| shard.balance(&shard.limits[&name], now)).collect();
            let before = balances.iter().copied().sum();
            let step = step(shards, &name, change, &balances)?;
            let after = |(shard, balance): (&Arc<Shard>, &MilliTokens)| {
                let share = shard.share(&shard.limits[&name]);
                match step.part(shard.shard(), share) {
                    BalanceChange::SetTo(amount) => amount,
                    BalanceChange::Raise(amount) => *balance + amount,
                }
            };
            let after = shards.iter().zip(&balances).map(after).sum();
            plan.before.insert(name.clone(), before);
            plan.after.insert(name.clone(), after);
            plan.steps.insert(name, step);
        }
        Ok(plan)
    }
}

/// Returns the balances of the rates that `changes` name, as far as the bucket has them.
fn balances(
    shards: &[Arc<Shard>],
    changes: &[(Option<LimitName>, AmountChange)],
    now: EpochMillis,
) -> Amounts {
    let is_named = |name: &LimitName| {
        let mut names = changes.iter().map(|(named, _)| named);
        names.any(|named| named.as_ref().is_none_or(|named| named == name))
    };
    let mut found = Amounts::new();
    for shard in shards {
        for (name, state) in &shard.limits {
            if is_named(name) && !state.rule.kind().is_held() {
                *found.entry(name.clone()).or_default() += shard.balance(state, now);
            }
        }
    }
    found
}

/// Returns the changes by limit. Requires that each is a rate of the bucket.
fn named(
    shards: &[Arc<Shard>],
    changes: &[(Option<LimitName>, AmountChange)],
) -> Result<BTreeMap<LimitName, AmountChange>, Error> {
    let add = |named: &mut BTreeMap<_, _>, name: &LimitName, change| {
        if named.insert(name.clone(), change).is_none() {
            return Ok(());
        }
        Err(Error::Invalid(format!("limit {name:?} is changed twice in one call: change it once")))
    };
    let mut named = BTreeMap::new();
    let Some(first) = shards.first() else {
        return Ok(named);
    };
    let of_all = || shards.iter().flat_map(|shard| shard.limits.keys());
    for (name, change) in changes {
        let Some(name) = name else {
            let states = shards.iter().flat_map(|shard| &shard.limits);
            let rates = states.filter(|(_, state)| state.rule.kind() == LimitKind::Rate);
            for name in rates.map(|(name, _)| name).collect::<BTreeSet<_>>() {
                add(&mut named, name, *change)?;
            }
            continue;
        };
        if !of_all().any(|known| known == name) {
            let known: Vec<_> = first.limits.keys().map(LimitName::as_str).collect();
            return Err(Error::Invalid(format!(
                "limit {name:?} is not among those of the bucket: {}; name one of them",
                known.join(", ")
            )));
        }
        let is_held = |shard: &Arc<Shard>| {
            let state = shard.limits.get(name);
            state.is_some_and(|state| state.rule.kind().is_held())
        };
        if shards.iter().all(is_held) {
            return Err(Error::Invalid(format!(
                "limit {name:?} has slots, whose number follows from their leases: release those"
            )));
        }
        add(&mut named, name, *change)?;
    }
    // Shards get new limits one by one, with the next take from each.
    if let Some(name) = named.keys().find(|name| !shards.iter().all(|shard| can_set(shard, name))) {
        return Err(Error::Invalid(format!(
            "limit {name:?} is not the same in all shards of the bucket yet: apply the limits to all shards first, or change the limit after its next takes"
        )));
    }
    Ok(named)
}

fn can_set(shard: &Shard, name: &LimitName) -> bool {
    let state = shard.limits.get(name);
    state.is_some_and(|state| !state.rule.kind().is_held())
}

/// Returns the change of one limit, whose shards have these `balances`.
fn step(
    shards: &[Arc<Shard>],
    name: &LimitName,
    change: AmountChange,
    balances: &[MilliTokens],
) -> Result<BalanceStep, Error> {
    let share = |shard: &Arc<Shard>| shard.share(&shard.limits[name]);
    let capacity: MilliTokens = shards.iter().map(share).sum();
    match change {
        AmountChange::Fill => Ok(BalanceStep::Fill),
        AmountChange::Set(amount) if amount > capacity => Err(Error::Invalid(format!(
            "limit {name:?} has a capacity of {capacity} tokens, {amount} were to be set: set at most {capacity}, or configure a greater capacity"
        ))),
        AmountChange::Set(amount) => Ok(BalanceStep::Set(amount)),
        AmountChange::Add(amount) if shards[0].limits[name].rule.kind().has_window() => {
            let parts = shards.iter().map(|shard| shard.shard().share(amount));
            Ok(BalanceStep::Raise(by_smallest(shards, &parts.collect::<Vec<_>>())))
        }
        AmountChange::Add(amount) => {
            let zero = MilliTokens::ZERO;
            let room =
                |(shard, balance): (&Arc<Shard>, &MilliTokens)| (share(shard) - *balance).max(zero);
            let rooms: Vec<_> = shards.iter().zip(balances).map(room).collect();
            let total: MilliTokens = rooms.iter().copied().sum();
            if amount > total {
                return Err(Error::Invalid(format!(
                    "limit {name:?} has room for {total} more tokens below its capacity of {capacity}, {amount} were to be added: add at most {total}, reset it, or configure a greater capacity"
                )));
            }
            // Each shard its share as far as there is room, and the rest where there is more.
            let even =
                |(shard, room): (&Arc<Shard>, &MilliTokens)| shard.shard().share(amount).min(*room);
            let mut parts: Vec<_> = shards.iter().zip(&rooms).map(even).collect();
            let mut left = amount - parts.iter().copied().sum();
            for (part, room) in parts.iter_mut().zip(&rooms) {
                let more = left.min(*room - *part);
                (*part, left) = (*part + more, left - more);
            }
            Ok(BalanceStep::Raise(by_smallest(shards, &parts)))
        }
    }
}

/// Returns the parts of shards of different counts as if all were split as often as the smallest.
fn by_smallest(shards: &[Arc<Shard>], parts: &[MilliTokens]) -> Vec<MilliTokens> {
    let count = shards.iter().map(|shard| shard.shard().count).max();
    let count = count.unwrap_or(1);
    let of_index = |index: u32| {
        let is_in = |shard: &Arc<Shard>| index % shard.shard().count == shard.key.shard;
        let (shard, part) = shards.iter().zip(parts).find(|(shard, _)| is_in(shard))?;
        let whole = shard.shard().count;
        let within = ShardIndex { index: index / whole, count: count / whole };
        Some(within.share(*part))
    };
    (0..count).map(|index| of_index(index).unwrap_or_default()).collect()
}
