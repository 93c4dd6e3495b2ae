//! Requests to one bucket while nothing else happens.

use std::time::Duration;

use weirgate::{Acquire, Decision, Error, RateLimiter, RefillRule};

use crate::limiter::limiter;
use crate::network::Network;
use crate::scenario::Plan;
use crate::stored_shard::stored_shard;
use crate::world::World;

/// Returns the limiter of a new process without network latency.
pub(super) async fn newcomer(world: &World) -> RateLimiter {
    limiter(&Network::beside(world, "calm"), &world.clock(), false).await
}

/// Returns a request of the last release.
pub(super) fn ask<'a>(world: &World, limiter: &'a RateLimiter, plan: &Plan) -> Acquire<'a> {
    let request = limiter.acquire(&plan.entity, &plan.resource);
    if world.scenario().moves() {
        world.scenario().sources[1].ask(request, &plan.limits)
    } else {
        request.limits(&plan.limits)
    }
}

/// Returns whether the bucket's items have a limit as another kind than `plan`: an item keeps the
/// kind that it was made with, and refuses the other one.
pub(super) fn has_other_kind(world: &World, plan: &Plan) -> bool {
    let items = world.dynamo().items();
    let mut shards = items.iter().filter_map(|item| {
        let pk = item["PK"]["S"].as_str().unwrap_or_default();
        stored_shard(pk, item).filter(|shard| shard.key.entity.as_str() == plan.entity)
    });
    shards.any(|shard| {
        let mut limits = plan.limits.iter();
        limits.any(|limit| shard.other_kind(limit).is_some())
    })
}

/// Takes `tokens` of the rate. If denied, returns the retry-after, if there is one.
pub(super) async fn take(
    world: &World,
    limiter: &RateLimiter,
    plan: &Plan,
    tokens: i64,
) -> Result<(), Option<Duration>> {
    let ask = ask(world, limiter, plan).take("rate", tokens);
    match ask.send().await {
        Ok(Decision::Granted(_)) => Ok(()),
        Ok(Decision::Denied(denied)) => Err(denied.retry_after),
        Err(Error::Invalid(_)) if has_other_kind(world, plan) => Err(None),
        other => {
            world.violated(format!(
                "I2: nothing goes wrong, and {tokens} of {} are answered {other:?}",
                plan.entity
            ));
            Err(None)
        }
    }
}

/// Takes tokens one by one until the first denial.
pub(super) async fn empty(world: &World, limiter: &RateLimiter, plan: &Plan) {
    for _ in 0..=plan.limits[0].rule().capacity.whole_tokens() {
        if take(world, limiter, plan, 1).await.is_err() {
            return;
        }
    }
}

/// Returns the time in which `tokens` are refilled.
pub(super) fn time_to_refill(rule: &RefillRule, tokens: i64) -> Duration {
    let ms = (tokens * 1000 * rule.refill_period_ms).div_euclid(rule.refill_amount.0) + 1;
    Duration::from_millis(ms.unsigned_abs())
}

/// Waits until the bucket is full. A window of a quota then begins.
pub(super) async fn rest(world: &World, plan: &Plan) {
    let rule = plan.limits[0].rule();
    let span = world.scenario().quotas.span(rule);
    let rest = span.map_or_else(
        || time_to_refill(rule, 2 * rule.capacity.whole_tokens()),
        |span| span.rest(world.now()),
    );
    world.pass(rest).await;
}
