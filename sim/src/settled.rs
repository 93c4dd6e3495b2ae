//! Checks after the last fault: everything settles, writes end, and all promised tokens are
//! available.

mod probes;
mod requests;

use std::time::Duration;

use futures_util::future::FutureExt;
use weirgate::{RateLimiter, Window};
use weirgate_shared::RULES_STAND;

use crate::check;
use crate::fault::{Event, Kind};
use crate::fleet::{Process, configure};
use crate::functions::{Mapping, reconcile};
use crate::ledger::SharedLedger;
use crate::scenario::Plan;
use crate::stream_check::{Sender, TTL};
use crate::world::World;
use probes::{
    a_full_bucket_grants_its_balance, a_lost_response_takes_once, a_renewed_lease_stays,
    all_tokens_are_available, refill_is_granted, resharding_keeps_tokens, retry_after_suffices,
};
use requests::{newcomer, take};

/// Time after which every lease has expired, every balance is full, and every delayed request has
/// arrived.
const REST: Duration = Duration::from_secs(120);
/// Rounds of the functions after which writes must have ended: one round releases leases, three
/// merge four shards into one.
const ROUNDS: usize = 8;

/// Lets everything settle, then compares the ledger with the table. The `processes` stay
/// alive, but make no calls.
pub async fn settle(
    world: &World,
    mapping: &mut Mapping,
    ledger: &SharedLedger,
    processes: Vec<Process>,
) {
    if world.scenario().has_changes() {
        restore(world, ledger).await;
    }
    for process in &processes {
        if world.rng().bool() {
            process.shut_down().await;
        }
    }
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
            world.violated(format!(
                "I7: no caller is active, and {} writes were made again",
                world.writes() - before
            ));
            break;
        }
    }
    drop(processes);
    {
        let ledger = ledger.lock();
        check::admitted(world, &ledger);
        check::consumed(world, &ledger);
    }
    check::counted(world);
    if !world.violations().is_empty() {
        return;
    }
    let limiter = newcomer(world).await;
    for plan in known(world) {
        let probes = [
            all_tokens_are_available(world, &limiter, plan).boxed_local(),
            resharding_keeps_tokens(world, plan).boxed_local(),
            a_lost_response_takes_once(world, plan).boxed_local(),
            a_renewed_lease_stays(world, plan).boxed_local(),
            retry_after_suffices(world, &limiter, plan).boxed_local(),
            refill_is_granted(world, &limiter, plan).boxed_local(),
        ];
        for probe in probes {
            probe.await;
            // A failed check would fail in every later round, and each takes long.
            if !world.violations().is_empty() {
                return;
            }
        }
    }
    reconcile(world).await;
    mapping.drain().await;
    // The run's windows are over, and none of their records is still to be delivered.
    world.pass(Duration::from_secs(26 * 3600)).await;
    check::counted(world);
    outlives_ttl(world, mapping, &limiter).await;
}

/// Returns the buckets whose expected balance is known. Changed limits reach a shard only with its
/// next take, perhaps never.
fn known(world: &World) -> &[Plan] {
    let (scenario, events) = (world.scenario(), world.events());
    let was_split = scenario.is_sharded || events.of(Event::SplitByFunction) > 0;
    if scenario.has_changes() && was_split {
        &[]
    } else {
        &scenario.buckets
    }
}

/// Sets the limits back to their first values, and writes them to the buckets.
async fn restore(world: &World, ledger: &SharedLedger) {
    configure(world).await;
    if world.scenario().is_rolling {
        // Until then a bucket keeps the rules of the latest release.
        world
            .pass(Duration::from(RULES_STAND) + Duration::from_secs(1))
            .await;
    }
    let limiter = newcomer(world).await;
    for (at, plan) in world.scenario().buckets.iter().enumerate() {
        ledger.lock().asks(&[((at, 0), 1000)]);
        let _ = take(world, &limiter, plan, 1).await;
    }
}

/// Time after which every `ttl` is over: at most 90 days after a month.
const SEASON: Duration = Duration::from_secs(130 * 86_400);

/// Checks that deletions by TTL, perhaps days late, lose nothing: usage continues, and a deleted
/// bucket was full and is full again.
async fn outlives_ttl(world: &World, mapping: &mut Mapping, limiter: &RateLimiter) {
    world.pass(SEASON).await;
    for item in world.dynamo().items() {
        let Some(ttl) = item["ttl"]["N"]
            .as_str()
            .and_then(|text| text.parse::<i64>().ok())
        else {
            continue;
        };
        if ttl * 1000 < world.now().0 {
            let text = |name: &str| item[name]["S"].as_str().unwrap_or_default().to_owned();
            world.dynamo().delete(&text("PK"), &text("SK"));
            world.count(Kind::TtlDeleted);
        }
    }
    world.check_stream(&Sender {
        name: TTL,
        is_told: true,
        is_alone: true,
    });
    for plan in known(world) {
        all_tokens_are_available(world, limiter, plan).await;
    }
    let since = Window::Daily.start(world.now());
    for plan in &world.scenario().buckets {
        let _ = take(world, limiter, plan, 1).await;
    }
    for plan in known(world) {
        a_full_bucket_grants_its_balance(world, plan).await;
    }
    mapping.drain().await;
    check::counted_since(world, since);
}
