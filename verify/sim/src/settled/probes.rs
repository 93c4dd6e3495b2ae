//! What must hold of one bucket while nothing goes wrong: each probe tries it, and leaves the
//! bucket full.

use std::time::Duration;

use futures_util::future::join_all;
use weirgate::{Decision, MilliTokens, RateLimiter, RefillRule, Settlement};

use super::requests::{ask, empty, newcomer, rest, take, time_to_refill};
use weirgate_shared::Millis;

use crate::check::refill_in;
use crate::limiter::limiter;
use crate::network::{Network, OPERATOR};
use crate::scenario::Plan;
use crate::world::World;

/// I4, I6, I7: checks that every token and every slot is available after a rest.
pub(super) async fn all_tokens_are_available(world: &World, limiter: &RateLimiter, plan: &Plan) {
    let balances = limiter.peek(&plan.entity, &plan.resource).limits(&plan.limits).send().await;
    let balances = balances.expect("nothing goes wrong any more");
    for limit in &plan.limits {
        let name = limit.name().as_str();
        let available = balances.limit(name).map_or(MilliTokens::ZERO, |status| status.available);
        if available != limit.rule().capacity {
            let all = limit.rule().capacity;
            world.violated(format!(
                "I4: after a rest {} has {available} of {all} {name}",
                plan.entity
            ));
        }
    }
}

/// I1: checks that a bucket that is full again since its last write gives no more than its balance,
/// also to processes without a view that request at once.
pub(super) async fn a_full_bucket_grants_its_balance(world: &World, plan: &Plan) {
    let rule = *plan.limits[0].rule();
    let all = rule.capacity.whole_tokens();
    if world.scenario().quotas.span(&rule).is_some() {
        rest(world, plan).await;
    } else {
        // A process without a view assumes that less than an eighth was refilled since the last
        // write.
        world.pass(time_to_refill(&rule, (all / 9).max(1))).await;
    }
    let from = world.now();
    let mut given = 0;
    for tokens in [all - 1, all / 9, 1, 1] {
        let is_given =
            tokens > 0 && take(world, &newcomer(world).await, plan, tokens).await.is_ok();
        given += if is_given { tokens } else { 0 };
    }
    let there = rule.capacity.0 + refill_in(&rule, world.now().since(from).0);
    if given * 1000 > there {
        world.violated(format!(
            "I1: {given} of {} of {} were given at once",
            MilliTokens(there),
            plan.entity
        ));
    }
}

/// I6, checked in every transaction: splits the bucket, and merges it during takes. I2: a split
/// bucket gives its whole balance. The bucket is full afterwards.
pub(super) async fn resharding_keeps_tokens(world: &World, plan: &Plan) {
    if !world.scenario().is_sharded {
        return;
    }
    let of = |name| async move { limiter(&Network::new(world, name), &world.clock(), false).await };
    let (operator, caller) = (of(OPERATOR).await, of("calm").await);
    let reshard =
        |shards| operator.admin().set_shards(&plan.entity, &plan.resource, &plan.limits, shards);
    let calls = async || {
        for _ in 0..8 {
            let _ = take(world, &caller, plan, 1).await;
        }
    };
    for shards in [2, 1] {
        let (done, ()) = futures_util::join!(reshard(shards), calls());
        world.note(|| format!("{} in {shards} shards: {done:?}", plan.entity));
        rest(world, plan).await;
        let all = plan.limits[0].rule().capacity.whole_tokens();
        if take(world, &caller, plan, all).await.is_err() {
            world.violated(format!(
                "I2: all {all} of a rested {} are not to be had of {done:?} shards",
                plan.entity
            ));
            return;
        }
        rest(world, plan).await;
    }
}

/// I7: checks that a take whose response is lost is found by its write id, and not repeated.
pub(super) async fn a_lost_response_takes_once(world: &World, plan: &Plan) {
    let network = Network::beside(world, "calm");
    let limiter = limiter(&network, &world.clock(), false).await;
    let used = || {
        let of = |((entity, limit, _), amount): (&(String, String, i64), &i64)| {
            (*entity == plan.entity && limit == "rate").then_some(*amount)
        };
        world.stream_check().consumed.iter().filter_map(of).sum::<i64>()
    };
    // A take from a full bucket requires an unchanged shard, so it cannot be applied twice. This
    // take makes the bucket less than full.
    let _ = take(world, &limiter, plan, 1).await;
    let before = used();
    network.lose_next();
    let is_given = take(world, &limiter, plan, 1).await.is_ok();
    let used = used() - before;
    if !is_given || used != 1000 {
        world.violated(format!(
            "I7: one token of {} was asked for, {} were taken",
            plan.entity,
            MilliTokens(used)
        ));
    }
    rest(world, plan).await;
}

/// I4: checks that a renewed lease stays with its holder, also for a process that has seen it
/// expire.
pub(super) async fn a_renewed_lease_stays(world: &World, plan: &Plan) {
    const LEASE: Duration = Duration::from_secs(1);
    let (holder, other) = (newcomer(world).await, newcomer(world).await);
    let request = ask(world, &holder, plan).take("rate", 1).lease(LEASE);
    let Ok(Decision::Granted(mut grant)) = request.send().await else {
        world
            .violated(format!("I2: nothing goes wrong, and a full {} gives no token", plan.entity));
        return;
    };
    let _ = take(world, &other, plan, 1).await;
    world.pass(LEASE + Duration::from_millis(1)).await;
    let renewed = grant.renew(10 * LEASE).await;
    // More than the balance, so the process looks for expired leases.
    let _ = take(world, &other, plan, plan.limits[0].rule().capacity.whole_tokens() - 1).await;
    let released = grant.release().await;
    if matches!(renewed, Ok(Settlement::Applied)) && !matches!(released, Ok(Settlement::Applied)) {
        world.violated(format!(
            "I4: a lease of {} was renewed, and ended by another: {released:?}",
            plan.entity
        ));
    }
    rest(world, plan).await;
}

/// I5: checks that a denied request is granted after its retry-after if there are no other takes.
pub(super) async fn retry_after_suffices(world: &World, limiter: &RateLimiter, plan: &Plan) {
    let rule = plan.limits[0].rule();
    let all = rule.capacity.whole_tokens();
    if take(world, limiter, plan, all).await.is_err() {
        world.violated(format!("I2: all {all} of a rested {} are not to be had", plan.entity));
    }
    let (need, from) = (world.rng().i64(1..=all), world.now());
    match take(world, limiter, plan, need).await {
        Ok(()) if need * 1000 > refill_in(rule, world.now().since(from).0) => {
            world.violated(format!("I1: {need} of {} were given after all of it", plan.entity));
        }
        Ok(()) => {}
        Err(None) => {
            world.violated(format!("I5: {} says that {need} of {all} never come", plan.entity))
        }
        Err(Some(wait)) => {
            world.pass(wait).await;
            if let Err(more) = take(world, limiter, plan, need).await {
                world.violated(format!(
                    "I5: {} told to wait {wait:?} for {need}, and {more:?} then",
                    plan.entity
                ));
            }
        }
    }
}

/// Returns the number of processes whose requests add up to twice the refill, if each sends the
/// next request after a response; at least three.
fn rivals(world: &World, rule: &RefillRule) -> i64 {
    let round_trip = i64::try_from(2 * world.scenario().latency.end()).unwrap_or(i64::MAX);
    3.max(2 * refill_in(rule, round_trip) / 1000 + 1)
}

/// The longest that a contended write pauses before it is sent again.
const LONGEST_PAUSE_MS: i64 = 400;

/// I2: if demand exceeds the refill, at least 99 % of the refill is granted or still available, and
/// no more is available than comes in a pause. I1: no more than the refill is granted.
pub(super) async fn refill_is_granted(world: &World, limiter: &RateLimiter, plan: &Plan) {
    let is_quota = !plan.limits[0].rule().kind().refills();
    if !world.scenario().tries_edge || is_quota {
        return;
    }
    empty(world, limiter, plan).await;
    let rule = plan.limits[0].rule();
    let from = world.now();
    let rivals = rivals(world, rule);
    let period = time_to_refill(rule, 70 * rivals);
    let end = from.plus(period.into());
    let rival = async |_| {
        let limiter = self::limiter(&Network::new(world, "rival"), &world.clock(), false).await;
        let (mut given, mut late) = (0, 0);
        while world.now() < end {
            let take = ask(world, &limiter, plan).take("rate", 1);
            let take = take.wait_up_to(Duration::from_secs(30)).send().await;
            let granted = i64::from(take.is_ok_and(|decision| decision.is_granted()));
            given += granted;
            late += if world.now() < end { 0 } else { granted };
        }
        (given, late)
    };
    let available_at_end = async {
        world.pass(period).await;
        let balances = newcomer(world)
            .await
            .peek(&plan.entity, &plan.resource)
            .limits(&plan.limits)
            .send()
            .await;
        let balances = balances.expect("nothing goes wrong any more");
        let rate = balances.limit(plan.limits[0].name().as_str());
        rate.map_or(0, |status| status.available.0)
    };
    let (given, available) =
        futures_util::join!(join_all((0..rivals).map(rival)), available_at_end);
    let (given, late) = given.into_iter().fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
    // The last request of each process may be in flight.
    let granted = (given - late + rivals) * 1000;
    let entitled = refill_in(rule, end.since(from).0);
    if (granted + available) * 100 < entitled * 99 {
        world.violated(format!(
            "I2: {} of {} that flowed into {} were given, and {} are available",
            MilliTokens(granted),
            MilliTokens(entitled),
            plan.entity,
            MilliTokens(available)
        ));
    }
    let round_trip = i64::try_from(2 * world.scenario().latency.end()).unwrap_or(i64::MAX);
    let pause = refill_in(rule, LONGEST_PAUSE_MS + round_trip);
    if available > pause + rivals * 1000 {
        world.violated(format!(
            "I2: {} are available of {} while {rivals} processes wait",
            MilliTokens(available),
            plan.entity
        ));
    }
    // The last process pauses while no other uses what flows in. A part of a token may have been
    // available.
    let entitled = refill_in(rule, world.now().since(from).0);
    if given * 1000 > entitled + 1000 {
        world.violated(format!(
            "I1: {given} of {} that flowed into {} were given",
            MilliTokens(entitled),
            plan.entity
        ));
    }
}

/// Windows of a quota that competing processes use up.
const WINDOWS: i64 = 2;

/// I1: checks that competing processes are granted no more than a quota in each of two windows. I2,
/// I5: that they are granted all of it, if each waits for its retry-after.
pub(super) async fn windows_are_granted(world: &World, plan: &Plan) {
    let rule = plan.limits[0].rule();
    let Some(span) = world.scenario().quotas.span(rule) else {
        return;
    };
    rest(world, plan).await;
    // Before the end of the last one.
    let lasts = Millis(WINDOWS * span.length_ms() - 100);
    let end = world.now().plus(lasts);
    let rival = async |_| {
        let limiter = self::limiter(&Network::beside(world, "rival"), &world.clock(), false).await;
        let mut given = 0;
        while world.now() < end {
            match take(world, &limiter, plan, 1).await {
                Ok(()) => given += 1,
                Err(Some(wait)) if world.now().plus(wait.into()) < end => world.pass(wait).await,
                Err(_) => break,
            }
        }
        given
    };
    let given: i64 = join_all((0..3).map(rival)).await.into_iter().sum();
    let all = WINDOWS * rule.capacity.whole_tokens();
    if given != all {
        world.violated(format!(
            "{}: {given} of {all} were given in {WINDOWS} windows of {}",
            if given > all { "I1" } else { "I2" },
            plan.entity
        ));
    }
    rest(world, plan).await;
}
