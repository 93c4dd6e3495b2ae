//! One request for tokens, checked before anything is sent.

use std::sync::Arc;
use std::time::Duration;

use weirgate_shared::{
    BucketKey, ConfigStatus, EntityId, Limit, LimitMode, MAX_TOKENS, MilliTokens, Millis, Resource,
};

use crate::bucket::{BucketRequest, BucketState};
use crate::config::{EffectiveConfig, Freshness, resolve};
use crate::decide::{
    AcquireOptions, BucketTarget, Granted, ResolvedRequest, TakeMode, count_decision, decide,
};
use crate::limits::{Limits, check_limit_count};
use crate::queue::Amounts;
use crate::telemetry::instrumented;
use crate::unavailable;
use crate::{Decision, Disabled, Error, Grant, OnUnavailable, RateLimiter};

/// Default duration of a lease, 60 s.
const LEASE: Duration = Duration::from_secs(60);
/// Longest duration of a lease, one day. A longer hold renews it.
const LONGEST_LEASE: Duration = Duration::from_secs(86_400);

/// A request for tokens of one bucket. Nothing happens until [`send`](Self::send) or
/// [`scope`](Self::scope).
#[derive(Debug, Clone)]
#[must_use = "a request does nothing until it is sent"]
pub struct Acquire<'a> {
    limiter: &'a RateLimiter,
    entity: String,
    resource: String,
    limits: Option<Limits>,
    version: Option<i64>,
    amounts: Vec<(String, Amount)>,
    options: AcquireOptions,
    timeout: Duration,
    lease: Option<Duration>,
}

#[derive(Debug, Clone, Copy)]
enum Amount {
    Tokens(i64),
    Milli(MilliTokens),
}

impl<'a> Acquire<'a> {
    pub(crate) fn new(limiter: &'a RateLimiter, entity: &str, resource: &str) -> Self {
        let settings = &limiter.inner.settings;
        Self {
            limiter,
            entity: entity.to_owned(),
            resource: resource.to_owned(),
            limits: None,
            version: None,
            amounts: vec![],
            options: AcquireOptions {
                wait: Duration::ZERO,
                take_mode: TakeMode::Concurrent,
                on_unavailable: settings.on_unavailable,
            },
            timeout: settings.timeout,
            lease: None,
        }
    }

    /// Sets the limits of the bucket. They create it on first use, and change it where they differ.
    /// Then no configuration is read, and nothing is taken from the entity's parents. Without this
    /// call, the configured limits apply.
    ///
    /// If two releases give different limits at the same time, the bucket keeps one release's
    /// limits for 30 s before it adopts the other's. With a [version](Self::limits_version), the
    /// newer limits stay.
    pub fn limits(mut self, limits: &[Limit]) -> Self {
        self.limits = Some(Limits::new(limits.into(), None));
        self
    }

    /// Sets the limits as [`limits`](Self::limits) does, without copying them.
    pub fn shared_limits(mut self, limits: &Arc<[Limit]>) -> Self {
        self.limits = Some(Limits::new(Arc::clone(limits), None));
        self
    }

    /// Sets the version of the given limits, from 0. The bucket adopts only limits of a newer
    /// version, so an older release cannot replace newer ones. To restore former limits, give them
    /// a newer version. Either all callers of a bucket give a version, or none does.
    pub const fn limits_version(mut self, version: i64) -> Self {
        self.version = Some(version);
        self
    }

    /// Takes `tokens` of a limit, 1 to 10^12. A request takes all its amounts, or none.
    pub fn take(mut self, limit: &str, tokens: i64) -> Self {
        self.amounts
            .push((limit.to_owned(), Amount::Tokens(tokens)));
        self
    }

    /// Takes an amount as [`take`](Self::take) does, in millitokens.
    pub fn take_milli(mut self, limit: &str, amount: MilliTokens) -> Self {
        self.amounts.push((limit.to_owned(), Amount::Milli(amount)));
        self
    }

    /// Waits up to this long for the tokens before it denies. A wait that cannot succeed does not
    /// begin.
    pub const fn wait_up_to(mut self, wait: Duration) -> Self {
        self.options.wait = wait;
        self
    }

    /// Sets the time allowed for the decision, after which it fails or is made without DynamoDB.
    /// Waiting for tokens is not included. Default: the [limiter's](crate::Builder::timeout).
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the decision if DynamoDB is unavailable. Default: the
    /// [limiter's](crate::Builder::on_unavailable).
    pub const fn on_unavailable(mut self, on_unavailable: OnUnavailable) -> Self {
        self.options.on_unavailable = on_unavailable;
        self
    }

    /// Holds the tokens under a durable lease of 1 ms to a day: if this process dies, they return
    /// when it expires. Slots always have a lease, 60 s by default.
    pub const fn lease(mut self, lasts: Duration) -> Self {
        self.lease = Some(lasts);
        self
    }

    /// Sends the request.
    ///
    /// # Errors
    /// [`Error::Invalid`] before anything is written; the other errors if no decision could be
    /// made.
    pub async fn send(self) -> Result<Decision, Error> {
        let (inner, entity, resource) = (&self.limiter.inner, &self.entity, &self.resource);
        let decision = instrumented(inner, entity, resource, self.decision()).await?;
        count_decision(inner, &decision);
        Ok(decision.map(|given| Grant::of(given.by_bucket, given.degraded, given.has_unlimited)))
    }

    async fn decision(&self) -> Result<Decision<Granted>, Error> {
        let inner = &self.limiter.inner;
        let asked = self.targets(Freshness::AnyAge).await;
        let is_old = asked.as_ref().is_ok_and(|asked| asked.limits_may_be_stale);
        let decision = decide(inner, asked, self.options).await?;
        if is_old && matches!(decision, Decision::NeverFits(_)) {
            // A permanent denial must not rest on limits that may have been raised since.
            return decide(inner, self.targets(Freshness::Recent).await, self.options).await;
        }
        Ok(decision)
    }

    pub(crate) const fn limiter(&self) -> &'a RateLimiter {
        self.limiter
    }

    pub(crate) const fn has_wait(&self) -> bool {
        !self.options.wait.is_zero()
    }

    /// Returns the entity, unchecked.
    #[cfg(feature = "tower")]
    pub(crate) fn entity(&self) -> &str {
        &self.entity
    }

    /// Returns the resource, unchecked.
    #[cfg(feature = "tower")]
    pub(crate) fn resource(&self) -> &str {
        &self.resource
    }

    /// Checks the request without sending anything.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        let (_, _) = (
            EntityId::new(&*self.entity)?,
            Resource::new(&*self.resource)?,
        );
        if self.amounts.is_empty() {
            return invalid("nothing is asked for: say what with take()".to_owned());
        }
        self.amounts().map(drop)
    }

    /// Returns the buckets of the request.
    pub(crate) async fn targets(&self, age: Freshness) -> Result<ResolvedRequest, Error> {
        if self.amounts.is_empty() {
            return invalid("nothing is asked for: say what with take()".to_owned());
        }
        self.resolve_targets(age).await
    }

    /// Returns the buckets of the request, perhaps without amounts: that of the given limits, or
    /// those of the configured ones.
    pub(crate) async fn resolve_targets(&self, age: Freshness) -> Result<ResolvedRequest, Error> {
        let amounts = self.amounts()?;
        let Some(limits) = &self.limits else {
            if let Some(version) = self.version {
                return invalid(format!(
                    "limits_version {version} is of limits given with the call: give them, too"
                ));
            }
            return self.resolve_configured(&amounts, age).await;
        };
        check_limit_count(limits)?;
        for (at, limit) in limits.iter().enumerate() {
            if limits[..at]
                .iter()
                .any(|earlier| earlier.name() == limit.name())
            {
                return invalid(format!(
                    "limit {:?} is given twice: give it once",
                    limit.name()
                ));
            }
        }
        if let Some(name) = missing_limit(&amounts, limits) {
            return invalid(format!(
                "limit {name:?} is not among the limits given: {:?}",
                names(limits)
            ));
        }
        let bucket = self.limiter.inner.bucket(
            EntityId::new(&*self.entity)?,
            Resource::new(&*self.resource)?,
        );
        let limits = match self.version {
            Some(version) if version < 0 => {
                return invalid(format!(
                    "limits_version must be 0 or more, got {version}: count releases from 0"
                ));
            }
            Some(version) => &limits.with_version(version),
            None => limits,
        };
        Ok(ResolvedRequest {
            targets: vec![self.target(bucket, limits, &amounts)],
            ..ResolvedRequest::default()
        })
    }

    /// Returns the buckets by the configured limits: the entity's own, and those of its ancestors
    /// as far as it cascades. Limits are looked up only here.
    async fn resolve_configured(
        &self,
        amounts: &NamedAmounts<'_>,
        mut age: Freshness,
    ) -> Result<ResolvedRequest, Error> {
        let inner = &self.limiter.inner;
        let (entity, resource) = (
            EntityId::new(&*self.entity)?,
            Resource::new(&*self.resource)?,
        );
        let own = inner.bucket(entity, resource);
        let (mut asked, mut met) = (ResolvedRequest::default(), vec![]);
        let mut next = Some(Arc::clone(&own));
        while let Some(bucket) = next.take() {
            let BucketKey {
                entity, resource, ..
            } = &bucket.key;
            let resolved = resolve(inner, &bucket, age, self.timeout).await?;
            asked.limits_may_be_stale |= resolved.may_be_stale(inner.ages.now());
            let config = resolved.config.as_deref();
            if Arc::ptr_eq(&bucket, &own) {
                let Some(EffectiveConfig {
                    level,
                    limits,
                    status,
                    ..
                }) = config
                else {
                    return Err(Error::NotConfigured {
                        entity: entity.clone(),
                        resource: resource.clone(),
                    });
                };
                if let Some(name) =
                    missing_limit(amounts, limits).filter(|_| *status == ConfigStatus::Enforced)
                {
                    if resolved.may_be_stale(inner.ages.now()) && age == Freshness::AnyAge {
                        // The limit may be new.
                        age = Freshness::Recent;
                        next = Some(bucket);
                        continue;
                    }
                    let names = names(limits);
                    return invalid(format!(
                        "limit {name:?} is not among those configured for {level}: {names:?}"
                    ));
                }
            }
            match config {
                Some(EffectiveConfig {
                    status: ConfigStatus::Disabled,
                    ..
                }) => {
                    let (entity, resource) = (entity.clone(), resource.clone());
                    return Ok(ResolvedRequest {
                        disabled: Some(Disabled { entity, resource }),
                        ..asked
                    });
                }
                Some(EffectiveConfig {
                    status: ConfigStatus::Enforced,
                    limits,
                    ..
                }) => {
                    asked
                        .targets
                        .push(self.target(Arc::clone(&bucket), limits, amounts));
                }
                Some(EffectiveConfig {
                    status: ConfigStatus::Unlimited,
                    ..
                })
                | None => asked.has_unlimited |= Arc::ptr_eq(&bucket, &own),
            }
            if let Some(parent) = &resolved.parent {
                if met.contains(parent) {
                    let text =
                        "is its own ancestor: correct its item or an ancestor's with set_entity()";
                    return invalid(format!("entity {parent} {text}"));
                }
                met.push(parent.clone());
                next = Some(inner.bucket(parent.clone(), resource.clone()));
            }
        }
        Ok(asked)
    }

    /// Returns the request on one bucket, with the amounts of that bucket's limits.
    fn target(
        &self,
        bucket: Arc<BucketState>,
        limits: &Limits,
        named: &NamedAmounts<'_>,
    ) -> BucketTarget {
        let settings = &self.limiter.inner.settings;
        let (mut amounts, mut soft_amounts) = (Amounts::new(), Amounts::new());
        let mut takes_slots = false;
        for (name, amount) in named {
            let Some(limit) = limits.iter().find(|limit| limit.name().as_str() == *name) else {
                continue;
            };
            let asked = if limit.mode() == LimitMode::Soft {
                &mut soft_amounts
            } else {
                &mut amounts
            };
            asked.insert(limit.name().clone(), *amount);
            takes_slots |= limit.rule().is_concurrent();
        }
        let lease = self.lease.or_else(|| takes_slots.then_some(LEASE));
        let lease = lease.map(|lasts| (lasts, Arc::clone(&settings.owner)));
        let request = BucketRequest {
            amounts,
            soft_amounts,
            limits: limits.clone(),
            lease,
            timeout: self.timeout,
            acquires: 1,
        };
        BucketTarget {
            bucket,
            request,
            is_shadow: settings.is_shadow,
        }
    }

    /// Returns the validated amounts, without looking at limits.
    fn amounts(&self) -> Result<NamedAmounts<'_>, Error> {
        if let Some(lasts) = self.lease {
            check_lease(lasts)?;
        }
        unavailable::check(self.options.on_unavailable)?;
        let mut amounts = NamedAmounts::with_capacity(self.amounts.len());
        for (name, amount) in &self.amounts {
            let amount = match *amount {
                Amount::Tokens(tokens) => self::parse_amount(name, tokens, 1)?,
                Amount::Milli(milli)
                    if milli.0 < 1 || milli > MilliTokens::from_tokens(MAX_TOKENS) =>
                {
                    return invalid(format!(
                        "limit {name:?}: {milli} tokens are asked, it takes 0.001 to 10^12"
                    ));
                }
                Amount::Milli(milli) => milli,
            };
            if amounts.iter().any(|(known, _)| known == name) {
                return invalid(format!("limit {name:?} is taken twice: take the sum once"));
            }
            amounts.push((name.as_str(), amount));
        }
        Ok(amounts)
    }
}

/// Amounts by limit name.
type NamedAmounts<'a> = Vec<(&'a str, MilliTokens)>;

fn invalid<T>(message: String) -> Result<T, Error> {
    Err(Error::Invalid(message))
}

/// Returns a requested limit that is not among `limits`.
fn missing_limit<'a>(amounts: &NamedAmounts<'a>, limits: &[Limit]) -> Option<&'a str> {
    let has = |name: &str| limits.iter().any(|limit| limit.name().as_str() == name);
    amounts
        .iter()
        .map(|(name, _)| *name)
        .find(|name| !has(name))
}

fn names(limits: &[Limit]) -> Vec<&str> {
    limits.iter().map(|limit| limit.name().as_str()).collect()
}

/// Converts whole tokens, from `least` to 10^12.
pub(crate) fn parse_amount(limit: &str, tokens: i64, least: i64) -> Result<MilliTokens, Error> {
    if (least..=MAX_TOKENS).contains(&tokens) {
        Ok(MilliTokens::from_tokens(tokens))
    } else {
        Err(Error::Invalid(format!(
            "limit {limit:?}: {tokens} tokens are asked, it takes {least} to 10^12"
        )))
    }
}

pub(crate) fn check_lease(lasts: Duration) -> Result<(), Error> {
    if lasts > LONGEST_LEASE || Millis::from(lasts) < Millis(1) {
        return Err(Error::Invalid(format!(
            "a lease of {lasts:?} is asked, it takes 1 ms to a day: renew it to hold longer"
        )));
    }
    Ok(())
}
