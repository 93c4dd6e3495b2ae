//! Reads what decides about a bucket.

use std::collections::{BTreeSet, HashSet};

use futures_util::future::try_join_all;
use weirgate::{
    AuditSubject, ClassName, Clock, Config, ConfigLevel, ConfigStatus, Entity, EntityId, Error,
    LimitKind, LimitMode, LimitStatus, RateLimiter, Resource, StoredBucket, SystemClock,
    Unreadable,
};
use weirgate_shared::Switches;

use super::advice::{Verdict, advice, by_verdict};
use super::fields::change_fields;
use super::reasons::{self, Change, Known, LEASES, Level, Reasons, is_of};
use super::saturation::{Saturation, Used};
use super::window::{resets, scale};

/// Changes that are told, the newest first.
const CHANGES: u8 = 5;
/// What a report of a bucket's use in an hour costs, in halves of a read unit, and how much more if
/// the bucket was ever split: all shards that it may have had are read.
const USE: u64 = 4;
const USE_OF_SPLIT: u64 = 128;

/// The bucket of an entity on the resource, as the table has it.
struct Found {
    entity: EntityId,
    bucket: Option<StoredBucket>,
    /// `None` if it is unknown.
    used: Option<Used>,
    halves: u64,
}

impl Reasons {
    /// Reads what decides about a bucket.
    ///
    /// Without parents, that is about 12 read units: 1 for the entity, 1 for the switches, 4 for the
    /// levels, 1 for the bucket, 2 for its use in this hour, 3 for the last changes, and 1 for
    /// leases if there are any. Each parent costs 4 more, and 3 if its bucket is taken from too. The
    /// use of a bucket that was ever split costs 64 more. Of a limit with classes, a balance does not tell
    /// whether a caller gets a token. So if nothing else keeps the bucket from granting, an acquire of one
    /// token is planned too, which reads all but the use, the changes and the leases again.
    ///
    /// `class` is that of the acquire. `used` has what is known of the use of the entity's bucket, which is
    /// not read then.
    ///
    /// # Errors
    /// [`Error`] if the table cannot be read.
    pub async fn read(
        limiter: &RateLimiter,
        entity: EntityId,
        resource: Resource,
        class: Option<&ClassName>,
        used: Option<Used>,
    ) -> Result<Self, Error> {
        let admin = limiter.admin();
        let entities = with_ancestors(limiter, &entity).await?;
        let in_force = admin.switches_in_force().await?;
        let mut unreadable = in_force.unreadable;
        let switches =
            Switches { levels: in_force.items.into_iter().collect(), ..Switches::default() };
        let levels = all_levels(limiter, &entities, &resource, &switches).await?;
        let mut missing_plan = None;
        for plan in entities.iter().filter_map(|entity| entity.plan.as_ref()) {
            let is_of = |of: &&Level| of.level.plan() == Some(plan) && of.config.is_some();
            if missing_plan.is_none()
                && levels.iter().find(is_of).is_none()
                && !admin.has_plan(plan).await?
            {
                missing_plan = Some(plan.clone());
            }
        }
        let mut cascades = true;
        let taken_from =
            entities.iter().take_while(|entity| std::mem::replace(&mut cascades, entity.cascades));
        let taken_from: Vec<_> = taken_from.cloned().collect();
        let found = taken_from.iter().map(|taken| {
            let used = used.as_ref().filter(|_| taken.id == entity);
            Found::read(limiter, &taken.id, &resource, used)
        });
        let found = try_join_all(found).await?;
        let peeked = match found.iter().all(|found| found.bucket.is_some()) {
            true => vec![],
            false => peek(limiter, &entity, &resource).await?,
        };
        let (mut limits, now) = (vec![], SystemClock.now());
        for found in &found {
            let of_bucket = found.bucket.as_ref().map(|bucket| bucket.limits.clone());
            let peeked = peeked.iter().filter(|of| of.entity == found.entity);
            let statuses = of_bucket.unwrap_or_else(|| peeked.cloned().collect());
            limits.extend(statuses.into_iter().map(|status| {
                let of = entities.iter().find(|of| of.id == status.entity);
                let plan = of.and_then(|of| of.plan.as_ref());
                let configured = reasons::in_force(&levels, &status.entity, plan, &resource);
                Known {
                    from: configured
                        .filter(|(_, config)| is_of(&status, config))
                        .map(|(level, _)| level.clone()),
                    other_kind: configured.and_then(|(level, config)| {
                        let mut limits = config.limits.iter();
                        let limit = limits.find(|limit| limit.name().as_str() == status.limit)?;
                        // A rate and a quota may take each other's name.
                        let is_other = limit.rule().kind().is_held() != status.kind().is_held();
                        is_other.then(|| (level.clone(), limit.clone()))
                    }),
                    saturation: Saturation::of(&status, found.used.as_ref()),
                    resets: resets(&status),
                    scale: configured.and_then(|(_, config)| {
                        let mut limits = config.limits.iter();
                        let limit = limits.find(|limit| limit.name().as_str() == status.limit)?;
                        scale(limit.schedule()?, now)
                    }),
                    status,
                }
            }));
        }
        let (changes, unread) = last_changes(limiter, &entities, &resource).await?;
        unreadable.extend(unread);
        let own = found.first().and_then(|found| found.bucket.as_ref());
        let lease_count = own.map_or(0, |bucket| bucket.leases);
        // An item of each entity and each level, the switches, and a page of each subject's changes.
        let items = 2 * entities.len() + levels.len() + 3;
        let mut halves = 2 * u64::try_from(items).unwrap_or(u64::MAX);
        halves += found.iter().map(|found| found.halves).sum::<u64>();
        let mut leases = vec![];
        if lease_count > 0 {
            halves += of_shards(own);
            let listed = admin.leases(entity.as_str(), resource.as_str()).await?;
            unreadable.extend(listed.unreadable);
            leases = listed.items;
            leases.truncate(LEASES);
        }
        let mut reasons = Self {
            halves,
            limits,
            missing_plan,
            stopped_at: stopped_at(&switches, &entities, &resource),
            lease_count,
            leases,
            changes,
            unreadable,
            next: vec![],
            entity,
            resource,
            entities,
            levels,
        };
        reasons.next = advice(&reasons, &taken_from);
        if let (true, Some((_, config))) = (reasons.next.is_empty(), reasons.in_force()) {
            let mut configs = taken_from.iter().filter_map(|of| reasons.in_force_for(of));
            let is_of_class = class.is_some()
                || configs.any(|(_, config)| {
                    let mut limits = config.limits.iter();
                    limits.any(|limit| !limit.classes().is_empty())
                });
            let verdict = match is_of_class {
                true => verdict(limiter, &reasons, config, class).await?,
                // The balances are all that a plan has.
                false => Verdict::Short(vec![]),
            };
            let shards = found.iter().map(|found| of_shards(found.bucket.as_ref()));
            let again = 2 * u64::try_from(items).unwrap_or(u64::MAX) + shards.sum::<u64>();
            let next = by_verdict(&reasons, verdict, class);
            reasons.next = next;
            reasons.halves += if is_of_class { again } else { 0 };
        }
        Ok(reasons)
    }
}

impl Found {
    async fn read(
        limiter: &RateLimiter,
        entity: &EntityId,
        resource: &Resource,
        used: Option<&Used>,
    ) -> Result<Self, Error> {
        let bucket = limiter.admin().bucket(entity, resource).await?;
        let limits = bucket.iter().flat_map(|bucket| &bucket.limits);
        let has_rates = limits.map(LimitStatus::kind).any(|kind| kind == LimitKind::Rate);
        let mut halves = of_shards(bucket.as_ref());
        let used = match used {
            Some(used) => Some(used.clone()),
            None if has_rates => {
                halves += USE + if halves > 2 { USE_OF_SPLIT } else { 0 };
                Used::this_hour(limiter, entity, resource, SystemClock.now()).await?
            }
            None => None,
        };
        Ok(Self { entity: entity.clone(), bucket, used, halves })
    }
}

/// Returns what a read of all shards of a bucket costs, in halves of a read unit.
fn of_shards(bucket: Option<&StoredBucket>) -> u64 {
    match bucket.map_or(1, |bucket| bucket.shards) {
        0 | 1 => 2,
        shards => 3 + u64::from(shards),
    }
}

/// Returns an entity and its ancestors, the entity first.
async fn with_ancestors(limiter: &RateLimiter, entity: &EntityId) -> Result<Vec<Entity>, Error> {
    let mut entities: Vec<Entity> = vec![];
    let mut next = Some(entity.clone());
    while let Some(id) = next.filter(|id| !entities.iter().any(|known| known.id == *id)) {
        let stored = limiter.admin().entity(&id).await?;
        let entity = stored.unwrap_or_else(|| Entity::new(id));
        next = entity.parent.clone();
        entities.push(entity);
    }
    Ok(entities)
}

/// Returns every level of the entities, the narrowest first.
async fn all_levels(
    limiter: &RateLimiter,
    entities: &[Entity],
    resource: &Resource,
    switches: &Switches,
) -> Result<Vec<Level>, Error> {
    let mut levels: Vec<_> = entities
        .iter()
        .flat_map(|entity| ConfigLevel::of_entity(&entity.id, entity.plan.as_ref(), resource))
        .filter(ConfigLevel::has_members)
        .collect();
    let mut seen = HashSet::new();
    levels.retain(|level| seen.insert(level.clone()));
    levels.extend([ConfigLevel::Resource(resource.clone()), ConfigLevel::System]);
    let configs = limiter.admin().read_configs(&levels).await?;
    let levels = levels.into_iter().zip(configs);
    Ok(levels
        .map(|(level, config)| Level {
            switch: switches.levels.get(&level).copied(),
            config: config.value,
            level,
        })
        .collect())
}

/// Plans an acquire of one token of each limit, as a peek does.
async fn verdict(
    limiter: &RateLimiter,
    reasons: &Reasons,
    config: &Config,
    class: Option<&ClassName>,
) -> Result<Verdict, Error> {
    let mut peek = limiter.peek(reasons.entity.as_str(), reasons.resource.as_str());
    for limit in &config.limits {
        peek = peek.need(limit.name().as_str(), 1);
    }
    if let Some(class) = class {
        peek = peek.class(class.as_str());
    }
    let balances = match peek.send().await {
        Ok(balances) => balances,
        Err(Error::Invalid(reason)) => return Ok(Verdict::Refused(reason)),
        Err(error) => return Err(error),
    };
    if balances.status == ConfigStatus::Disabled {
        return Ok(Verdict::Disabled);
    }
    let is_short = |status: &LimitStatus| status.mode == LimitMode::Enforced && status.is_short();
    let short = balances.limits.into_iter().filter(is_short).collect();
    Ok(Verdict::Short(short))
}

/// Returns the limits of buckets that have no item: by their configuration, and full.
async fn peek(
    limiter: &RateLimiter,
    entity: &EntityId,
    resource: &Resource,
) -> Result<Vec<LimitStatus>, Error> {
    let peek = limiter.peek(entity.as_str(), resource.as_str());
    match peek.send().await {
        Ok(balances) => Ok(balances.limits),
        Err(Error::NotConfigured { .. }) => Ok(vec![]),
        Err(error) => Err(error),
    }
}

/// Returns the level that stops a bucket. A stop of an ancestor is meant for all its descendants.
fn stopped_at(
    switches: &Switches,
    entities: &[Entity],
    resource: &Resource,
) -> Option<ConfigLevel> {
    let mut stops = entities.iter().enumerate().filter_map(|(generation, entity)| {
        let level = switches.stopping(&entity.id, entity.plan.as_ref(), resource)?;
        (generation == 0 || level.has_members()).then_some(level)
    });
    stops.next()
}

/// Returns the last changes of all levels that decide, the newest first, and those that cannot be read.
async fn last_changes(
    limiter: &RateLimiter,
    entities: &[Entity],
    resource: &Resource,
) -> Result<(Vec<Change>, Vec<Unreadable>), Error> {
    let mut subjects = BTreeSet::new();
    for entity in entities {
        subjects.insert(AuditSubject::Entity(entity.id.clone()));
        subjects.extend(entity.plan.clone().map(AuditSubject::Plan));
    }
    subjects.extend([AuditSubject::Resource(resource.clone()), AuditSubject::System]);
    let admin = limiter.admin();
    let read = subjects.iter().map(|subject| admin.last_changes(subject, CHANGES));
    let pages = try_join_all(read).await?;
    let (mut changes, mut unreadable) = (vec![], vec![]);
    for page in pages {
        changes.extend(page.items);
        unreadable.extend(page.unreadable);
    }
    changes.sort_by_key(|change| std::cmp::Reverse(change.id));
    changes.truncate(usize::from(CHANGES));
    let changes =
        changes.into_iter().map(|event| Change { fields: change_fields(&event.change), event });
    Ok((changes.collect(), unreadable))
}
