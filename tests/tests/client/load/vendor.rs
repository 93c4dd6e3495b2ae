//! A vendor that gives less than is configured, because its window is another one, or others use the
//! account.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;
use weirgate::{Limit, RateLimiter};
use weirgate_tests::fleet::{Fleet, millis, secs};

const CLIENTS: usize = 50;
/// Configured calls a second.
const RATE: i64 = 10;
/// Time of a call to the vendor.
const CALL: Duration = millis(200);
const WINDOW: Duration = secs(60);
const LASTS: Duration = secs(120);

/// A vendor that takes 70 % of the configured calls in each window.
struct Vendor {
    begun: Instant,
    window: u128,
    left: i64,
    taken: i64,
    refused: i64,
}

impl Vendor {
    const CALLS: i64 = RATE * 60 * 7 / 10;

    fn new() -> Self {
        Self { begun: Instant::now(), window: 0, left: Self::CALLS, taken: 0, refused: 0 }
    }

    /// Takes a call, or says after how many whole seconds to retry.
    fn call(&mut self) -> Result<(), u64> {
        let since = self.begun.elapsed();
        let window = since.as_millis() / WINDOW.as_millis();
        if window > self.window {
            (self.window, self.left) = (window, Self::CALLS);
        }
        if self.left == 0 {
            self.refused += 1;
            let left = WINDOW.as_millis() - since.as_millis() % WINDOW.as_millis();
            return Err(u64::try_from(left.div_ceil(1_000)).unwrap());
        }
        self.left -= 1;
        self.taken += 1;
        Ok(())
    }
}

/// Calls of one client. If it shares what the vendor says it does nothing else; otherwise it backs off, as
/// clients of vendors do.
async fn client(limiter: RateLimiter, vendor: Arc<Mutex<Vendor>>, shares: bool) {
    let limits = [Limit::custom("rps", RATE, RATE, 1_000).unwrap()];
    let mut backoff = secs(1);
    let until = Instant::now() + LASTS;
    while Instant::now() < until {
        let ask = limiter.acquire("openai", "gpt-4").limits(&limits).take("rps", 1);
        let Some(grant) = ask.wait_up_to(WINDOW * 2).send().await.unwrap().granted() else {
            continue;
        };
        tokio::time::sleep(CALL / 2).await;
        let answer = vendor.lock().unwrap().call();
        tokio::time::sleep(CALL / 2).await;
        match answer {
            Ok(()) => backoff = secs(1),
            Err(after) if shares => {
                let fields = [("retry-after", after.to_string())];
                grant.vendor_said(429, fields).await.unwrap();
            }
            Err(_) => {
                tokio::time::sleep(backoff.mul_f64(0.5 + fastrand::f64())).await;
                backoff = (backoff * 2).min(WINDOW);
            }
        }
    }
}

/// Runs all clients. Returns the calls that the vendor took, and those that it refused.
async fn run(shares: bool) -> (i64, i64) {
    let fleet = Fleet::slow(millis(5)).await;
    let vendor = Arc::new(Mutex::new(Vendor::new()));
    let mut clients = vec![];
    for _ in 0..CLIENTS {
        let limiter = fleet.limiter().await;
        clients.push(tokio::spawn(client(limiter, Arc::clone(&vendor), shares)));
    }
    for client in clients {
        client.await.unwrap();
    }
    let vendor = vendor.lock().unwrap();
    (vendor.taken, vendor.refused)
}

#[tokio::test(start_paused = true)]
async fn clients_that_share_what_a_vendor_says_are_refused_seldom_and_use_all_that_it_gives() {
    let (alone, together) = (run(false).await, run(true).await);
    let windows = i64::try_from(LASTS.as_secs() / WINDOW.as_secs()).unwrap();
    println!(
        "refused alone {}, together {}; taken {} and {} of {}",
        alone.1,
        together.1,
        alone.0,
        together.0,
        windows * Vendor::CALLS
    );
    assert!(together.1 * 20 <= alone.1, "refused {} instead of {}", together.1, alone.1);
    assert!(
        together.0 * 100 >= windows * Vendor::CALLS * 95,
        "{} of {}",
        together.0,
        windows * Vendor::CALLS
    );
}
