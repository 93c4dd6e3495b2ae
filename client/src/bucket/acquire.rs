//! Decides a request on one bucket.

use std::sync::Arc;

use tokio::time::Instant;

use super::hold::Hold;
use super::prefetch;
use super::prefetch::Pool;
use super::route::acquire_from_table;
use super::state::BucketState;
use crate::session::Session;
use crate::values::{BucketRequest, Error, Outcome};

/// Decides a request until the deadline, from the pool of prefetched tokens or from the table.
pub(crate) async fn acquire(
    session: &Arc<Session>,
    bucket: &Arc<BucketState>,
    request: &BucketRequest,
    deadline: Instant,
) -> Result<Outcome<Hold>, Error> {
    match &bucket.pool {
        Some(pool) if Pool::supports(request) => {
            prefetch::acquire(session, bucket, pool, request, deadline).await
        }
        _ => acquire_from_table(session, bucket, request, Instant::now(), deadline).await,
    }
}
