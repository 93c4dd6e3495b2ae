//! Writes objects, and tells what became of each.

use std::time::SystemTime;

use futures_util::StreamExt;
use tokio::time::Instant;

use crate::bucket::{Bucket, PutError, Written};
use crate::plan::Object;

/// Concurrent requests.
const CONCURRENCY: usize = 8;

/// Writes `objects`, and returns what became of each, in their order. None is begun after `stop`,
/// and what is not done by then is out of time.
pub async fn execute(
    bucket: &Bucket,
    objects: &[Object],
    time: SystemTime,
    stop: Instant,
) -> Vec<Result<Written, PutError>> {
    let put = async |object| {
        let done = tokio::time::timeout_at(stop, bucket.put(object, time));
        done.await.unwrap_or(Err(PutError::OutOfTime))
    };
    futures_util::stream::iter(objects)
        .map(put)
        .buffered(CONCURRENCY)
        .collect()
        .await
}
