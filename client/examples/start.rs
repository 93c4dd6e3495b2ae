//! Four calls, of which the last one is denied.

use weirgate::{Decision, RateLimiter};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter = RateLimiter::builder("weirgate").build().await?;
    for call in 1..=4 {
        let acquire = limiter.acquire("user-4", "gpt-4").take("rpm", 1);
        match acquire.take("tpm", 1_500).send().await? {
            Decision::Granted(mut grant) => {
                let _ = grant.adjust("tpm", 1_000 + call).await?;
                println!("call {call}: granted");
            }
            Decision::Denied(denied) => println!("call {call}: {denied}"),
            other => println!("call {call}: {other:?}"),
        }
    }
    Ok(())
}
