//! Bodies of bounded size, read in bounded time and memory.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Incoming};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::refusal::Refusal;

/// Largest body of a request, in bytes.
const MAX_BODY: usize = 64 * 1024;
/// Bodies up to this size need no permit while they arrive.
const SMALL: u64 = 4 * 1024;
/// How many larger bodies may arrive at once: 16 MiB of memory at most.
pub(super) const LARGE_BODIES: usize = 256;
/// Time for a body to arrive.
const ARRIVAL: Duration = Duration::from_secs(10);
/// How much of a body that is too large is read and discarded, so that its sender reads the answer.
const DISCARDED: usize = 16 * 1024 * 1024;

/// Reads a body. `large` has a permit for each larger body that may arrive at once.
pub(super) async fn read(mut body: Incoming, large: &Semaphore) -> Result<Bytes, Refusal> {
    let length = body.size_hint().exact();
    let is_large = length.is_none_or(|length| length > SMALL);
    let _permit = match is_large {
        true => Some(large.try_acquire().map_err(|_| {
            Refusal::overloaded("too many large bodies are arriving at once".to_owned())
        })?),
        false => None,
    };
    let whole = async {
        let first = next(&mut body).await?;
        if body.is_end_stream() && first.len() <= MAX_BODY {
            return Ok(first);
        }
        rest(first, body, length).await
    };
    timeout(ARRIVAL, whole).await.unwrap_or_else(|_| {
        Err(Refusal::timeout(format!(
            "the body must arrive within {ARRIVAL:?}: send it at once"
        )))
    })
}

async fn rest(first: Bytes, mut body: Incoming, length: Option<u64>) -> Result<Bytes, Refusal> {
    let mut all = Vec::from(first);
    let mut arrived = all.len();
    let announced = length.and_then(|length| usize::try_from(length).ok());
    let is_too_large = |arrived| arrived > MAX_BODY || announced.is_some_and(|all| all > MAX_BODY);
    while !body.is_end_stream() && arrived <= DISCARDED {
        let part = next(&mut body).await?;
        arrived += part.len();
        if is_too_large(arrived) {
            all = vec![];
        } else {
            all.extend_from_slice(&part);
        }
    }
    match is_too_large(arrived) {
        true => Err(Refusal::too_large(announced.unwrap_or(arrived), MAX_BODY)),
        false => Ok(all.into()),
    }
}

/// Returns the next part; empty at the end.
async fn next(body: &mut Incoming) -> Result<Bytes, Refusal> {
    loop {
        match body.frame().await {
            None => return Ok(Bytes::new()),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(data);
                }
            }
            Some(Err(error)) => {
                let detail = format!("the body did not arrive whole: {error}; send it again");
                return Err(Refusal::invalid(detail));
            }
        }
    }
}
