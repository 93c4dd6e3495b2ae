//! I3: usage that was read as final never changes.

use std::time::Duration;

use weirgate::{RateLimiter, Window};
use weirgate_shared::Millis;

use crate::operator::operator;
use crate::world::World;

/// Reads the last windows every few seconds until faults are over.
pub async fn read_often(world: &World) {
    let reader = operator(world).await;
    while !world.are_faults_over() {
        world.pass(Duration::from_secs(3)).await;
        read(world, &reader).await;
    }
}

/// Reads the last windows that are over, and those that were final before.
pub async fn read(world: &World, reader: &RateLimiter) {
    if world.scenario().loses_usage() {
        return;
    }
    let mut all = world.finals().clone();
    for (plan, window) in
        (world.scenario().buckets.iter()).flat_map(|plan| Window::ALL.map(|window| (plan, window)))
    {
        let before = window.start(world.now()).plus(Millis(-1));
        let of = (plan.entity.clone(), window, window.start(before));
        all.entry(of).or_default();
    }
    for (entity, window, start) in all.into_keys() {
        let read = match reader.usage(&entity, "api", window, start).await {
            Ok(read) => read,
            Err(error) => {
                world.violated(format!("I3: nothing goes wrong, and usage of {entity}: {error}"));
                continue;
            }
        };
        let of = (entity, window, start);
        let known = world.finals().get(&of).cloned();
        match known {
            Some(known) if known != read.usage => {
                world.finals().remove(&of);
                let (entity, window, start) = of;
                world.violated(format!(
                    "I3: the {window} of {start:?} of {entity} was final with {known:?}, and is {read:?}"
                ));
            }
            None if read.is_final() => drop(world.finals().insert(of, read.usage)),
            _ => {}
        }
    }
}
