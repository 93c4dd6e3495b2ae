//! `weirgate why`.

use std::collections::BTreeMap;

use clap::Args;
use serde::Serialize;
use weirgate::{
    AuditEvent, AuditSubject, Config, ConfigLevel, ConfigStatus, Entity, EntityId, Error,
    LimitKind, LimitStatus, RateLimiter, Resource, StoredBucket, Switch,
};
use weirgate_shared::Switches;

use super::audit;
use super::balances::BucketArgs;
use super::limits::show;
use super::peek;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::level;
use crate::output::Output;

/// Changes that are shown, the newest first.
const CHANGES: usize = 5;

/// Explains what decides about a bucket, and what to run next.
///
/// The levels with their limits and switches, the entity's parents, each limit with its balance and
/// the level that it comes from, and the last changes.
#[derive(Debug, Args)]
#[command(after_help = "Example: weirgate why user-1 gpt-4")]
pub struct Why {
    #[command(flatten)]
    bucket: BucketArgs,
}

/// All that decides about a bucket. Its JSON is documented in `docs/guide/command-line.md`.
#[derive(Debug, Serialize)]
struct Reasons {
    entity: EntityId,
    resource: Resource,
    /// The entity and its ancestors, the entity first.
    entities: Vec<Entity>,
    /// Every level of them, the narrowest first.
    levels: Vec<Level>,
    /// The level that stops the bucket.
    stopped_at: Option<ConfigLevel>,
    /// Limits of the bucket, and of those of its ancestors that its acquires take from.
    limits: Vec<Known>,
    changes: Vec<AuditEvent>,
    /// Commands to run next, each with its reason.
    next: Vec<Next>,
}

#[derive(Debug, Serialize)]
struct Level {
    #[serde(flatten)]
    level: ConfigLevel,
    config: Option<Config>,
    switch: Option<Switch>,
}

#[derive(Debug, Serialize)]
struct Known {
    #[serde(flatten)]
    status: LimitStatus,
    /// The level that it comes from; `None` if the bucket has another limit than the table: callers
    /// bring it with the call or from a file, or none has taken since a change.
    from: Option<ConfigLevel>,
}

#[derive(Debug, Serialize)]
struct Next {
    reason: String,
    command: String,
}

impl Why {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let limiter = context.limiter().await?;
        let entity = EntityId::new(&*self.bucket.entity)?;
        let resource = Resource::new(&*self.bucket.resource)?;
        let reasons = Reasons::of(&limiter, entity, resource).await?;
        let output = context.output();
        output.print(&reasons, |reasons| reasons.text(output))?;
        Ok(Outcome::Done)
    }
}

impl Next {
    fn new(reason: String, command: &str) -> Self {
        Self {
            reason,
            command: format!("weirgate {command}"),
        }
    }
}

impl Known {
    fn advice(&self) -> impl Iterator<Item = Next> {
        let LimitStatus {
            limit,
            entity,
            resource,
            ..
        } = &self.status;
        let is_out = self.status.available.whole_tokens() <= 0;
        let by_callers = self.from.is_none().then(|| {
            let reason = format!(
                "{limit} of {entity} is not the table's: callers bring it with the call or from a \
                 file, or none has taken since a change"
            );
            Next::new(reason, &format!("audit --resource {resource}"))
        });
        let by_balance = is_out.then(|| match self.status.kind() {
            LimitKind::Slots => Next::new(
                format!("all slots of {limit} of {entity} are held"),
                &format!("leases list {entity} {resource}"),
            ),
            LimitKind::Rate => Next::new(
                format!("{limit} of {entity} is used up"),
                &format!("usage --entity {entity} --resource {resource} --by hour --from 1d"),
            ),
        });
        by_callers.into_iter().chain(by_balance)
    }
}

impl Reasons {
    async fn of(
        limiter: &RateLimiter,
        entity: EntityId,
        resource: Resource,
    ) -> Result<Self, Failure> {
        let admin = limiter.admin();
        let entities = entities(limiter, &entity).await?;
        let switches: BTreeMap<_, _> = admin.switches().await?.items.into_iter().collect();
        let switches = Switches {
            levels: switches,
            ..Switches::default()
        };
        let mut levels: Vec<_> = entities
            .iter()
            .flat_map(|entity| ConfigLevel::of(&entity.id, &resource))
            .filter(|level| level.entity().is_some())
            .collect();
        levels.extend([ConfigLevel::Resource(resource.clone()), ConfigLevel::System]);
        let configs = admin.read_configs(&levels).await?;
        let levels = levels.into_iter().zip(configs);
        let levels: Vec<_> = levels
            .map(|(level, config)| Level {
                switch: switches.levels.get(&level).copied(),
                config: config.value,
                level,
            })
            .collect();
        let peeked = match limiter
            .peek(entity.as_str(), resource.as_str())
            .send()
            .await
        {
            Ok(balances) => balances.limits,
            Err(Error::NotConfigured { .. }) => vec![],
            Err(error) => return Err(error.into()),
        };
        let known = |status: LimitStatus| Known {
            from: in_force(&levels, &status.entity, &resource)
                .filter(|(_, config)| is_of(&status, config))
                .map(|(level, _)| level.clone()),
            status,
        };
        let taken_from = entities.iter().take_while({
            let mut cascades = true;
            move |entity| std::mem::replace(&mut cascades, entity.cascades)
        });
        let mut limits = vec![];
        for Entity { id, .. } in taken_from {
            match bucket(limiter, id, &resource).await? {
                Some(bucket) => limits.extend(bucket.limits),
                None => limits.extend(peeked.iter().filter(|of| of.entity == *id).cloned()),
            }
        }
        let mut reasons = Self {
            limits: limits.into_iter().map(known).collect(),
            stopped_at: stopped_at(&switches, &entities, &resource),
            changes: changes(limiter, &entities, &resource).await?,
            next: vec![],
            entity,
            resource,
            entities,
            levels,
        };
        reasons.next = reasons.advice();
        Ok(reasons)
    }

    /// Returns what to run next: what keeps the bucket from granting comes first.
    fn advice(&self) -> Vec<Next> {
        let Self {
            entity, resource, ..
        } = self;
        let config = in_force(&self.levels, entity, resource);
        let by_stop = self.stopped_at.as_ref().map(|level| {
            let command = format!("start {}", level::options(level));
            Next::new(format!("{level} is stopped"), &command)
        });
        let by_config = match config {
            None if self.limits.is_empty() => Some(Next::new(
                "no limits are configured".to_owned(),
                &format!("limits set --resource {resource} rpm=600/minute"),
            )),
            Some((level, config)) if config.status != ConfigStatus::Enforced => Some(Next::new(
                format!("{level} is {}", config.status.as_str()),
                &format!("limits set {} --enforced", level::options(level)),
            )),
            _ => None,
        };
        let by_limit = self.limits.iter().flat_map(|known| known.advice());
        let next = by_stop.into_iter().chain(by_config).chain(by_limit);
        let mut next: Vec<_> = next.collect();
        if let (true, Some(Known { status, .. })) = (next.is_empty(), self.limits.first()) {
            next.push(Next::new(
                "nothing here denies an acquire of one token".to_owned(),
                &format!("acquire {entity} {resource} {}=1", status.limit),
            ));
        }
        next
    }

    fn text(&self, output: &Output) -> String {
        let mut parts = vec![];
        let in_force = in_force(&self.levels, &self.entity, &self.resource);
        let is_own = |level: &Level| level.level.entity().is_none_or(|of| *of == self.entity);
        let levels = self
            .levels
            .iter()
            .filter(|level| is_own(level) || level.config.is_some() || level.switch.is_some());
        let row = |level: &Level| {
            let is_in_force = in_force.is_some_and(|(in_force, _)| *in_force == level.level);
            let limits = level.config.as_ref().map(show::one_line);
            vec![
                format!("{} {}", if is_in_force { "*" } else { " " }, level.level),
                limits.unwrap_or_else(|| "-".to_owned()),
                level.switch.map_or("-", Switch::as_str).to_owned(),
            ]
        };
        parts.push(output.table(&["  level", "limits", "switch"], levels.map(row)));
        let parents: Vec<_> = self
            .entities
            .windows(2)
            .map(|pair| {
                let takes = if pair[0].cascades {
                    "also takes from it"
                } else {
                    "takes nothing from it"
                };
                format!("{} has the parent {}, and {takes}", pair[0].id, pair[1].id)
            })
            .collect();
        parts.extend((!parents.is_empty()).then(|| parents.join("\n")));
        if let Some(level) = &self.stopped_at {
            parts.push(format!("stopped at {level}"));
        }
        if !self.limits.is_empty() {
            let columns = [&["of"][..], &peek::COLUMNS, &["from"]].concat();
            let row = |Known { status, from }: &Known| {
                let from = from
                    .as_ref()
                    .map_or("not the table".to_owned(), ToString::to_string);
                [
                    vec![status.entity.to_string()],
                    peek::row(status),
                    vec![from],
                ]
                .concat()
            };
            parts.push(output.table(&columns, self.limits.iter().map(row)));
        }
        if !self.changes.is_empty() {
            parts.push(output.table(&audit::COLUMNS, self.changes.iter().flat_map(audit::rows)));
        }
        let next = self
            .next
            .iter()
            .map(|Next { reason, command }| vec![reason.clone(), command.clone()]);
        parts.push(output.table(&["next: because", "run"], next));
        parts.join("\n\n")
    }
}

/// Returns an entity and its ancestors, the entity first.
async fn entities(limiter: &RateLimiter, entity: &EntityId) -> Result<Vec<Entity>, Failure> {
    let mut entities: Vec<Entity> = vec![];
    let mut next = Some(entity.clone());
    while let Some(id) = next.filter(|id| !entities.iter().any(|known| known.id == *id)) {
        let stored = limiter.admin().entity(&id).await?;
        let entity = stored.unwrap_or(Entity {
            id,
            parent: None,
            cascades: false,
        });
        next = entity.parent.clone();
        entities.push(entity);
    }
    Ok(entities)
}

/// Returns a bucket as the table has it. A configuration that has changed since its last take is not
/// that of its limits.
async fn bucket(
    limiter: &RateLimiter,
    entity: &EntityId,
    resource: &Resource,
) -> Result<Option<StoredBucket>, Failure> {
    let mut page = limiter.admin().entity_buckets(entity, None).await?;
    loop {
        let mut buckets = page.items.into_iter();
        let found = buckets.find(|bucket| bucket.resource == *resource);
        let (None, Some(next)) = (&found, &page.next) else {
            return Ok(found);
        };
        page = limiter.admin().entity_buckets(entity, Some(next)).await?;
    }
}

/// Returns the level that stops a bucket. A stop of an ancestor is meant for all its descendants.
fn stopped_at(
    switches: &Switches,
    entities: &[Entity],
    resource: &Resource,
) -> Option<ConfigLevel> {
    let mut stops = entities
        .iter()
        .enumerate()
        .filter_map(|(generation, entity)| {
            let level = switches.stopping(&entity.id, resource)?;
            (generation == 0 || level.entity().is_some()).then_some(level)
        });
    stops.next()
}

/// Returns the narrowest configured level of an entity, which wins.
fn in_force<'l>(
    levels: &'l [Level],
    entity: &EntityId,
    resource: &Resource,
) -> Option<(&'l ConfigLevel, &'l Config)> {
    ConfigLevel::of(entity, resource).iter().find_map(|of| {
        let level = levels.iter().find(|level| level.level == *of)?;
        Some((&level.level, level.config.as_ref()?))
    })
}

/// Returns whether a bucket's limit is that of a configuration.
fn is_of(status: &LimitStatus, config: &Config) -> bool {
    config.limits.iter().any(|limit| {
        let rule = limit.rule();
        limit.name().as_str() == status.limit
            && status.capacity == rule.capacity
            && status.refill_amount == rule.refill_amount
            && status.refill_period.as_millis() == u128::from(rule.refill_period_ms.unsigned_abs())
    })
}

/// Returns the last changes of all levels that decide, the newest first.
async fn changes(
    limiter: &RateLimiter,
    entities: &[Entity],
    resource: &Resource,
) -> Result<Vec<AuditEvent>, Failure> {
    let entities = entities.iter();
    let mut subjects: Vec<_> = entities
        .map(|entity| AuditSubject::Entity(entity.id.clone()))
        .collect();
    subjects.extend([
        AuditSubject::Resource(resource.clone()),
        AuditSubject::System,
    ]);
    let mut changes = vec![];
    for subject in &subjects {
        changes.extend(limiter.admin().audit(subject, None).await?.items);
    }
    changes.sort_by_key(|change| std::cmp::Reverse(change.id));
    changes.truncate(CHANGES);
    Ok(changes)
}
