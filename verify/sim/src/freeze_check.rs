//! Checks that a process uses no outdated state after a freeze.

use std::time::Duration;

use weirgate::{Config, ConfigLevel, ConfigStatus, Decision, Limit};

use crate::limiter::{CONFIG_TTL, limiter};
use crate::network::Network;
use crate::operator::operator;
use crate::world::World;

/// A resource that nothing else uses.
const RESOURCE: &str = "thaw";

/// Checks that what is disabled during a freeze is disabled for the process afterwards: limits that
/// are configured, or, with odd seeds, a level that is stopped for a caller with limits in its code.
pub async fn check_after_freeze(world: &World) {
    let operator = operator(world).await;
    let level = ConfigLevel::Resource(RESOURCE.try_into().expect("a name"));
    let limits = [Limit::per_minute("rate", 600).expect("a limit like others")];
    let is_stopped = world.scenario().seed % 2 == 1;
    if !is_stopped {
        let config = Config::of(limits.clone());
        let done = operator.admin().set_config(&level, &config).await;
        done.expect("the table is there");
    }
    let process = limiter(&Network::beside(world, "thawed"), &world.clock(), false).await;
    let ask = || {
        let ask = process.acquire("e-0", RESOURCE).take("rate", 1);
        if is_stopped { ask.limits(&limits) } else { ask }.send()
    };
    let before = ask().await;
    if !before.as_ref().is_ok_and(Decision::is_granted) {
        world
            .violated(format!("age: nothing goes wrong, and limits that were set give {before:?}"));
        return;
    }
    if is_stopped {
        let done = operator.admin().stop(&level).send().await;
        let _ = done.expect("the table is there");
    } else {
        let disabled = Config { status: ConfigStatus::Disabled, ..Config::default() };
        let done = operator.admin().set_config(&level, &disabled).await;
        done.expect("the table is there");
    }
    // Limits that hang are used for twice their time.
    let known = CONFIG_TTL * if is_stopped { 1 } else { 2 };
    let frozen = known + Duration::from_secs(world.rng().u64(1..86_400));
    world.freeze_for(frozen);
    match ask().await {
        Ok(Decision::Disabled(_)) => {}
        Ok(_) => world.violated(format!(
            "age: disabled during a freeze of {frozen:?}, and in force after it"
        )),
        Err(error) => {
            world.violated(format!("age: disabled during a freeze of {frozen:?}, and then {error}"))
        }
    }
}
