//! Bodies of bounded size, read in bounded time and memory.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Incoming};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::refusal::Refusal;

/// Largest body of a request, in bytes.
pub(super) const MAX_BODY: usize = 64 * 1024;
/// Largest body of a settlement, in bytes, because it has a grant. A limit is at most 350 bytes of
/// that, so 100 buckets of 20 limits are 700 KB. What is taken more adds 200 bytes each time.
pub(super) const MAX_SETTLEMENT: usize = 2 * 1024 * 1024;
/// Bodies up to this size need no permit while they arrive.
const SMALL: u64 = 4 * 1024;
/// How many larger bodies of [`MAX_BODY`] may arrive at once: 16 MiB of memory at most. A larger
/// one counts as several.
pub(super) const LARGE_BODIES: usize = 256;
/// Time for a body to arrive.
const ARRIVAL: Duration = Duration::from_secs(10);
/// How much of a body that is too large is read and discarded, so that its sender reads the answer.
const DISCARDED: usize = 16 * 1024 * 1024;

/// Reads a body of at most `most` bytes. `large` has [`LARGE_BODIES`] permits.
pub(super) async fn read(
    mut body: Incoming,
    most: usize,
    large: &Semaphore,
) -> Result<Bytes, Refusal> {
    let length = body.size_hint().exact();
    let _permits = large.try_acquire_many(permits(length, most)).map_err(|_| {
        Refusal::overloaded("too many large bodies are arriving at once".to_owned())
    })?;
    let whole = async {
        let first = next(&mut body).await?;
        if body.is_end_stream() && first.len() <= most {
            return Ok(first);
        }
        rest(first, body, length, most).await
    };
    timeout(ARRIVAL, whole).await.unwrap_or_else(|_| {
        Err(Refusal::timeout(format!(
            "the body must arrive within {ARRIVAL:?}: send it at once"
        )))
    })
}

/// Returns the permits that a body needs: one for each [`MAX_BODY`] of memory that it may take.
fn permits(length: Option<u64>, most: usize) -> u32 {
    let length = length.map_or(most, |length| {
        usize::try_from(length).unwrap_or(most).min(most)
    });
    match u64::try_from(length) {
        Ok(length) if length <= SMALL => 0,
        _ => u32::try_from(length.div_ceil(MAX_BODY)).unwrap_or(u32::MAX),
    }
}

async fn rest(
    first: Bytes,
    mut body: Incoming,
    length: Option<u64>,
    most: usize,
) -> Result<Bytes, Refusal> {
    let mut all = Vec::from(first);
    let mut arrived = all.len();
    let announced = length.and_then(|length| usize::try_from(length).ok());
    let is_too_large = |arrived| arrived > most || announced.is_some_and(|all| all > most);
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
        true => Err(Refusal::too_large(announced.unwrap_or(arrived), most)),
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
