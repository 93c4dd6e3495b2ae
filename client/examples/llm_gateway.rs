//! A gateway to a language model: each customer has tokens per minute of its own, and all of them
//! share the vendor's tokens and its concurrent calls. Estimates are corrected by what was used.
//!
//! ```sh
//! cargo run -p weirgate --all-features --example llm_gateway
//! ```

mod place;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use place::{Outcome, Place, run};
use weirgate::http::{Policies, PolicyNames};
use weirgate::{Config, ConfigLevel, Decision, Error, Grants, Limit, RateLimiter, Window};

/// Customers by their keys. A service has them in a store, hashed.
const KEYS: [(&str, &str); 2] = [("key-of-acme", "acme"), ("key-of-initech", "initech")];

fn main() -> ExitCode {
    run(gateway)
}

async fn gateway(place: Place) -> Outcome {
    let limiter = place.builder().owner("llm-gateway").build().await?;
    configure(&limiter).await?;
    let vendor = Arc::new(Vendor::default());

    let requests = [
        ("acme", 900),
        ("acme", 1_100),
        ("initech", 700),
        ("acme", 1_300),
        ("initech", 9_500),
        ("initech", 800),
        ("made-up", 1),
    ];
    let calls = requests.map(|(customer, tokens)| {
        let (limiter, vendor) = (limiter.clone(), Arc::clone(&vendor));
        let (key, prompt) = (format!("key-of-{customer}"), "word".repeat(tokens));
        tokio::spawn(async move { complete(&limiter, &vendor, &key, &prompt).await })
    });
    for (call, (customer, _)) in calls.into_iter().zip(requests) {
        println!("{customer:<8} {}", call.await??);
    }
    let prompt = "word".repeat(25_000);
    let answer = complete(&limiter, &vendor, "key-of-acme", &prompt).await?;
    println!("acme     {answer}");
    let most = vendor.most_running.load(Ordering::Relaxed);
    println!("most calls at once: {most}");
    let calls = limiter.admin().leases("openai", "gpt-4").await?.items.len();
    let today = limiter.usage("openai", "gpt-4", Window::Daily, place.now());
    let tokens = today.await?.usage.tokens["tokens"];
    println!("the account: {calls} calls now, {tokens} tokens used");
    Ok(())
}

/// Sets the limits: of every customer, of one with a contract, and of the account at the vendor.
async fn configure(limiter: &RateLimiter) -> Outcome {
    let tokens = |most| Limit::per_hour("tokens", most);
    let calls = Limit::concurrent("calls", 2)?;
    let every_customer = ConfigLevel::Resource("gpt-4".try_into()?);
    let acme = ConfigLevel::Entity("acme".try_into()?);
    let vendor = ConfigLevel::Entity("openai".try_into()?);
    for (level, limits) in [
        (every_customer, vec![tokens(10_000)?]),
        (acme, vec![tokens(50_000)?]),
        (vendor, vec![tokens(30_000)?, calls]),
    ] {
        limiter.admin().set_config(&level, &Config::of(limits)).await?;
    }
    Ok(())
}

/// Serves one request: status and text. The key says whose it is, and the gateway what it costs.
async fn complete(
    limiter: &RateLimiter,
    vendor: &Vendor,
    key: &str,
    prompt: &str,
) -> Result<String, Error> {
    const MAX_ANSWER: i64 = 1_000;
    let Some((_, customer)) = KEYS.iter().find(|(known, _)| *known == key) else {
        return Ok("401, unknown key".to_owned());
    };
    // Counted here: four bytes a token, for want of the vendor's tokenizer.
    let prompt = i64::try_from(prompt.len().div_ceil(4)).unwrap_or(i64::MAX);
    let estimate = prompt.saturating_add(MAX_ANSWER);
    let both = [
        limiter.acquire(customer, "gpt-4").take("tokens", estimate),
        limiter
            .acquire("openai", "gpt-4")
            .take("tokens", estimate)
            .take("calls", 1)
            .lease(Duration::from_secs(30)),
    ];
    let all = limiter.acquire_all(both).wait_up_to(Duration::from_secs(2));
    let grants = match all.send().await? {
        Decision::Granted(grants) => grants,
        Decision::Denied(denied) => {
            let policies = Policies::denied(&denied, &PolicyNames::default());
            let seconds = policies.retry_after_seconds().unwrap_or_default();
            return Ok(format!("429, retry after {seconds} s"));
        }
        Decision::NeverFits(never) => return Ok(format!("413, {never}")),
        Decision::Disabled(disabled) => return Ok(format!("403, {disabled}")),
    };
    let used = vendor.complete(prompt).await;
    if let Err(error) = settle(grants, used).await {
        eprintln!("a call could not be settled: {error}"); // the customer gets its answer anyway
    }
    Ok(format!("200, estimated {estimate}, used {used}"))
}

/// Sets what the call used in both buckets, and returns its slot.
async fn settle(mut grants: Grants, used: i64) -> Result<(), Error> {
    for grant in grants.iter_mut() {
        let _ = grant.adjust("tokens", used).await?;
    }
    let _ = grants.release().await?; // the call ends at the vendor
    Ok(())
}

/// Stands for the vendor's API.
#[derive(Debug, Default)]
struct Vendor {
    running: AtomicI64,
    most_running: AtomicI64,
}

impl Vendor {
    /// Answers after a while, and returns the tokens used.
    async fn complete(&self, prompt: i64) -> i64 {
        let running = self.running.fetch_add(1, Ordering::Relaxed) + 1;
        self.most_running.fetch_max(running, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(100)).await;
        self.running.fetch_sub(1, Ordering::Relaxed);
        prompt + prompt / 4
    }
}
