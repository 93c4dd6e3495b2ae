//! A Lambda function that limits its callers, and logs its metrics in the embedded metric format
//! (EMF): CloudWatch reads them from the log, so nothing is sent.
//!
//! ```sh
//! cargo lambda build --release -p weirgate --example metrics_emf
//! ```
//!
//! It needs the variable `TABLE_NAME`, and the permissions of the stack's policy for callers. An
//! event is `{"caller": "alice", "jobs": 3}`, its answer how many jobs may run.

use std::io::stdout;

use lambda_runtime::{Error, LambdaEvent, run, service_fn};
use metrics_cloudwatch_embedded::Builder;
use serde::{Deserialize, Serialize};
use weirgate::{Limit, RateLimiter};

#[derive(Deserialize)]
struct Request {
    caller: String,
    jobs: u32,
}

#[derive(Debug, Default, Serialize)]
struct Answer {
    granted: u32,
    denied: u32,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    // The recorder comes first: a limiter describes its metrics when it is built.
    let function = std::env::var("AWS_LAMBDA_FUNCTION_NAME")?;
    let metrics =
        Builder::new().cloudwatch_namespace("Jobs").with_dimension("function", function).init()?;
    let limiter = RateLimiter::builder(std::env::var("TABLE_NAME")?).build().await?;
    let limits = [Limit::per_hour("jobs", 10)?];

    let handler = async |event: LambdaEvent<Request>| {
        let answer = handle(&limiter, &limits, &event.payload).await;
        // Before the answer, because Lambda freezes the process after it. Counters start at 0
        // again, so each document has what this invocation did.
        metrics.set_property("request_id", event.context.request_id).flush(stdout().lock())?;
        answer
    };
    run(service_fn(handler)).await
}

/// Starts as many jobs as the caller may.
async fn handle(
    limiter: &RateLimiter,
    limits: &[Limit],
    request: &Request,
) -> Result<Answer, Error> {
    let mut answer = Answer::default();
    for _ in 0..request.jobs {
        let acquire = limiter.acquire(&request.caller, "jobs").limits(limits);
        let decision = acquire.take("jobs", 1).send().await?;
        if decision.is_granted() {
            answer.granted += 1; // ... run the job ...
        } else {
            answer.denied += 1;
        }
    }
    Ok(answer)
}
