//! Decisions while DynamoDB is unavailable.

use weirgate_store::ErrorKind;

use super::decision::Decision;
use super::grant::{BucketGrant, Granted, Uncounted};
use super::local::LocalBuckets;
use crate::bucket::BucketTarget;
use crate::session::Session;
use crate::values::{AcquireOptions, Degraded, Denied, Error, OnUnavailable, count, merge_two};

/// Returns whether `error` shows that DynamoDB is unavailable.
fn is_unavailable(session: &Session, error: &Error) -> bool {
    // One throttled bucket or index does not make DynamoDB unavailable, but several buckets do: a
    // saturated table on demand names the key range for every throttle.
    let is_busy = |kind| match kind {
        ErrorKind::Conflict | ErrorKind::IndexThrottled => true,
        ErrorKind::Throttled { key_range: true } => !session.breaker.is_saturated(),
        _ => false,
    };
    let is_away = |kind| !is_busy(kind) && ErrorKind::is_transient(kind);
    match error {
        Error::Unavailable { .. } => true,
        Error::Store(error) => is_away(error.kind),
        // Without an error, contention took the time, or the gaps between writes to a throttled item.
        Error::Timeout { last: None, .. } => session.breaker.is_saturated(),
        Error::Timeout { last: Some(error), .. } => is_away(error.kind),
        _ => false,
    }
}

/// Returns the decision in place of `error`, if DynamoDB is unavailable and a fallback is set.
/// `targets` is `None` if not even the limits could be read.
///
/// A request that bypasses the limits is granted whenever it could not be counted in time: its
/// decision needs no table. What only the table can do fails, whatever is set or stored: its caller
/// must know that it was not done. A request of which every limit is soft or in shadow mode is granted
/// whatever is set, because nothing denies it.
pub(crate) fn fall_back(
    session: &Session,
    local_buckets: &LocalBuckets,
    options: AcquireOptions,
    targets: Option<&[BucketTarget]>,
    error: Error,
) -> Result<Decision<Granted>, Error> {
    let is_bypass = options.is_bypass && error.is_transient();
    if !is_bypass && (options.needs_table || !is_unavailable(session, &error)) {
        return Err(error);
    }
    let on_unavailable = match is_bypass {
        true => OnUnavailable::Allow,
        false => session.on_unavailable(options.on_unavailable),
    };
    let can_deny = |target: &BucketTarget| target.denying().next().is_some();
    let is_shadow = match targets {
        Some(targets) if !targets.is_empty() => !targets.iter().any(can_deny),
        _ => session.settings.is_shadow || options.is_shadow,
    };
    let on_unavailable = match on_unavailable {
        OnUnavailable::Deny | OnUnavailable::Error if is_shadow => OnUnavailable::Allow,
        // A local bucket needs limits.
        OnUnavailable::Local { .. } if is_shadow && targets.is_none() => OnUnavailable::Allow,
        other => other,
    };
    let degraded = Degraded { reason: error.to_string() };
    let denied = |denied: Denied| {
        Ok(Decision::Denied(Denied { degraded: Some(degraded.clone()), ..denied }))
    };
    // What a vendor asked for holds without DynamoDB, too.
    let by_pause =
        |target: &BucketTarget| target.bucket.denied_by_pause(&session.env, &target.request);
    let enforcing = targets.iter().flat_map(|all| *all).filter(|target| can_deny(target));
    let paused = enforcing.map(by_pause).fold(None, merge_two);
    let answer = match (on_unavailable, targets, paused) {
        (OnUnavailable::Allow | OnUnavailable::Local { .. }, _, Some(paused)) => denied(paused),
        (OnUnavailable::Error, ..) => return Err(error),
        (OnUnavailable::Deny, ..) => {
            let left = if let Error::Unavailable { retry_after, .. } = &error {
                *retry_after
            } else {
                session.breaker.pause()
            };
            denied(Denied {
                retry_after: Some(left),
                starts_in: None,
                limits: vec![],
                degraded: None,
                missing_plan: None,
            })
        }
        (OnUnavailable::Allow, targets, _) => Ok(Decision::Granted(Granted {
            by_bucket: targets.iter().flat_map(|all| *all).map(BucketGrant::uncounted).collect(),
            degraded: Some(degraded),
            uncounted: match targets {
                Some(_) => Uncounted::default(),
                None => Uncounted::Any,
            },
            missing_plan: None,
        })),
        (OnUnavailable::Local { .. }, None, _) => return Err(error),
        (OnUnavailable::Local { percent }, Some(targets), _) => {
            match local_buckets.take(targets, percent, session.env.ages.time()) {
                Ok(holds) => {
                    let one =
                        |(local, target)| BucketGrant { local, ..BucketGrant::uncounted(target) };
                    Ok(Decision::Granted(Granted {
                        by_bucket: holds.into_iter().zip(targets).map(one).collect(),
                        degraded: Some(degraded),
                        uncounted: Uncounted::default(),
                        missing_plan: None,
                    }))
                }
                Err(short) => denied(short),
            }
        }
    };
    count(&session.env.counters.degraded, 1);
    tracing::debug!(%error, "decided without the table");
    answer
}
