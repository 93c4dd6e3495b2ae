//! Every way in which an acquire does not grant, and what to answer. The second half cannot reach
//! DynamoDB.
//!
//! ```sh
//! cargo run -p weirgate --all-features --example failure_modes
//! ```

mod place;

use std::process::ExitCode;
use std::time::Duration;

use place::{Outcome, Place, run};
use tokio::time::{Instant, sleep};
use weirgate::http::{PolicyNames, Problem};
use weirgate::{CircuitBreakerConfig, ConfigLevel, Decision, Error, Grant, Limit, OnUnavailable};
use weirgate::{RateLimiter, Settlement};

fn main() -> ExitCode {
    run(async |place: Place| {
        reachable(&place.builder().build().await?).await?;
        println!();
        for policy in [
            OnUnavailable::Error,
            OnUnavailable::Deny,
            OnUnavailable::Allow,
            OnUnavailable::Local { percent: 50 },
        ] {
            unreachable(&place, policy).await?;
        }
        Ok(())
    })
}

async fn reachable(limiter: &RateLimiter) -> Outcome {
    let limits = [Limit::per_hour("calls", 60)?, Limit::concurrent("slots", 1)?];
    let acquire = |limit, amount| {
        let acquire = limiter.acquire("user-1", "api").limits(&limits);
        acquire.take(limit, amount)
    };
    show("the tokens are there", &acquire("calls", 60).send().await);
    show("the limit is short", &acquire("calls", 1).send().await);
    show("more than the capacity", &acquire("calls", 61).send().await);
    show("a limit that is not there", &acquire("cals", 1).send().await);
    let level = ConfigLevel::Resource("api".try_into()?);
    limiter.admin().stop(&level).send().await?;
    show("an operator stopped it", &acquire("calls", 1).send().await);
    limiter.admin().start(&level).send().await?;

    // A process that dies holds its slot until the lease expires.
    let lease = Duration::from_secs(2);
    let held = acquire("slots", 1).lease(lease).send().await?;
    let held = held.granted().ok_or("the slot is free")?;
    show("the slot is held", &acquire("slots", 1).send().await);
    sleep(lease).await;
    let taken = acquire("slots", 1).send().await;
    show("its lease has expired", &taken);
    // The first holder lives after all, and learns that it holds nothing.
    let late = held.release().await?;
    println!("the first holder's release: {late:?}");
    if late != Settlement::LeaseGone {
        return Err("a slot was returned twice".into());
    }
    Ok(())
}

async fn unreachable(place: &Place, policy: OnUnavailable) -> Outcome {
    let breaker = CircuitBreakerConfig { failure_threshold: 3, ..CircuitBreakerConfig::default() };
    let limiter = place.unreachable().on_unavailable(policy).circuit_breaker(breaker);
    let limiter = limiter.timeout(Duration::from_millis(250)).build().await?;
    let limits = [Limit::per_hour("calls", 2)?];
    let acquire = || {
        let acquire = limiter.acquire("user-1", "api").limits(&limits);
        acquire.take("calls", 1).send()
    };
    let begun = Instant::now();
    show(&format!("unreachable, {policy:?}"), &acquire().await);
    while limiter.stats().breaker_opened == 0 {
        let _ = acquire().await;
    }
    let (opened, writes) = (begun.elapsed(), limiter.stats());
    show("  with an open circuit breaker", &acquire().await);
    if limiter.stats().reads != writes.reads || opened > Duration::from_secs(5) {
        return Err("an open circuit breaker sends nothing".into());
    }
    Ok(())
}

/// Prints the decision, and the answer that an HTTP client should get.
fn show(what: &str, decision: &Result<Decision<Grant>, Error>) {
    let names = PolicyNames::default();
    let (word, problem) = match decision {
        Ok(Decision::Granted(grant)) if grant.degraded().is_some() => ("granted, degraded", None),
        Ok(Decision::Granted(_)) => ("granted", None),
        Ok(Decision::Denied(denied)) => ("denied", Some(Problem::denied(denied, &names))),
        Ok(Decision::NeverFits(never)) => ("never fits", Some(Problem::never_fits(never, &names))),
        Ok(Decision::Disabled(disabled)) => ("disabled", Some(Problem::disabled(disabled))),
        Err(error) if error.is_transient() => {
            ("error, transient", Some(Problem::unavailable(error)))
        }
        Err(error) => ("error, permanent", Some(Problem::unavailable(error))),
    };
    let status = problem.map_or(200, |problem| problem.status());
    let after = match decision {
        Ok(Decision::Denied(denied)) => denied.retry_after,
        Err(Error::Unavailable { retry_after, .. }) => Some(*retry_after),
        _ => None,
    };
    let after = after
        .map_or(String::new(), |after| format!(", retry-after: {}", after.as_secs_f64().ceil()));
    println!("{what:<36} {word:<18} {status}{after}");
}
