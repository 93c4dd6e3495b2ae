//! What burst, debt, estimates and retry-after mean, in numbers.
//!
//! ```sh
//! cargo run -p weirgate --all-features --example choosing_limits
//! ```

mod place;

use std::process::ExitCode;
use std::time::Duration;

use place::{Outcome, Place, millis, run};
use tokio::time::{Instant, sleep};
use weirgate::{Decision, Limit, RateLimiter};

fn main() -> ExitCode {
    run(choosing_limits)
}

async fn choosing_limits(place: Place) -> Outcome {
    let limiter = place.builder().build().await?;
    println!("burst   at once   in the next second");
    for burst in [1, 10, 40] {
        let (at_once, then) = bursts(&limiter, burst).await?;
        println!("{burst:>5} {at_once:>9} {then:>22}");
    }
    debts(&limiter).await?;
    gate(&limiter).await?;
    capacity(&limiter).await
}

/// Returns how many acquires a greedy caller of ten a second gets at one instant, and in the second
/// after it.
async fn bursts(limiter: &RateLimiter, burst: i64) -> Outcome<(u32, u32)> {
    let limits = [Limit::per_second("rps", 10)?.with_burst(burst)?];
    let user = format!("burst-{burst}");
    let acquire = || limiter.acquire(&user, "search").limits(&limits).take("rps", 1);
    let mut at_once = 0;
    while acquire().send().await?.is_granted() {
        at_once += 1;
    }
    let until = Instant::now() + Duration::from_secs(1);
    let mut then = 0;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        match acquire().wait_up_to(left).send().await? {
            Decision::Granted(_) => then += 1,
            _ => sleep(left + Duration::from_millis(1)).await,
        }
    }
    Ok((at_once, then))
}

/// The steps of the picture: a burst, an estimate that was too low, debt, and the retry time.
async fn debts(limiter: &RateLimiter) -> Outcome {
    let limits = [Limit::per_second("tps", 1_000)?];
    let acquire = |tokens| {
        let acquire = limiter.acquire("writer", "gpt-4").limits(&limits);
        acquire.take("tps", tokens).send()
    };
    println!("\na burst of 900 is {}", word(&acquire(900).await?));
    sleep(Duration::from_millis(500)).await;
    let mut grant = acquire(500).await?.granted().ok_or("there are 600")?;
    sleep(Duration::from_millis(200)).await;
    let _ = grant.adjust("tps", 1_800).await?;
    let peek = limiter.peek("writer", "gpt-4").limits(&limits);
    let balances = peek.need("tps", 0).send().await?;
    let balance = balances.limit("tps").ok_or("it is there")?.available;
    println!("estimate 500, really used 1800: the balance is {balance}");

    sleep(Duration::from_millis(100)).await;
    let denied = acquire(100).await?.denied().ok_or("the limit is in debt")?;
    println!("100 are denied, retry-after {}", millis(denied.retry_after));
    sleep(denied.retry_after.ok_or("time helps")?).await;
    println!("after that 100 are {}", word(&acquire(100).await?));
    Ok(())
}

/// Without any estimate: an amount of 0 is denied while there is debt.
async fn gate(limiter: &RateLimiter) -> Outcome {
    let limits = [Limit::per_second("tps", 1_000)?];
    let begin = || {
        let acquire = limiter.acquire("no-estimate", "gpt-4").limits(&limits);
        acquire.take("tps", 0).send()
    };
    let mut grant = begin().await?.granted().ok_or("there is no debt")?;
    let _ = grant.adjust("tps", 1_250).await?;
    let denied = begin().await?.denied().ok_or("there is debt")?;
    let wait = millis(denied.retry_after);
    println!("\nno estimate, used 1250: the next call waits {wait}");
    sleep(denied.retry_after.ok_or("time helps")?).await;
    println!("after that it is {}", word(&begin().await?));
    Ok(())
}

/// A request above the capacity is no denial: no wait helps.
async fn capacity(limiter: &RateLimiter) -> Outcome {
    let limits = [Limit::per_minute("tpm", 8_000)?];
    let acquire = limiter.acquire("long-prompt", "gpt-4").limits(&limits);
    let decision = acquire.take("tpm", 9_500).send().await?;
    println!("\n9500 of a capacity of 8000: {}", word(&decision));
    Ok(())
}

fn word<G>(decision: &Decision<G>) -> &'static str {
    match decision {
        Decision::Granted(_) => "granted",
        Decision::Denied(_) => "denied",
        Decision::NeverFits(_) => "never fits",
        Decision::Disabled(_) => "disabled",
    }
}
