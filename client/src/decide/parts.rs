//! How many buckets and shards one grant can have: each settlement writes all of them.

use weirgate_shared::MAX_SHARDS;

use crate::bucket::BucketTarget;
use crate::values::Error;

/// Most buckets of one grant.
pub(crate) const MAX_BUCKETS: usize = 100;
/// Most parts of one grant, each of a shard, so most writes of one settlement.
pub(crate) const MAX_PARTS: usize = 1_024;

/// Requires that a grant of these targets could be settled, `held` parts included, in whatever shards
/// it is taken from. Nothing is taken before.
pub(super) fn check_targets(targets: &[BucketTarget], held: usize) -> Result<(), Error> {
    let count = targets.len();
    if count > MAX_BUCKETS {
        return Err(Error::Invalid(format!(
            "a request takes from {MAX_BUCKETS} buckets at most, with the ancestors of its entities, got {count}: request fewer, or shorten the chain of parents"
        )));
    }
    let most = usize::try_from(MAX_SHARDS).unwrap_or(usize::MAX);
    // Whatever the number of shards is, so few buckets have fewer parts.
    if held == 0 && count.saturating_mul(most) <= MAX_PARTS {
        return Ok(());
    }
    let shards = targets
        .iter()
        .map(|target| target.bucket.queues.all().len().max(1));
    check_parts(shards.sum::<usize>().saturating_add(held))
}

/// Requires that one settlement does not write too much.
pub(super) fn check_parts(parts: usize) -> Result<(), Error> {
    match parts <= MAX_PARTS {
        true => Ok(()),
        false => Err(Error::Invalid(format!(
            "a grant can have {MAX_PARTS} parts, one for each shard that gave something, got {parts}: request fewer buckets, or settle the grant and acquire again"
        ))),
    }
}
