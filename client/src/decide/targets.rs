//! Resolves a request to buckets, with their limits and amounts.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::time::Instant;
use weirgate_shared::{
    Ask, BucketKey, ClassName, ConfigStatus, Effect, EntityId, Limit, LimitKind, LimitName,
    LimitsVersion, MAX_SHARDS, MilliTokens, PlanName, Resource,
};

use super::grant::Uncounted;
use super::stop::{by_last_read, stopped};
use crate::bucket::{BucketRegistry, BucketState, BucketTarget};
use crate::config::{Freshness, LoadWait, ResolvedConfig, resolve};
use crate::session::{Settings, quarter_left};
use crate::values::{
    BucketRequest, DEFAULT_LEASE, Disabled, EffectiveConfig, Error, Limits, RequestSpec,
    check_debt, check_limit_count, check_windows, effect, invalid,
};

/// Consistent reads of a chain of parents that shows a cycle, 3: the parents may change during one.
const REREADS: u32 = 3;
/// Most buckets of one grant.
pub(crate) const MAX_BUCKETS: usize = 100;
/// Most parts of one grant, each of a shard, so most writes of one settlement.
pub(crate) const MAX_PARTS: usize = 1_024;

/// The buckets of a request, resolved from its limits.
#[derive(Debug, Default)]
pub(crate) struct ResolvedRequest {
    pub(crate) targets: Vec<BucketTarget>,
    /// The buckets that are requested, also those without limits. Their ancestors' are not among
    /// them.
    pub(crate) buckets: Vec<Arc<BucketState>>,
    /// Set if the configuration disables the request.
    pub(crate) disabled: Option<Disabled>,
    /// Whether the entity itself is unlimited.
    pub(crate) has_unlimited: bool,
    /// Limits that the request can mean where the entity is unlimited.
    pub(crate) uncounted: Uncounted,
    /// Whether the limits may have changed since they were read.
    pub(crate) limits_may_be_stale: bool,
    /// Plan of an entity of the chain that does not exist, of the first one.
    pub(crate) missing_plan: Option<PlanName>,
    /// Parts of the grants within which it is requested.
    pub(crate) held: usize,
}

impl ResolvedRequest {
    /// Merges resolved requests with another one.
    pub(crate) fn merge(mut self, other: Self) -> Self {
        let request_at = self.targets.last().map_or(0, |last| last.request_at + 1);
        let targets = other.targets.into_iter();
        self.targets.extend(targets.map(|target| BucketTarget { request_at, ..target }));
        self.buckets.extend(other.buckets);
        let disabled = self.disabled.or(other.disabled);
        Self {
            disabled,
            missing_plan: self.missing_plan.or(other.missing_plan),
            limits_may_be_stale: self.limits_may_be_stale || other.limits_may_be_stale,
            ..self
        }
    }
}

impl RequestSpec {
    /// Returns the buckets of the request, until `answer_by`.
    pub(crate) async fn targets(
        &self,
        buckets: &BucketRegistry,
        age: Freshness,
        answer_by: Instant,
    ) -> Result<ResolvedRequest, Error> {
        if self.amounts.is_empty() {
            return invalid("empty request: take tokens of at least one limit".to_owned());
        }
        let error = match self.resolve(buckets, age, answer_by).await {
            Ok(resolved) => return Ok(resolved),
            Err(error) => error,
        };
        // Limits that cannot be read are no way around a stop.
        let own = buckets.bucket(EntityId::new(&*self.entity)?, Resource::new(&*self.resource)?);
        let (session, own) = (&buckets.session, [own]);
        let disabled = if error.is_transient() {
            Box::pin(stopped(session, &own, quarter_left(answer_by))).await
        } else {
            by_last_read(session, &own)
        };
        let disabled = disabled.ok_or(error)?;
        Ok(ResolvedRequest { disabled: Some(disabled), ..ResolvedRequest::default() })
    }

    /// Returns the buckets of the request, perhaps without amounts: that of the given limits, or
    /// those of the configured ones.
    pub(crate) async fn resolve(
        &self,
        buckets: &BucketRegistry,
        age: Freshness,
        answer_by: Instant,
    ) -> Result<ResolvedRequest, Error> {
        self.check()?;
        let Some(limits) = &self.limits else {
            if let Some(version) = self.version {
                return invalid(format!(
                    "version {version} is of limits given with the call, and there are none: give the limits too, or leave out their version"
                ));
            }
            return self.resolve_chain(buckets, None, age, answer_by).await;
        };
        check_limit_count(limits)?;
        if let Some(name) = self.missing_limit(limits.named()) {
            return invalid(format!(
                "limit {name:?} is not among the limits given: {}; give it too",
                names(limits.named())
            ));
        }
        let bucket = buckets.bucket(EntityId::new(&*self.entity)?, Resource::new(&*self.resource)?);
        let limits = match self.version {
            Some(version) if version < 0 => {
                return invalid(format!(
                    "limits_version must be 0 or more, got {version}: count releases from 0"
                ));
            }
            Some(version) => &limits.with_version(LimitsVersion::of_release(version)),
            None => limits,
        };
        if self.cascades {
            return self.resolve_chain(buckets, Some(limits), age, answer_by).await;
        }
        let class = self.class()?;
        let buckets_of = vec![Arc::clone(&bucket)];
        let settings = &buckets.session.settings;
        let targets = vec![self.target(settings, bucket, limits, class.as_ref())?];
        if let Some(class) = &class {
            check_class(class, &targets)?;
        }
        Ok(ResolvedRequest { buckets: buckets_of, targets, ..ResolvedRequest::default() })
    }

    fn class(&self) -> Result<Option<ClassName>, Error> {
        let class = self.class.as_deref().map(ClassName::new);
        Ok(class.transpose()?)
    }

    /// Returns the bucket of the entity, and those of its ancestors as far as it cascades, by the
    /// configured limits. With limits `given`, these are the entity's, and those of an ancestor
    /// without a configuration. Limits are looked up only here.
    async fn resolve_chain(
        &self,
        buckets: &BucketRegistry,
        given: Option<&Limits>,
        mut age: Freshness,
        answer_by: Instant,
    ) -> Result<ResolvedRequest, Error> {
        let (session, mut wait) = (&buckets.session, LoadWait::by(answer_by));
        let (entity, resource) = (EntityId::new(&*self.entity)?, Resource::new(&*self.resource)?);
        let own = buckets.bucket(entity, resource);
        let begun =
            || ResolvedRequest { buckets: vec![Arc::clone(&own)], ..ResolvedRequest::default() };
        let (mut resolved_request, mut seen) = (begun(), vec![]);
        let (mut next, mut rereads) = (Some(Arc::clone(&own)), 0);
        // That of a configuration may be one of limits that no longer have it.
        let (mut class, mut is_fixed) = (self.class()?, false);
        while let Some(bucket) = next.take() {
            let BucketKey { entity, resource, .. } = &bucket.key;
            let resolved =
                resolve(session, &bucket.config, &bucket.first_queue().shard, age, &mut wait)
                    .await?;
            let is_own = Arc::ptr_eq(&bucket, &own);
            resolved_request.limits_may_be_stale |= resolved.may_be_stale(session.env.ages.now());
            if resolved_request.missing_plan.is_none() {
                resolved_request.missing_plan.clone_from(&resolved.missing_plan);
            }
            let config = resolved.config.as_deref();
            if is_own
                && given.is_none()
                && let Err(error) = self.check_configured(&bucket.key, &resolved)
            {
                if age == Freshness::AnyAge && resolved.may_be_stale(session.env.ages.now()) {
                    // What is missing may be new.
                    resolved_request.missing_plan = None;
                    age = Freshness::Recent;
                    next = Some(bucket);
                    continue;
                }
                return Err(error);
            }
            if is_own && let Some(fixed) = config.and_then(|config| config.class.as_ref()) {
                (class, is_fixed) = (Some(fixed.clone()), true);
            }
            let limits = match config {
                Some(EffectiveConfig { status: ConfigStatus::Disabled, .. }) => {
                    let (entity, resource) = (entity.clone(), resource.clone());
                    return Ok(ResolvedRequest {
                        disabled: Some(Disabled { entity, resource, stopped_at: None }),
                        ..resolved_request
                    });
                }
                _ if is_own && given.is_some() => given,
                Some(EffectiveConfig { status: ConfigStatus::Enforced, limits, .. }) => {
                    Some(limits)
                }
                Some(EffectiveConfig { status: ConfigStatus::Unlimited, .. }) => None,
                None => given,
            };
            match limits {
                Some(limits) => resolved_request.targets.push(self.target(
                    &session.settings,
                    Arc::clone(&bucket),
                    limits,
                    class.as_ref(),
                )?),
                None => resolved_request.has_unlimited |= is_own,
            }
            if let Some(EffectiveConfig { status: ConfigStatus::Unlimited, names, .. }) =
                config.filter(|_| is_own && given.is_none())
            {
                resolved_request.uncounted = match names.is_empty() {
                    true => Uncounted::Any,
                    false => Uncounted::Limits(names.clone()),
                };
            }
            if let Some(parent) = &resolved.parent {
                if seen.contains(parent) && rereads < REREADS {
                    // Cached items of different ages can show a cycle that the table never had.
                    (resolved_request, seen) = (begun(), vec![]);
                    (next, age, rereads) = (Some(Arc::clone(&own)), Freshness::Now, rereads + 1);
                    continue;
                }
                if seen.contains(parent) {
                    let text = "is its own ancestor: give it or an ancestor another parent";
                    return invalid(format!("entity {parent} {text}"));
                }
                seen.push(parent.clone());
                next = Some(buckets.bucket(parent.clone(), resource.clone()));
            }
        }
        if let Some(class) = class.as_ref().filter(|_| !is_fixed)
            && let Err(error) = check_class(class, &resolved_request.targets)
        {
            if age == Freshness::AnyAge && resolved_request.limits_may_be_stale {
                // The class may be new.
                age = Freshness::Recent;
                let again = self.resolve_chain(buckets, given, age, answer_by);
                return Box::pin(again).await;
            }
            return Err(error);
        }
        if resolved_request.has_unlimited {
            let all = resolved_request.targets.iter();
            let limits = all.flat_map(|target| target.request.limits.named());
            let names: Vec<_> = limits.map(|limit| limit.name().clone()).collect();
            let requested = self.amounts.iter();
            let requested = requested.filter_map(|(name, _)| LimitName::new(name.as_str()).ok());
            resolved_request.uncounted.extend(names.into_iter().chain(requested));
        }
        Ok(resolved_request)
    }

    /// Returns the request on one bucket, with the amounts of that bucket's limits.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an amount into debt that is too large, or a quota whose window this
    /// process does not know.
    fn target(
        &self,
        settings: &Settings,
        bucket: Arc<BucketState>,
        limits: &Limits,
        class: Option<&ClassName>,
    ) -> Result<BucketTarget, Error> {
        check_windows(limits)?;
        let is_shadow = settings.is_shadow || self.options.is_shadow;
        let mut request = BucketRequest {
            class: class.cloned(),
            timeout: self.timeout,
            acquires: i64::from(!self.is_into_debt),
            // A denial that is only reported makes nothing wait.
            start_by: self.start_by.filter(|_| !is_shadow),
            ..BucketRequest::of(limits.clone())
        };
        let mut takes_slots = false;
        for (name, amount) in &self.amounts {
            let mut known = limits.named().iter();
            let Some(limit) = known.find(|limit| limit.name().as_str() == name) else {
                continue;
            };
            let (least, most) = amount.range(name)?;
            let (name, rule) = (limit.name().clone(), limit.rule());
            // A slot is held, and usage that has happened holds none.
            if self.is_into_debt && rule.kind().is_held() {
                continue;
            }
            let effect = effect(limit.mode(), self.options.is_bypass, self.is_into_debt);
            let amount = match effect {
                Effect::Enforce => least,
                Effect::Count => most,
                Effect::IntoDebt => {
                    check_debt(&name, rule, most)?;
                    most
                }
            };
            takes_slots |= effect.debits() && rule.kind().is_held();
            self.check_queued_limit(&name, rule.kind(), effect)?;
            let ask = Ask { limit: name, amount, most, effect, floor: MilliTokens::ZERO };
            request.add(limit, ask);
        }
        if self.queue.is_some() && bucket.pool.is_some() {
            return invalid(format!(
                "a queue is requested for {}, which has prefetched tokens without an order: leave it out, or turn off prefetch for the resource",
                bucket.key.resource
            ));
        }
        let lease = self.lease.or_else(|| takes_slots.then_some(DEFAULT_LEASE));
        request.lease = lease.map(|lasts| (lasts, Arc::clone(&settings.owner)));
        Ok(BucketTarget { bucket, request, is_shadow, request_at: 0 })
    }

    /// Requires that the configuration of a bucket has the limits that are requested.
    fn check_configured(&self, bucket: &BucketKey, resolved: &ResolvedConfig) -> Result<(), Error> {
        let Some(config) = &resolved.config else {
            return Err(Error::NotConfigured {
                entity: bucket.entity.clone(),
                resource: bucket.resource.clone(),
                missing_plan: resolved.missing_plan.clone(),
            });
        };
        let EffectiveConfig { level, limits, .. } = &**config;
        match self.missing_limit(limits.named()) {
            Some(name) if config.status == ConfigStatus::Enforced => invalid(format!(
                "limit {name:?} is not among those configured for {level}: {}; take one of them, or configure it",
                names(limits.named())
            )),
            _ => Ok(()),
        }
    }

    /// Returns a requested limit that is not among `limits`.
    fn missing_limit(&self, limits: &[Limit]) -> Option<&str> {
        let has = |name: &str| limits.iter().any(|limit| limit.name().as_str() == name);
        let mut names = self.amounts.iter().map(|(name, _)| name.as_str());
        names.find(|name| !has(name))
    }

    /// Requires that a request that queues takes rates only: nothing knows when a slot returns, and a
    /// quota does not refill.
    fn check_queued_limit(
        &self,
        name: &LimitName,
        kind: LimitKind,
        effect: Effect,
    ) -> Result<(), Error> {
        let has = match kind {
            LimitKind::Slots => "slots, which return at any time",
            LimitKind::Quota => "a quota, which does not refill",
            LimitKind::Rate => return Ok(()),
        };
        if self.queue.is_none() || !effect.debits() {
            return Ok(());
        }
        invalid(format!(
            "limit {name:?} has {has}, so no request can queue for it: take it with a wait, or without a queue"
        ))
    }
}

/// Requires that a limit of some bucket has the class, if there are any.
fn check_class(class: &ClassName, targets: &[BucketTarget]) -> Result<(), Error> {
    let limits = targets.iter().flat_map(|target| target.request.limits.named());
    let known: BTreeSet<_> =
        limits.flat_map(Limit::classes).map(|class| class.name().as_str()).collect();
    if targets.is_empty() || known.contains(class.as_str()) {
        return Ok(());
    }
    let known = known.into_iter().collect::<Vec<_>>().join(", ");
    let remedy = match known.is_empty() {
        true => "none has classes; leave the class out, or add it to a limit".to_owned(),
        false => {
            format!("{known}; acquire with one of them or without a class, or add it to a limit")
        }
    };
    invalid(format!("class {class:?} is not among those of the limits: {remedy}"))
}

fn names(limits: &[Limit]) -> String {
    let names = limits.iter().map(|limit| limit.name().as_str());
    names.collect::<Vec<_>>().join(", ")
}

/// Requires that a grant of these targets could be settled, `held` parts included, in whatever shards
/// it is taken from. Nothing is taken before.
pub(super) fn check_targets(targets: &[BucketTarget], held: usize) -> Result<(), Error> {
    let count = targets.len();
    if count > MAX_BUCKETS {
        return Err(Error::Invalid(format!(
            "a request takes from {MAX_BUCKETS} buckets at most, with the ancestors of its entities, got {count}: request fewer, or shorten the chain of parents"
        )));
    }
    let most = usize::try_from(MAX_SHARDS).unwrap_or(usize::MAX);
    // Whatever the number of shards is, so few buckets have fewer parts.
    if held == 0 && count.saturating_mul(most) <= MAX_PARTS {
        return Ok(());
    }
    let shards = targets.iter().map(|target| target.bucket.all_queues().len().max(1));
    check_parts(shards.sum::<usize>().saturating_add(held))
}

/// Requires that one settlement does not write too much.
pub(super) fn check_parts(parts: usize) -> Result<(), Error> {
    match parts <= MAX_PARTS {
        true => Ok(()),
        false => Err(Error::Invalid(format!(
            "a grant can have {MAX_PARTS} parts, one for each shard that gave something, got {parts}: request fewer buckets, or settle the grant and acquire again"
        ))),
    }
}
