//! What comes when nothing goes wrong any more: everything settles, writes end, and all that was promised is there.

use std::time::Duration;

use weirgate::{Decision, FakeClock, Limit, MilliTokens, RateLimiter, Rule};
use weirgate_shared::{Shard, credit};

use crate::caller::{Record, told};
use crate::check;
use crate::fault::Kind;
use crate::fleet::limiter;
use crate::functions::{Mapping, reconcile};
use crate::net::Net;
use crate::scenario::Plan;
use crate::world::World;

/// Until every lease has expired, every balance is full again, and what was on its way has arrived.
const REST: Duration = Duration::from_secs(120);
/// Rounds of the functions after which writes must have ended: leases go back in one, four shards become one in three.
const ROUNDS: usize = 8;

/// Lets everything settle, and holds what callers were told against the table.
pub async fn settle(world: &World, mapping: &mut Mapping, record: &Record) {
    world.pass(REST).await;
    for round in 0.. {
        let before = world.writes();
        reconcile(world).await;
        mapping.drain().await;
        world.pass(Duration::from_secs(60)).await;
        if world.writes() == before {
            break;
        }
        if round == ROUNDS {
            world.violated(format!("I7: nobody calls, and {} writes were made again", world.writes() - before));
            break;
        }
    }
    {
        let told = told(record);
        check::admitted(world, &told);
        check::consumed(world, &told);
    }
    check::counted(world);
    let limiter = newcomer(world).await;
    for plan in world.scenario().buckets.iter().filter(|plan| is_known(world, plan)) {
        is_whole(world, &limiter, plan).await;
        waits_it_out(world, &limiter, plan).await;
        if world.scenario().tries_edge {
            gives_what_flows_in(world, &limiter, plan).await;
        }
    }
    reconcile(world).await;
    mapping.drain().await;
    check::counted(world);
    outlives_ttl(world, mapping, &limiter).await;
}

/// Whether it is known what a bucket must have: what a cascading child takes is taken of its parent too, and limits that
/// change may not have reached it yet.
fn is_known(world: &World, plan: &Plan) -> bool {
    plan.parent.is_none() && !world.scenario().has_changes()
}

/// A process that has just begun, so close to the table that no time passes until it is answered.
async fn newcomer(world: &World) -> RateLimiter {
    limiter(&Net::beside(world, "calm"), &FakeClock::at(world.now()), false).await
}

/// When everything that has a `ttl` is past it.
const SEASON: Duration = Duration::from_secs(100 * 86_400);

/// What TTL deletes, perhaps days late, is missed by nobody: balances are what they were, and usage goes on.
async fn outlives_ttl(world: &World, mapping: &mut Mapping, limiter: &RateLimiter) {
    world.pass(SEASON).await;
    for item in world.dynamo().items() {
        let Some(ttl) = item["ttl"]["N"].as_str().and_then(|text| text.parse::<i64>().ok()) else { continue };
        if ttl * 1000 < world.now().0 {
            let text = |name: &str| item[name]["S"].as_str().unwrap_or_default().to_owned();
            world.dynamo().delete(&text("PK"), &text("SK"));
            world.count(Kind::TtlDeleted);
        }
    }
    world.look();
    for plan in world.scenario().buckets.iter().filter(|plan| is_known(world, plan)) {
        is_whole(world, limiter, plan).await;
    }
    let before = world.consumed();
    for plan in &world.scenario().buckets {
        let _ = take(limiter, plan, 1).await;
        if is_known(world, plan) {
            gives_no_more(world, plan).await;
        }
    }
    mapping.drain().await;
    check::counted_since(world, &before);
}

/// Takes `tokens` of the rate; for how long it was denied, if it was.
async fn take(limiter: &RateLimiter, plan: &Plan, tokens: i64) -> Result<(), Option<Duration>> {
    let take = limiter.acquire(&plan.entity, &plan.resource).limits(&plan.limits).take("rate", tokens).send().await;
    match take.expect("nothing goes wrong any more") {
        Decision::Granted(_) => Ok(()),
        Decision::Denied(denied) => Err(denied.retry_after),
        other => panic!("{other:?} is no answer to a request that fits"),
    }
}

/// I4, I6, I7: after a rest, every token and every slot is there again.
async fn is_whole(world: &World, limiter: &RateLimiter, plan: &Plan) {
    let balances = limiter.peek(&plan.entity, &plan.resource).limits(&plan.limits).send().await;
    let balances = balances.expect("nothing goes wrong any more");
    for limit in &plan.limits {
        let name = limit.name().as_str();
        let available = balances.limit(name).map_or(MilliTokens::ZERO, |status| status.available);
        if available != limit.rule().capacity {
            let all = limit.rule().capacity;
            world.violated(format!("I4: after a rest {} has {available} of {all} {name}", plan.entity));
        }
    }
}

/// I1: a bucket that is full again since it was last written to gives what it has and no more, also to processes that know
/// nothing of it and ask at once.
async fn gives_no_more(world: &World, plan: &Plan) {
    let rule = *plan.limits[0].rule();
    let all = rule.capacity.whole_tokens();
    // Such a process takes for granted that what has flowed in unseen is less than an eighth.
    world.pass(until_flowed(&rule, (all / 9).max(1))).await;
    let from = world.now();
    let mut given = 0;
    for tokens in [all - 1, all / 9, 1, 1] {
        let is_given = tokens > 0 && take(&newcomer(world).await, plan, tokens).await.is_ok();
        given += if is_given { tokens } else { 0 };
    }
    let there = (rule.capacity + credit(&rule, Shard::WHOLE, from, world.now())).whole_tokens();
    if given > there {
        world.violated(format!("I1: {given} of {there} of {} were given at once", plan.entity));
    }
}

/// How long it takes until `tokens` have flowed in.
fn until_flowed(rule: &Rule, tokens: i64) -> Duration {
    let ms = (tokens * 1000 * rule.refill_period_ms).div_euclid(rule.refill_amount.0) + 1;
    Duration::from_millis(ms.unsigned_abs())
}

/// I5: who is denied and waits as long as he was told is admitted, if nobody else takes.
async fn waits_it_out(world: &World, limiter: &RateLimiter, plan: &Plan) {
    let all = plan.limits[0].rule().capacity.whole_tokens();
    if take(limiter, plan, all).await.is_err() {
        world.violated(format!("I2: all {all} of a rested {} are not to be had", plan.entity));
    }
    let need = world.rng().i64(1..=all);
    match take(limiter, plan, need).await {
        // A limit this fast has flowed in during the request.
        Ok(()) => {}
        Err(None) => world.violated(format!("I5: {} says that {need} of {all} never come", plan.entity)),
        Err(Some(wait)) => {
            world.pass(wait).await;
            if let Err(more) = take(limiter, plan, need).await {
                world.violated(format!("I5: {} told to wait {wait:?} for {need}, and {more:?} then", plan.entity));
            }
        }
    }
}

/// I2: where more is asked than flows in, at least 99 % of what flows in is given.
async fn gives_what_flows_in(world: &World, limiter: &RateLimiter, plan: &Plan) {
    let rule = *plan.limits[0].rule();
    let limits: &[Limit] = &plan.limits;
    // Nothing is there at the beginning.
    while take(limiter, plan, 1).await.is_ok() {}
    let from = world.now();
    let mut given = 0;
    let lasts = until_flowed(&rule, 100);
    while Duration::from(world.now().since(from)) < lasts {
        let wait = Duration::from_secs(30);
        let take = limiter.acquire(&plan.entity, &plan.resource).limits(limits).take("rate", 1).wait_up_to(wait);
        given += i64::from(take.send().await.is_ok_and(|decision| decision.is_granted()));
    }
    let entitled = credit(&rule, Shard::WHOLE, from, world.now()).whole_tokens();
    // The last one may be on its way.
    if (given + 1) * 100 < entitled * 99 {
        world.violated(format!("I2: {given} of {entitled} that flowed into {} were given", plan.entity));
    }
}
