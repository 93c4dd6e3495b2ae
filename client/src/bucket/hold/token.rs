//! A hold as plain data, from which another process restores it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use weirgate_shared::{
    Class, ClassName, EpochMillis, Limit, LimitKind, LimitMode, LimitName, LimitState,
    LimitsVersion, MAX_BUCKET_LIMITS, MAX_PERIOD_MS, MAX_SHARDS, MAX_TOKENS, MilliTokens,
    RefillRule, Shard, WriteId,
};

use super::{Hold, Stage};
use crate::bucket::state::BucketRegistry;
use crate::queue::{HoldPart, Windows};
use crate::session::Session;
use crate::values::{Amounts, Error, Limits};

/// Latest expiry of a lease in a token, from now: two days. A lease lasts a day at most, and the
/// clock of the process that took it may be ahead.
const MAX_EXPIRY_MS: i64 = 2 * 86_400_000;
/// Largest capacity and refill, in millitokens.
const MAX_MILLI: i64 = MAX_TOKENS * 1_000;

/// A hold as plain data: what its settlements need.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HoldToken {
    namespace: String,
    entity: String,
    resource: String,
    /// Version of the request's limits, and whether they are configured for exactly this bucket.
    version: Option<i64>,
    is_own: bool,
    /// Class of the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    class: Option<String>,
    /// Whether a denial of the request is only reported.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_shadow: bool,
    limits: Vec<LimitToken>,
    parts: Vec<PartToken>,
}

/// A limit of the request, or another one of the shard. `mode` is `None` if the request did not bring it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitToken {
    name: String,
    capacity_milli: i64,
    refill_milli: i64,
    period_ms: i64,
    mode: Option<ModeToken>,
    /// Classes of the limit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    classes: Vec<String>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ModeToken {
    Enforced,
    Shadow,
    Soft,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PartToken {
    shard: u32,
    shards: u32,
    amounts_milli: BTreeMap<String, i64>,
    is_bypass: bool,
    /// Ends of the windows that the tokens of quotas are from.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    windows_ms: BTreeMap<String, i64>,
    /// Id of the lease, and its expiry.
    lease: Option<(String, i64)>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_in_doubt: bool,
}

impl Hold {
    /// Returns the hold as plain data. From now on only a restored hold settles: dropping this one
    /// changes nothing.
    pub(crate) fn into_token(mut self) -> HoldToken {
        self.stage = Stage::Settled;
        HoldToken {
            namespace: self.bucket.key.namespace.to_string(),
            entity: self.bucket.key.entity.to_string(),
            resource: self.bucket.key.resource.to_string(),
            version: self.limits.version.map(|version| version.number),
            is_own: self.limits.is_own(),
            class: self.class.as_ref().map(ToString::to_string),
            is_shadow: self.is_shadow,
            limits: self.limit_tokens(),
            parts: self.parts.iter().map(PartToken::of).collect(),
        }
    }

    /// Returns the request's limits in their order, then the others of the first shard.
    fn limit_tokens(&self) -> Vec<LimitToken> {
        let named = self.limits.named().iter();
        let brought = named.map(|limit| LimitToken {
            classes: limit.classes().iter().map(ToString::to_string).collect(),
            ..LimitToken::of(limit.name(), limit.rule(), Some(limit.mode()))
        });
        let first = self.parts.first();
        let others = first
            .into_iter()
            .flat_map(|part| &part.shard.limits)
            // A pool without a capacity is that of a class that is gone.
            .filter(|(name, state)| {
                !self.brings(name.as_str()) && state.rule.capacity > MilliTokens::ZERO
            })
            .map(|(name, state)| LimitToken::of(name, &state.rule, None));
        brought.chain(others).collect()
    }
}

/// Checks that a token is of this limiter's namespace.
///
/// # Errors
/// [`Error::Invalid`] with both namespaces.
pub(crate) fn check_namespace(namespace: &str, session: &Session) -> Result<(), Error> {
    let own = session.namespace.as_str();
    match namespace == own {
        true => Ok(()),
        false => Err(Error::Invalid(format!(
            "the grant token is of namespace {namespace:?}, this limiter's is {own:?}: use a limiter of the same namespace"
        ))),
    }
}

impl HoldToken {
    /// Restores the hold. Dropping it changes nothing, because the token still settles it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the token is of another namespace, or a name or a number is out of range.
    pub(crate) fn restore(self, buckets: &BucketRegistry) -> Result<Hold, Error> {
        let session = &buckets.session;
        let now = session.now();
        check_namespace(&self.namespace, session)?;
        if self.limits.len() > MAX_BUCKET_LIMITS || self.parts.len() > part_limit() {
            return Err(out_of_range("number of limits or parts"));
        }
        let mut states = BTreeMap::new();
        let mut brought = vec![];
        let full = |rule: RefillRule| LimitState::new(rule.capacity, rule);
        for token in &self.limits {
            let Some(limit) = token.brought()? else {
                let (name, rule) = token.rule()?;
                states.insert(name, full(rule));
                continue;
            };
            let pools = limit.pools().into_iter();
            states.extend(pools.map(|pool| (pool.name().clone(), full(*pool.rule()))));
            brought.push(limit);
        }
        let limits = Limits::new(brought.into(), self.version.map(LimitsVersion::new));
        let limits = if self.is_own { limits.own() } else { limits };
        let bucket =
            buckets.bucket(self.entity.as_str().try_into()?, self.resource.as_str().try_into()?);
        let mut parts = vec![];
        for part in self.parts {
            if part.shards > MAX_SHARDS || part.shard >= part.shards {
                return Err(out_of_range("shard"));
            }
            let key = bucket.key.with_shard(part.shard);
            let shard = Shard {
                shard_count: part.shards,
                limits: states.clone(),
                ..Shard::full(key, &limits, now)
            };
            parts.push(HoldPart {
                state: bucket.shard(part.shard),
                lease: part.lease(now)?,
                is_bypass: part.is_bypass,
                amounts: part.amounts()?,
                windows: part.windows()?,
                shard: Arc::new(shard),
                prefetched_at: None,
                is_in_doubt: part.is_in_doubt,
            });
        }
        if parts.iter().any(|part| part.lease.is_some() != parts[0].lease.is_some()) {
            return Err(out_of_range("lease"));
        }
        let mut hold = Hold::new(session, &bucket, parts, limits, now);
        hold.class = self.class.map(ClassName::new).transpose()?;
        hold.is_shadow = self.is_shadow;
        hold.stage = Stage::Restored;
        Ok(hold)
    }
}

impl LimitToken {
    fn of(name: &LimitName, rule: &RefillRule, mode: Option<LimitMode>) -> Self {
        Self {
            name: name.to_string(),
            capacity_milli: rule.capacity.0,
            refill_milli: rule.refill_amount.0,
            period_ms: rule.refill_period_ms,
            classes: vec![],
            mode: mode.map(|mode| match mode {
                LimitMode::Enforced => ModeToken::Enforced,
                LimitMode::Shadow => ModeToken::Shadow,
                LimitMode::Soft => ModeToken::Soft,
            }),
        }
    }

    fn rule(&self) -> Result<(LimitName, RefillRule), Error> {
        let rule = RefillRule {
            capacity: MilliTokens(self.capacity_milli),
            refill_amount: MilliTokens(self.refill_milli),
            refill_period_ms: self.period_ms,
        };
        let is_rule = (1..=MAX_MILLI).contains(&self.capacity_milli)
            && (0..=MAX_MILLI).contains(&self.refill_milli)
            && ((1..=MAX_PERIOD_MS).contains(&self.period_ms) || rule.kind() == LimitKind::Quota);
        if !is_rule {
            return Err(out_of_range("limit"));
        }
        Ok((LimitName::new(self.name.as_str())?, rule))
    }

    /// Returns the limit, if the request brought it.
    fn brought(&self) -> Result<Option<Limit>, Error> {
        let Some(mode) = self.mode else {
            return Ok(None);
        };
        let (name, rule) = self.rule()?;
        let mode = match mode {
            ModeToken::Enforced => LimitMode::Enforced,
            ModeToken::Shadow => LimitMode::Shadow,
            ModeToken::Soft => LimitMode::Soft,
        };
        let classes = self.classes.iter().map(|class| class.parse());
        let classes = classes.collect::<Result<Vec<Class>, _>>()?;
        let limit = Limit::of(name, rule).in_mode(mode);
        Ok(Some(limit.with_classes(classes)?))
    }
}

impl PartToken {
    fn of(part: &HoldPart) -> Self {
        let amounts = part.amounts.iter();
        Self {
            shard: part.state.key.shard,
            shards: part.shard.shard().count,
            amounts_milli: amounts.map(|(limit, amount)| (limit.to_string(), amount.0)).collect(),
            is_bypass: part.is_bypass,
            windows_ms: part
                .windows
                .iter()
                .map(|(limit, end)| (limit.to_string(), end.0))
                .collect(),
            lease: part.lease.as_ref().map(|(id, expires)| (id.to_string(), expires.0)),
            is_in_doubt: part.is_in_doubt,
        }
    }

    fn amounts(&self) -> Result<Amounts, Error> {
        let amount = |(limit, amount): (&String, &i64)| {
            if (0..=MAX_MILLI).contains(amount) {
                Ok((LimitName::new(limit.as_str())?, MilliTokens(*amount)))
            } else {
                Err(out_of_range("amount"))
            }
        };
        self.amounts_milli.iter().map(amount).collect()
    }

    fn windows(&self) -> Result<Windows, Error> {
        let end = |(limit, end): (&String, &i64)| {
            Ok((LimitName::new(limit.as_str())?, EpochMillis(*end)))
        };
        self.windows_ms.iter().map(end).collect()
    }

    fn lease(&self, now: EpochMillis) -> Result<Option<(WriteId, EpochMillis)>, Error> {
        let Some((id, expires)) = &self.lease else {
            return Ok(None);
        };
        if !(0..=now.0.saturating_add(MAX_EXPIRY_MS)).contains(expires) {
            return Err(out_of_range("expiry"));
        }
        Ok(Some((WriteId::new(id.as_str())?, EpochMillis(*expires))))
    }
}

/// Returns the largest number of parts: each shard can give several, of a pool or by taking more.
fn part_limit() -> usize {
    usize::try_from(MAX_SHARDS).unwrap_or(usize::MAX) * 16
}

fn out_of_range(what: &str) -> Error {
    Error::Invalid(format!(
        "the {what} in the grant token is out of range: pass the token as it was returned"
    ))
}
