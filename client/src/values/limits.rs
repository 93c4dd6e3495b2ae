//! The limits of a request, and amounts of them.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use weirgate_shared::{
    Asks, EpochMillis, Limit, LimitKind, LimitName, LimitsVersion, MAX_BUCKET_LIMITS, MAX_LIMITS,
    MAX_TOKENS, MIN_BALANCE, MilliTokens, RefillRule, Shard, VersionedLimits,
};

use super::calendar;
use super::error::Error;

/// Limits and their configuration version. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Limits {
    /// What a bucket has for them: the pools of those with classes.
    list: Arc<[Limit]>,
    /// As they are configured; `None` if they are the same, because none has classes.
    named: Option<Arc<[Limit]>>,
    pub(crate) version: Option<LimitsVersion>,
    /// Whether they are configured for exactly this entity and resource.
    is_own: bool,
}

impl Limits {
    pub(crate) fn new(named: Arc<[Limit]>, version: Option<LimitsVersion>) -> Self {
        let (list, named) = pools(named);
        Self { list, named, version, is_own: false }
    }

    /// Returns the same limits, as configured for exactly this entity and resource.
    pub(crate) fn own(self) -> Self {
        Self { is_own: true, ..self }
    }

    /// Returns the limits as they are configured, with their classes.
    pub(crate) fn named(&self) -> &[Limit] {
        self.named.as_deref().unwrap_or(&self.list)
    }

    /// Returns whether any of them has classes.
    pub(crate) const fn have_classes(&self) -> bool {
        self.named.is_some()
    }

    /// Returns whether they are configured for exactly this entity and resource.
    pub(crate) const fn is_own(&self) -> bool {
        self.is_own
    }

    /// Returns whether `limit` is one of these, and is held by leases.
    pub(crate) fn is_held(&self, limit: &LimitName) -> bool {
        self.iter().any(|known| known.name() == limit && known.rule().kind().is_held())
    }

    /// Returns these limits as schedules scale them from a `boundary` on.
    pub(crate) fn at(&self, scaled: Arc<[Limit]>, boundary: EpochMillis) -> Self {
        let version = self.version;
        let (list, named) = pools(scaled);
        Self {
            list,
            named,
            version: version.map(|version| LimitsVersion { boundary, ..version }),
            is_own: self.is_own,
        }
    }

    /// Returns the same limits with another version.
    pub(crate) fn with_version(&self, version: LimitsVersion) -> Self {
        Self { version: Some(version), ..self.clone() }
    }
}

/// Returns what a bucket has for limits, and the limits if that differs.
fn pools(named: Arc<[Limit]>) -> (Arc<[Limit]>, Option<Arc<[Limit]>>) {
    match named.iter().all(|limit| limit.classes().is_empty()) {
        true => (named, None),
        false => (named.iter().flat_map(Limit::pools).collect(), Some(named)),
    }
}

/// Requires that a name is that of a limit, and not of a pool.
pub(crate) fn check_whole(name: &str) -> Result<(), Error> {
    let Some((whole, class)) = name.split_once('@') else {
        return Ok(());
    };
    Err(Error::Invalid(format!(
        "{name:?} is a pool of limit {whole:?}: take {whole:?} with the class {class:?}"
    )))
}

/// Requires that a request has no more limits than one write can take from, and each once.
pub(crate) fn check_limit_count(limits: &[Limit]) -> Result<(), Error> {
    if limits.len() > MAX_LIMITS {
        return Err(Error::Invalid(format!(
            "a request may have {MAX_LIMITS} limits at most, those of classes among them, got {}: use fewer",
            limits.len()
        )));
    }
    let is_twice = |(at, limit): &(usize, &Limit)| {
        let mut earlier = limits[..*at].iter();
        earlier.any(|earlier| earlier.name() == limit.name())
    };
    match limits.iter().enumerate().find(is_twice) {
        Some((_, twice)) => Err(Error::Invalid(format!(
            "limit {:?} is in the list twice: list it once",
            twice.name()
        ))),
        None => Ok(()),
    }
}

/// Requires that this process knows the windows of quotas, and that no schedule is left to apply:
/// only those of configurations are.
pub(crate) fn check_windows(limits: &[Limit]) -> Result<(), Error> {
    if let Some(limit) = limits.iter().find(|limit| limit.schedule().is_some()) {
        return Err(Error::Invalid(format!(
            "limit {:?} has a schedule, which {}",
            limit.name(),
            calendar::SCHEDULE_REMEDY
        )));
    }
    let mut limits = limits.iter();
    let is_unknown = |limit: &&Limit| is_unknown(limit.rule());
    let unknown = limits.find(is_unknown);
    unknown.map_or(Ok(()), |limit| Err(unknown_window(limit.name())))
}

/// Requires that this process knows the windows that a write to these limits of a shard begins. They
/// may be those of a newer process.
pub(crate) fn check_next_windows<'a>(
    shard: &Shard,
    mut names: impl Iterator<Item = &'a LimitName>,
    now: EpochMillis,
) -> Result<(), Error> {
    let begins = |name: &&LimitName| {
        let state = shard.limits.get(*name);
        state.is_some_and(|state| state.has_ended(now) && is_unknown(&state.rule))
    };
    let unknown = names.find(begins);
    unknown.map_or(Ok(()), |name| Err(unknown_window(name)))
}

fn is_unknown(rule: &RefillRule) -> bool {
    rule.window_code().is_some_and(|code| !calendar::knows(code))
}

fn unknown_window(limit: &LimitName) -> Error {
    Error::Invalid(format!(
        "limit {limit:?} is a quota whose window this process does not know: {}",
        calendar::REMEDY
    ))
}

/// Requires that the shard's limits keep their kind, and that it does not get more of them than a
/// write can name.
pub(crate) fn check_bucket_limits(shard: &Shard, limits: &[Limit]) -> Result<(), Error> {
    let bucket = || shard.key.item_key().pk;
    let other = |limit| Some((limit, shard.other_kind(limit)?));
    if let Some((limit, known)) = limits.iter().find_map(other) {
        let got = limit.rule().kind();
        return Err(Error::Invalid(format!(
            "limit {:?} must stay {known} in bucket {}, got {got}: set it as {known} again ('weirgate limits set'), \
             give the new limit another name, or erase the entity ('weirgate erase {}')",
            limit.name(),
            bucket(),
            shard.key.entity
        )));
    }
    // Most have so few that none needs to be looked up again.
    if shard.limits.len() + limits.len() <= MAX_BUCKET_LIMITS {
        return Ok(());
    }
    let number = shard.limit_count_with(limits);
    if number <= MAX_BUCKET_LIMITS {
        return Ok(());
    }
    let bucket = bucket();
    Err(Error::Invalid(format!(
        "bucket {bucket} would have {number} limits, the maximum is {MAX_BUCKET_LIMITS}: reuse names that it has, or \
         delete its items to reset it"
    )))
}

/// Requires that no limit of the shard gets a deeper debt than a balance may have.
pub(crate) fn check_bucket_debt<'a>(
    shard: &Shard,
    mut amounts: impl Iterator<Item = (&'a LimitName, MilliTokens)>,
) -> Result<(), Error> {
    let left = |(name, amount): (&'a LimitName, MilliTokens)| {
        let state = shard.limits.get(name)?;
        let left = state.available - amount;
        (left < MIN_BALANCE).then_some((name, left))
    };
    let Some((name, left)) = amounts.find_map(left) else {
        return Ok(());
    };
    Err(Error::Invalid(format!(
        "debt of limit {name:?} in bucket {} must be at most {} tokens, got {}: wait until it has refilled, or set its \
         balance",
        shard.key.item_key().pk,
        -MIN_BALANCE,
        -left
    )))
}

impl Deref for Limits {
    type Target = [Limit];
    fn deref(&self) -> &[Limit] {
        &self.list
    }
}

impl PartialEq for Limits {
    fn eq(&self, other: &Self) -> bool {
        let from = |limits: &Self| (limits.version, limits.is_own);
        from(self) == from(other)
            && (Arc::ptr_eq(&self.list, &other.list) || self.list == other.list)
            && self.named == other.named
    }
}

impl<'a> From<&'a Limits> for VersionedLimits<'a> {
    fn from(limits: &'a Limits) -> Self {
        Self {
            limits,
            version: limits.version,
            is_own: limits.is_own,
            calendar: calendar::CALENDAR,
        }
    }
}

/// How much refill an amount into debt can use up in advance: 30 days.
const DEBT_SPAN_MS: i128 = 30 * 86_400_000;

/// Amount per limit.
pub(crate) type Amounts = BTreeMap<LimitName, MilliTokens>;

/// Returns the amounts that are debited.
pub(crate) fn debited(asks: &Asks) -> Amounts {
    let debits = asks.debits();
    debits.map(|ask| (ask.limit.clone(), ask.amount)).collect()
}

/// Subtracts amounts from the balances of a shard.
pub(crate) fn subtract<'a>(
    shard: &mut Shard,
    amounts: impl IntoIterator<Item = (&'a LimitName, &'a MilliTokens)>,
) {
    for (limit, amount) in amounts {
        if let Some(state) = shard.limits.get_mut(limit) {
            state.available -= *amount;
        }
    }
}

/// Converts whole tokens, from 0 to 10^12.
pub(crate) fn parse_amount(limit: &str, tokens: i64) -> Result<MilliTokens, Error> {
    match (0..=MAX_TOKENS).contains(&tokens) {
        true => Ok(MilliTokens::from_tokens(tokens)),
        false => Err(out_of_range(limit, &tokens)),
    }
}

/// Requires that an amount is 0 to 10^12 tokens.
pub(crate) fn check_amount(limit: &str, amount: MilliTokens) -> Result<(), Error> {
    match (MilliTokens::ZERO..=MilliTokens::from_tokens(MAX_TOKENS)).contains(&amount) {
        true => Ok(()),
        false => Err(out_of_range(limit, &amount)),
    }
}

/// Requires that an amount that goes into debt is at most what the limit refills in 30 days, or twice
/// what it holds, whichever is more: from a full bucket, no report denies a tenant for longer than 30
/// days or than the limit takes to fill. Slots return when their lease ends, within a day, and the
/// debt of a quota ends with its window.
pub(crate) fn check_debt(
    limit: &LimitName,
    rule: &RefillRule,
    amount: MilliTokens,
) -> Result<(), Error> {
    let refill = match rule.kind() {
        LimitKind::Rate => {
            i128::from(rule.refill_amount.0).saturating_mul(DEBT_SPAN_MS)
                / i128::from(rule.refill_period_ms.max(1))
        }
        LimitKind::Slots => return Ok(()),
        // The debt of a window ends with it.
        LimitKind::Quota => 0,
    };
    let most = i128::from(rule.capacity.0).saturating_mul(2).max(refill);
    let most = most.min(i128::from(MilliTokens::from_tokens(MAX_TOKENS).0));
    let most = MilliTokens(i64::try_from(most).unwrap_or(i64::MAX));
    match amount <= most {
        true => Ok(()),
        false => Err(Error::Invalid(format!(
            "limit {limit:?}: an amount that can go into debt must be 0 to {most} tokens, the refill of 30 days or twice the capacity, got {amount}: report what was used, or raise the limit"
        ))),
    }
}

fn out_of_range(limit: &str, amount: &dyn std::fmt::Display) -> Error {
    Error::Invalid(format!(
        "limit {limit:?}: amount must be 0 to 10^12 tokens, got {amount}: correct it"
    ))
}
