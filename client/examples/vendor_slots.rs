//! A Lambda function that calls a vendor which allows two calls at once. Lambda starts it as often
//! as there are events, so the slots are in the table. Elsewhere this program plays five environments of
//! it, one of which is killed during its call.
//!
//! ```sh
//! cargo run -p weirgate --all-features --example vendor_slots
//! ```

mod place;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use lambda_runtime::{LambdaEvent, service_fn};
use place::{Outcome, Place, run};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use weirgate::{Decision, Grant, Limit, RateLimiter};

/// Longer than any call of the vendor: when a slot of a killed environment is free again.
const LEASE: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    run(async |place: Place| {
        let limiter = place.builder().owner("vendor-slots").build().await?;
        if std::env::var_os("AWS_LAMBDA_RUNTIME_API").is_none() {
            return environments(&place).await;
        }
        let vendor = &Vendor::default();
        let function =
            service_fn(|event: LambdaEvent<Value>| handle(&limiter, vendor, event.payload));
        lambda_runtime::run(function).await.map_err(|error| error.to_string())?;
        Ok(())
    })
}

/// Handles one event.
async fn handle(limiter: &RateLimiter, vendor: &Vendor, event: Value) -> Outcome<Value> {
    let Some(grant) = slot(limiter, Duration::from_secs(5)).await? else {
        return Ok(json!({"status": 429}));
    };
    let answer = vendor.call(&event).await;
    // Awaited, because Lambda freezes the environment when the handler returns.
    if let Err(error) = grant.release().await {
        // Not returned, because a retry of the event would call the vendor again.
        eprintln!("the slot could not be released, so its lease ends: {error}");
    }
    Ok(json!({"status": 200, "answer": answer}))
}

/// Takes a slot of the vendor's account, within a wait; `None` if it is denied.
async fn slot(limiter: &RateLimiter, wait: Duration) -> Outcome<Option<Grant>> {
    let limits = [Limit::concurrent("calls", 2)?];
    let acquire = limiter.acquire("vendor", "search").limits(&limits);
    let acquire = acquire.take("calls", 1).lease(LEASE).wait_up_to(wait);
    match acquire.send().await? {
        Decision::Granted(grant) => Ok(Some(grant)),
        Decision::Denied(_) => Ok(None),
        other => Err(format!("{other:?}").into()),
    }
}

/// Plays the environments. Each has a limiter of its own, as each process has.
async fn environments(place: &Place) -> Outcome {
    let vendor = Arc::new(Vendor::default());
    let killed = place.builder().owner("killed").build().await?;
    let grant = slot(&killed, Duration::ZERO).await?.ok_or("a slot is free")?;
    std::mem::forget(grant); // killed: nothing releases its slot
    println!("one environment is killed while it holds a slot");

    let begun = Instant::now();
    let mut all = tokio::task::JoinSet::new();
    for event in 1..=4 {
        let (limiter, vendor) = (place.builder().build().await?, Arc::clone(&vendor));
        all.spawn(async move {
            let answer = handle(&limiter, &vendor, json!({"event": event})).await;
            answer.map_err(|error| error.to_string())
        });
    }
    let mut served = 0;
    for answer in all.join_all().await {
        served += i64::from(answer?["status"] == 200);
    }
    let most = vendor.most_running();
    println!("{served} of 4 events served, {most} at once");
    sleep(LEASE.saturating_sub(begun.elapsed())).await;

    let first = slot(&killed, Duration::ZERO).await?;
    let second = slot(&killed, Duration::ZERO).await?;
    let third = slot(&killed, Duration::ZERO).await?;
    let free = [&first, &second, &third].map(|slot| i64::from(slot.is_some()));
    println!("slots that are free after {LEASE:?}: {}", free.iter().sum::<i64>());
    for grant in [first, second].into_iter().flatten() {
        let _ = grant.release().await?;
    }
    Ok(())
}

/// Stands for the vendor's API, and counts its calls at once.
#[derive(Debug, Default)]
struct Vendor {
    running: AtomicI64,
    most_running: AtomicI64,
}

impl Vendor {
    async fn call(&self, event: &Value) -> String {
        let running = self.running.fetch_add(1, Ordering::Relaxed) + 1;
        self.most_running.fetch_max(running, Ordering::Relaxed);
        sleep(Duration::from_millis(200)).await;
        self.running.fetch_sub(1, Ordering::Relaxed);
        format!("found {event}")
    }

    fn most_running(&self) -> i64 {
        self.most_running.load(Ordering::Relaxed)
    }
}
