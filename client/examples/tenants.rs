//! Two organizations share a table. Each has a limit, and so has each of its users.
//!
//! ```sh
//! cargo run -p weirgate --all-features --example tenants
//! ```

mod place;

use std::process::ExitCode;

use place::{Outcome, Place, run};
use weirgate::{
    Config, ConfigLevel, Entity, EpochMillis, Granularity, Limit, LiveLeases, RateLimiter,
    UsageScope,
};

fn main() -> ExitCode {
    run(tenants)
}

async fn tenants(place: Place) -> Outcome {
    let limiter = place.builder().principal("onboarding").build().await?;
    organization(&limiter, "acme", 10, &["acme-ann", "acme-bob"]).await?;
    organization(&limiter, "initech", 10, &["initech-tim"]).await?;

    println!("each organization has 10 calls an hour, each user 6:");
    for key in ["key-of-ann", "key-of-bob", "key-of-tim", "key-of-eve"] {
        let Some(user) = user_of(key) else {
            println!("  {key:<11} is not known: 401");
            continue;
        };
        let mut granted = 0;
        for _ in 0..8 {
            let acquire = limiter.acquire(user, "api").take("calls", 1);
            granted += i64::from(acquire.send().await?.is_granted());
        }
        println!("  {user:<11} got {granted} of 8");
    }
    bill(&limiter, place.now()).await?;

    // The same names in another namespace are other buckets.
    let staging = place.builder().namespace("staging").build().await?;
    let limits = [Limit::per_hour("calls", 6)?];
    let acquire = staging.acquire("acme-ann", "api").limits(&limits);
    let is_granted = acquire.take("calls", 1).send().await?.is_granted();
    println!("in the namespace staging, acme-ann is granted: {is_granted}");

    stop(&limiter).await?;
    let report =
        limiter.admin().erase_entity(&"initech-tim".try_into()?, LiveLeases::Refuse).await?;
    println!("initech-tim is erased: {} bucket item", report.shards);
    Ok(())
}

/// Returns the user of a key. One that a client could name itself would have no organization, and the
/// limits of the resource again for each name.
fn user_of(key: &str) -> Option<&'static str> {
    match key {
        "key-of-ann" => Some("acme-ann"),
        "key-of-bob" => Some("acme-bob"),
        "key-of-tim" => Some("initech-tim"),
        _ => None,
    }
}

/// Sets the limits of an organization and of its users.
async fn organization(limiter: &RateLimiter, name: &str, calls: i64, users: &[&str]) -> Outcome {
    let parent = name.try_into()?;
    let all = Config::of([Limit::per_hour("calls", calls)?]);
    limiter.admin().set_config(&ConfigLevel::Entity(parent), &all).await?;
    let each = Config::of([Limit::per_hour("calls", 6)?]);
    limiter.admin().set_config(&ConfigLevel::Resource("api".try_into()?), &each).await?;
    for user in users {
        // Takes of the user count against the organization, or neither is taken.
        let user = Entity::new((*user).try_into()?).child_of(name.try_into()?, true);
        limiter.admin().set_entity(&user).await?;
    }
    Ok(())
}

/// Prints what each organization used today. Its bucket has the sum of its users.
async fn bill(limiter: &RateLimiter, now: EpochMillis) -> Outcome {
    for organization in ["acme", "initech"] {
        let scope = UsageScope::Bucket(organization.try_into()?, "api".try_into()?);
        let today = EpochMillis(now.0 - 1)..now;
        let total = limiter.admin().usage_report(scope, Granularity::Daily, today)?.total().await?;
        println!("  {organization:<11} used {} calls today", total.usage.tokens["calls"]);
    }
    Ok(())
}

/// Stops one organization, and no other.
async fn stop(limiter: &RateLimiter) -> Outcome {
    let acme = ConfigLevel::Entity("acme".try_into()?);
    limiter.admin().stop(&acme).send().await?;
    for user in ["acme-bob", "initech-tim"] {
        let acquire = limiter.acquire(user, "api").take("calls", 0);
        let decision = acquire.send().await?;
        println!("acme is stopped; {user} may go on: {}", decision.is_granted());
    }
    limiter.admin().start(&acme).send().await?;
    Ok(())
}
