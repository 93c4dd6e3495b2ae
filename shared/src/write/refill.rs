//! Crediting refill to a shard before its available tokens run out.

use std::collections::BTreeMap;

use super::credit::BalanceUpdate;
use super::{
    AttributeUpdate, Path, Update, Value, count_write, require_limits, require_refilled_at,
};
use crate::attr;
use crate::math::refill_between;
use crate::{EpochMillis, LimitName, LimitState, MilliTokens, Millis, Shard};

/// Minimum time between two moves of `rf`. Takes compute refill themselves, and those that require
/// `rf` fail when it moves. Moving it with every batch would starve them.
const MIN_REFILL_INTERVAL: Millis = Millis(200);

/// Credits `image` if a limit has something, but less than twice the `consumed` of the batch that the
/// image is from, its refill until now included. Later takes then find enough without a known `rf`.
/// Where there is more, or nothing and a line, processes know `rf`, and a moved one fails the next take
/// of each.
///
/// Requires the image's `rf`, so it is applied once, and is exact whatever was taken since the
/// image.
#[must_use]
pub fn refill(
    image: &Shard,
    consumed: &BTreeMap<LimitName, MilliTokens>,
    now: EpochMillis,
) -> Option<Update> {
    let flowed =
        |state: &LimitState| refill_between(&state.rule, image.shard(), image.refilled_at, now);
    let is_hungry = |(name, state): (&LimitName, &LimitState)| {
        let used = consumed.get(name).copied().unwrap_or_default();
        let balance = (state.available + flowed(state)).min(image.share(state));
        flowed(state) > MilliTokens::ZERO && balance > MilliTokens::ZERO && balance < used + used
    };
    let is_fresh = now.since(image.refilled_at) < MIN_REFILL_INTERVAL;
    if is_fresh || !image.limits.iter().any(is_hungry) {
        return None;
    }
    let mut update = Update {
        key: image.key.item_key(),
        conditions: require_refilled_at(image).into(),
        changes: count_write(),
    };
    update.changes.push(AttributeUpdate::Set(Path::of(attr::REFILLED_AT), Value::Int(now.0)));
    for (name, state) in image.limits.iter().filter(|(_, state)| state.rule.kind().refills()) {
        let credit = BalanceUpdate::credit(flowed(state), image.share(state));
        credit.write(&mut update, name, state);
    }
    require_limits(&mut update, image);
    Some(update)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{BucketKey, Every, Limit};

    /// A new window begins with a take, which knows its end.
    #[test]
    fn a_quota_is_not_refilled_before_and_after_its_end() {
        let (start, now) = (EpochMillis(1_700_000_000_000), EpochMillis(1_700_000_001_000));
        let quotas = [
            Limit::quota("month", 10, Every::month()).unwrap(),
            Limit::session("hours", 10, Duration::from_hours(5)).unwrap(),
        ];
        let rate = Limit::custom("rpm", 10, 1, 100).unwrap();
        for end in [start, now.plus(Millis(1)), now.plus(Millis(9_000))] {
            let shard = |limits: &[Limit]| {
                let key = BucketKey::parse("default/BUCKET#e-1#gpt-4#0").unwrap();
                let mut shard = Shard::full(key, limits, start);
                for state in shard.limits.values_mut() {
                    state.available = MilliTokens::from_tokens(1);
                    if state.rule.kind().has_window() {
                        state.window_end = end;
                    }
                }
                shard
            };
            let used = |shard: &Shard| {
                let names = shard.limits.keys().cloned();
                names.map(|name| (name, MilliTokens::from_tokens(30))).collect()
            };
            let alone = shard(&quotas);
            assert_eq!(refill(&alone, &used(&alone), now), None, "{end:?}");
            let [month, hours] = quotas.clone();
            let both = shard(&[month, rate.clone(), hours]);
            let update = refill(&both, &used(&both), now).expect("the rate is refilled");
            let changed = update.changes.iter().map(|change| change.path().0[0].to_string());
            let mut balances: Vec<_> = changed.filter(|name| name.starts_with("b_")).collect();
            balances.dedup();
            assert_eq!(balances, ["b_rpm_tk"], "{end:?}");
        }
    }
}
