//! The denial that a stamp implies for a request, and how long it is valid.

use std::time::Duration;

use weirgate_shared::{BucketKey, EpochMillis, Millis, Shard, Stamp};

use crate::queue::denial_ttl;
use crate::values::{BucketRequest, Denied, LimitStatus, denial_of, status};

/// Shard count from which a stamp is used, 8: reading fewer shards costs two read units at most.
pub(super) const WORTH: u32 = 8;
/// Time ahead, 1 s, from which a stamp counts as dated by a wrong clock.
const AHEAD: Millis = Millis(1_000);

/// Returns the denial that the stamp implies for a request on a bucket with this shard count, at
/// any age.
pub(super) fn denies(
    stamp: &Stamp,
    key: &BucketKey,
    request: &BucketRequest,
    shards: u32,
    now: EpochMillis,
) -> Option<Denied> {
    if stamp.shards != shards || stamp.at > now.plus(AHEAD) {
        return None;
    }
    let mut shard = Shard::full(key.clone(), &request.limits, stamp.at);
    for limit in request.limits.iter() {
        let Some((tk, rule)) = stamp.available.get(limit.name()) else {
            continue;
        };
        let state = shard
            .limits
            .get_mut(limit.name())
            .filter(|_| rule == limit.rule())?;
        state.available = *tk;
    }
    let denied = denial_of(status(
        &shard,
        &request.limits,
        |name| request.asks.enforced(name.as_str()),
        now,
    ));
    let is_sure = |short: &LimitStatus| {
        let ready_at = short.retry_after.map(|after| now.plus(after.into()));
        stamp.available.contains_key(short.limit.as_str())
            && ready_at.is_some_and(|at| at <= stamp.until)
    };
    (denied.short().next().is_some() && denied.short().all(is_sure)).then_some(denied)
}

/// Returns whether a process with this `salt` no longer uses the stamp for `denied`.
///
/// A process stops using it in the second half of its life, the more probably the nearer the end.
/// So about one of any number of processes reads all shards again, and renews the stamp before the
/// others need to.
pub(super) fn is_over(
    stamp: &Stamp,
    denied: &Denied,
    salt: u64,
    most: Duration,
    now: EpochMillis,
) -> bool {
    let age = Duration::from(now.since(stamp.at));
    let draw = draw(&mut fastrand::Rng::with_seed(
        salt ^ stamp.at.0.unsigned_abs(),
    ));
    denied.short().any(|short| {
        let life = denial_ttl(short, age, most);
        age >= life - life * draw / 20_000
    })
}

/// Returns a random number from 0 to 10,000. Each further 1,000 is half as likely: 0 for most,
/// 10,000 for one in a thousand.
pub(super) fn draw(rng: &mut fastrand::Rng) -> u32 {
    rng.u64(..).trailing_zeros().min(9) * 1_000 + rng.u32(0..=1_000)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use weirgate_shared::{Asks, Effect, Limit, LimitName, MilliTokens};

    use super::*;
    use crate::values::Limits;

    fn number() -> impl Strategy<Value = i64> {
        prop_oneof![
            any::<i64>(),
            -1_000..1_000_i64,
            Just(i64::MIN),
            Just(i64::MAX)
        ]
    }

    proptest! {
        /// Any process of the namespace can write a stamp, even a hostile one.
        #[test]
        fn a_stamp_of_any_numbers_is_answered(
            at in number(), until in number(), available in number(), now in number(), need in number(), salt in any::<u64>(),
        ) {
            let limit = Limit::per_minute("rpm", 600).unwrap();
            let name = LimitName::new("rpm").unwrap();
            let held = BTreeMap::from([(name.clone(), (MilliTokens(available), *limit.rule()))]);
            let stamp = Stamp { at: EpochMillis(at), until: EpochMillis(until), shards: 64, available: held };
            let key = BucketKey::parse("n/BUCKET#e#r#0").unwrap();
            let request = BucketRequest {
                asks: Asks::of(Effect::Enforce, [(name, MilliTokens(need))]),
                limits: Limits::new([limit].into(), None),
                lease: None,
                timeout: Duration::from_secs(5),
                acquires: 1,
            };
            if let Some(denied) = denies(&stamp, &key, &request, 64, EpochMillis(now)) {
                prop_assert!(denied.short().next().is_some());
                let _ = is_over(&stamp, &denied, salt, Duration::MAX, EpochMillis(now));
            }
            prop_assert!(denies(&stamp, &key, &request, 32, EpochMillis(now)).is_none());
        }
    }
}
