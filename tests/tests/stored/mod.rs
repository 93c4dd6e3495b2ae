//! Limits that live in the table.

#![allow(dead_code, reason = "each test file uses its own part")]

use weirgate::{
    Config, ConfigLevel, Decision, Entity, EntityId, Error, Limit, LimitStatus, RateLimiter,
    Resource,
};

use crate::fleet::Fleet;

pub fn entity(name: &str) -> EntityId {
    EntityId::new(name).unwrap()
}

pub fn resource(name: &str) -> Resource {
    Resource::new(name).unwrap()
}

/// So many requests a minute.
pub fn rpm(rate: i64) -> Limit {
    Limit::per_minute("rpm", rate).unwrap()
}

/// An entity that cascades to its parent.
pub fn child(id: &str, parent: &str) -> Entity {
    Entity {
        id: entity(id),
        parent: Some(entity(parent)),
        cascades: true,
    }
}

/// A process that has configured a level.
pub async fn configured(
    fleet: &Fleet,
    level: &ConfigLevel,
    limits: impl Into<Vec<Limit>>,
) -> RateLimiter {
    let limiter = fleet.limiter().await;
    limiter
        .set_config(level, &Config::of(limits))
        .await
        .unwrap();
    limiter
}

/// Takes requests of the bucket that tests use if they need only one, by what is configured.
pub async fn take(limiter: &RateLimiter, amount: i64) -> Result<Decision, Error> {
    limiter
        .acquire("e-1", "gpt-4")
        .take("rpm", amount)
        .send()
        .await
}

/// The names of limits, sorted.
pub fn names(limits: &[LimitStatus]) -> Vec<String> {
    let mut names: Vec<_> = limits.iter().map(|status| status.limit.clone()).collect();
    names.sort();
    names
}
