//! The limiter of a process.

use std::time::Duration;

use weirgate::{Prefetch, RateLimiter};
use weirgate_testkit::Dynamo;

use crate::clock::ProcessClock;
use crate::network::Network;

/// Time that a process caches limits.
pub const CONFIG_TTL: Duration = Duration::from_secs(10);

/// Returns a limiter with its own clock, whose requests go through `network`. It has the limits file of the
/// release in force.
pub async fn limiter(network: &Network, clock: &ProcessClock, prefetches: bool) -> RateLimiter {
    let table = Dynamo::reached_by(network.clone(), clock.clone()).await;
    let builder = RateLimiter::builder("weirgate").table(table).config_ttl(CONFIG_TTL);
    let builder = match network.world().limits_file() {
        Some(file) => builder.limits_file(file),
        None => builder,
    };
    let builder = if prefetches {
        builder.prefetch("api", Prefetch::default().max_outstanding_percent(SHARE))
    } else {
        builder
    };
    builder.build().await.expect("the settings are good")
}

/// Largest part of the capacity that a process prefetches, in percent.
pub const SHARE: u32 = 20;
