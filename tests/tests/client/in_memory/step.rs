//! What the processes do, at random, and the names and limits that they do it with.

use weirgate::{
    AuditSubject, Config, ConfigFilter, ConfigLevel, ConfigStatus, EntityId, Limit, LimitMode,
    RateLimiter, Resource,
};

use super::world::shown;

pub const ENTITIES: [&str; 3] = ["child", "parent", "other"];
/// The second process prefetches the last one.
pub const RESOURCES: [&str; 3] = ["gpt-4", "api", "ahead"];
pub const LIMITS: [&str; 3] = ["rpm", "tpm", "slots"];

#[derive(Debug, Clone)]
pub enum Step {
    Take(Take),
    Adjust(usize, usize, i64),
    Renew(usize, u64),
    Release(usize),
    RollBack(usize),
    Drop(usize),
    Peek(usize, usize, usize),
    Configure(usize, Option<usize>),
    Parent(usize, Option<usize>, bool),
    Forget(usize),
    Shards(usize, u32),
    ReleaseLease(usize, usize),
    Reconcile,
    TakeMore(usize, usize, i64),
    GiveBack(usize, usize, i64),
    /// Level, and whether it is stopped, exempt or neither.
    Switch(usize, Option<bool>),
    /// Resource of the first entity, and tokens to add to a limit, or none to drain it.
    Edit(usize, usize, Option<i64>),
    ApplyLimits(usize),
    List(usize),
    Pass(u64),
}

#[derive(Debug, Clone)]
pub struct Take {
    pub process: usize,
    pub entity: usize,
    pub resource: usize,
    pub amounts: [Option<i64>; 3],
    pub least: Option<i64>,
    pub lease_s: Option<u64>,
    pub wait_s: u64,
    pub has_limits: bool,
    pub cascades: bool,
}

pub fn entity(at: usize) -> EntityId {
    ENTITIES[at].try_into().unwrap()
}

pub fn resource(at: usize) -> Resource {
    RESOURCES[at].try_into().unwrap()
}

pub fn level(at: usize) -> ConfigLevel {
    match at {
        0 => ConfigLevel::EntityResource(entity(0), resource(0)),
        1 => ConfigLevel::Entity(entity(1)),
        2 => ConfigLevel::Resource(resource(1)),
        _ => ConfigLevel::System,
    }
}

pub fn limits() -> [Limit; 3] {
    [
        Limit::per_minute("rpm", 20).unwrap(),
        Limit::custom("tpm", 500, 100, 7_000).unwrap(),
        Limit::concurrent("slots", 3).unwrap(),
    ]
}

pub fn configured(at: usize) -> Config {
    let [rpm, tpm, slots] = limits();
    match at {
        0 => Config::of([rpm, tpm, slots]),
        1 => Config::of([
            rpm.with_burst(40).unwrap(),
            tpm.in_mode(LimitMode::Soft),
            slots.in_mode(LimitMode::Shadow),
        ]),
        2 => Config {
            status: ConfigStatus::Disabled,
            ..Config::default()
        },
        _ => Config {
            status: ConfigStatus::Unlimited,
            ..Config::default()
        },
    }
}

pub async fn list(limiter: &RateLimiter, at: usize) -> String {
    let (entity, resource) = (entity(0), resource(at % RESOURCES.len()));
    match at {
        0 => shown(limiter.entity_buckets(&entity, None).await),
        1 => shown(limiter.resource_buckets(&resource, None).await),
        2 => shown(limiter.entities(None).await),
        3 => shown(limiter.children(&"parent".try_into().unwrap(), None).await),
        4 => {
            let audit = limiter.audit(&AuditSubject::System, None);
            let changes = audit.await.map(|page| {
                let events = page.items.into_iter();
                events
                    .map(|event| (event.principal, event.change))
                    .collect::<Vec<_>>()
            });
            shown(changes)
        }
        5 => {
            let of = ConfigFilter::Resource(resource);
            shown(limiter.configs(&of, None).await)
        }
        _ => shown(limiter.namespaces(None).await),
    }
}
