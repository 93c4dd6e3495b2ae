//! The first acquires: three calls a minute are granted, the fourth is denied, and the usage of the
//! day has what the calls really used.
//!
//! ```sh
//! cargo run -p weirgate --all-features --example start
//! ```

mod place;

use std::process::ExitCode;

use place::{Outcome, Place, run};
use weirgate::{Decision, Limit, Window};

fn main() -> ExitCode {
    run(start)
}

async fn start(place: Place) -> Outcome {
    let limiter = place.builder().owner("start").build().await?;
    let limits = [
        Limit::per_minute("rpm", 3)?,
        Limit::per_minute("tpm", 10_000)?,
    ];
    for call in 1..=4 {
        let decision = limiter
            .acquire("user-1", "gpt-4") // an entity, and a resource
            .limits(&limits)
            .take("rpm", 1)
            .take("tpm", 1_500) // an estimate
            .send()
            .await?;
        match decision {
            Decision::Granted(mut grant) => {
                let used = ask_the_model(call);
                if let Err(error) = grant.adjust("tpm", used).await {
                    eprintln!("call {call} could not be adjusted: {error}"); // its answer is there
                }
                println!("call {call}: granted, used {used} tokens");
            }
            Decision::Denied(denied) => {
                let limits: Vec<_> = denied.short().map(|short| &*short.limit).collect();
                let seconds = denied.retry_after.unwrap_or_default().as_secs_f64().ceil();
                println!("call {call}: denied by {limits:?}, again in {seconds} s");
            }
            other => println!("call {call}: {other:?}"),
        }
    }
    let today = limiter.usage("user-1", "gpt-4", Window::Daily, place.now());
    let usage = today.await?.usage;
    println!(
        "today: {} calls, {} tokens",
        usage.acquires, usage.tokens["tpm"]
    );
    Ok(())
}

/// Stands for the vendor's API. Returns the tokens that its answer says were used.
fn ask_the_model(call: i64) -> i64 {
    1_000 + 100 * call
}
